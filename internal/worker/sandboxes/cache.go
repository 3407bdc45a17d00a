package sandboxes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gofrs/flock"
	"github.com/google/uuid"

	"github.com/toolfleet/toolfleet/internal/system"
	"github.com/toolfleet/toolfleet/internal/system/memory"
	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker/checkpoint"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// DefaultCacheBytes is the disk space for copies of workspaces that are not in use.
const DefaultCacheBytes = 20 << 30

// evictPeriod is the time between two looks for surplus copies.
const evictPeriod = time.Minute

// evicted begins the names of directories that are being removed.
const evicted = "evicted."

// storedCopy is a workspace on this disk that the fleet stores as well.
type storedCopy struct {
	name  string // of the sandbox's directory
	used  time.Time
	bytes int64
}

// RunEviction removes surplus copies of workspaces, the least recently used
// time first, until ctx ends.
func (s *Manager) RunEviction(ctx context.Context) {
	lock := flock.New(filepath.Join(s.options.Data, "lock"))
	defer func() { _ = lock.Close() }()
	for wait := evictPeriod / 10; s.share(ctx, lock) && pause.For(ctx, wait); wait = evictPeriod { // a short run evicts, too
		if err := s.Evict(ctx, lock); err != nil && ctx.Err() == nil {
			s.options.Logger.WarnContext(ctx, "old copies of workspaces are not removed", slog.Any("error", err))
		}
	}
}

// share marks the data directory as used by this process.
func (s *Manager) share(ctx context.Context, lock *flock.Flock) bool {
	_, err := lock.TryRLockContext(ctx, time.Second)
	if err != nil && ctx.Err() == nil {
		s.options.Logger.WarnContext(ctx, "data directory cannot be locked: old copies of workspaces are not removed", slog.Any("error", err))
	}
	return err == nil
}

// Evict removes surplus copies, if no other process uses the data directory.
func (s *Manager) Evict(ctx context.Context, lock *flock.Flock) error {
	if err := lock.Unlock(); err != nil {
		return err
	}
	alone, err := lock.TryLock()
	if err != nil || !alone {
		return err
	}
	defer func() { _ = lock.Unlock() }()
	copies, err := s.copies()
	if err != nil {
		return err
	}
	slices.SortFunc(copies, func(a, b storedCopy) int { return b.used.Compare(a.used) })
	var total int64
	var failed []error
	for _, c := range copies {
		if total += c.bytes; total > s.options.CacheBytes && ctx.Err() == nil {
			failed = append(failed, s.removeDirectory(c.name))
		}
	}
	return errors.Join(failed...)
}

// abandonedAge is how long what a killed worker left stays if its size is not known.
const abandonedAge = 24 * time.Hour

// copies are the workspaces here that are stored with the fleet and not in use, and remains of
// removed ones and of killed workers. No other process uses the data directory.
func (s *Manager) copies() ([]storedCopy, error) {
	all := filepath.Join(s.options.Data, "sandboxes")
	entries, err := os.ReadDir(all)
	if err != nil {
		return nil, err
	}
	var copies []storedCopy
	s.mu.Lock()
	open := s.inUse()
	s.mu.Unlock()
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), evicted) {
			copies = append(copies, storedCopy{name: entry.Name(), bytes: s.options.CacheBytes + 1})
			continue
		}
		if open[keyOf(entry.Name())] {
			continue
		}
		home := filepath.Join(all, entry.Name())
		used, bytes, ok, err := checkpoint.Known(home)
		if err == nil && !ok && s.isAbandoned(home) {
			bytes, ok = s.options.CacheBytes+1, true
		}
		if err != nil {
			return nil, err
		}
		if ok {
			copies = append(copies, storedCopy{name: entry.Name(), used: used, bytes: bytes})
		}
	}
	return copies, nil
}

