package sandboxes

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/toolfleet/toolfleet/internal/sandbox/removal"
	"github.com/toolfleet/toolfleet/internal/system"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

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
	mounts, err := system.ParseMounts(string(table))
	for _, m := range mounts {
		if system.Within(resolved, m.Point) {
			return m.Point, nil
		}
	}
	return "", err
}
