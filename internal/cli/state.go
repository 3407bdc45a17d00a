package cli

import (
	"fmt"
	"os"
	"path/filepath"
)

// StateDir returns the directory of a user's lasting files, below
// $XDG_STATE_HOME (ignored unless it is absolute) or ~/.local/state; it is not made.
func StateDir(name string) (string, error) {
	base := os.Getenv("XDG_STATE_HOME")
	if !filepath.IsAbs(base) {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("no directory for lasting files: %w; set it, or XDG_STATE_HOME", err)
		}
		base = filepath.Join(home, ".local", "state")
	}
	return filepath.Join(base, "toolfleet", name), nil
}
