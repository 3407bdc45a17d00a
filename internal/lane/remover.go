package lane

import (
	"strconv"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
)

// remover deletes settled entries without waiting for each. An entry whose
// deletion was not confirmed is deleted once more before its lane is released.
type remover struct {
	nc      *nats.Conn
	subject string
	inbox   string

	mu   sync.Mutex
	next uint64
	sent map[uint64]removal
}

// removal is one deletion on its way.
type removal struct {
	lane *held
	seq  uint64
}

func newRemover(s *store) *remover {
	return &remover{
		nc: s.nc, subject: s.deleteSubject(), inbox: s.nc.NewInbox(),
		sent: map[uint64]removal{},
	}
}

// listen takes the confirmations.
func (r *remover) listen() (*nats.Subscription, error) {
	return r.nc.Subscribe(r.inbox+".*", r.answered)
}

// remove sends the deletion of a message. Without a connection it stays unconfirmed.
func (r *remover) remove(l *held, seq uint64) {
	l.unconfirmed(seq)
	r.mu.Lock()
	r.next++
	id := r.next
	r.sent[id] = removal{l, seq}
	r.mu.Unlock()
	if err := r.nc.PublishRequest(r.subject, r.inbox+"."+strconv.FormatUint(id, 10), deleteRequest(seq)); err != nil {
		r.mu.Lock()
		delete(r.sent, id)
		r.mu.Unlock()
	}
}

func (r *remover) answered(msg *nats.Msg) {
	id, err := strconv.ParseUint(msg.Subject[strings.LastIndexByte(msg.Subject, '.')+1:], 10, 64)
	if err != nil {
		return
	}
	r.mu.Lock()
	done, known := r.sent[id]
	delete(r.sent, id)
	r.mu.Unlock()
	if known && deleteFault(msg.Data) == nil {
		done.lane.confirmed(done.seq)
	}
}

// forget drops what is still unanswered of a lane that is not held any more.
func (r *remover) forget(l *held) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, removal := range r.sent {
		if removal.lane == l {
			delete(r.sent, id)
		}
	}
}
