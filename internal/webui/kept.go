package webui

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/system/recent"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// maxKept and maxKeptBytes bound the sessions that are kept, in number and in bytes.
const (
	maxKept      = 256
	maxKeptBytes = 64 << 20
)

// kept is a session as it was read last: all pages that show it share that, however many they are.
// Each request asks the judge before it gets it, and reads what came since. While pages follow the
// session, what happens in it is added as it comes.
type kept struct {
	id    protocol.SessionID
	reads chan struct{} // has room for the request that reads

	traces *recent.Cache[int, *traced] // by their turns

	mu       sync.Mutex
	of       *conversation
	first    string // the id of the first event
	at       string // the id of the last event
	gone     bool   // what is stored now is another session of its name
	ended    error  // why it is not followed any more
	watchers int
	idle     *time.Timer
	end      context.CancelFunc // of the following; nil while nothing follows
	round    int                // counts the followings

	describing sync.Mutex
	described  *report.Session
	about      int // the version of the conversation that was described
	until      time.Time
}

// session is the conversation of a session up to the end of its journal. It is for those who may
// see the session: the judge is asked.
func (u *ui) session(ctx context.Context, id protocol.SessionID) (*kept, error) {
	for from := ""; ; {
		k := u.kept.Make(id, func() *kept {
			return &kept{id: id, reads: make(chan struct{}, 1), at: from, of: newConversation(id), traces: recent.New[int, *traced](maxTraces, 0)}
		})
		err := k.read(ctx, u)
		k.mu.Lock()
		gone, none := k.gone, k.of.stored == 0
		from = k.at
		k.mu.Unlock()
		switch {
		case gone:
			u.kept.Drop(id, k)
			continue
		case none: // it takes no room
			u.kept.Drop(id, k)
		default:
			u.count(k)
		}
		return k, err
	}
}

// count counts what a session takes now in the bounds of all that are kept.
func (u *ui) count(k *kept) {
	k.mu.Lock()
	bytes := k.of.bytes
	k.mu.Unlock()
	u.kept.Resize(k.id, k, bytes)
}

// read adds the events that were stored since the last time. Each request follows the session with
// the rights of its own, from where the last one ended.
func (k *kept) read(ctx context.Context, u *ui) error {
	select {
	case k.reads <- struct{}{}:
		defer func() { <-k.reads }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	k.mu.Lock()
	from, gone := k.at, k.gone
	k.mu.Unlock()
	if gone {
		return nil
	}
	err := k.upTo(ctx, u, u.all().Events(ctx, k.id, from))
	removed, another := errors.Is(err, loop.ErrRemoved), errors.Is(err, fleet.ErrInvalid) && from != ""
	if !removed && !another {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case another: // the journals are not those of before
		k.gone, k.at = true, ""
	case !k.gone: // nothing is left, not even the record
		k.gone, k.at = from != "", ""
	}
	return fmt.Errorf("session %s: %w", k.id, fleet.ErrNotFound)
}

// upTo adds events up to the last one that is stored now.
func (k *kept) upTo(ctx context.Context, u *ui, events iter.Seq2[fleet.Passed, error]) error {
	for p, err := range events {
		if err == nil && p.ID != "" {
			_, err = k.takeStored(ctx, u, p)
		}
		switch {
		case err != nil:
			return err
		case p.Stored:
			return nil
		}
	}
	return fleet.ErrClosed
}

// takeStored is take for an event that may begin another session of the name: of one that was
// removed a fleet without room has no record.
func (k *kept) takeStored(ctx context.Context, u *ui, p fleet.Passed) (gone bool, err error) {
	if p.Event != nil && p.ID != "" && p.Event.Type == loop.EventSessionStarted {
		switch err := k.stays(ctx, u); {
		case errors.Is(err, fleet.ErrNotFound):
			k.mu.Lock()
			k.gone, k.at = true, ""
			k.mu.Unlock()
		case err != nil:
			return true, err
		}
	}
	return k.take(p), nil
}

// stays returns an error if what is stored is not the session any more that was read.
func (k *kept) stays(ctx context.Context, u *ui) error {
	k.mu.Lock()
	first, gone := k.first, k.gone
	k.mu.Unlock()
	switch {
	case gone:
		return fmt.Errorf("session %s: %w", k.id, fleet.ErrNotFound)
	case first == "":
		return nil
	}
	_, err := u.all().Event(ctx, k.id, first)
	return err
}

// take adds what was passed on. Stored events come from all that read; each counts once. Nothing is
// added to a session that is gone.
func (k *kept) take(p fleet.Passed) (gone bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.gone:
	case p.Event != nil && p.ID != "":
		switch {
		case !behind(p.ID, k.at):
		case p.Event.Type == loop.EventRemoved && p.Event.Status == loop.RemovalCompleted:
			k.gone, k.at = true, p.ID
		case p.Event.Type == loop.EventCopyStarted && k.of.stored > 0: // what is before was interrupted
			k.gone = true
		default:
			k.of.add(p.Event, p.ID)
			k.first, k.at = cmp.Or(k.first, p.ID), p.ID
		}
	case p.Event != nil:
		k.of.add(p.Event, "")
	case p.Output != nil:
		k.of.write(p.CallID, p.Output)
	}
	return k.gone
}

