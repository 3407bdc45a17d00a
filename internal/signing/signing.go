// Package signing has those who enqueue calls sign them, so that a worker runs nothing that another
// worker made up. Keys are Ed25519 (RFC 8032) in PEM files, as openssl makes them.
package signing

import (
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
	"time"

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
	parsed, err := x509.ParsePKCS8PrivateKey(blocks[0])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	key, ok := parsed.(ed25519.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("%s is a key of type %T: must be of Ed25519 (openssl genpkey -algorithm ed25519)", file, parsed)
	}
	return newSigner(key)
}

func newSigner(key ed25519.PrivateKey) (*Signer, error) {
	public, ok := key.Public().(ed25519.PublicKey)
	if !ok {
		return nil, errors.New("the key has no public part")
	}
	return &Signer{id: idOf(public), key: key}, nil
}

// Sign returns the value of [protocol.HeaderSigned] for the body of a call that is enqueued now.
func (s *Signer) Sign(fleet protocol.Fleet, body []byte, now time.Time) string {
	at := strconv.FormatInt(now.UnixMilli(), 10)
	return s.id + " " + at + " " + base64.RawURLEncoding.EncodeToString(ed25519.Sign(s.key, message(fleet, at, body)))
}

// message is what is signed: the domain, the fleet, the time and the call, which names its session,
// resources, pool, delivery and times, and the digest of a payload that is stored apart.
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
func read(file, kind string) ([][]byte, error) {
	content, err := os.ReadFile(file) //nolint:gosec // the operator names it
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, errors.Unwrap(err))
	}
	if len(content) > maxFile {
		return nil, fmt.Errorf("%s has %d bytes: at most %d are allowed", file, len(content), maxFile)
	}
	var blocks [][]byte
	for block, rest := pem.Decode(content); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != kind {
			return nil, fmt.Errorf("%s has a block %q: must be %q", file, block.Type, kind)
		}
		blocks = append(blocks, block.Bytes)
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
	for _, part := range []struct {
		file, kind string
		marshal    func() ([]byte, error)
	}{ // the private key last: with it both are there
		{PublicFile, publicBlock, func() ([]byte, error) { return x509.MarshalPKIXPublicKey(public) }},
		{PrivateFile, privateBlock, func() ([]byte, error) { return x509.MarshalPKCS8PrivateKey(private) }},
	} {
		der, err := part.marshal()
		if err == nil {
			err = replace(filepath.Join(dir, part.file), pem.EncodeToMemory(&pem.Block{Type: part.kind, Bytes: der}))
		}
		if err != nil {
			return nil, fmt.Errorf("make a key for calls: %w", err)
		}
	}
	return newSigner(private)
}

func replace(file string, content []byte) error {
	part := file + ".part"
	if err := os.WriteFile(part, content, 0o600); err != nil {
		return fmt.Errorf("write key: %w", err)
	}
	if err := os.Rename(part, file); err != nil {
		return fmt.Errorf("write key: %w", err)
	}
	return nil
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

// split takes a header's value apart.
func split(value string) (id, at string, sig []byte, err error) {
	parts := strings.Split(value, " ")
	if len(parts) != 3 {
		return "", "", nil, errors.New("its signature has another form")
	}
	sig, err = base64.RawURLEncoding.DecodeString(parts[2])
	if err != nil || len(sig) != ed25519.SignatureSize {
		return "", "", nil, errors.New("its signature has another form")
	}
	return parts[0], parts[1], sig, nil
}
