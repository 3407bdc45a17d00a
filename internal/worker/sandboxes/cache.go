package sandboxes

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gofrs/flock"
	"github.com/google/uuid"

	"github.com/toolfleet/toolfleet/internal/sandbox/removal"
	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/internal/worker/checkpoint"
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
	for l := range s.boxes {
		if ID(l) == "" {
			keys[temporaryOf(l)] = true
		} else {
			keys[directoryName(l)] = true
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
		return removal.Tree(filepath.Join(all, name))
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
	return removal.Tree(gone)
}
