package process

import (
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/pkg/sandbox/capture"
)

// pipes connects a command to its input and to a capture of its output.
type pipes struct {
	*capture.Streams

	input  []byte
	theirs *os.File // the command's end of the input
	stdin  *os.File // our end; nil when there is no input
	writer sync.WaitGroup
}

// openPipes makes the pipes and sets them in c, which is not started yet.
func openPipes(c *exec.Cmd, input []byte, out *capture.Output) (*pipes, error) {
	p := &pipes{input: input}
	if err := p.openInput(); err != nil {
		return nil, err
	}
	streams, err := capture.OpenStreams(out)
	if err != nil {
		p.closeInput()
		return nil, err
	}
	p.Streams = streams
	c.Stdin = p.theirs
	c.Stdout, c.Stderr = streams.Command()
	return p, nil
}

func (p *pipes) openInput() (err error) {
	if len(p.input) == 0 {
		p.theirs, err = os.Open(os.DevNull)
		return err
	}
	p.theirs, p.stdin, err = os.Pipe()
	return err
}

func (p *pipes) closeInput() {
	_ = p.theirs.Close() // only the command's end matters
	if p.stdin != nil {
		_ = p.stdin.Close() // nothing was written
	}
}

// abandon closes everything: the command did not start.
func (p *pipes) abandon() {
	p.closeInput()
	p.Abandon()
}

// run moves bytes from and to the command, which was just started.
func (p *pipes) run() {
	_ = p.theirs.Close() // only the command's end matters
	p.Run()
	if p.stdin != nil {
		p.writer.Go(func() {
			_, _ = p.stdin.Write(p.input) // a command need not read it
			_ = p.stdin.Close()
		})
	}
}

// finish ends the copying when the command is gone: input at once, output after
// its end, or after wait when something that survived holds it open. It reports
// whether a stream was over its limit.
func (p *pipes) finish(wait time.Duration) bool {
	if p.stdin != nil {
		_ = p.stdin.SetDeadline(time.Now()) // something that survived may hold the other end
	}
	over := p.Finish(wait)
	p.writer.Wait()
	return over
}
