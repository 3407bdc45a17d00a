package capture

import (
	"errors"
	"os"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

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
// written by then, and nobody has had the time to read.
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

// close must not run beside copy.
func (p *apart) close() {
	for _, file := range []*os.File{p.stdout, p.stderr} {
		if file != nil {
			_ = file.Close() // nothing is written there
		}
	}
}