// behind reports whether an event comes behind another one, by their ids; "" is the beginning.
func behind(id, other string) bool {
	at := func(id string) (message, index int) {
		first, second, _ := strings.Cut(id, "-")
		message, _ = strconv.Atoi(first)
		index, _ = strconv.Atoi(second)
		return message, index
	}
	m, i := at(id)
	n, j := at(other)
	return other == "" || m > n || m == n && i > j
}

// watch is session for a page that follows what happens, until leave.
func (u *ui) watch(ctx context.Context, id protocol.SessionID) (k *kept, leave func(), err error) {
	if k, err = u.session(ctx, id); err != nil {
		return nil, nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.of.stored == 0 {
		return nil, nil, fmt.Errorf("session %s: %w", id, fleet.ErrNotFound)
	}
	if k.watchers++; k.idle != nil {
		k.idle.Stop()
	}
	if u.followed.Store(k, nil); k.end == nil && !u.closed.Load() {
		// It is followed for all that watch it: each of them was judged.
		following, end := context.WithCancel(judge.With(context.WithoutCancel(ctx), judge.Principal{}))
		k.end, k.ended, k.round = end, nil, k.round+1
		round, from := k.round, k.at
		u.joined.Go(func() { k.follow(following, u, round, from) })
	}
	return k, func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.watchers--; k.watchers == 0 && k.end != nil {
			k.idle = time.AfterFunc(lingers, k.rest)
		}
	}, nil
}

// rest ends the following if no page has come.
func (k *kept) rest() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.watchers == 0 {
		k.endRound(k.round, nil)
	}
}

// stop ends the following.
func (k *kept) stop() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.endRound(k.round, fleet.ErrClosed)
}

// endRound ends a following, which may have ended.
func (k *kept) endRound(round int, why error) {
	if k.end != nil && k.round == round {
		k.end()
		k.end, k.ended = nil, why
		k.of.quiet()
	}
}

// follow adds what happens in the session.
func (k *kept) follow(ctx context.Context, u *ui, round int, from string) {
	var ended error
	for p, err := range u.all().Events(ctx, k.id, from) {
		gone := false
		if err == nil {
			gone, err = k.takeStored(ctx, u, p)
			u.count(k)
		}
		if ended = err; err != nil || gone {
			break
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.endRound(round, cmp.Or(ended, loop.ErrRemoved)); k.end == nil {
		u.followed.Delete(k)
	}
}

// describe is what the fleet says of the session as a whole. A description is shared for a second
// by all that do not know of more than it does: version is that of the conversation.
func (u *ui) describe(ctx context.Context, k *kept, version int) (*report.Session, error) {
	k.describing.Lock()
	defer k.describing.Unlock()
	if k.described != nil && k.about >= version && time.Now().Before(k.until) {
		return k.described, nil
	}
	k.mu.Lock()
	about := k.of.version
	k.mu.Unlock()
	made, err := u.Local.Show(ctx, k.id)
	if err == nil {
		err = k.stays(ctx, u)
	}
	if err == nil {
		k.described, k.about, k.until = made, about, time.Now().Add(keptLife)
	}
	return made, err
}
