package join

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gofrs/flock"

	"github.com/toolfleet/toolfleet/internal/system/regular"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Entry is a token as it is listed: without its secret.
type Entry struct {
	ID      string         `json:"id"`
	Role    Role           `json:"role"`
	Fleet   protocol.Fleet `json:"fleet"`
	Pool    protocol.Pool  `json:"pool,omitempty"`
	Note    string         `json:"note,omitempty"`
	Created time.Time      `json:"created"`
	Expires time.Time      `json:"expires,omitzero"`
	Digest  string         `json:"digest,omitempty"`
	// Seen is when a process with the token was connected last, for who lists them.
	Seen time.Time `json:"seen,omitzero"`
}

// Expired reports whether the time of the entry has ended.
func (e Entry) Expired(now time.Time) bool { return !e.Expires.IsZero() && !now.Before(e.Expires) }

// Store is the list of tokens in the data directory of a server. Processes that add and remove
// tokens need no server: one that runs reads the list again.
type Store struct{ Dir string }

const (
	storeFile = "join.json"
	lockFile  = "join.lock"
	maxStore  = 16 << 20 // bytes
	// MaxTokens is how many tokens there may be.
	MaxTokens = 10_000
	// lockPatience bounds the wait for another process that changes the list.
	lockPatience = 10 * time.Second
	lockRetry    = 20 * time.Millisecond
)

// File is the file of the list.
func (s Store) File() string { return filepath.Join(s.Dir, storeFile) }

// List returns the tokens, the oldest first.
func (s Store) List() ([]Entry, error) {
	content, err := regular.Read(s.File(), maxStore)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var list []Entry
	if err == nil {
		err = json.Unmarshal(content, &list)
	}
	if err != nil {
		return nil, fmt.Errorf("join tokens in %s: %w", s.File(), err)
	}
	return list, nil
}

// Add stores a new token like e, and returns its secret, which is stored nowhere.
func (s Store) Add(ctx context.Context, e Entry) (added Entry, secret string, err error) {
	err = s.change(ctx, func(list []Entry) ([]Entry, error) {
		if len(list) >= MaxTokens {
			return nil, fmt.Errorf("there are %d join tokens, which is the most: remove some with coordinator join-token rm", len(list))
		}
		e.ID, secret = newSecret()
		e.Digest, e.Created = digestOf(secret), time.Now().UTC().Truncate(time.Second)
		return append(list, e), nil
	})
	return e, secret, err
}

// ErrUnknown is wrapped by the error of [Store.Remove] for a token that is not listed.
var ErrUnknown = errors.New("there is no such join token")

// Remove removes tokens by their ids: all of them, or none.
func (s Store) Remove(ctx context.Context, ids ...string) error {
	return s.change(ctx, func(list []Entry) ([]Entry, error) {
		for _, id := range ids {
			i := slices.IndexFunc(list, func(e Entry) bool { return e.ID == id })
			if i < 0 {
				return nil, fmt.Errorf("%w: %q; coordinator join-token ls lists them", ErrUnknown, id)
			}
			list = slices.Delete(list, i, i+1)
		}
		return list, nil
	})
}

func (s Store) change(ctx context.Context, change func([]Entry) ([]Entry, error)) error {
	ctx, cancel := context.WithTimeout(ctx, lockPatience)
	defer cancel()
	lock := flock.New(filepath.Join(s.Dir, lockFile), flock.SetPermissions(0o600))
	if _, err := lock.TryLockContext(ctx, lockRetry); err != nil {
		return fmt.Errorf("join tokens in %s: another process changes them: %w", s.Dir, err)
	}
	defer func() { _ = lock.Close() }()
	list, err := s.List()
	if err == nil {
		list, err = change(list)
	}
	if err != nil {
		return err
	}
	content, err := json.MarshalIndent(list, "", "  ")
	if err != nil {
		return err
	}
	return regular.ReplaceSynced(s.File(), append(content, '\n')) // a removed token must not come back
}

// Find returns the entry of a secret that counts now.
func Find(list []Entry, secret string) (Entry, bool) {
	id, _, is := strings.Cut(secret, ".")
	i := slices.IndexFunc(list, func(e Entry) bool { return e.ID == id })
	if !is || i < 0 || list[i].Expired(time.Now()) || subtle.ConstantTimeCompare([]byte(digestOf(secret)), []byte(list[i].Digest)) == 0 {
		return Entry{}, false
	}
	return list[i], true
}

// Server is how a server listens, for the tokens that are made for it.
type Server struct {
	Addresses []string `json:"addresses"` // host:port
	Plain     bool     `json:"plain,omitempty"`
}

// serverFile has the [Server] that listened last.
const serverFile = "listen.json"

// WriteServer stores how the server listens.
func (s Store) WriteServer(server Server) error {
	content, err := json.Marshal(server)
	if err != nil {
		return err
	}
	return regular.Replace(filepath.Join(s.Dir, serverFile), append(content, '\n'))
}

// seenFile has when the processes of tokens were connected last.
const seenFile = "join-seen.json"

// Seen returns when a process with each token was connected last, as far as the server knows.
func (s Store) Seen() (seen map[string]time.Time, err error) {
	content, err := regular.Read(filepath.Join(s.Dir, seenFile), maxStore)
	if errors.Is(err, fs.ErrNotExist) {
		return map[string]time.Time{}, nil
	}
	if err == nil {
		err = json.Unmarshal(content, &seen)
	}
	return seen, err
}

// WriteSeen stores what Seen returns.
func (s Store) WriteSeen(seen map[string]time.Time) error {
	content, err := json.Marshal(seen)
	if err != nil {
		return err
	}
	return regular.Replace(filepath.Join(s.Dir, seenFile), append(content, '\n'))
}

// ErrNoServer is wrapped by the error of [Store.ReadServer] if no server has listened.
var ErrNoServer = errors.New("no coordinator serve with --listen on a network has run with this data directory")

// ReadServer returns how the server listens, or did last.
func (s Store) ReadServer() (server Server, err error) {
	content, err := regular.Read(filepath.Join(s.Dir, serverFile), maxStore)
	if errors.Is(err, os.ErrNotExist) {
		return server, fmt.Errorf("%w (%s)", ErrNoServer, s.Dir)
	}
	if err == nil {
		err = json.Unmarshal(content, &server)
	}
	return server, err
}
