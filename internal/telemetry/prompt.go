package telemetry

import (
	"context"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// exportPause is the least time between two exports that the ends of calls ask for.
const exportPause = 20 * time.Millisecond

// promptProcessor has spans exported as soon as the outermost one of this process has ended, such
// as that of a call on a worker: what a killed process has not exported is lost. Whoever ends a
// span does not wait for that.
type promptProcessor struct {
	sdktrace.SpanProcessor // batches

	ended      chan struct{} // a call has, since the last export began
	stop, done chan struct{}
	once       sync.Once
}

func newPromptProcessor(batches sdktrace.SpanProcessor) *promptProcessor {
	p := &promptProcessor{SpanProcessor: batches, ended: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{})}
	go p.export()
	return p
}

// OnEnd implements [sdktrace.SpanProcessor].
func (p *promptProcessor) OnEnd(span sdktrace.ReadOnlySpan) {
	p.SpanProcessor.OnEnd(span)
	if parent := span.Parent(); parent.IsValid() && !parent.IsRemote() {
		return
	}
	select {
	case p.ended <- struct{}{}:
	default: // the next export takes it, too
	}
}

// export exports what has ended, again and again. The batches bound how long one export takes.
func (p *promptProcessor) export() {
	defer close(p.done)
	ctx := context.Background() //nolint:forbidigo // the SDK gives none: exporting belongs to no request
	pause := time.NewTicker(exportPause)
	defer pause.Stop()
	for {
		select {
		case <-p.ended:
			if err := p.ForceFlush(ctx); err != nil {
				otel.Handle(err)
			}
		case <-p.stop:
			return
		}
		select {
		case <-pause.C:
		case <-p.stop:
			return
		}
	}
}

// Shutdown implements [sdktrace.SpanProcessor]. What has ended is exported with it.
func (p *promptProcessor) Shutdown(ctx context.Context) error {
	p.once.Do(func() { close(p.stop) })
	select {
	case <-p.done:
	case <-ctx.Done():
	}
	return p.SpanProcessor.Shutdown(ctx)
}
