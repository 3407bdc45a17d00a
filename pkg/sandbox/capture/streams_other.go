//go:build !linux

package capture

import (
	"os"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// pipes are read side by side: the order of writes to both is about right.
type pipes struct{ stdout, stderr *os.File }

func openPipes() (_ *pipes, stdout, stderr *os.File, err error) {
	p := &pipes{}
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

// copy hands over what is written until both streams have ended, or endAt's time.
// A stream of which keep wants no more is closed.
func (p *pipes) copy(keep func(sandbox.Stream, []byte) bool) {
	var readers sync.WaitGroup
	read := func(from *os.File, stream sandbox.Stream) {
		defer from.Close()
		buf := make([]byte, readSize)
		for {
			n, err := from.Read(buf)
			if n > 0 && !keep(stream, buf[:n]) || err != nil {
				return
			}
		}
	}
	readers.Go(func() { read(p.stdout, sandbox.Stdout) })
	readers.Go(func() { read(p.stderr, sandbox.Stderr) })
	readers.Wait()
}

// endAt makes copy return at that time.
func (p *pipes) endAt(t time.Time) {
	_ = p.stdout.SetReadDeadline(t)
	_ = p.stderr.SetReadDeadline(t)
}

// close must not run beside copy.
func (p *pipes) close() {
	for _, file := range []*os.File{p.stdout, p.stderr} {
		if file != nil {
			_ = file.Close() // nothing is written there
		}
	}
}
