package worker

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox/removal"
)

// ephemeral makes the directories of a sandbox for a lane that is none's: of a tool
// whose resource is something else. They are empty, and removed with the sandbox.
func (s *sandboxes) ephemeral(l protocol.Lane) (home string, err error) {
	home, err = os.MkdirTemp(filepath.Join(s.options.Data, "sandboxes"), "lane."+string(l.Hash())+".")
	if err != nil {
		return "", protocol.Errorf(protocol.CodeSandboxUnavailable, "workspace directory: %v", err)
	}
	return home, nil
}

// removeUnmounted removes a lane's directory, unless something is mounted in it: the
// files of others are not ours to remove.
func removeUnmounted(home string) error { return removeWhile(func() error { return nil }, home) }

// removeWhile is removeUnmounted as long as may returns nil.
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
