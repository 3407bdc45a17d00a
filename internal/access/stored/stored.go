// Package stored has the tokens of a fleet. They are made and removed by its operator, and known
// within a second to each server of the fleet that lets clients in over HTTP.
//
//	Add ────┬─ compare and set ─► one record in the fleet's store ─ notified, or once a second ─► [Watch]
//	Remove ─┘                     digests, never a secret;                                         [access.Grant]
//	                              signed, if calls are
//
// The record is authoritative. A server that has not read it for some seconds lets no client in by
// it. Who can write it lets clients in: the NATS users of coordinators. Where calls are signed, a
// token counts only with the signature of the server's own key.
package stored

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/access"
	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/internal/wire/signing"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Token is a token of the fleet, without its secret.
type Token struct {
	ID      string          `json:"id"`
	Name    string          `json:"name"`
	Role    string          `json:"role"`
	Tenant  protocol.Tenant `json:"tenant"`
	Created time.Time       `json:"created"`
	Expires time.Time       `json:"expires"`
}

// Bounds of tokens.
const (
	// DefaultAge is how long a token is good if nothing else is asked for, and MaxAge how long it
	// is at the most.
	DefaultAge = 90 * 24 * time.Hour
	MaxAge     = 366 * 24 * time.Hour
	// MaxTokens is how many tokens a fleet has at the most.
	MaxTokens = 1000
)

// prefix begins each secret, so that scanners of files find it.
const prefix = "tft_"

// entry is a token as it is stored.
type entry struct {
	Token

	SHA256    string `json:"sha256"` // of the secret, in hexadecimal
	Signature string `json:"signature,omitempty"`
}

// signed is what the signature of a token signs.
func (e *entry) signed() []byte {
	return fmt.Appendf(nil, "%q %q %q %q %d %d %q", e.ID, e.Name, e.Role, e.Tenant, e.Created.Unix(), e.Expires.Unix(), e.SHA256)
}

// record is what is stored.
type record struct {
	Type    string  `json:"type"`
	Version int     `json:"version"`
	Tokens  []entry `json:"tokens"`
}

const typeTokens = "tokens"

// decode reads a record; without one there are no tokens.
func decode(stored []byte) ([]entry, error) {
	if len(stored) == 0 {
		return nil, nil
	}
	var r record
	if err := json.Unmarshal(stored, &r); err != nil {
		return nil, fmt.Errorf("read the tokens of the fleet: %w", err)
	}
	if r.Type != typeTokens || r.Version != wire.Version {
		return nil, fmt.Errorf("read the tokens of the fleet: type %q, version %d: must be %q, %d", r.Type, r.Version, typeTokens, wire.Version)
	}
	return r.Tokens, nil
}

// Store is the tokens of a fleet as they are stored. It is safe for concurrent use.
type Store struct {
	JS     jetstream.JetStream
	Fleet  protocol.Fleet
	Signer *signing.Signer // signs tokens; nil where calls are not signed
}

// change replaces the tokens.
func (s Store) change(ctx context.Context, by func([]entry) ([]entry, error)) error {
	bucket, err := s.JS.KeyValue(ctx, wire.PlacesBucket(s.Fleet))
	if err != nil {
		return fmt.Errorf("open %s: %w", wire.PlacesBucket(s.Fleet), err)
	}
	return natsio.ChangeKey(ctx, bucket, wire.TokensKey, func(stored []byte) ([]byte, error) {
		list, err := decode(stored)
		if err != nil {
			return nil, err
		}
		if list, err = by(list); err != nil {
			return nil, err
		}
		return json.Marshal(record{typeTokens, wire.Version, append([]entry{}, list...)})
	})
}

// of is the object of a principal that sees or removes tokens.
func of(id string, tenant protocol.Tenant) judge.Object {
	return judge.Object{Kind: judge.Token, ID: id, Owner: judge.Owner{Tenant: tenant}}
}

// List returns the tokens that the principal of the context may see: those of its tenant, or all.
func (s Store) List(ctx context.Context) ([]Token, error) {
	if err := judge.Judge(ctx, judge.See, of("", judge.Of(ctx).Owner().Tenant)); err != nil {
		return nil, err
	}
	bucket, err := s.JS.KeyValue(ctx, wire.PlacesBucket(s.Fleet))
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", wire.PlacesBucket(s.Fleet), err)
	}
	stored, _, err := natsio.ReadKey(ctx, bucket, wire.TokensKey)
	if err != nil {
		return nil, err
	}
	list, err := decode(stored)
	var seen []Token
	for i := range list {
		if judge.Judge(ctx, judge.See, of(list[i].ID, list[i].Tenant)) == nil {
			seen = append(seen, list[i].Token)
		}
	}
	return seen, err
}

