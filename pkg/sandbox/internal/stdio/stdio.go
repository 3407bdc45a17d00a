// Package stdio connects a command's standard streams to its input and to a capture of its
// output. The command gets pipes and never a file of the host.
package stdio

import (
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
	"github.com/toolfleet/toolfleet/pkg/sandbox/capture"
)

// Pipes connects a command to its input and to a capture of its output.
type Pipes struct {
	streams *capture.Streams
	input   []byte
	typed   <-chan []byte // nil for input that is there
	ended   chan struct{} // closed when nobody types any more
	theirs  *os.File      // the command's end of the input; nil when there is none
	stdin   *os.File      // our end
	writer  sync.WaitGroup
}

// Open makes the pipes of a command. Either Abandon or Run and Finish have to follow.
func Open(cmd sandbox.Cmd, out *capture.Output) (*Pipes, error) {
	p := &Pipes{input: cmd.Stdin, typed: cmd.Typed, ended: make(chan struct{})}
	if err := p.openInput(); err != nil {
		return nil, fmt.Errorf("open pipes: %w", err)
	}
	streams, err := capture.OpenStreams(out)
	if err != nil {
		p.closeInput()
		return nil, fmt.Errorf("open pipes: %w", err)
	}
	p.streams = streams
	return p, nil
}

func (p *Pipes) openInput() (err error) {
	if len(p.input) == 0 && p.typed == nil {
		return nil
	}
	p.theirs, p.stdin, err = os.Pipe()
	return err
}

func (p *Pipes) closeInput() {
	if p.stdin != nil {
		_ = p.theirs.Close() // only the command's end matters
		_ = p.stdin.Close()  // nothing was written
	}
}

// Command returns the ends for the command, which Run closes. stdin is nil for a command without
// input, which reads from /dev/null.
func (p *Pipes) Command() (stdin, stdout, stderr *os.File) {
	stdout, stderr = p.streams.Command()
	return p.theirs, stdout, stderr
}

// Abandon closes everything: the command did not start.
func (p *Pipes) Abandon() {
	p.closeInput()
	p.streams.Abandon()
}

// Run moves bytes from and to the command, which was just started.
func (p *Pipes) Run() {
	p.streams.Run()
	if p.stdin != nil {
		_ = p.theirs.Close() // as in closeInput
		p.writer.Go(func() {
			if p.typed == nil {
				_, _ = p.stdin.Write(p.input) // a command need not read it
			} else {
				p.typing()
			}
			_ = p.stdin.Close()
		})
	}
}

// typing writes what is typed until the command is gone.
func (p *Pipes) typing() {
	for typed := p.typed; ; {
		select {
		case data, open := <-typed:
			if !open {
				typed = nil
			}
			_, _ = p.stdin.Write(data) // as above
		case <-p.ended:
			return
		}
	}
}

// Finish ends the copying when the command is gone: input at once, output after its end,
// or after wait when something that survived holds it open.
func (p *Pipes) Finish(wait time.Duration) {
	close(p.ended)
	if p.stdin != nil {
		_ = p.stdin.SetDeadline(time.Now()) // something that survived may hold the other end
	}
	p.streams.Finish(wait)
	p.writer.Wait()
}
