package main

import (
	"os"
	"path/filepath"

	"github.com/toolfleet/toolfleet/internal/cli"
)

// narrow refuses a workspace that is the root directory or the home directory, by whatever name,
// unless the flags allow it: somebody who forgot to change the directory loses all that is theirs.
func (f *turnFlags) narrow(workspace string) error {
	if workspace == "" || f.WholeHome {
		return nil
	}
	at, err := os.Stat(workspace)
	if err != nil {
		return cli.Usagef("--workspace %s: %v", workspace, err)
	}
	home, _ := os.UserHomeDir() // none is none
	for _, whole := range []string{string(filepath.Separator), home} {
		if info, err := os.Stat(whole); err == nil && whole != "" && os.SameFile(info, at) {
			return cli.Usagef("--workspace %s: is all of %s; name a directory in it, or allow it with --whole-home", f.Workspace, whole)
		}
	}
	return nil
}
