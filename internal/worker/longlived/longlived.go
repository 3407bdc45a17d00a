// Package longlived has what background processes, MCP servers and stateful tools share: they
// outlive the call that started them.
//
//	NewLifetime ──► Run(function) ──► the function returns ──► Done
//	                   ▲ End, or the time is over: its context ends
//
// Each of them starts one [Lifetime], which its owner ends and waits for. What a program writes is
// bounded by a [Tail]. How one is started, given input and found again differs, see the packages
// background, toolserver and dialog.
package longlived

import (
	"context"
	"time"
)

// Lifetime is the time in which a long-lived function runs. A nil lifetime is over. It is safe for
// concurrent use.
type Lifetime struct {
	ctx    context.Context //nolint:containedctx // it belongs to the function, and outlives calls
	end    context.CancelCauseFunc
	expire context.CancelFunc
	done   chan struct{}
}

// NewLifetime returns a lifetime whose context has the values of ctx, but not its end. After atMost
// (0 is never) its context ends with the cause expired. The caller calls Run once, or End.
func NewLifetime(ctx context.Context, atMost time.Duration, expired error) *Lifetime {
	ctx, end := context.WithCancelCause(context.WithoutCancel(ctx))
	l := &Lifetime{ctx: ctx, end: end, expire: func() {}, done: make(chan struct{})}
	if atMost > 0 {
		l.ctx, l.expire = context.WithTimeoutCause(ctx, atMost, expired)
	}
	return l
}

// Run calls the long-lived function. The lifetime is over when it returns.
func (l *Lifetime) Run(run func(ctx context.Context)) {
	defer close(l.done)
	defer l.End(nil)
	run(l.ctx)
}

// Context returns the context of the function.
func (l *Lifetime) Context() context.Context { return l.ctx }

// Done is closed when the lifetime is over: the function has returned.
func (l *Lifetime) Done() <-chan struct{} {
	if l == nil {
		over := make(chan struct{})
		close(over)
		return over
	}
	return l.done
}

// IsRunning reports whether the lifetime is not over.
func (l *Lifetime) IsRunning() bool {
	select {
	case <-l.Done():
		return false
	default:
		return true
	}
}

// End ends the context with a cause, nil for [context.Canceled], and does not wait.
func (l *Lifetime) End(cause error) {
	if l != nil {
		l.end(cause)
		l.expire()
	}
}

// Stop waits up to grace for the function to end by itself, then ends it. It returns when the
// lifetime is over.
func (l *Lifetime) Stop(grace time.Duration, cause error) {
	if grace > 0 {
		timer := time.NewTimer(grace)
		defer timer.Stop()
		select {
		case <-l.Done():
		case <-timer.C:
		}
	}
	l.End(cause)
	<-l.Done()
}

// Tail is the end of a stream of bytes: at least the last Keep bytes. It is not safe for concurrent
// use.
type Tail struct {
	Keep int64
	Data []byte
	Base int64 // position of Data in the stream
}

// Write appends to the stream.
func (t *Tail) Write(p []byte) {
	t.Data = append(t.Data, p...)
	if int64(len(t.Data)) >= 2*t.Keep { // so that most writes move nothing
		t.trim()
	}
}

// trim drops all but the last Keep bytes.
func (t *Tail) trim() {
	if drop := int64(len(t.Data)) - t.Keep; drop > 0 {
		t.Base += drop
		t.Data = append(t.Data[:0], t.Data[drop:]...)
	}
}

// Total is the length of the stream.
func (t *Tail) Total() int64 { return t.Base + int64(len(t.Data)) }

// Read returns a copy of up to limit bytes of the last Keep from offset on, and their position. A
// negative offset counts from the end.
func (t *Tail) Read(offset, limit int64) (data []byte, at int64) {
	t.trim()
	if offset < 0 {
		offset += t.Total()
	}
	offset = min(max(offset, t.Base), t.Total())
	rest := t.Data[offset-t.Base:]
	return append([]byte(nil), rest[:min(limit, int64(len(rest)))]...), offset
}
