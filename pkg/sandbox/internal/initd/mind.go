//go:build linux

package initd

import "time"

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

// mindLater does those that are left of a command, one after the other. The caller holds the lock.
func (t *commands) mindLater(c *command, begun time.Time, left []chore) {
	if len(left) == 0 {
		return
	}
	time.AfterFunc(time.Until(begun.Add(left[0].after)), func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.running[c.id] == c {
			left[0].do(t, c)
			t.mindLater(c, begun, left[1:])
		}
	})
}
