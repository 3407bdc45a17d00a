package supervisor

import (
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// readSize is how much is read at a time, in bytes.
const readSize = 64 << 10

// Streams are the pipes of one command: from its output streams to an [output], and to its input.
// The command gets pipes and never a file of the host.
//
// On Linux they keep the order of writes across both outputs: a pipe holds one write at a time, and
// the next write waits until that was read. That costs a command some microseconds for each write.
type Streams struct {
	out    *output
	pipes  *pipes
	theirs [3]*os.File // the command's ends; the first is nil without input
	pace   *rate.Limiter
	copied chan struct{} // closed when there is no more output

	input  []byte
	typed  <-chan []byte // nil for input that is there
	fed    bool          // the end of what is typed is that of the input
	stdin  *os.File      // our end
	ended  chan struct{} // closed when input has ended
	writer sync.WaitGroup
}

// openStreams makes the pipes of a command that is not started yet. It is followed by
// [Streams.Run] and [Streams.Finish], or by [Streams.Abandon].
func openStreams(cmd sandbox.Cmd, out *output) (_ *Streams, err error) {
	s := &Streams{
		out: out, pace: rate.NewLimiter(isolation.OutputRate, isolation.OutputBurst), copied: make(chan struct{}),
		input: cmd.Stdin, typed: cmd.Typed, ended: make(chan struct{}),
	}
	if s.typed == nil && cmd.Feed != nil {
		s.typed, s.fed = cmd.Feed, true
	}
	if len(s.input) > 0 || s.typed != nil {
		if s.theirs[0], s.stdin, err = os.Pipe(); err != nil {
			return nil, fmt.Errorf("open pipes: %w", err)
		}
	}
	if s.pipes, s.theirs[1], s.theirs[2], err = openPipes(); err != nil {
		s.closeTheirs()
		_ = s.stdin.Close() // nothing was written
		return nil, fmt.Errorf("open pipes: %w", err)
	}
	return s, nil
}

// Command returns the ends for the command. They stay the property of Streams. stdin is nil for a
// command without input, which reads from /dev/null.
func (s *Streams) Command() (stdin, stdout, stderr *os.File) {
	return s.theirs[0], s.theirs[1], s.theirs[2]
}

// Run moves bytes from and to the command, which was just started.
func (s *Streams) Run() {
	s.closeTheirs()
	go func() {
		defer close(s.copied)
		s.pipes.copy(func(stream sandbox.Stream, p []byte) {
			_, _ = s.out.Writer(stream).Write(p) // it does not fail
			if wait := s.pace.ReserveN(time.Now(), len(p)).Delay(); wait > 0 {
				s.out.throttled(stream, wait)
				<-time.After(wait) // a millisecond or so: the command waits in its write meanwhile
			}
		})
	}()
	if s.stdin == nil {
		return
	}
	s.writer.Go(func() {
		if s.typed == nil {
			_, _ = s.stdin.Write(s.input) // a command need not read it
		} else {
			s.typing()
		}
		_ = s.stdin.Close()
	})
}

// typing writes what is typed or fed until the command is gone, or no more is fed.
func (s *Streams) typing() {
	for typed := s.typed; ; {
		select {
		case data, open := <-typed:
			if !open && s.fed {
				return
			}
			if !open {
				typed = nil
			}
			_, _ = s.stdin.Write(data) // as above
		case <-s.ended:
			return
		}
	}
}

// Abandon closes everything: the command did not start.
func (s *Streams) Abandon() {
	s.closeTheirs()
	_ = s.stdin.Close() // nothing was written; it may be nil
	s.pipes.close()
}

// Finish ends the copying when the command is gone: input at once, output after its end,
// or after wait when something that survived holds it open.
func (s *Streams) Finish(wait time.Duration) {
	close(s.ended)
	_ = s.stdin.SetDeadline(time.Now()) // something that survived may hold the other end; it may be nil
	s.pipes.endAt(time.Now().Add(wait))
	<-s.copied
	s.pipes.close()
	s.writer.Wait()
}

func (s *Streams) closeTheirs() {
	for _, file := range s.theirs {
		_ = file.Close() // only the command's end matters; a second time does nothing, nor does nil
	}
}
