package lane

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/internal/lane/core"
	"github.com/toolfleet/toolfleet/internal/lane/store"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// In a cluster a holder that was told an entry has what is stored: a server repeats only what is
// agreed on, with its sequence. What the holder does not know is whether it was told all entries
// before that one, and whether this one is still there: a route may lose what is repeated, or
// deliver late what the last holder of the lane has settled. Reading the stream answers both, for
// one entry at a time. The list of all that is in the mailbox (STREAM.INFO) answers them for all
// entries up to the sequence that it knows, whoever gives it. An entry that it does not have was
// removed. One that it has is removed by nobody else, because nobody else holds the lane. One that
// it has and that was neither told nor read was missed, and is read.
//
// A list costs about as much as reading one entry, so it pays from two entries on, and the longer
// it is put off, the more it saves. It can be put off while a call waits that all later calls have
// to wait for ([held.hasTime]).

const (
	// perListed is how many subjects of a list cost as much as reading one entry.
	perListed = 32
	// readMost is how many entries are remembered as read until it is found out which of them are
	// still stored.
	readMost = 2 * window
)

// makeSure finds out by a list which of the entries that were told are still stored, where that is
// cheaper than reading them. Entries about which it finds out nothing have to be read from the
// stream.
func (m *mailbox) makeSure(ctx context.Context) error {
	if !m.store.Clustered() {
		return nil
	}
	told := m.toldInOrder()
	if len(told) == 0 || len(m.read) < m.prune && len(m.read) >= perListed*(len(told)-1) {
		return nil
	}
	list, err := m.store.List(ctx, m.filter(), 0)
	if err != nil {
		return err
	}
	for subject := range m.read {
		if _, there := list.Subjects[subject]; !there {
			delete(m.read, subject)
		}
	}
	m.prune = max(readMost, 2*len(m.read))
	told = m.toldInOrder() // some came while the server was asked
	missed, found, err := m.missed(ctx, told, list)
	if err != nil || !found {
		m.refresh()
		return err
	}
	m.sure = inOrder(slices.DeleteFunc(append(told, missed...), func(msg *message) bool {
		_, there := list.Subjects[msg.Subject]
		return !there || msg.Sequence > list.Last
	}))
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dropBefore(list.Last + 1)
	return nil
}

// missed reads what a list has that was neither told nor read. found is false when that would cost
// more than reading what was told, or when an entry is not found because the server that was asked
// is behind.
func (m *mailbox) missed(ctx context.Context, told []*message, list *store.Listing) (missed []*message, found bool, err error) {
	known := make(map[string]struct{}, len(told))
	for _, l := range told {
		known[l.Subject] = struct{}{}
	}
	if !list.Whole {
		return nil, false, nil
	}
	for subject := range list.Subjects {
		_, wasTold := known[subject]
		if _, wasRead := m.read[subject]; wasTold || wasRead {
			continue
		}
		if len(missed) >= len(told) {
			return nil, false, nil
		}
		msg, err := m.store.Next(ctx, subject, 0)
		if err != nil || msg == nil {
			return nil, false, err
		}
		if msg.Sequence >= m.cursor {
			missed = append(missed, msg)
		}
	}
	return missed, true, nil
}

// toldInOrder returns what was told and not read since. A leader may tell something later than its
// successor.
func (m *mailbox) toldInOrder() []*message {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dropBefore(m.cursor)
	return inOrder(slices.Clone(m.told))
}

// inOrder sorts messages by their sequences, and leaves each once.
func inOrder(messages []*message) []*message {
	slices.SortFunc(messages, func(a, b *message) int { return cmp.Compare(a.Sequence, b.Sequence) })
	return slices.CompactFunc(messages, func(a, b *message) bool { return a.Sequence == b.Sequence })
}

// onlyCalls reports whether all that is to be read was told, and is calls.
func (m *mailbox) onlyCalls() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.empty && m.subscription != nil && len(m.sure) == 0 && !m.urgent
}

// hasTime reports whether the mailbox, in a cluster, need not be read yet: a call has not started
// that takes the whole lane for itself, so nothing behind it can start before. What comes meanwhile
// is made sure of together. Whatever is no call is read at once; what was not told, a request to
// cancel above all, within a second.
func (l *held) hasTime() bool {
	return l.holder.store.Clustered() && l.first.caughtUp && l.first.inline == nil && time.Since(l.first.fed) < lookPeriod &&
		!l.oversight.asked.Load() && !l.oversight.paused.Load() && l.mail.onlyCalls() &&
		slices.ContainsFunc(l.schedule.Entries(), func(e *core.Entry) bool {
			return !e.Running && slices.Contains(e.Call.Resources, protocol.Use{Key: protocol.ResourceKey(l.lane), Access: protocol.Exclusive})
		})
}
