package signing

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// readAgain is the least time between two looks whether the file of keys has changed.
const readAgain = time.Second

// Keys checks signatures with the public keys of a file. It is safe for concurrent use.
type Keys struct {
	file string  // "" of a coordinator without one
	own  *Signer // nil of a worker

	mu     sync.Mutex
	keys   map[string]trusted // by their ids
	roots  map[signed]bool    // that are known to be signed; bounded by maxRoots
	stamp  time.Time          // of the file
	looked time.Time
}

// trusted is a key, and the principal who signs with it: of a tenant, it signs calls of no other.
type trusted struct {
	ed25519.PublicKey

	who *judge.Principal
}

func trust(id string, key ed25519.PublicKey, tenant protocol.Tenant) trusted {
	return trusted{key, &judge.Principal{Known: judge.ByKey, Name: id, Tenant: tenant}}
}

// tenantHeader is the header of a PEM block that names the tenant of its key.
const tenantHeader = "Tenant"

// signed is the root of a batch, and whose key has signed it.
type signed struct {
	id   string
	root tlog.Hash
}

const maxRoots = 4096

// Open reads public keys: PEM with a block for each, as "openssl pkey -pubout" writes it. Several
// are there while keys change. The file is read again when it has changed; while it cannot be read,
// the keys are those of before. A block with a header "Tenant: acme" is a key of that tenant, which
// signs no calls of others.
func Open(file string) (*Keys, error) {
	k := &Keys{file: file}
	return k, k.read()
}

// OpenFor is Open for a coordinator, which also trusts its own key: no tenant is bound to it. With
// no file, "", calls that other keys or none have signed count as those of the default tenant.
func OpenFor(own *Signer, file string) (*Keys, error) {
	k := &Keys{file: file, own: own, roots: map[signed]bool{}}
	if file == "" {
		return k, nil
	}
	return k, k.read()
}

func (k *Keys) read() error {
	info, statErr := os.Stat(k.file) // first: what is written meanwhile has another time
	blocks, err := read(k.file, publicBlock)
	if err = cmp.Or(err, statErr); err != nil {
		return err
	}
	keys := map[string]trusted{}
	for i, block := range blocks {
		parsed, err := x509.ParsePKIXPublicKey(block.Bytes)
		if err != nil {
			return fmt.Errorf("%s: key %d: %w", k.file, i+1, err)
		}
		key, ok := parsed.(ed25519.PublicKey)
		if !ok {
			return fmt.Errorf("%s: key %d is of type %T: must be of Ed25519 (openssl genpkey -algorithm ed25519)", k.file, i+1, parsed)
		}
		tenant := protocol.Tenant(block.Headers[tenantHeader])
		if _, err := protocol.ParseTenant(string(tenant)); tenant != "" && err != nil {
			return fmt.Errorf("%s: key %d: %w", k.file, i+1, err)
		}
		keys[idOf(key)] = trust(idOf(key), key, tenant)
	}
	k.keys, k.stamp, k.roots = keys, info.ModTime(), map[signed]bool{}
	return nil
}

// key returns the key of an id, nil when there is none, and whether it is known to have signed.
func (k *Keys) key(s signed) (key trusted, known bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.own != nil && s.id == k.own.id {
		return trust(s.id, k.own.key.Public().(ed25519.PublicKey), ""), k.roots[s] //nolint:errcheck,forcetypeassert // documented
	}
	if k.file != "" && time.Since(k.looked) >= readAgain {
		k.looked = time.Now()
		if info, err := os.Stat(k.file); err == nil && !info.ModTime().Equal(k.stamp) {
			_ = k.read() // a file that is being written is there in a moment
		}
	}
	return k.keys[s.id], k.roots[s]
}

// remember notes that a key has signed.
func (k *Keys) remember(s signed) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.roots) >= maxRoots {
		clear(k.roots)
	}
	if k.keys[s.id].PublicKey != nil || k.own != nil && s.id == k.own.id { // it may have gone meanwhile
		k.roots[s] = true
	}
}

// Check returns no error for a call that one of the keys has signed when it was enqueued: value is
// its [wire.HeaderSigned], and stored the server's time when it was enqueued. Else the error has
// the code [codes.NotSigned]. who is the principal that has signed it.
func (k *Keys) Check(fleet protocol.Fleet, value string, body []byte, stored time.Time) (who *judge.Principal, fault *protocol.Error) {
	who, fault = k.Signed(fleet, value, body, stored)
	switch {
	case fault != nil || who.Tenant == "":
	case who.Known == judge.ByKey:
		fault = mayMake(who, body, "the call is signed with a key of tenant "+string(who.Tenant))
	default:
		fault = mayMake(who, body, "the call is not signed with a key that this coordinator trusts (serve --call-keys)")
	}
	return who, fault
}

// Signed returns the principal that has signed something, as Check does for a call. Of a
// coordinator without a file of keys, it is for unknown keys the operator of the default tenant.
func (k *Keys) Signed(fleet protocol.Fleet, value string, body []byte, at time.Time) (who *judge.Principal, _ *protocol.Error) {
	if k.own != nil && k.file == "" && !strings.HasPrefix(value, k.own.id+" ") {
		return &judge.Principal{Tenant: judge.DefaultTenant}, nil
	}
	key, fault := k.signer(fleet, value, body, at)
	return key.who, fault
}