// Add makes a token and returns it with its secret, which is stored nowhere. Only the operator of
// the fleet may: what a token made would outlive it, and could approve the calls of its maker.
// Tokens that have expired are forgotten. Without a time it expires after [DefaultAge].
func (s Store) Add(ctx context.Context, token Token) (made Token, secret string, err error) {
	if err := judge.Judge(ctx, judge.Make, judge.Object{Kind: judge.Token, Owner: judge.TheFleet()}); err != nil {
		return made, "", err
	}
	now := time.Now().UTC().Truncate(time.Second)
	if token.Expires.IsZero() {
		token.Expires = now.Add(DefaultAge)
	}
	if token.Tenant == "" {
		token.Tenant = judge.DefaultTenant
	}
	token.ID, token.Created, token.Expires = strings.ToLower(rand.Text()[:8]), now, token.Expires.UTC().Truncate(time.Second)
	if err := token.check(now); err != nil {
		return made, "", codes.As(codes.ErrInvalid, err)
	}
	var random [32]byte
	_, _ = rand.Read(random[:]) // it never fails
	secret = prefix + base64.RawURLEncoding.EncodeToString(random[:])
	digest := access.DigestOf(secret)
	added := entry{Token: token, SHA256: hex.EncodeToString(digest[:])}
	if s.Signer != nil {
		added.Signature = s.Signer.SignRecord(s.Fleet, signing.KindToken, added.signed())
	}
	err = s.change(ctx, func(list []entry) ([]entry, error) {
		list = slices.DeleteFunc(list, func(e entry) bool { return e.ID == added.ID || !now.Before(e.Expires) })
		if len(list) >= MaxTokens {
			return nil, codes.As(codes.ErrInvalid, fmt.Errorf("the fleet has %d tokens, as many as it may have: remove some first", len(list)))
		}
		return append(list, added), nil
	})
	if err != nil {
		return made, "", err
	}
	return token, secret, nil
}

// check returns what is wrong with a token.
func (t *Token) check(now time.Time) error {
	var errs []error
	if _, err := judge.ParseRole(t.Role); err != nil {
		errs = append(errs, err)
	}
	if _, err := protocol.ParseTenant(string(t.Tenant)); err != nil {
		errs = append(errs, err)
	}
	who := judge.Principal{Known: judge.ByToken, Name: t.Name}
	if err := judge.CheckBy(who.By()); err != nil {
		errs = append(errs, fmt.Errorf("name %.300q: must have 1 to 256 bytes, without spaces and control characters", t.Name))
	}
	if strings.Contains(t.Name, ":") {
		errs = append(errs, fmt.Errorf("name %.300q: must have no colon, as names that an issuer gives do", t.Name))
	}
	if !t.Expires.After(now) || t.Expires.After(now.Add(MaxAge)) {
		errs = append(errs, fmt.Errorf("expires %s: must be in the future, and at most %d days from now", t.Expires.Format(time.RFC3339), int(MaxAge.Hours()/24)))
	}
	return errors.Join(errs...)
}

// Remove removes tokens: what they have opened ends within a second. If one of them is not there
// the error wraps [codes.ErrNotFound], and none is removed.
func (s Store) Remove(ctx context.Context, ids ...string) error {
	found := map[string]bool{} // by a try whose outcome was not known, too
	return s.change(ctx, func(list []entry) ([]entry, error) {
		for _, id := range ids {
			i := slices.IndexFunc(list, func(e entry) bool { return e.ID == id })
			switch {
			case i >= 0:
				found[id] = true
				if err := judge.Judge(ctx, judge.Remove, of(id, list[i].Tenant)); err != nil {
					return nil, err
				}
				list = slices.Delete(list, i, i+1)
			case !found[id]:
				if err := judge.Judge(ctx, judge.Remove, of(id, judge.Of(ctx).Owner().Tenant)); err != nil {
					return nil, err
				}
				return nil, codes.As(codes.ErrNotFound, fmt.Errorf("there is no such token: %s", id))
			}
		}
		return list, nil
	})
}

