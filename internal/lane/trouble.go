package lane

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// Troubles that may last, as while the server is away. One is over when what failed succeeds, not
// when something else does.
const (
	startTrouble     = "call cannot be started"
	payloadTrouble   = "payload cannot be read"
	lookupTrouble    = "result cannot be looked up"
	resultTrouble    = "result cannot be stored"
	mailboxTrouble   = "mailbox cannot be read"
	releaseTrouble   = "lane cannot be released"
	removalTrouble   = "ready message cannot be removed"
	pullTrouble      = "pull request failed"
	consumerTrouble  = "consumer cannot be checked"
	claimTrouble     = "lane cannot be claimed"
	heartbeatTrouble = "heartbeat cannot be renewed"
)

// tellEvery is the least time between two beginnings of one trouble that are logged.
const tellEvery = time.Minute

// troubles logs what is tried again until it succeeds: a trouble once when it begins and once when
// it is over, however many lanes and calls have it and however often they try. One that comes and
// goes is logged once a minute, and when it stays. It is safe for concurrent use.
type troubles struct {
	logger *slog.Logger
	some   atomic.Int32 // troubles that are not over

	mu  sync.Mutex
	all map[string]*trouble
}

// trouble is one of the constants above.
type trouble struct {
	of    map[any]struct{} // who has it now: lanes, calls, the holder
	began time.Time
	met   int       // how many have had it since
	lost  int       // of those, how many have stopped trying, because their lane was lost
	logs  bool      // its beginning was logged
	told  time.Time // when a beginning was last logged
}

// begin books that an attempt of who has failed.
func (t *troubles) begin(ctx context.Context, msg string, who any, attrs ...slog.Attr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	one, now := t.all[msg], time.Now()
	if one == nil {
		if t.all == nil {
			t.all = map[string]*trouble{}
		}
		one = &trouble{of: map[any]struct{}{}}
		t.all[msg] = one
	}
	if len(one.of) == 0 {
		one.began, one.met, one.lost, one.logs = now, 0, 0, false
		t.some.Add(1)
	}
	if _, known := one.of[who]; !known {
		one.of[who] = struct{}{}
		one.met++
	}
	if !one.logs && (one.told.IsZero() || now.Sub(one.told) >= tellEvery) {
		one.logs, one.told = true, now
		t.logger.LogAttrs(ctx, slog.LevelWarn, msg, attrs...) //nolint:sloglint // messages are the constants above
	}
}

// end books that who has succeeded, or tries no more because its lane is lost. It does nothing when
// who has no such trouble.
func (t *troubles) end(ctx context.Context, msg string, who any, lost bool) {
	if t.some.Load() == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	one := t.all[msg]
	if one == nil {
		return
	}
	if _, has := one.of[who]; !has {
		return
	}
	if delete(one.of, who); lost {
		one.lost++
	}
	if len(one.of) > 0 {
		return
	}
	over := "trouble is over"
	if one.lost == one.met { // nothing has succeeded
		over = "trouble has ended with its lanes"
	}
	if t.some.Add(-1); one.logs {
		t.logger.LogAttrs(ctx, slog.LevelWarn, over, slog.String("trouble", msg), //nolint:sloglint // one of two constants
			slog.String("lasted", time.Since(one.began).Round(time.Millisecond).String()), slog.Int("met", one.met), slog.Int("lost", one.lost))
	}
}

// complain books that who, the lane or a call of it, has failed.
func (l *held) complain(msg string, who any, err error) {
	l.holder.troubles.begin(l.ctx, msg, who, slog.String("lane", string(l.lane)), slog.Any("error", err))
}

// over ends a trouble of the lane or of a call of it.
func (l *held) over(msg string, who any) {
	l.holder.troubles.end(l.ctx, msg, who, l.ctx.Err() != nil)
}
