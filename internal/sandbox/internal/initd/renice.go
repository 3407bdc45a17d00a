//go:build linux

package initd

import "time"

// reniceStep changes the priority of a command that still runs some time after its start.
type reniceStep struct {
	after time.Duration
	do    func(*commands, *command)
}

// reniceSteps are those of every command, in the order of their times.
func reniceSteps() []reniceStep {
	yield, early := (*commands).yield, (*commands).yieldMany
	return []reniceStep{
		{10 * time.Millisecond, early},
		{25 * time.Millisecond, early},
		{50 * time.Millisecond, early},
		{100 * time.Millisecond, yield},
		{time.Second, yield},
	}
}

// reniceLater takes the steps that are left of a command, one after the other. The caller holds the
// lock.
func (t *commands) reniceLater(c *command, begun time.Time, left []reniceStep) {
	if len(left) == 0 {
		return
	}
	time.AfterFunc(time.Until(begun.Add(left[0].after)), func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.running[c.id] == c {
			left[0].do(t, c)
			t.reniceLater(c, begun, left[1:])
		}
	})
}
