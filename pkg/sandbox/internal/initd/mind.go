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
	yield, early := (*commands).yield, (*commands).yieldCrowd
	return []chore{
		{10 * time.Millisecond, early},
		{25 * time.Millisecond, early},
		{50 * time.Millisecond, early},
		{100 * time.Millisecond, yield},
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
