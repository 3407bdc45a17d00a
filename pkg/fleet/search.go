package fleet

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/session"
	"github.com/toolfleet/toolfleet/internal/session/index"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Search says what [Sessions.Search] searches.
type Search struct {
	// Words must all be in a passage, whatever their case and accents: words, "phrases in quotes",
	// and word* for all words that begin like it.
	Words string
	// Since is the least time of passages; zero is every time.
	Since time.Time
	// Limit bounds the number of passages, up to 1,000; 0 means 20.
	Limit int
}

// Search returns the passages of conversations and calls of all sessions that have some words, the
// best first. It reads the journals into an index in [Options].Index first, or what is new in them:
// the first search of a large fleet takes long. If ctx ends before, the next search continues. The
// error wraps [ErrInvalid] if the words are not understood.
func (s Sessions) Search(ctx context.Context, search Search) (report.Found, error) {
	return run(ctx, s, nil, nil, func(ctx context.Context, _ *fleet.Fleet) (report.Found, error) {
		return s.client.index.search(ctx, index.Query{Words: search.Words, Since: search.Since, Limit: search.Limit})
	})
}

// KeepIndexed updates the index of [Sessions.Search] until ctx ends, so that searches need not
// wait, and removed sessions leave it soon. It returns the cause of ctx, or why there is no index.
func (s Sessions) KeepIndexed(ctx context.Context) error {
	_, err := run(ctx, s, nil, nil, func(ctx context.Context, f *fleet.Fleet) (struct{}, error) {
		x, err := s.client.index.open(ctx)
		if err != nil {
			return struct{}{}, err
		}
		x.Follow(ctx, f.Logger)
		return struct{}{}, context.Cause(ctx)
	})
	return err
}

// indexDir is the folder of the index in a data directory.
const indexDir = "index"

// searchIndex is the index of a client, which its first use opens.
type searchIndex struct {
	inner   *fleet.Fleet
	dir     string // "" until it is known
	options index.Options

	mu     sync.Mutex
	opened *index.Index
	closed bool
}

// open returns the index.
func (s *searchIndex) open(ctx context.Context) (*index.Index, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return nil, ErrClosed
	case s.opened != nil:
		return s.opened, nil
	}
	dir, err := s.directory(ctx)
	if err != nil {
		return nil, err
	}
	options, parts := s.options, map[string]jetstream.JetStream{}
	named := map[*fleet.Fleet]bool{s.inner: true}
	for _, pool := range slices.Sorted(maps.Keys(s.inner.Pools)) { // each part has the name of its first pool
		if part := s.inner.Pools[pool]; !named[part] {
			named[part], parts[string(pool)] = true, part.JS
		}
	}
	options.Parts, options.Secret = parts, s.inner.Secret
	s.opened, err = index.Open(ctx, s.inner.JS, s.inner.Name, dir, options)
	return s.opened, err
}

// directory is where the index is. Of a fleet elsewhere the name is that of its stream of journals:
// another fleet has another one, also at the same URL.
func (s *searchIndex) directory(ctx context.Context) (string, error) {
	if s.dir != "" {
		return s.dir, nil
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", invalid(fmt.Errorf("index: there is no cache directory for it: %w", err))
	}
	stream, err := s.inner.JS.Stream(ctx, wire.SessionsStream(s.inner.Name))
	if err != nil {
		return "", fmt.Errorf("open stream %s: %w", wire.SessionsStream(s.inner.Name), err)
	}
	sum := sha256.Sum256(fmt.Append(nil, s.inner.Name, " ", stream.CachedInfo().Created.UnixNano()))
	s.dir = filepath.Join(cache, "toolfleet", indexDir, hex.EncodeToString(sum[:8]))
	return s.dir, nil
}

