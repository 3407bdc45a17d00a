// Package signing has those who enqueue calls sign them, so that a worker runs nothing that another
// worker made up. Keys are Ed25519 (RFC 8032) in PEM files, as openssl makes them.
package signing

import (
	"cmp"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/toolfleet/toolfleet/internal/system/regular"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

const (
	// Window is how far the time of a signature may be from when the server stored the call: what
	// was signed once is no call for later. Clocks of coordinators and servers have to agree on it.
	Window = 10 * time.Minute

	privateBlock = "PRIVATE KEY"
	publicBlock  = "PUBLIC KEY"
	maxFile      = 64 << 10
)

// Signer signs calls. It is safe for concurrent use.
type Signer struct {
	id  string
	key ed25519.PrivateKey

	mu   sync.Mutex
	open *batch    // that calls are added to; nil when there is none
	next time.Time // when the next signature is made, while many are wanted
}

// batch is calls that are signed together: the leaves of a Merkle tree (RFC 6962) whose root is
// signed.
type batch struct {
	hashes []tlog.Hash // as tlog stores a tree
	size   int64
	root   tlog.Hash
	sig    []byte
	fault  error
	done   chan struct{}
}

// ReadHashes implements [tlog.HashReader].
func (b *batch) ReadHashes(indexes []int64) ([]tlog.Hash, error) {
	found := make([]tlog.Hash, len(indexes))
	for i, at := range indexes {
		found[i] = b.hashes[at]
	}
	return found, nil
}

// Load reads a private key: PEM with one PKCS #8 block, as "openssl genpkey -algorithm ed25519"
// writes it. Errors say what is wrong with the file.
func Load(file string) (*Signer, error) {
	blocks, err := read(file, privateBlock)
	if err != nil {
		return nil, err
	}
	if len(blocks) != 1 {
		return nil, fmt.Errorf("%s has %d private keys: must be 1", file, len(blocks))
	}
	parsed, err := x509.ParsePKCS8PrivateKey(blocks[0].Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	key, ok := parsed.(ed25519.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("%s is a key of type %T: must be of Ed25519 (openssl genpkey -algorithm ed25519)", file, parsed)
	}
	return newSigner(key), nil
}

func newSigner(key ed25519.PrivateKey) *Signer {
	return &Signer{id: idOf(ed25519.PublicKey(key[ed25519.SeedSize:])), key: key}
}

const (
	// perSignature is the time between two signatures when many are wanted, so that they cost
	// little compared with the calls; burst of them are made without waiting.
	perSignature = time.Millisecond
	burst        = 16
)

// ID names the key; "" without a signer.
func (s *Signer) ID() string {
	if s == nil {
		return ""
	}
	return s.id
}

// Kind is what a record is whose signature a [Signer] makes: that of one kind is none of another.
type Kind string

// The kinds of records.
const (
	KindSchedule Kind = "schedule"
	KindToken    Kind = "token"
)

// SignRecord returns the signature of a record. It has no time: it counts for as long as the record
// is stored, for processes with the same key.
func (s *Signer) SignRecord(fleet protocol.Fleet, kind Kind, record []byte) string {
	return base64.RawURLEncoding.EncodeToString(ed25519.Sign(s.key, recorded(fleet, kind, record)))
}

// HasSigned reports whether a signature is that of SignRecord with the same key.
func (s *Signer) HasSigned(fleet protocol.Fleet, kind Kind, record []byte, signature string) bool {
	sig, err := base64.RawURLEncoding.DecodeString(signature)
	return err == nil && ed25519.Verify(s.key.Public().(ed25519.PublicKey), recorded(fleet, kind, record), sig) //nolint:errcheck,forcetypeassert // documented
}

// recorded is what a signature of a record signs.
func recorded(fleet protocol.Fleet, kind Kind, record []byte) []byte {
	return append([]byte("toolfleet "+string(kind)+" 1\n"+string(fleet)+"\n"), record...)
}

// Sign returns the value of [wire.HeaderSigned] for the body of a call that is enqueued now. It
// may wait for a few milliseconds, so that one signature is for all calls of that time.
func (s *Signer) Sign(fleet protocol.Fleet, body []byte, now time.Time) (string, error) {
	at := strconv.FormatInt(now.UnixMilli(), 10)
	leaf := tlog.RecordHash(message(fleet, at, body))
	b, index, first := s.join(leaf)
	if first {
		s.sign(b)
	}
	<-b.done
	return s.value(b, index, at)
}

// value is what a call of a signed batch carries.
func (s *Signer) value(b *batch, index int64, at string) (string, error) {
	if b.fault != nil {
		return "", fmt.Errorf("sign a call: %w", b.fault)
	}
	proof, err := tlog.ProveRecord(b.size, index, b)
	if err != nil {
		return "", fmt.Errorf("sign a call: %w", err)
	}
	return signature{s.id, at, b.size, index, b.root, b.sig, proof}.String(), nil
}

// join adds a call to the open batch.
func (s *Signer) join(leaf tlog.Hash) (b *batch, index int64, first bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if first = s.open == nil; first {
		s.open = &batch{done: make(chan struct{})}
	}
	b = s.open
	index = b.size
	hashes, err := tlog.StoredHashesForRecordHash(index, leaf, b)
	b.hashes, b.fault = append(b.hashes, hashes...), cmp.Or(b.fault, err)
	b.size++
	return b, index, first
}

// sign signs a batch when it is time for one more signature.
func (s *Signer) sign(b *batch) {
	defer close(b.done)
	s.mu.Lock()
	now := time.Now()
	if early := now.Add(-burst * perSignature); s.next.Before(early) {
		s.next = early
	}
	wait := s.next.Sub(now)
	s.next = s.next.Add(perSignature)
	s.mu.Unlock()
	timer := time.NewTimer(wait)
	<-timer.C
	s.mu.Lock()
	s.open = nil // no call joins it any more
	s.mu.Unlock()
	if b.fault == nil {
		b.root, b.fault = tlog.TreeHash(b.size, b)
		b.sig = ed25519.Sign(s.key, rooted(b.root))
	}
}

// rooted is what a signature of a batch signs.
func rooted(root tlog.Hash) []byte { return append([]byte("toolfleet calls 1\n"), root[:]...) }

// message is a leaf of what is signed: the domain, the fleet, the time and the call, which names
// its session, resources, pool, delivery and times, and the digest of a payload that is stored
// apart.
func message(fleet protocol.Fleet, at string, body []byte) []byte {
	head := "toolfleet call 1\n" + string(fleet) + "\n" + at + "\n"
	return append([]byte(head), body...)
}

// idOf names a public key: the first 8 bytes of its SHA-256.
func idOf(key ed25519.PublicKey) string {
	sum := sha256.Sum256(key)
	return hex.EncodeToString(sum[:8])
}

// read returns the blocks of a type of a PEM file.
func read(file, kind string) ([]*pem.Block, error) {
	content, err := regular.Read(file, maxFile)
	if errors.Is(err, os.ErrNotExist) {
		name := map[string]string{privateBlock: PrivateFile, publicBlock: PublicFile}[kind]
		return nil, fmt.Errorf("%s: %w; %s", file, errors.Unwrap(err), madeBeside(name))
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, errors.Unwrap(err))
	}
	var blocks []*pem.Block
	for block, rest := pem.Decode(content); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != kind {
			return nil, fmt.Errorf("%s has a block %q: must be %q", file, block.Type, kind)
		}
		blocks = append(blocks, block)
	}
	if len(blocks) == 0 {
		return nil, fmt.Errorf("%s has no block %q (PEM)", file, kind)
	}
	return blocks, nil
}