// Giver returns who has signed an answer of a person about a session, which came on a subject; ""
// if no trusted key has, or if keys are nil, which accept every answer. The error says who may do
// what the answer does.
func (k *Keys) Giver(ctx context.Context, fleet protocol.Fleet, subject, value string, body []byte, act judge.Act, session protocol.SessionID) (by string, err error) {
	if k == nil {
		return "", nil
	}
	who, fault := k.Signed(fleet, value, answered(subject, body), time.Now())
	if fault != nil {
		return "", fmt.Errorf("%s session %s: it needs an answer that is signed with a key which is trusted there (serve --call-keys, worker --call-keys; approve --sign-key)",
			act, session)
	}
	err = judge.May(*who, act, judge.Object{Kind: judge.Session, ID: string(session), Owner: judge.Of(ctx).Owner()})
	return who.By(), err
}

// ReadAnswer reads a message that may answer a question of a session, and replies to its sender.
// who is as in [Keys.Giver]: it may use the session. A signed answer names its question, so a copy
// of it counts for no other one. The error wraps [wire.ErrInvalidBody] for a message of one who may
// not answer, and for one that is no answer, such as that of a client which checks that the
// question is open.
func (k *Keys) ReadAnswer(
	ctx context.Context, fleet protocol.Fleet, session protocol.SessionID, message *nats.Msg, question string, fits func(protocol.Answer) error,
) (answer protocol.Answer, who string, err error) {
	answer, err = wire.ReadAnswer(message.Data, question, fits)
	if !errors.Is(err, wire.ErrInvalidBody) {
		by, refused := k.Giver(ctx, fleet, message.Subject, message.Header.Get(wire.HeaderSigned), message.Data, judge.Use, session)
		if who = by; refused == nil && by != "" && answer.Question == "" {
			refused = errors.New("a signed answer names its question")
		}
		if refused != nil {
			err = fmt.Errorf("%w answer: %w", wire.ErrInvalidBody, refused)
		}
	}
	reply := &nats.Msg{Data: []byte(wire.AnswerTaken)} // it counts in any case
	if err != nil {
		reply.Data, reply.Header = []byte(err.Error()), nats.Header{wire.HeaderQuestion: {question}}
	}
	_ = message.RespondMsg(reply) // the client has gone or reads it
	return answer, who, err
}

// answered is what the signature of an answer signs. It begins as no call does, and names the call
// that the answer is about.
func answered(subject string, body []byte) []byte {
	return append([]byte("answer\n"+subject+"\n"), body...)
}

// SignAnswer returns the value of [wire.HeaderSigned] for an answer on a subject. A nil signer
// leaves it unsigned.
func (s *Signer) SignAnswer(fleet protocol.Fleet, subject string, body []byte) (string, error) {
	if s == nil {
		return "", nil
	}
	return s.Sign(fleet, answered(subject, body), time.Now())
}

func notSigned(format string, args ...any) *protocol.Error {
	return protocol.Errorf(codes.NotSigned, format+"; it was not run", args...)
}

// mayMake returns an error unless a principal may make a call: it has the tenant of the call.
func mayMake(who *judge.Principal, body []byte, signed string) *protocol.Error {
	var call struct {
		ID     protocol.CallID `json:"id"`
		Tenant protocol.Tenant `json:"tenant"`
	}
	if err := json.Unmarshal(body, &call); err != nil {
		return notSigned("the call cannot be checked: %v", err)
	}
	if err := judge.May(*who, judge.Make, judge.Object{Kind: judge.Call, ID: string(call.ID), Owner: judge.Owner{Tenant: call.Tenant}}); err != nil {
		return notSigned("%s: %v", signed, err)
	}
	return nil
}

// signer returns the key that has signed a call.
func (k *Keys) signer(fleet protocol.Fleet, value string, body []byte, stored time.Time) (trusted, *protocol.Error) {
	fault := func(format string, args ...any) (trusted, *protocol.Error) {
		return trusted{}, notSigned(format, args...)
	}
	if value == "" {
		fault := notSigned("the call is not signed, and the worker runs only signed calls (--call-keys)")
		fault.Message += ". Its sender needs the private key: --sign-key FILE, or " + PrivateFile + " next to the file of --creds; " + madeBeside(PrivateFile)
		return trusted{}, fault
	}
	s, err := parse(value)
	if err != nil {
		return fault("the call cannot be checked: %v", err)
	}
	root := signed{s.id, s.root}
	key, known := k.key(root)
	if key.PublicKey == nil {
		fault := notSigned("the call is signed with key %.16q, which the worker does not trust (--call-keys)", s.id)
		fault.Message += ". Sign with the key of one of these, or add the public key to their file: openssl pkey -in " + PrivateFile + " -pubout"
		return trusted{}, fault
	}
	if tlog.CheckRecord(s.proof, s.size, s.root, s.index, tlog.RecordHash(message(fleet, s.at, body))) != nil {
		return fault("the signature of the call does not match its content")
	}
	if !known {
		if !ed25519.Verify(key.PublicKey, rooted(s.root), s.sig) {
			return fault("the signature of the call does not match its key")
		}
		k.remember(root)
	}
	millis, err := strconv.ParseInt(s.at, 10, 64)
	if err != nil {
		return fault("the call cannot be checked: %v", errForm)
	}
	if apart := stored.Sub(time.UnixMilli(millis)).Abs(); apart > Window {
		return fault("the call was signed %s from the time at which it was enqueued; at most %s are allowed: clocks differ, or it is a copy", apart.Round(time.Second), Window)
	}
	return key, nil
}
