// Package browsers signs browsers in. Browsers send a cookie of a host to each of its ports, so the
// cookie is no token: it is sealed with a key of the fleet, which only the pages of the fleet open.
//
//	token ──► SignIn ──► cookie: sealed token, id, end, user ──► Open ──► the token, which
//	                                                               ▲      package access checks
//	SignOut ──► id ──► ended ──────────────────────────────────────┘
//	                   └─ one record in the fleet's store, with the key
//
// A cookie is worth nothing to the API and to other servers. It ends with its time, when its
// browser signs out, and whenever its token does. On Linux it counts for connections of the user
// who has signed in alone, so another user of the machine who gets it cannot use it. The record is
// in the store of the fleet, so a browser stays signed in when a server is killed, and is signed
// out at all.
package browsers

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/access"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

const (
	// Life is how long a browser stays signed in.
	Life = 30 * 24 * time.Hour
	// maxCookie is how long browsers let a cookie be with its name, in bytes.
	maxCookie = 3900
	// maxEnded is how many browsers that signed out are known. At one more the key is replaced, and
	// each browser has to sign in again.
	maxEnded = 4096
	// readPeriod is how often the record is read without a notified change.
	readPeriod = 2 * time.Second
)

// ErrTooLong means that a token is too long for a cookie.
var ErrTooLong = errors.New("the token is too long for a browser")

// SignedIn is a browser that is signed in.
type SignedIn struct {
	ID     string    `json:"id"`
	Bearer string    `json:"bearer"`
	Until  time.Time `json:"until"`
	// User is the user of this machine whose browser it is; nil where the system does not say so.
	User *uint64 `json:"user,omitempty"`
}

// record is what is stored.
type record struct {
	Type    string               `json:"type"`
	Version int                  `json:"version"`
	Key     []byte               `json:"key"`
	Ended   map[string]time.Time `json:"ended,omitempty"` // browsers that signed out, until their cookies end
}

const typeBrowsers = "browsers"

// Book knows who is signed in. It is safe for concurrent use.
type Book struct {
	js     jetstream.JetStream // nil keeps it in memory
	fleet  protocol.Fleet
	logger *slog.Logger

	mu   sync.Mutex
	now  record
	box  cipher.AEAD
	used map[string]map[*context.CancelCauseFunc]bool // requests and streams of browsers
}

// InMemory returns a book that ends with the process.
func InMemory() *Book {
	b := &Book{used: map[string]map[*context.CancelCauseFunc]bool{}}
	b.apply(*newRecord())
	return b
}

func newRecord() *record {
	r := &record{Type: typeBrowsers, Version: wire.Version, Key: make([]byte, 32)}
	_, _ = rand.Read(r.Key) // it never fails
	return r
}

// Open returns the book of a fleet, which the first server makes. A user who may not store it has
// one in memory, and a warning.
func Open(ctx context.Context, js jetstream.JetStream, fleet protocol.Fleet, logger *slog.Logger) (*Book, error) {
	b := InMemory()
	b.js, b.fleet, b.logger = js, fleet, logger
	err := b.change(ctx, func(*record) bool { return false })
	if err == nil {
		return b, nil
	}
	if errors.Is(natsio.CheckRights(ctx, js.Conn(), natsio.BrowserRights(fleet)), natsio.ErrRights) {
		logger.WarnContext(ctx, "browsers have to sign in again when this server ends: it may not store who is signed in", slog.Any("error", err))
		b.js = nil
		return b, nil
	}
	return nil, err
}

// Run reads what other servers change, until ctx ends.
func (b *Book) Run(ctx context.Context) {
	if b.js == nil {
		return
	}
	natsio.FollowKey(ctx, b.js.Conn(), wire.BrowsersSubject(b.fleet), readPeriod, func(bool) (time.Duration, error) {
		short, cancel := context.WithTimeout(ctx, readPeriod)
		defer cancel()
		return readPeriod, b.change(short, func(*record) bool { return false })
	}, func(err error) {
		b.logger.WarnContext(ctx, "it cannot be read which browsers have signed out at other servers", slog.Any("error", err))
	})
}

// change changes the record, and makes it if there is none.
func (b *Book) change(ctx context.Context, by func(r *record) (changed bool)) error {
	if b.js == nil {
		b.mu.Lock()
		r := b.now
		b.mu.Unlock()
		r.Ended = maps.Clone(r.Ended)
		by(&r)
		b.apply(r)
		return nil
	}
	bucket, err := b.js.KeyValue(ctx, wire.PlacesBucket(b.fleet))
	if err != nil {
		return fmt.Errorf("open %s: %w", wire.PlacesBucket(b.fleet), err)
	}
	var now record
	err = natsio.ChangeKey(ctx, bucket, wire.BrowsersKey, func(stored []byte) ([]byte, error) {
		b.mu.Lock()
		now = b.now // if the store of the fleet was lost, browsers stay signed in
		b.mu.Unlock()
		if now.Ended = maps.Clone(now.Ended); stored != nil {
			now = record{}
			if err := json.Unmarshal(stored, &now); err != nil || now.Type != typeBrowsers || now.Version != wire.Version || len(now.Key) != 32 {
				return nil, fmt.Errorf("read which browsers are signed in: type %q, version %d: must be %q, %d", now.Type, now.Version, typeBrowsers, wire.Version)
			}
		}
		if !by(&now) && stored != nil {
			return nil, nil
		}
		return json.Marshal(&now)
	})
	if err == nil {
		b.apply(now)
	}
	return err
}

