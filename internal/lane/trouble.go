package lane

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// logEvery is the least time between two lines about one kind of trouble.
const logEvery = time.Minute

// troubles logs what is tried again until it succeeds, as while the server is away: each kind once
// a minute at most, however many lanes and calls have it. The zero value with a logger is ready,
// and safe for concurrent use.
type troubles struct {
	logger *slog.Logger

	mu   sync.Mutex
	last map[string]time.Time // when each message was logged; messages are constants
}

func (t *troubles) log(ctx context.Context, msg string, attrs ...slog.Attr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if last, known := t.last[msg]; known && time.Since(last) < logEvery {
		return
	}
	if t.last == nil {
		t.last = map[string]time.Time{}
	}
	t.last[msg] = time.Now()
	t.logger.LogAttrs(ctx, slog.LevelWarn, msg, attrs...) //nolint:sloglint // messages are constants of the callers
}

func (l *held) complain(msg string, err error) {
	l.holder.troubles.log(l.ctx, msg, slog.String("lane", string(l.lane)), slog.Any("error", err))
}
