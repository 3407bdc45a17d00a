package worker

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gofrs/flock"
	"github.com/google/uuid"

	"github.com/toolfleet/toolfleet/internal/pause"
	"github.com/toolfleet/toolfleet/internal/sandbox/removal"
)

// DefaultCacheBytes is how much of workspaces that nobody works in a worker keeps on its disk.
const DefaultCacheBytes = 20 << 30

// evictEvery is the time between two looks at what is kept.
const evictEvery = time.Minute

// evicted begins the names of directories that are being removed.
const evicted = "evicted."

// cached is a workspace on this disk that the fleet has as well.
type cached struct {
	name  string // of the sandbox's directory
	used  time.Time
	bytes int64
}

// keepSmall removes copies of workspaces that have not been used for the longest time while they
// are larger than the bound together, until ctx ends.
func (s *sandboxes) keepSmall(ctx context.Context) {
	if !s.checkpoints() {
		return
	}
	lock := flock.New(filepath.Join(s.options.Data, "lock"))
	defer func() { _ = lock.Close() }()
	for s.share(ctx, lock) && pause.For(ctx, evictEvery) {
		if err := s.evict(ctx, lock); err != nil && ctx.Err() == nil {
			s.options.Logger.WarnContext(ctx, "copies of workspaces that were used long ago are not removed", slog.Any("error", err))
		}
	}
}

// share marks the data directory as used by this process.
func (s *sandboxes) share(ctx context.Context, lock *flock.Flock) bool {
	err := lock.RLock()
	if err != nil {
		s.options.Logger.WarnContext(ctx, "data directory cannot be locked: copies of workspaces that were used long ago are not removed", slog.Any("error", err))
	}
	return err == nil
}

func (s *sandboxes) evict(ctx context.Context, lock *flock.Flock) error {
	if err := lock.Unlock(); err != nil {
		return err
	}
	alone, err := lock.TryLock()
	if err != nil || !alone { // another worker may use what is there
		return err
	}
	defer func() { _ = lock.Unlock() }()
	copies, err := s.copies()
	if err != nil {
		return err
	}
	slices.SortFunc(copies, func(a, b cached) int { return b.used.Compare(a.used) })
	var total int64
	var faults []error
	for _, c := range copies {
		if total += c.bytes; total > s.options.CacheBytes && ctx.Err() == nil {
			faults = append(faults, s.drop(c.name))
		}
	}
	return errors.Join(faults...)
}

// copies are the workspaces here that are closed and known to the fleet, and what was left of
// removing others.
func (s *sandboxes) copies() ([]cached, error) {
	all := filepath.Join(s.options.Data, "sandboxes")
	entries, err := os.ReadDir(all)
	if err != nil {
		return nil, err
	}
	var copies []cached
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), evicted) {
			copies = append(copies, cached{name: entry.Name(), bytes: s.options.CacheBytes + 1})
			continue
		}
		path := filepath.Join(all, entry.Name(), indexName)
		info, err := os.Stat(path)
		if errors.Is(err, fs.ErrNotExist) { // it is kept here only, or was never closed
			continue
		}
		if err != nil {
			return nil, err
		}
		copies = append(copies, cached{name: entry.Name(), used: info.ModTime(), bytes: readLeft(path).Bytes})
	}
	return copies, nil
}

// drop removes the directory of a sandbox, unless it is open.
func (s *sandboxes) drop(name string) error {
	all := filepath.Join(s.options.Data, "sandboxes")
	gone := name
	if !strings.HasPrefix(name, evicted) {
		gone = evicted + uuid.NewString()
		s.mu.Lock()
		for l := range s.open {
			if directoryName(l) == name {
				s.mu.Unlock()
				return nil
			}
		}
		err := os.Rename(filepath.Join(all, name), filepath.Join(all, gone))
		s.mu.Unlock()
		if err != nil {
			return err
		}
	}
	return removal.Tree(filepath.Join(all, gone))
}
