package lane

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/internal/lane/store"
	"github.com/toolfleet/toolfleet/internal/pause"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// When another server comes to lead the pool's consumer, all that it knows about an earlier delivery is when the message was
// stored. It then delivers a message that has waited for long once more at once, although the earlier delivery may still be on its
// way to another worker. Both workers could renew the lease of that one message, because servers do not ask who renews, and both
// would hold the lane. So the mark that is stored at a claim names the ready message, and stays in the mailbox for as long as the
// lane is held. A worker that finds such a mark which was stored before its own leaves the lane to the other, which need not know.
// Whoever lets a lane go removes the ready message before the mark; so a worker that finds no other mark and no ready message
// leaves the lane, too.
//
// The worker of a mark may be lost. When a lane is delivered again because a lease has ended, the pull request was sent two thirds
// of a lease after the last renewal or later, because pull requests live for a third. So a mark that is a third of a lease older
// than the pull request does not count; the other third is for what passes between a renewal and the mark. If a lost worker's mark
// counts all the same, the lane is idle for one more lease, and nothing is run twice.

// claimMark is the mark that a claim has stored, if it has.
type claimMark struct {
	subject string // "" before the first try
	seq     uint64 // 0 while it is not stored
}

// errRival says that another worker holds, or held, the lane by the same ready message.
var errRival = errors.New("another worker has it by the same ready message, or had")

// errTaken says that the subject of a mark has the mark of another claim.
var errTaken = errors.New("another claim has a mark of this number")

// markClaim stores the mark of this claim.
func (l *held) markClaim() error {
	o, s := l.holder.options, l.holder.store
	if l.claim.subject == "" {
		l.claim.subject = o.Fleet.ClaimSubject(o.Pool, l.hash, store.Token())
	}
	msg := nats.NewMsg(l.claim.subject)
	msg.Header.Set(protocol.HeaderReady, l.readyText())
	msg.Data = l.markText()
	seq, answer, err := s.PublishOnce(l.ctx, o.Fleet.CallsStream(), msg)
	switch {
	case err == nil && answer == store.Full:
		err = ErrFull
	case err == nil && answer == store.Occupied: // by an earlier try, whose answer was lost?
		seq, err = l.ownMark(msg)
	}
	if errors.Is(err, errTaken) {
		l.claim.subject = "" // the next try has another number
	}
	if err != nil {
		return fmt.Errorf("mark the claim: %w", err)
	}
	l.claim.seq = seq
	return nil
}

// ownMark returns the sequence of a mark that the stream has already. The error wraps [errTaken] when
// another claim stored it.
func (l *held) ownMark(msg *nats.Msg) (uint64, error) {
	stored, err := l.holder.store.Next(l.ctx, msg.Subject, 0)
	switch {
	case err != nil:
		return 0, err
	case stored == nil:
		return 0, store.ErrUnderWay
	case !bytes.Equal(stored.Data, msg.Data):
		return 0, errTaken
	}
	return stored.Sequence, nil
}

// markText says who stores a mark: the worker, and the delivery by which it holds the lane.
func (l *held) markText() []byte {
	return fmt.Appendf(nil, "%s %d %d", l.holder.options.Worker, l.ready, l.delivered)
}

// yieldToRivals returns an error that wraps [errRival] when another worker holds the lane by the same ready message. claims are the
// subjects of the marks of claims in a list of the mailbox that knows the mark of this one.
func (l *held) yieldToRivals(claims []string) error {
	for _, subject := range claims {
		if subject == l.claim.subject || subject == l.former {
			continue
		}
		other, err := l.holder.store.Next(l.ctx, subject, 0)
		if err != nil {
			return fmt.Errorf("mark of another claim: %w", err)
		}
		if other == nil || other.Header.Get(protocol.HeaderReady) != l.readyText() || l.claim.seq > 0 && other.Sequence > l.claim.seq {
			continue
		}
		if l.holder.clock.AgeAt(l.asked, other.Time) < l.lease.length/3 {
			return l.rival()
		}
	}
	if l.claim.seq == 0 {
		return nil
	}
	return l.hasReady()
}

// hasReady returns an error that wraps [errRival] when the ready message is gone.
func (l *held) hasReady() error {
	s, subject := l.holder.store, l.holder.options.Fleet.ReadySubject(l.holder.options.Pool, l.hash)
	there, err := s.Next(l.ctx, subject, 0)
	switch {
	case err != nil:
		return fmt.Errorf("ready message: %w", err)
	case there != nil && there.Sequence <= l.ready:
		return nil
	case there != nil:
		return l.rival()
	}
	list, err := s.List(l.ctx, subject, l.claim.seq) // whoever answered may not have it yet
	switch {
	case err != nil:
		return fmt.Errorf("ready message: %w", err)
	case len(list.Subjects) == 0:
		return l.rival()
	}
	return fmt.Errorf("ready message: %w", store.ErrBehind)
}

func (l *held) rival() error {
	return fmt.Errorf("ready message %d, delivery %d: %w", l.ready, l.delivered, errRival)
}

func (l *held) readyText() string { return strconv.FormatUint(l.ready, 10) }

// removeClaim removes the mark of this claim, and returns when it is gone.
func (l *held) removeClaim() error {
	if l.claim.seq == 0 {
		return nil
	}
	err := l.holder.store.Remove(context.WithoutCancel(l.ctx), l.claim.seq)
	if err == nil {
		l.claim.seq = 0
	}
	return err
}

// dropClaim removes the mark when the lane is let go or lost; perhaps nobody else ever comes to the lane who could. It tries for
// a while, because servers may be without a leader, but gives up where there is no connection.
func (l *held) dropClaim() {
	for end := time.Now().Add(store.OpTimeout); l.claim.seq > 0 && l.holder.store.NC.IsConnected() && time.Now().Before(end); {
		if l.removeClaim() != nil {
			pause.For(context.WithoutCancel(l.ctx), faultPause)
		}
	}
}
