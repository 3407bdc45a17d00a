package supervisor

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// liveFunc gets output as it comes. The slice is valid only during the call.
type liveFunc func(stream sandbox.Stream, data []byte)

// output keeps the two output streams of one command, within a bound. It is safe for concurrent
// use.
//
// Of each stream the head and the tail are kept, half of the limit each, with a mark between them
// that says how much is missing: the head shows what a command was doing, the tail how it ended. A
// command may write without end: all output is counted, and beyond [isolation.OutputBurst] read
// more slowly, to save the worker's processors.
type output struct {
	live liveFunc

	mu       sync.Mutex // serialises live, too
	stdout   buffer
	stderr   buffer
	combined *buffer // nil while only one stream has bytes
}

// newOutput returns an empty output that keeps limit bytes of each stream; 0 and less
// means [isolation.DefaultOutput]. live may be nil; its calls do not overlap.
func newOutput(limit int64, live liveFunc) *output {
	if limit <= 0 {
		limit = isolation.DefaultOutput
	}
	return &output{live: live, stdout: newBuffer(limit), stderr: newBuffer(limit)}
}

// Writer returns where the bytes of stream go. Its writes do not fail.
func (o *output) Writer(stream sandbox.Stream) io.Writer {
	return writer{out: o, stream: stream}
}

// Captured returns what is kept of stream so far.
func (o *output) Captured(stream sandbox.Stream) sandbox.Captured {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buffer(stream).captured()
}

// Combined returns what is kept of both streams together, in the order of the writes.
func (o *output) Combined() sandbox.Captured {
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
func (o *output) combine(stream sandbox.Stream, p []byte) {
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
func (o *output) throttled(stream sandbox.Stream, wait time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.buffer(stream).throttled += wait
	if o.combined != nil {
		o.combined.throttled += wait
	}
}

func (o *output) buffer(stream sandbox.Stream) *buffer {
	if stream == sandbox.Stderr {
		return &o.stderr
	}
	return &o.stdout
}

type writer struct {
	out    *output
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

// buffer keeps the first headMax and the last tailMax bytes of a stream.
type buffer struct {
	headMax, tailMax int

	head  []byte
	tail  []byte // a ring once it is full
	next  int    // where the ring is written next; its oldest byte
	total int64
	ends  int64 // of lines
	open  bool  // the last line has no end

	throttled time.Duration
}

func newBuffer(limit int64) buffer {
	half := int(limit / 2)
	return buffer{headMax: int(limit) - half, tailMax: half}
}

// clone returns a buffer that holds the same and goes its own way.
func (b *buffer) clone() buffer {
	c := *b
	c.head, c.tail = slices.Clone(b.head), slices.Clone(b.tail)
	return c
}

func (b *buffer) write(p []byte) {
	if len(p) == 0 {
		return
	}
	b.total += int64(len(p))
	b.ends += int64(bytes.Count(p, []byte{'\n'}))
	b.open = p[len(p)-1] != '\n'
	n := min(len(p), b.headMax-len(b.head))
	b.head = append(b.head, p[:n]...)
	b.writeTail(p[n:])
}

func (b *buffer) writeTail(p []byte) {
	if len(p) > b.tailMax {
		p = p[len(p)-b.tailMax:]
	}
	n := min(len(p), b.tailMax-len(b.tail))
	b.tail = append(b.tail, p[:n]...)
	for p = p[n:]; len(p) > 0; p = p[n:] {
		n = copy(b.tail[b.next:], p)
		b.next = (b.next + n) % b.tailMax
	}
}

// captured joins head and tail; where something is missing in between, neither
// ends within a character.
func (b *buffer) captured() sandbox.Captured {
	tail := append(append(make([]byte, 0, len(b.tail)), b.tail[b.next:]...), b.tail[:b.next]...)
	out := sandbox.Captured{Total: b.total, Lines: b.ends, Throttled: b.throttled}
	if b.open {
		out.Lines++
	}
	if int64(len(b.head)+len(tail)) == b.total {
		out.Data = append(append(out.Data, b.head...), tail...)
		return out
	}
	head := b.head[:prose.Border(b.head)]
	tail = tail[prose.Start(tail):]
	missing := b.total - int64(len(head)) - int64(len(tail))
	out.Truncated = true
	out.Data = append(out.Data, head...)
	out.Data = fmt.Appendf(out.Data, "\n[... %d bytes left out ...]\n", missing)
	out.Data = append(out.Data, tail...)
	return out
}

// unorderedPipes are pipes that are read side by side, for systems without more: the order of
// writes to both is about right.
type unorderedPipes struct{ stdout, stderr *os.File }

func openUnordered() (_ *unorderedPipes, stdout, stderr *os.File, err error) {
	p := &unorderedPipes{}
	if p.stdout, stdout, err = os.Pipe(); err != nil {
		return nil, nil, nil, err
	}
	if p.stderr, stderr, err = os.Pipe(); err != nil {
		_ = stdout.Close() // nothing was written
		p.close()
		return nil, nil, nil, err
	}
	return p, stdout, stderr, nil
}

// copy hands over what is written until both streams have ended, or endAt's time; also what was
// written by then but has not been read.
func (p *unorderedPipes) copy(keep func(sandbox.Stream, []byte)) {
	var readers sync.WaitGroup
	read := func(from *os.File, stream sandbox.Stream) {
		defer from.Close()
		buf := make([]byte, readSize)
		for {
			n, err := from.Read(buf)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				if n = readPending(from, buf); n > 0 {
					keep(stream, buf[:n])
				}
				return
			}
			if n > 0 {
				keep(stream, buf[:n])
			}
			if err != nil {
				return
			}
		}
	}
	readers.Go(func() { read(p.stdout, sandbox.Stdout) })
	readers.Go(func() { read(p.stderr, sandbox.Stderr) })
	readers.Wait()
}

// endAt makes copy return at that time.
func (p *unorderedPipes) endAt(t time.Time) {
	_ = p.stdout.SetReadDeadline(t)
	_ = p.stderr.SetReadDeadline(t)
}

// close must not run concurrently with copy.
func (p *unorderedPipes) close() {
	for _, file := range []*os.File{p.stdout, p.stderr} {
		if file != nil {
			_ = file.Close() // nothing is written there
		}
	}
}
