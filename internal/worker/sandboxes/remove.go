package sandboxes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/mountinfo"
	"github.com/toolfleet/toolfleet/internal/sandbox/removal"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Remove closes the sandbox of a lane and removes its directory, unless that is in another data
// directory. The record of an earlier version goes last, so that a removal which was cut short is
// found again. Once ctx has ended, the rest stays: the directory may be another worker's.
func (s *Set) Remove(ctx context.Context, l protocol.Lane) error {
	if s.options.Workspaces != nil {
		if err := s.options.Workspaces.Remove(ctx, wire.HashLane(l)); err != nil {
			return err
		}
	}
	disk, err := s.recorded(ctx, l)
	if err != nil {
		return err
	}
	if disk != "" && disk != s.Disk() {
		return protocol.Errorf(protocol.CodeWorkspaceUnavailable,
			"the workspace of %s is in another data directory (%s) than this worker's (%s)", l, disk, s.Disk())
	}
	if err := s.close(l); err != nil {
		return fmt.Errorf("close the sandbox: %w", err)
	}
	if err := removeWhile(ctx.Err, s.home(l)); err != nil { // a large one takes its time
		if ctx.Err() != nil {
			return fmt.Errorf("remove the workspace: %w", err)
		}
		return protocol.Errorf(protocol.CodeWorkspaceUnavailable, "remove the workspace: %v", err)
	}
	if disk == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, recordTimeout)
	defer cancel()
	return s.options.Records.Purge(ctx, string(wire.HashLane(l)))
}

// recordTimeout bounds a request for a record.
const recordTimeout = 5 * time.Second

// recorded returns the id of the data directory in which an earlier version stored the workspace of
// a lane without checkpoints; "" if none did.
func (s *Set) recorded(ctx context.Context, l protocol.Lane) (string, error) {
	if s.options.Records == nil {
		return "", nil
	}
	ctx, cancel := context.WithTimeout(ctx, recordTimeout)
	defer cancel()
	record, err := s.options.Records.Get(ctx, string(wire.HashLane(l)))
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read where the workspace of %s is: %w", l, err)
	}
	return string(record.Value()), nil
}

// RemoveUnmounted removes a lane's directory, unless something is mounted in it: the
// files of others are not ours to remove.
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
	return removal.TreeWhile(may, home) // commands may have made that hard
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
	mounts, err := mountinfo.Parse(string(table))
	for _, m := range mounts {
		if m.Point == resolved || strings.HasPrefix(m.Point, resolved+"/") {
			return m.Point, nil
		}
	}
	return "", err
}
