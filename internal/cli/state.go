package cli

import (
	"fmt"
	"os"
	"path/filepath"
)

// StateDir returns the directory of a user's lasting files, below
// $XDG_STATE_HOME (ignored unless it is absolute) or ~/.local/state; it is not made.
func StateDir(name string) (string, error) {
	return userDir("XDG_STATE_HOME", filepath.Join(".local", "state"), name)
}

// ConfigDir returns a path among a user's settings, below $XDG_CONFIG_HOME or ~/.config; it is not
// made.
func ConfigDir(name string) (string, error) { return userDir("XDG_CONFIG_HOME", ".config", name) }

func userDir(variable, inHome, name string) (string, error) {
	base := os.Getenv(variable)
	if !filepath.IsAbs(base) {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("no directory for lasting files: %w; set it, or %s", err, variable)
		}
		base = filepath.Join(home, inHome)
	}
	return filepath.Join(base, "toolfleet", name), nil
}
