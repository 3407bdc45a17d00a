package worker

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/toolfleet/toolfleet/internal/pause"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// WarmSandbox is about the memory of an open sandbox in which nothing runs.
const WarmSandbox = 2 << 20

// closers is how many sandboxes are closed at once when the worker stops.
const closers = 8

// defaultMemory is taken for that of a machine that does not tell.
const defaultMemory = 8 << 30

// DefaultWarmBytes is an eighth of the memory that this process may use.
func DefaultWarmBytes() int64 { return max(memory()/8&^(1<<20-1), WarmSandbox) }

// A sandbox stays open when its lane is let go: opening one takes ten times as long as a command.
// Nothing runs in it, and nothing changes its workspace, until the lane is held here again. Whether
// another worker has had it meanwhile is then told by the journal of the workspace, or, of one that
// is kept here only, by the signature of who opened it last.

// most is how many sandboxes may be open.
func (s *sandboxes) most() int {
	return s.options.Slots + int(max(s.options.WarmBytes, 0)/WarmSandbox)
}

// lingers reports whether an idle lane has a sandbox of a session, and there is room for that.
func (s *sandboxes) lingers(l protocol.Lane) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return sandboxOf(l) != "" && s.open[l] != nil && len(s.open) <= s.most()
}

// hold is the box of a lane that is held: it is not closed before it is let go.
func (s *sandboxes) hold(l protocol.Lane) *box {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.boxLocked(l)
	b.held, b.idle = true, time.Time{}
	return b
}

// reuse has the sandbox of an earlier claim closed, unless its workspace is as it was.
func (s *sandboxes) reuse(ctx context.Context, l protocol.Lane, b *box, epoch uint64) error {
	if b.sandbox != nil && b.epoch == epoch {
		return nil
	}
	if err := ctx.Err(); err != nil { // a lane that was lost meanwhile stays quiet
		return err
	}
	if b.sandbox != nil && s.isAsItWas(ctx, l, b, epoch) {
		b.epoch = epoch
		return nil
	}
	err := b.closeLocked()
	b.seen.reload()
	b.processes.Reload()
	return err
}

// isAsItWas reports whether nobody else has had the workspace of an open sandbox.
func (s *sandboxes) isAsItWas(ctx context.Context, l protocol.Lane, b *box, epoch uint64) bool {
	if b.checkpoints != nil {
		return b.checkpoints.again(ctx, epoch)
	}
	signed, err := os.ReadFile(s.signature(l))
	return err == nil && string(signed) == s.instance && s.claimPlace(ctx, l, b.workspace) == nil
}

// signature is the file that says who has opened a workspace last that is kept here only.
func (s *sandboxes) signature(l protocol.Lane) string { return filepath.Join(s.home(l), "opened-by") }

// sign writes it.
func (s *sandboxes) sign(l protocol.Lane, b *box) error {
	if b.checkpoints != nil || !s.keepsWarm(l) {
		return nil
	}
	return os.WriteFile(s.signature(l), []byte(s.instance), 0o600)
}

// keepsWarm reports whether the sandbox of a lane may stay open without it.
func (s *sandboxes) keepsWarm(l protocol.Lane) bool {
	_, inPlace := s.inPlace(l)
	return sandboxOf(l) != "" && !inPlace && s.options.Linger > 0 && s.options.WarmBytes >= WarmSandbox
}

// start opens a sandbox. When the system has no room for another one, those that are idle make it.
func (s *sandboxes) start(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	opened, err := s.options.Driver.Open(ctx, spec)
	if err != nil && ctx.Err() == nil && s.cool(0) {
		opened, err = s.options.Driver.Open(ctx, spec)
	}
	return opened, err
}

// release keeps the sandbox of a lane that is let go, if it can be used again, and closes those
// that were idle for the longest time when there are too many.
func (s *sandboxes) release(l protocol.Lane) error {
	b := s.opened(l)
	if b == nil {
		return nil
	}
	b.mu.Lock()
	stays := b.sandbox != nil && !b.busy() && s.keepsWarm(l)
	var err error
	if stays {
		err = b.checkpoints.close()
	}
	b.mu.Unlock()
	if !stays || err != nil {
		return errors.Join(err, s.close(l))
	}
	s.mu.Lock()
	b.held, b.idle = false, time.Now()
	s.mu.Unlock()
	s.cool(s.most())
	return nil
}

// cool closes sandboxes that are idle, the longest first, while more than so many are open. It
// reports whether it closed any.
func (s *sandboxes) cool(most int) (closed bool) {
	for {
		l, b := s.coolest(most)
		if b == nil {
			return closed
		}
		closed = true
		if err := s.closeIdle(l, b); err != nil {
			s.options.Logger.Warn("idle sandbox cannot be closed", slog.String("lane", string(l)), slog.Any("error", err))
		}
	}
}

// coolest takes the sandbox that has been idle for the longest time, if more than so many are open.
func (s *sandboxes) coolest(most int) (lane protocol.Lane, coolest *box) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.open) <= most {
		return "", nil
	}
	for l, b := range s.open {
		if !b.idle.IsZero() && (coolest == nil || b.idle.Before(coolest.idle)) {
			lane, coolest = l, b
		}
	}
	if coolest != nil {
		coolest.idle = time.Time{}
	}
	return lane, coolest
}

// closeIdle closes the sandbox of a lane that nobody holds, unless somebody does by now.
func (s *sandboxes) closeIdle(l protocol.Lane, b *box) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	s.mu.Lock()
	held := b.held
	s.mu.Unlock()
	if held {
		return nil
	}
	err := b.closeLocked()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !b.held && s.open[l] == b { // else whoever holds it opens another one
		delete(s.open, l)
	}
	return err
}

// onlyAt names the disk that alone has a lane's workspace; "" when the sandbox is open here, none
// has it, or the fleet.
func (s *sandboxes) onlyAt(ctx context.Context, l protocol.Lane) string {
	if _, inPlace := s.inPlace(l); inPlace || s.options.Durability != DurabilityLocal || sandboxOf(l) == "" || s.opened(l) != nil {
		return ""
	}
	for {
		place, err := s.placeOf(ctx, string(wire.HashLane(l)))
		if err == nil || !pause.For(ctx, placePause) {
			return place
		}
	}
}

// lastAt names the disk that had a lane's workspace last; "" when the sandbox is open here, or none
// had it.
func (s *sandboxes) lastAt(ctx context.Context, l protocol.Lane) string {
	if !s.checkpoints() || sandboxOf(l) == "" || s.opened(l) != nil {
		return ""
	}
	disk, err := s.workspaces.LastDisk(ctx, wire.HashLane(l))
	if err != nil { // found out when it is taken
		return ""
	}
	return disk
}
