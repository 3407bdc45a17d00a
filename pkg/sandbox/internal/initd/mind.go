//go:build linux

package initd

import (
	"slices"
	"time"
)

// chore is something that is done with a command that still runs some time after its start.
type chore struct {
	after time.Duration
	do    func(*commands, *command)
}

// chores are those of every command, in the order of their times.
func chores() []chore {
	limit, yield, early := (*commands).limitLate, (*commands).yield, (*commands).yieldCrowd
	return []chore{
		{2 * time.Millisecond, limit},
		{10 * time.Millisecond, early},
		{20 * time.Millisecond, limit},
		{25 * time.Millisecond, early},
		{50 * time.Millisecond, early},
		{100 * time.Millisecond, yield},
		{200 * time.Millisecond, limit},
		{time.Second, limit},
		{time.Second, yield},
	}
}

// mindLater has a command minded. One timer is there for all of them, and most commands end before it: to
// start one for each would cost more than many a chore. The caller holds the lock.
func (t *commands) mindLater(c *command) {
	c.started, c.chores = time.Now(), chores()
	t.arm(c.started.Add(c.chores[0].after))
}

// arm sets the timer for a time, unless it is set for an earlier one.
func (t *commands) arm(due time.Time) {
	if !t.due.IsZero() && !due.Before(t.due) {
		return
	}
	t.due = due
	if t.timer == nil {
		t.timer = time.AfterFunc(time.Until(due), t.mind)
		return
	}
	t.timer.Reset(time.Until(due))
}

// mind does what is due and sets the timer for what is not.
func (t *commands) mind() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.due = time.Time{}
	now := time.Now()
	for _, c := range t.running {
		n := slices.IndexFunc(c.chores, func(next chore) bool { return now.Before(c.started.Add(next.after)) })
		if n < 0 {
			n = len(c.chores)
		}
		for _, due := range c.chores[:n] {
			due.do(t, c)
		}
		if c.chores = c.chores[n:]; len(c.chores) > 0 {
			t.arm(c.started.Add(c.chores[0].after))
		}
	}
}
