package capture

import (
	"os"
	"time"

	"golang.org/x/time/rate"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// readSize is how much is read at a time, in bytes.
const readSize = 64 << 10

// A command that has written Burst bytes is read at Rate bytes a second: nobody reads so much, and
// reading it takes a processor.
const (
	Burst = 256 << 20
	Rate  = 64 << 20
)

// Streams are the pipes between the output streams of one command and an [Output].
//
// Where the system allows it (Linux) they keep the order of writes across both: a
// pipe holds one write at a time, and the next write waits until that was read, so
// that of two writes the one that came first is known. That costs a command some
// microseconds for each write.
type Streams struct {
	out    *Output
	pipes  *pipes
	theirs []*os.File // the command's ends
	pace   *rate.Limiter
	done   chan struct{}
}

// OpenStreams makes the pipes of a command that is not started yet. It is followed by
// [Streams.Run] and [Streams.Finish], or by [Streams.Abandon].
func OpenStreams(out *Output) (*Streams, error) {
	p, stdout, stderr, err := openPipes()
	if err != nil {
		return nil, err
	}
	return &Streams{out: out, pipes: p, theirs: []*os.File{stdout, stderr}, pace: rate.NewLimiter(Rate, Burst), done: make(chan struct{})}, nil
}

// Command returns the ends for the command. They stay the property of Streams.
func (s *Streams) Command() (stdout, stderr *os.File) { return s.theirs[0], s.theirs[1] }

// Run starts copying, after the command was started.
func (s *Streams) Run() {
	s.closeTheirs()
	go func() {
		defer close(s.done)
		s.pipes.copy(func(stream sandbox.Stream, p []byte) {
			_, _ = s.out.Writer(stream).Write(p) // it does not fail
			if wait := s.pace.ReserveN(time.Now(), len(p)).Delay(); wait > 0 {
				<-time.After(wait) // a millisecond or so: the command waits in its write meanwhile
			}
		})
	}()
}

// Abandon closes everything: the command did not start.
func (s *Streams) Abandon() {
	s.closeTheirs()
	s.pipes.close()
}

// Finish ends the copying when the command is gone: after the end of its output, or
// after wait when something that survived holds it open.
func (s *Streams) Finish(wait time.Duration) {
	s.pipes.endAt(time.Now().Add(wait))
	<-s.done
	s.pipes.close()
}

func (s *Streams) closeTheirs() {
	for _, file := range s.theirs {
		_ = file.Close() // only the command's end matters; a second time does nothing
	}
}
