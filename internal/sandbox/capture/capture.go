// Package capture keeps the output of a command, within a bound.
//
// Of each stream the head and the tail are kept, half of the limit each, with a mark between them
// that says how much is missing: the head shows what a command was doing, the tail how it ended. A
// command may write without end: all output is counted, and beyond [Burst] read more slowly, to
// save the worker's processors.
package capture

import (
	"io"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// LiveFunc gets output as it comes. The slice is valid only during the call.
type LiveFunc func(stream sandbox.Stream, data []byte)

// Output keeps the two output streams of one command. It is safe for concurrent use.
type Output struct {
	live LiveFunc

	mu       sync.Mutex // serialises live, too
	stdout   buffer
	stderr   buffer
	combined *buffer // nil while only one stream has bytes
}

// New returns an empty Output that keeps limit bytes of each stream; 0 and less
// means [isolation.DefaultOutput]. live may be nil; its calls do not overlap.
func New(limit int64, live LiveFunc) *Output {
	if limit <= 0 {
		limit = isolation.DefaultOutput
	}
	return &Output{live: live, stdout: newBuffer(limit), stderr: newBuffer(limit)}
}

// Writer returns where the bytes of stream go. Its writes do not fail.
func (o *Output) Writer(stream sandbox.Stream) io.Writer {
	return writer{out: o, stream: stream}
}

// Captured returns what is kept of stream so far.
func (o *Output) Captured(stream sandbox.Stream) sandbox.Captured {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buffer(stream).captured()
}

// Combined returns what is kept of both streams together, in the order of the writes.
func (o *Output) Combined() sandbox.Captured {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.combined != nil:
		return o.combined.captured()
	case o.stderr.total > 0:
		return o.stderr.captured()
	default:
		return o.stdout.captured()
	}
}

// combine keeps bytes of stream, which are not in its own buffer yet, for Combined.
func (o *Output) combine(stream sandbox.Stream, p []byte) {
	if o.combined == nil {
		other := o.buffer(sandbox.Stdout + sandbox.Stderr - stream)
		if other.total == 0 || len(p) == 0 {
			return
		}
		clone := other.clone() // the other stream is all that came so far
		o.combined = &clone
	}
	o.combined.write(p)
}

// throttled counts how long the writer of stream waits.
func (o *Output) throttled(stream sandbox.Stream, wait time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.buffer(stream).throttled += wait
	if o.combined != nil {
		o.combined.throttled += wait
	}
}

func (o *Output) buffer(stream sandbox.Stream) *buffer {
	if stream == sandbox.Stderr {
		return &o.stderr
	}
	return &o.stdout
}

type writer struct {
	out    *Output
	stream sandbox.Stream
}

// Write implements [io.Writer].
func (w writer) Write(p []byte) (int, error) {
	o := w.out
	o.mu.Lock()
	defer o.mu.Unlock()
	b := o.buffer(w.stream)
	o.combine(w.stream, p)
	b.write(p)
	if o.live != nil && len(p) > 0 {
		o.live(w.stream, p)
	}
	return len(p), nil
}
