package lane

import (
	"context"
	"time"

	"github.com/toolfleet/toolfleet/internal/lane/core"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Calls whose time is over, or that are cancelled, are answered also in lanes that nobody holds
// because all slots of all workers are taken. A worker without a free slot reads what waits in its
// pool, each message once, and remembers which lanes have such calls and when. Then it claims the
// lane like any other, answers what needs no slot, and lets the lane go.

const (
	// duePeriod is how often a worker without a free slot looks for calls whose time is over.
	duePeriod = 250 * time.Millisecond
	// dueAgain is when a lane is looked at again that could not be claimed, or still has some.
	dueAgain = time.Second
	// maxDue bounds the lanes that are remembered; what is more is read later.
	maxDue = 8192
	// dueReads bounds the messages that are read at a time.
	dueReads = 256
)

// dueLane is a lane with a call that may have to be answered at a time.
type dueLane struct {
	lane protocol.Lane
	at   time.Time
}

// answerDue reads what came since the last time, and answers what is due.
func (c *caretaker) answerDue(ctx context.Context) error {
	if c.holder.slots.available() > 0 {
		return nil // nothing waits
	}
	if err := c.readDue(ctx); err != nil {
		return err
	}
	for hash, due := range c.due {
		if time.Now().Before(due.at) {
			continue
		}
		next, err := c.answerLane(ctx, due.lane)
		if err != nil {
			return err
		}
		if next.IsZero() {
			delete(c.due, hash)
			continue
		}
		c.due[hash] = dueLane{lane: due.lane, at: next}
	}
	return nil
}

func (c *caretaker) readDue(ctx context.Context) error {
	filter := c.holder.options.Fleet.PoolFilter(c.holder.options.Pool)
	for n := 0; n < dueReads && len(c.due) < maxDue; n++ {
		msg, err := c.holder.store.Next(ctx, filter, c.cursor)
		if err != nil || msg == nil {
			return err
		}
		c.cursor = msg.Sequence + 1
		c.remember(msg)
	}
	return nil
}

// remember notes when a call has to be answered that a message is, or is about.
func (c *caretaker) remember(msg *message) {
	lane := protocol.LaneOfHeader(msg.Header.Get(protocol.HeaderLane))
	at := time.Now()
	if c.holder.options.Fleet.ParseMailboxSubject(msg.Subject).Kind != protocol.EntryCancel {
		call, err := protocol.DecodeCall(msg.Data)
		if err != nil {
			return // no call, or one that whoever gets the lane answers
		}
		e := core.Entry{Call: call}
		after, bounded := e.DueAfter()
		if !bounded {
			return
		}
		lane, at = call.Lane(), at.Add(after-c.holder.clock.Age(msg.Time))
	}
	if before, known := c.due[lane.Hash()]; lane != "" && (!known || at.Before(before.at)) {
		c.due[lane.Hash()] = dueLane{lane: lane, at: at}
	}
}

// answerLane answers what is due in a lane, and returns when to look again; zero is never.
func (c *caretaker) answerLane(ctx context.Context, lane protocol.Lane) (again time.Time, err error) {
	again = time.Now().Add(dueAgain) // should whoever holds the lane lose it
	visited, err := c.holder.visit(ctx, lane, func(l *held) {
		l.marks.refusing = true
		l.refuse()
		l.tries(sweepTrouble, l.sweep)
		if l.schedule.Len() > 0 || l.pinned() || !l.leave() {
			l.letGo(false, l.redeliver) // where it was in the line
		}
		switch {
		case l.marks.due.After(again):
			again = l.marks.due
		case l.marks.due.IsZero() && l.mail.caughtUp:
			again = time.Time{}
		}
	})
	if err == nil && !visited && c.isEmpty(ctx, lane) {
		return time.Time{}, nil
	}
	return again, err
}

func (c *caretaker) isEmpty(ctx context.Context, lane protocol.Lane) bool {
	s, pool := c.holder.store, c.holder.options.Pool
	ready, err := s.Ready(ctx, pool, lane.Hash())
	if err != nil || ready != nil {
		return false
	}
	entry, err := s.Next(ctx, s.Fleet.MailboxFilter(pool, lane.Hash()), 0)
	return err == nil && entry == nil
}
