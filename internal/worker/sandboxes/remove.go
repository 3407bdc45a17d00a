package sandboxes

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/toolfleet/toolfleet/internal/sandbox/removal"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Remove closes the sandbox of a lane and removes its directory, unless that is in another data
// directory. The record goes last, so that a removal which was cut short is found again. Once ctx
// has ended, the rest stays: the directory may be another worker's.
func (s *Set) Remove(ctx context.Context, l protocol.Lane) error {
	if s.options.Workspaces != nil {
		if err := s.options.Workspaces.Remove(ctx, wire.HashLane(l)); err != nil {
			return err
		}
	}
	disk, err := s.locations.of(ctx, l)
	if err != nil {
		return fmt.Errorf("read the location of %s: %w", l, err)
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
	return s.locations.forget(ctx, l)
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

// mountedBelow returns a mount point at or below a directory; "" when there is none, or
// no way to know.
func mountedBelow(dir string) (string, error) {
	table, err := os.Open("/proc/self/mountinfo")
	if os.IsNotExist(err) {
		return "", nil // not Linux
	}
	if err != nil {
		return "", err
	}
	defer func() { _ = table.Close() }() // it was only read
	resolved, err := filepath.EvalSymlinks(dir)
	if os.IsNotExist(err) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	escaped := strings.NewReplacer(" ", `\040`, "\t", `\011`, "\n", `\012`, `\`, `\134`).Replace(resolved)
	lines := bufio.NewScanner(table)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) > 4 && (fields[4] == escaped || strings.HasPrefix(fields[4], escaped+"/")) {
			return fields[4], nil
		}
	}
	return "", lines.Err()
}