// apply replaces the record, and ends the requests of browsers that have signed out. What was read
// may be older than what this server has stored meanwhile: a browser that has signed out stays so.
func (b *Book) apply(r record) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if string(r.Key) == string(b.now.Key) {
		ended := map[string]time.Time{}
		maps.Copy(ended, b.now.Ended)
		maps.DeleteFunc(ended, func(_ string, until time.Time) bool { return time.Now().After(until) })
		maps.Copy(ended, r.Ended)
		r.Ended = ended
	} else {
		block, _ := aes.NewCipher(r.Key)               // it has 32 bytes
		b.box, _ = cipher.NewGCMWithRandomNonce(block) // as AES has such blocks
		for id := range b.used {
			b.end(id)
		}
	}
	for id := range r.Ended {
		b.end(id)
	}
	b.now = r
}

// end ends the requests of a browser.
func (b *Book) end(id string) {
	for cancel := range b.used[id] {
		(*cancel)(access.ErrUnknown)
	}
}

// bound is what a cookie belongs to.
func (b *Book) bound() []byte { return []byte("toolfleet browser 1\n" + b.fleet) }

// SignIn returns the cookie of a browser that is signed in with a token by a request. It is nil
// behind a proxy, whose user says nothing of the browser.
func (b *Book) SignIn(r *http.Request, bearer string) (string, error) {
	s := SignedIn{ID: rand.Text(), Bearer: bearer, Until: time.Now().Add(Life)}
	if r != nil {
		if user, known := access.UserOf(r); known {
			s.User = &user
		}
	}
	text, err := json.Marshal(s)
	if err != nil {
		return "", err
	}
	b.mu.Lock()
	box := b.box
	b.mu.Unlock()
	cookie := base64.RawURLEncoding.EncodeToString(box.Seal(nil, nil, text, b.bound())) //nolint:gosec // it makes a nonce itself
	if len(cookie) > maxCookie {
		return "", fmt.Errorf("%w: its cookie has %d bytes, at most %d are allowed", ErrTooLong, len(cookie), maxCookie)
	}
	return cookie, nil
}

// Open returns who is signed in by the cookie of a request. The error wraps [access.ErrUnknown].
func (b *Book) Open(r *http.Request, cookie string) (s SignedIn, err error) {
	sealed, err := base64.RawURLEncoding.DecodeString(cookie)
	if err != nil {
		return s, access.ErrUnknown
	}
	b.mu.Lock()
	box, ended := b.box, b.now.Ended
	b.mu.Unlock()
	text, err := box.Open(nil, nil, sealed, b.bound())
	if err != nil || json.Unmarshal(text, &s) != nil {
		return SignedIn{}, access.ErrUnknown
	}
	if _, is := ended[s.ID]; is || !time.Now().Before(s.Until) {
		return SignedIn{}, access.ErrUnknown
	}
	if s.User != nil {
		if user, known := access.UserOf(r); !known || user != *s.User && user != 0 {
			return SignedIn{}, fmt.Errorf("%w: another user of this machine has signed in with it", access.ErrUnknown)
		}
	}
	return s, nil
}

// Until returns a context that ends when a browser signs out, or its time is over.
func (b *Book) Until(ctx context.Context, s SignedIn) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(time.Until(s.Until), func() { cancel(access.ErrUnknown) })
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.used[s.ID] == nil {
		b.used[s.ID] = map[*context.CancelCauseFunc]bool{}
	}
	b.used[s.ID][&cancel] = true
	if _, is := b.now.Ended[s.ID]; is { // meanwhile
		cancel(access.ErrUnknown)
	}
	return ctx, func() {
		b.mu.Lock()
		if delete(b.used[s.ID], &cancel); len(b.used[s.ID]) == 0 {
			delete(b.used, s.ID)
		}
		b.mu.Unlock()
		timer.Stop()
		cancel(nil)
	}
}

// SignOut ends a browser's cookie, and its copies, here and at each server of the fleet.
func (b *Book) SignOut(ctx context.Context, s SignedIn) error {
	return b.change(ctx, func(r *record) bool {
		maps.DeleteFunc(r.Ended, func(_ string, until time.Time) bool { return time.Now().After(until) })
		if len(r.Ended) >= maxEnded {
			r.Key, r.Ended = newRecord().Key, nil
		}
		if r.Ended == nil {
			r.Ended = map[string]time.Time{}
		}
		r.Ended[s.ID] = s.Until
		return true
	})
}