// isAbandoned reports whether a directory of unknown size is what a killed worker left: a temporary
// one, or an old copy of a workspace that the fleet stores.
func (s *Manager) isAbandoned(home string) bool {
	if isTemporary(filepath.Base(home)) {
		return true
	}
	info, err := os.Lstat(home)
	_, none := os.Lstat(filepath.Join(home, checkpoint.WorkspaceDir)) // a lane in place has its state here, and no workspace
	return s.options.Workspaces != nil && err == nil && none == nil && time.Since(info.ModTime()) > abandonedAge
}

// inUse has the keys of the directories that this worker uses. The lock is held.
func (s *Manager) inUse() map[string]bool {
	keys := map[string]bool{}
	for at := range s.boxes {
		if ID(at.lane) == "" {
			keys[temporaryOf(at.lane)] = true
		} else {
			keys[directoryName(at.lane)] = true
		}
	}
	return keys
}

// keyOf stands for a directory: its name, or what the temporary ones of a lane begin with.
func keyOf(name string) string {
	if isTemporary(name) {
		return name[:strings.LastIndexByte(name, '.')+1]
	}
	return name
}

// removeDirectory removes the directory of a sandbox, unless it is open.
func (s *Manager) removeDirectory(name string) error {
	all := filepath.Join(s.options.Data, "sandboxes")
	if strings.HasPrefix(name, evicted) {
		return system.RemoveTree(filepath.Join(all, name))
	}
	gone := filepath.Join(all, evicted+uuid.NewString())
	s.mu.Lock()
	if s.inUse()[keyOf(name)] {
		s.mu.Unlock()
		return nil
	}
	err := os.Rename(filepath.Join(all, name), gone)
	s.mu.Unlock()
	if err != nil {
		return err
	}
	return system.RemoveTree(gone)
}

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
	return ID(l) != "" && s.boxes[key{lane: l}] != nil && len(s.boxes) <= s.capacity()
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
	if b == nil { // temporary ones do not stay
		return s.close(l)
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
	if !b.held && s.boxes[b.key] == b { // else its holder opens another one
		delete(s.boxes, b.key)
	}
	return err
}

// Remove removes what the fleet stores of a lane's workspace, under the epoch of the lane's claim,
// closes its sandbox and removes its directory. Once ctx has ended, the rest stays: the directory
// may be another worker's.
func (s *Manager) Remove(ctx context.Context, l protocol.Lane, epoch uint64) error {
	if s.options.Workspaces != nil {
		if err := s.options.Workspaces.Remove(ctx, wire.HashLane(l), epoch); err != nil {
			return err
		}
	}
	if err := s.close(l); err != nil { //nolint:contextcheck // the end must be done
		return fmt.Errorf("close the sandbox: %w", err)
	}
	err := removeWhile(ctx.Err, s.home(l)) // a large one takes its time
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("remove the workspace: %w", err)
	default:
		return protocol.Errorf(protocol.CodeWorkspaceUnavailable, "remove the workspace: %v", err)
	}
}

// RemoveUnmounted removes a lane's directory, unless something is mounted in it: that is not ours
// to remove.
func RemoveUnmounted(home string) error { return removeWhile(func() error { return nil }, home) }

// removeWhile is RemoveUnmounted as long as may returns nil.
func removeWhile(may func() error, home string) error {
	mounted, err := mountedBelow(home)
	if err != nil {
		return err
	}
	if mounted != "" {
		return fmt.Errorf("%s is mounted below %s, which is left as it is", mounted, home)
	}
	return system.RemoveTreeWhile(may, home) // commands may have made that hard
}

// mountedBelow returns a mount point at or below a directory; "" if there is none, or this system
// cannot list them.
func mountedBelow(dir string) (string, error) {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if os.IsNotExist(err) {
		return "", nil // not Linux
	}
	if err != nil {
		return "", err
	}
	resolved, err := filepath.EvalSymlinks(dir)
	if os.IsNotExist(err) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	mounts, err := system.ParseMounts(string(table))
	for _, m := range mounts {
		if system.Within(resolved, m.Point) {
			return m.Point, nil
		}
	}
	return "", err
}
