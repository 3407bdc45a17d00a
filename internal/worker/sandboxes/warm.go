package sandboxes

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/toolfleet/toolfleet/internal/system"
	"github.com/toolfleet/toolfleet/internal/system/memory"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// WarmSandbox is about the memory of an open sandbox in which nothing runs.
const WarmSandbox = 2 << 20

// warmFiles is how many files this process has open for an open sandbox.
const warmFiles = 3

// DefaultWarmBytes is an eighth of the memory that this process may use.
func DefaultWarmBytes() int64 {
	available, _ := memory.Available()
	return max(available/8&^(1<<20-1), WarmSandbox)
}

// A sandbox stays open when its lane is released: opening one takes ten times as long as a command.
// Nothing runs in it, and nothing changes its workspace, until the lane is held here again. Whether
// another worker has had the workspace meanwhile is then known from its checkpoints.

// capacity is how many sandboxes may be open.
func (s *Manager) capacity() int {
	return s.options.Slots + warmCapacity(s.options.WarmBytes, system.OpenFiles())
}

// warmCapacity is how many idle sandboxes may be open: as many as the memory for them has room for,
// and half of the files that this process may have open.
func warmCapacity(bytes int64, files int) int {
	return min(int(max(bytes, 0)/WarmSandbox), files/2/warmFiles)
}

// Lingers reports whether an idle lane has a session's sandbox, and there is room for it.
func (s *Manager) Lingers(l protocol.Lane) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return ID(l) != "" && s.boxes[l] != nil && len(s.boxes) <= s.capacity()
}

// reuseIfCurrent closes the sandbox of an earlier claim, unless its workspace is unchanged. Its
// lock is held.
func (b *LaneSandbox) reuseIfCurrent(ctx context.Context, epoch uint64) error {
	if b.sandbox != nil && b.epoch == epoch {
		return nil
	}
	if err := ctx.Err(); err != nil { // a lane that was lost meanwhile stays quiet
		return err
	}
	if b.sandbox != nil && b.checkpoints != nil && b.checkpoints.Reclaim(ctx, epoch) {
		b.epoch = epoch
		return nil
	}
	err := b.close()
	b.Digests.reload()
	b.Processes.Reload()
	return err
}

// mayIdle reports whether the sandbox may stay open without its lane: only checkpoints show whether
// another worker has had the workspace meanwhile.
func (b *LaneSandbox) mayIdle() bool {
	return b.checkpoints != nil && b.set.options.Idle && b.set.options.WarmBytes >= WarmSandbox
}

// Release leaves the sandbox of a released lane open if it can be used again, and closes those that
// have been idle for the longest time if there are too many.
func (s *Manager) Release(l protocol.Lane) error {
	b := s.Lane(l)
	if b == nil {
		return nil
	}
	b.mu.Lock()
	stays := b.sandbox != nil && !b.Busy() && b.mayIdle()
	var err error
	if stays {
		err = b.checkpoints.Close()
	}
	b.mu.Unlock()
	if !stays || err != nil {
		return errors.Join(err, s.close(l))
	}
	s.mu.Lock()
	b.held, b.idle = false, time.Now()
	s.mu.Unlock()
	s.closeIdle(s.capacity())
	return nil
}

// closeIdle closes idle sandboxes, the longest idle one first, while more than so many are open. It
// reports whether it closed any.
func (s *Manager) closeIdle(most int) (closed bool) {
	for {
		b := s.longestIdle(most)
		if b == nil {
			return closed
		}
		closed = true
		if err := s.closeUnheld(b); err != nil {
			s.options.Logger.Warn("idle sandbox cannot be closed", slog.String("lane", string(b.lane)), slog.Any("error", err))
		}
	}
}

// longestIdle returns the sandbox that has been idle for the longest time, if more than so many are
// open. It is not returned again.
func (s *Manager) longestIdle(most int) (longest *LaneSandbox) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.boxes) <= most {
		return nil
	}
	for _, b := range s.boxes {
		if !b.idle.IsZero() && (longest == nil || b.idle.Before(longest.idle)) {
			longest = b
		}
	}
	if longest != nil {
		longest.idle = time.Time{}
	}
	return longest
}

// closeUnheld closes a sandbox, unless its lane is held by now.
func (s *Manager) closeUnheld(b *LaneSandbox) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	s.mu.Lock()
	held := b.held
	s.mu.Unlock()
	if held {
		return nil
	}
	err := b.close()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !b.held && s.boxes[b.lane] == b { // else its holder opens another one
		delete(s.boxes, b.lane)
	}
	return err
}
