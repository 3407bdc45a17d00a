package process

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
	"github.com/toolfleet/toolfleet/pkg/sandbox/capture"
)

// readSize is how much output is read at a time, in bytes.
const readSize = 32 << 10

// pipes connects a command to its input and to a capture of its output.
type pipes struct {
	over chan struct{} // closed when a stream exceeded its limit

	out    *capture.Output
	input  []byte
	theirs []*os.File // the ends of the command
	stdin  *os.File   // our end; nil when there is no input
	stdout *os.File
	stderr *os.File

	once    sync.Once // closes over
	readers sync.WaitGroup
	writer  sync.WaitGroup
}

// openPipes makes the pipes and sets them in c, which is not started yet.
func openPipes(c *exec.Cmd, input []byte, out *capture.Output) (*pipes, error) {
	p := &pipes{over: make(chan struct{}), out: out, input: input}
	stdin, err := p.openInput()
	if err != nil {
		return nil, err
	}
	c.Stdin = stdin
	stdout, err := p.openOutput(&p.stdout)
	if err != nil {
		p.abandon()
		return nil, err
	}
	c.Stdout = stdout
	stderr, err := p.openOutput(&p.stderr)
	if err != nil {
		p.abandon()
		return nil, err
	}
	c.Stderr = stderr
	return p, nil
}

func (p *pipes) openInput() (*os.File, error) {
	if len(p.input) == 0 {
		file, err := os.Open(os.DevNull)
		if err == nil {
			p.theirs = append(p.theirs, file)
		}
		return file, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	p.theirs, p.stdin = append(p.theirs, r), w
	return r, nil
}

func (p *pipes) openOutput(ours **os.File) (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	p.theirs, *ours = append(p.theirs, w), r
	return w, nil
}

// abandon closes everything: the command did not start.
func (p *pipes) abandon() {
	p.closeTheirs()
	for _, file := range []*os.File{p.stdin, p.stdout, p.stderr} {
		if file != nil {
			_ = file.Close() // nothing was written
		}
	}
}

func (p *pipes) closeTheirs() {
	for _, file := range p.theirs {
		_ = file.Close() // only the command's end matters
	}
	p.theirs = nil
}

// run moves bytes from and to the command, which was just started.
func (p *pipes) run() {
	p.closeTheirs()
	p.readers.Go(func() { p.read(p.stdout, sandbox.Stdout) })
	p.readers.Go(func() { p.read(p.stderr, sandbox.Stderr) })
	if p.stdin != nil {
		p.writer.Go(func() {
			_, _ = p.stdin.Write(p.input) // a command need not read it
			_ = p.stdin.Close()
		})
	}
}

// read captures a stream until its end, or until it is over its limit. Closing our
// end makes the command's next write fail.
func (p *pipes) read(from *os.File, stream sandbox.Stream) {
	defer from.Close()
	_, err := io.CopyBuffer(p.out.Writer(stream), onlyReader{from}, make([]byte, readSize))
	if errors.Is(err, capture.ErrLimit) {
		p.once.Do(func() { close(p.over) })
	}
}

// onlyReader hides the other methods of a file, so that a copy uses its buffer.
type onlyReader struct{ io.Reader }

// finish ends the copying when the command is gone: input at once, output after
// its end, or after wait when something that survived holds it open. It reports
// whether a stream was over its limit.
func (p *pipes) finish(wait time.Duration) bool {
	if p.stdin != nil {
		_ = p.stdin.SetDeadline(time.Now()) // something that survived may hold the other end
	}
	deadline := time.Now().Add(wait)
	_ = p.stdout.SetReadDeadline(deadline)
	_ = p.stderr.SetReadDeadline(deadline)
	p.writer.Wait()
	p.readers.Wait()
	select {
	case <-p.over:
		return true
	default:
		return false
	}
}
