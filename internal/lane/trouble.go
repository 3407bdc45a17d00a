package lane

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// tellEvery is the least time between two lines about one kind of trouble.
const tellEvery = time.Minute

// troubles logs what is tried again until it succeeds, as while the server is away: each kind once
// a minute at most, however many lanes and calls have it. The zero value with a logger is ready,
// and safe for concurrent use.
type troubles struct {
	logger *slog.Logger

	mu   sync.Mutex
	told map[string]time.Time // by message, which are constants
}

func (t *troubles) tell(ctx context.Context, msg string, attrs ...slog.Attr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if last, known := t.told[msg]; known && time.Since(last) < tellEvery {
		return
	}
	if t.told == nil {
		t.told = map[string]time.Time{}
	}
	t.told[msg] = time.Now()
	t.logger.LogAttrs(ctx, slog.LevelWarn, msg, attrs...) //nolint:sloglint // messages are constants of the callers
}

func (l *held) complain(msg string, err error) {
	l.holder.troubles.tell(l.ctx, msg, slog.String("lane", string(l.lane)), slog.Any("error", err))
}