// GiverValid reports whether the token of the giver of an approval still lets its client in. inFile
// reports it for tokens in files of this process; nil is no file. Of an issuer's tokens only the
// end is known.
func (s Store) GiverValid(ctx context.Context, giver protocol.Giver, inFile func(token string) bool) bool {
	id, is := strings.CutPrefix(giver.Token, access.OfFleet)
	if !is {
		return giver.Token == access.OfIssuer && !giver.Until.IsZero() || inFile != nil && inFile(giver.Token)
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	bucket, err := s.JS.KeyValue(ctx, wire.PlacesBucket(s.Fleet))
	if err != nil {
		return false
	}
	record, _, err := natsio.ReadKey(ctx, bucket, wire.TokensKey)
	if err != nil {
		return false
	}
	list, err := decode(record)
	return err == nil && slices.ContainsFunc(list, func(e entry) bool {
		return e.ID == id && time.Now().Before(e.Expires) && (s.Signer == nil || s.Signer.HasSigned(s.Fleet, signing.KindToken, e.signed(), e.Signature))
	})
}

// Watch is the tokens of a fleet as a server knows them. It lets no client in before Run has read
// them. It is safe for concurrent use.
type Watch struct {
	Store

	logger *slog.Logger

	mu       sync.Mutex
	read     time.Time // when they were read last; zero is never
	stored   time.Time // by the server's clock
	revision uint64
	known    map[access.Digest]*live
}

// live is a token that lets clients in, until end.
type live struct {
	Token

	ctx context.Context //nolint:containedctx // see [access.Grant]
	end context.CancelFunc
}

const (
	// readPeriod is how often the tokens are read without a notified change.
	readPeriod  = time.Second
	readTimeout = 2 * time.Second
	// freshFor is how long they count after they were read: a server that cannot read them does not
	// know what was removed.
	freshFor = 10 * time.Second
)

// NewWatch watches nothing before Run.
func NewWatch(store Store, logger *slog.Logger) *Watch { return &Watch{Store: store, logger: logger} }

// errUnread is the error of a server that does not know the tokens as they are now.
var errUnread = errors.New("the tokens of the fleet cannot be read")

// Verify implements [access.Verifier].
func (w *Watch) Verify(_ context.Context, bearer string) (access.Grant, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if time.Since(w.read) > freshFor {
		return access.Grant{}, errUnread
	}
	token, known := w.known[access.DigestOf(bearer)]
	if !known || !time.Now().Before(token.Expires) {
		return access.Grant{}, access.ErrUnknown
	}
	role, err := judge.ParseRole(token.Role)
	who := judge.Principal{Known: judge.ByToken, Name: token.Name, Role: role, Tenant: token.Tenant, Expires: token.Expires, Token: access.OfFleet + token.ID}
	return access.Grant{Principal: who, Live: token.ctx}, err
}

// Run reads the tokens whenever they change, until ctx ends.
func (w *Watch) Run(ctx context.Context) {
	natsio.FollowKey(ctx, w.JS.Conn(), wire.TokensSubject(w.Fleet), 0, func(bool) (time.Duration, error) { return readPeriod, w.load(ctx) }, func(err error) {
		w.logger.WarnContext(ctx, "the tokens of the fleet cannot be read: soon they let no client in", slog.Any("error", err))
	})
}

// load reads the tokens. The server that answers is the one that stores them: others may be behind.
func (w *Watch) load(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	begun := time.Now()
	msg, err := w.JS.Conn().RequestWithContext(ctx, "$JS.API.STREAM.MSG.GET.KV_"+wire.PlacesBucket(w.Fleet), []byte(`{"last_by_subj":"`+wire.TokensSubject(w.Fleet)+`"}`))
	if err != nil {
		return err
	}
	var answer struct {
		Message struct {
			Sequence uint64    `json:"seq"`
			Data     []byte    `json:"data"`
			Time     time.Time `json:"time"`
		} `json:"message"`
		Error *jetstream.APIError `json:"error"`
	}
	if err := json.Unmarshal(msg.Data, &answer); err != nil {
		return err
	}
	if answer.Error != nil && answer.Error.ErrorCode != jetstream.JSErrCodeMessageNotFound {
		return answer.Error
	}
	list, err := decode(answer.Message.Data)
	if err == nil {
		w.apply(ctx, list, answer.Message.Sequence, answer.Message.Time, begun)
	}
	return err
}

// apply replaces the tokens, unless they are older than those that are known, and ends those that
// were removed. A stream that was made again begins with small revisions.
func (w *Watch) apply(ctx context.Context, list []entry, revision uint64, stored, begun time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if revision != 0 && revision < w.revision && !stored.After(w.stored) {
		return
	}
	same := !w.read.IsZero() && revision == w.revision && stored.Equal(w.stored)
	if w.read, w.revision, w.stored = begun, revision, stored; same {
		return
	}
	now := map[access.Digest]*live{}
	for i := range list {
		e := &list[i]
		digest, err := hex.DecodeString(e.SHA256)
		if err != nil || len(digest) != len(access.Digest{}) || w.Signer != nil && !w.Signer.HasSigned(w.Fleet, signing.KindToken, e.signed(), e.Signature) {
			w.logger.WarnContext(ctx,
				"a token of the fleet lets no client in: the key of this server has not signed it; make it again with this key (--sign-key)",
				slog.String("token", e.ID))
			continue
		}
		id := access.Digest(digest)
		if before := w.known[id]; before != nil && before.Token == e.Token {
			now[id] = before
			continue
		}
		ctx, end := context.WithCancel(context.WithoutCancel(ctx))
		now[id] = &live{e.Token, ctx, end}
	}
	for id, before := range w.known {
		if now[id] != before {
			before.end()
		}
	}
	w.known = now
}
