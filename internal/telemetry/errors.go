package telemetry

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/sdk/metric"
)

// warnEvery is the least time between two warnings about exporting.
const warnEvery = time.Minute

// exportErrors logs what the SDK could not do: the first error at once, and then
// at most one a minute with the number of those left out. It is safe for concurrent use.
type exportErrors struct {
	logger *slog.Logger
	now    func() time.Time

	mu      sync.Mutex
	next    time.Time // when the next warning may be written
	omitted int       // errors since the last warning
}

var _ otel.ErrorHandler = (*exportErrors)(nil)

// Handle implements [otel.ErrorHandler]. A cancelled export is none that failed: the end of a
// process cancels the one that is under way, and then sends everything. Nor is one that comes
// before there is anything to export, as on a busy machine with a short interval: the next one has
// it.
func (e *exportErrors) Handle(err error) {
	if errors.Is(err, context.Canceled) || errors.Is(err, metric.ErrReaderNotRegistered) {
		return
	}
	e.mu.Lock()
	now := e.now()
	if now.Before(e.next) {
		e.omitted++
		e.mu.Unlock()
		return
	}
	omitted := e.omitted
	e.next, e.omitted = now.Add(warnEvery), 0
	e.mu.Unlock()
	ctx := context.Background() //nolint:forbidigo // the SDK gives none: exporting belongs to no request
	e.logger.LogAttrs(ctx, slog.LevelWarn, "telemetry export failed",
		slog.Any("error", err), slog.Int("omitted", omitted))
}