// search searches as the principal of ctx.
func (s *searchIndex) search(ctx context.Context, query index.Query) (report.Found, error) {
	x, err := s.open(ctx)
	if err != nil {
		return report.Found{}, err
	}
	query.Tenant = judge.Of(ctx).Reach()
	query.May = func(ctx context.Context, id protocol.SessionID, owner *judge.Owner) error {
		if owner == nil { // its workspace may say who it is
			return session.May(ctx, s.inner, judge.See, id)
		}
		return judge.Judge(ctx, judge.See, judge.Object{Kind: judge.Session, ID: string(id), Owner: *owner})
	}
	return x.Search(ctx, query)
}

// ofOwner searches for a session of an owner.
func (s *searchIndex) ofOwner(ctx context.Context, request wire.SessionSearchRequest, owner judge.Owner, except protocol.SessionID) (report.Found, error) {
	return s.search(ctx, index.Query{Words: request.Query, Since: request.Since, Limit: request.Limit, Owner: &owner, Except: except})
}

// forget removes a session from the index, if there is one.
func (s *searchIndex) forget(ctx context.Context, id protocol.SessionID) error {
	s.mu.Lock()
	dir, err := s.directory(ctx)
	s.mu.Unlock()
	if err != nil || !index.Exists(dir) {
		return nil //nolint:nilerr // there is none
	}
	x, err := s.open(ctx)
	if err != nil {
		return err
	}
	return x.Forget(ctx, id)
}

// close closes the index.
func (s *searchIndex) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed = true; s.opened == nil {
		return
	}
	if err := s.opened.Close(); err != nil {
		s.inner.Logger.Warn("index of sessions", slog.Any("error", err))
	}
}

// CallQuery says which calls of the log [Client.Calls] returns.
type CallQuery = report.CallQuery

// callsOf is a query as the principal of ctx may see its answer.
func callsOf(ctx context.Context, q CallQuery) index.Calls {
	made := index.Calls{CallQuery: q}
	if judge.Bounded(ctx) {
		made.Reach = judge.Of(ctx).Reach()
		made.May = func(ctx context.Context, owner judge.Owner) error {
			return judge.Judge(ctx, judge.See, judge.Object{Kind: judge.Call, Owner: owner})
		}
	}
	return made
}

// Calls returns a page of the log of calls that ended, the last one first. It brings the log up to
// date first, in [Options].Index, and waits at most some seconds for that. The error wraps
// [ErrInvalid] if the query is not understood.
func (c *Client) Calls(ctx context.Context, q CallQuery) (report.CallLog, error) {
	return run(ctx, c.Sessions(""), nil, nil, func(ctx context.Context, _ *fleet.Fleet) (report.CallLog, error) {
		x, err := c.index.open(ctx)
		if err != nil {
			return report.CallLog{}, err
		}
		return x.Calls(ctx, callsOf(ctx, q))
	})
}

// LoggedCall returns a call of the log with its whole texts. Without a session it is the last call
// with the id. The error wraps [ErrNotFound] if there is none.
func (c *Client) LoggedCall(ctx context.Context, ref protocol.CallRef) (report.LoggedCall, error) {
	return run(ctx, c.Sessions(""), nil, nil, func(ctx context.Context, _ *fleet.Fleet) (report.LoggedCall, error) {
		x, err := c.index.open(ctx)
		if err != nil {
			return report.LoggedCall{}, err
		}
		return x.Call(ctx, callsOf(ctx, CallQuery{Session: ref.SessionID, Call: ref.ID}))
	})
}

// CallRates returns how many calls of the log ended in each step of a time, and how long they
// took. Of the query it uses the filters, Since and Until, which without a value are the hour until
// the end of this minute. A step is at least 1 s; 0 means a minute. There may be 1,000 steps. Whole
// minutes of all calls, or of a tenant, take the same time however many calls the log has.
func (c *Client) CallRates(ctx context.Context, q CallQuery, step time.Duration) (report.CallRates, error) {
	return run(ctx, c.Sessions(""), nil, nil, func(ctx context.Context, _ *fleet.Fleet) (report.CallRates, error) {
		x, err := c.index.open(ctx)
		if err != nil {
			return report.CallRates{}, err
		}
		return x.Rates(ctx, callsOf(ctx, q), step)
	})
}
