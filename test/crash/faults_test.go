package crash

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
)

// fault is what happens to one write of a process.
type fault string

// The faults. With the first two the process ends; with the others it lives.
const (
	lost       fault = "lost"       // the write is not made
	unanswered fault = "unanswered" // the write is made, and its answer does not arrive
	refused    fault = "refused"    // the write is not made: the answer says that JetStream is unavailable
	made       fault = "made"       // the write is made, but the answer says that JetStream is unavailable
	silent     fault = "silent"     // the write is made, and its answer is lost on the way
	delayed    fault = "delayed"    // the write, and all that follows, is held until another process has gone on
)

// kills reports whether the process ends.
func (f fault) kills() bool { return f == lost || f == unanswered }

// write names one write of a process: the n-th, from 1, of its kind, which is the subject without
// ids, as in "tf.event.* 2".
type write struct {
	kind string
	n    int
}

func (w write) String() string { return fmt.Sprintf("%s_%d", w.kind, w.n) }

// faulty is the network of a process that has a fault at one of its writes.
type faulty struct {
	at      write
	fault   fault
	reached chan struct{}

	mu     sync.Mutex
	begun  bool
	after  natsiotest.Fate // of all that is said behind the write
	counts map[string]int
	seen   []write
}

// newFaulty puts the fault into a link. The zero write has none.
func newFaulty(link *natsiotest.Link, at write, f fault) *faulty {
	n := &faulty{at: at, fault: f, reached: make(chan struct{}), counts: map[string]int{}}
	link.OnWrite(n.decide)
	return n
}

// begin counts the writes from now on.
func (n *faulty) begin() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.begun = true
}

// writes are those so far.
func (n *faulty) writes() []write {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.seen)
}

// notWrites are subjects of questions, acknowledgements, messages that may be lost, marks of what a
// tenant stores, and probes of rights.
var notWrites = regexp.MustCompile(`^(_INBOX|\$JS\.ACK|\$JS\.API\.(INFO|CONSUMER|DIRECT|STREAM\.(INFO|NAMES|LIST|MSG\.GET))|` +
	`[^.]+\.(heartbeat|who|ask|output|live)|\$O\.\w+\.C\.[^.]+\.(journal|result)|.*\.rights)\b`)

// word is a token of a subject that is no id.
var word = regexp.MustCompile(`^(\$?[A-Za-z_]{1,16})$`)

func kindOf(subject string) string {
	tokens := strings.Split(subject, ".")
	for i := range tokens {
		if !word.MatchString(tokens[i]) || i > 1 && tokens[0] == "$KV" || i > 2 && tokens[0] == "$O" {
			tokens[i] = "*"
		}
	}
	return strings.Join(tokens, ".")
}

// decide says what becomes of a message.
func (n *faulty) decide(subject string) natsiotest.Fate {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.begun || n.after != natsiotest.Passes {
		return n.after
	}
	if notWrites.MatchString(subject) {
		return natsiotest.Passes
	}
	kind := kindOf(subject)
	n.counts[kind]++
	now := write{kind, n.counts[kind]}
	n.seen = append(n.seen, now)
	if now != n.at {
		return natsiotest.Passes
	}
	close(n.reached)
	switch n.fault {
	case lost:
		n.after = natsiotest.Lost
		return natsiotest.Lost
	case unanswered:
		n.after = natsiotest.Lost
		return natsiotest.Unanswered
	case refused:
		return natsiotest.Refused
	case made:
		return natsiotest.Made
	case silent:
		return natsiotest.Unanswered
	default: // delayed
		n.after = natsiotest.Held
		return natsiotest.Held
	}
}
