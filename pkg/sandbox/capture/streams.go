package capture

import (
	"os"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// readSize is how much is read at a time, in bytes.
const readSize = 64 << 10

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
	over   chan struct{}
	once   sync.Once // closes over
	done   chan struct{}
}

// OpenStreams makes the pipes of a command that is not started yet. It is followed by
// [Streams.Run] and [Streams.Finish], or by [Streams.Abandon].
func OpenStreams(out *Output) (*Streams, error) {
	p, stdout, stderr, err := openPipes()
	if err != nil {
		return nil, err
	}
	return &Streams{
		out: out, pipes: p, theirs: []*os.File{stdout, stderr},
		over: make(chan struct{}), done: make(chan struct{}),
	}, nil
}

// Command returns the ends for the command. They stay the property of Streams.
func (s *Streams) Command() (stdout, stderr *os.File) { return s.theirs[0], s.theirs[1] }

// Over is closed when a stream has exceeded its limit. Nothing more is read of that
// stream then: the command's next write to it fails.
func (s *Streams) Over() <-chan struct{} { return s.over }

// Run starts copying, after the command was started.
func (s *Streams) Run() {
	s.closeTheirs()
	go func() {
		defer close(s.done)
		s.pipes.copy(func(stream sandbox.Stream, p []byte) bool {
			if _, err := s.out.Writer(stream).Write(p); err != nil {
				s.once.Do(func() { close(s.over) })
				return false
			}
			return true
		})
	}()
}

// Abandon closes everything: the command did not start.
func (s *Streams) Abandon() {
	s.closeTheirs()
	s.pipes.close()
}

// Finish ends the copying when the command is gone: after the end of its output, or
// after wait when something that survived holds it open. It reports whether a stream
// was over its limit.
func (s *Streams) Finish(wait time.Duration) (over bool) {
	s.pipes.endAt(time.Now().Add(wait))
	<-s.done
	s.pipes.close()
	select {
	case <-s.over:
		return true
	default:
		return false
	}
}

func (s *Streams) closeTheirs() {
	for _, file := range s.theirs {
		_ = file.Close() // only the command's end matters; a second time does nothing
	}
}
