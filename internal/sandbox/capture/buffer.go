package capture

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

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

// apart are pipes that are read side by side, for systems without more: the order of writes to both
// is about right.
type apart struct{ stdout, stderr *os.File }

func openApart() (_ *apart, stdout, stderr *os.File, err error) {
	p := &apart{}
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
func (p *apart) copy(keep func(sandbox.Stream, []byte)) {
	var readers sync.WaitGroup
	read := func(from *os.File, stream sandbox.Stream) {
		defer from.Close()
		buf := make([]byte, readSize)
		for {
			n, err := from.Read(buf)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				if n = waiting(from, buf); n > 0 {
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
func (p *apart) endAt(t time.Time) {
	_ = p.stdout.SetReadDeadline(t)
	_ = p.stderr.SetReadDeadline(t)
}

// close must not run concurrently with copy.
func (p *apart) close() {
	for _, file := range []*os.File{p.stdout, p.stderr} {
		if file != nil {
			_ = file.Close() // nothing is written there
		}
	}
}