// Files of the key pair that [Make] makes.
const (
	PrivateFile = "calls.key"
	PublicFile  = "calls.pub"
)

// madeBeside says where a file of the key pair is.
func madeBeside(name string) string {
	return "coordinator serve makes " + name + " next to its nats.token"
}

// Make returns the signer of a directory, and makes its key pair when there is none.
func Make(dir string) (*Signer, error) {
	file := filepath.Join(dir, PrivateFile)
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
		return Load(file)
	}
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a key for calls: %w", err)
	}
	publicDER, publicErr := x509.MarshalPKIXPublicKey(public)
	privateDER, privateErr := x509.MarshalPKCS8PrivateKey(private)
	if err = errors.Join(publicErr, privateErr, write(filepath.Join(dir, PublicFile), publicBlock, publicDER)); err == nil {
		err = write(file, privateBlock, privateDER) // last: with it both are there
	}
	if err != nil {
		return nil, fmt.Errorf("make a key for calls: %w", err)
	}
	return newSigner(private), nil
}

// write writes a file of PEM with one block.
func write(file, kind string, der []byte) error {
	return regular.Replace(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

// Beside returns the private key's file in the directory of a file, "" when there is none.
func Beside(file string) string {
	if file == "" {
		return ""
	}
	key := filepath.Join(filepath.Dir(file), PrivateFile)
	if _, err := os.Stat(key); err != nil {
		return ""
	}
	return key
}

// signature is the value of a header.
type signature struct {
	id, at      string
	size, index int64 // of the batch, and of the call in it
	root        tlog.Hash
	sig         []byte
	proof       tlog.RecordProof
}

func (s signature) String() string {
	bytes := append(append([]byte{}, s.root[:]...), s.sig...)
	for _, hash := range s.proof {
		bytes = append(bytes, hash[:]...)
	}
	return strings.Join([]string{
		s.id, s.at, strconv.FormatInt(s.size, 10), strconv.FormatInt(s.index, 10), base64.RawURLEncoding.EncodeToString(bytes),
	}, " ")
}

// parse reads the value of a header.
func parse(value string) (s signature, err error) {
	parts := strings.Split(value, " ")
	if len(parts) != 5 {
		return s, errForm
	}
	s.id, s.at = parts[0], parts[1]
	var faults [3]error
	s.size, faults[0] = strconv.ParseInt(parts[2], 10, 64)
	s.index, faults[1] = strconv.ParseInt(parts[3], 10, 64)
	bytes, fault := base64.RawURLEncoding.DecodeString(parts[4])
	faults[2] = fault
	if errors.Join(faults[:]...) != nil || s.index < 0 || s.index >= s.size ||
		len(bytes) < tlog.HashSize+ed25519.SignatureSize || (len(bytes)-ed25519.SignatureSize)%tlog.HashSize != 0 {
		return s, errForm
	}
	s.root = tlog.Hash(bytes)
	bytes = bytes[tlog.HashSize:]
	s.sig, bytes = bytes[:ed25519.SignatureSize], bytes[ed25519.SignatureSize:]
	for ; len(bytes) > 0; bytes = bytes[tlog.HashSize:] {
		s.proof = append(s.proof, tlog.Hash(bytes))
	}
	return s, nil
}

var errForm = errors.New("its signature has another form")
