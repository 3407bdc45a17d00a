package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/toolfleet/toolfleet/internal/cli"
)

// narrow refuses a workspace that is the root directory or the home directory, by whatever name,
// unless the flags or the person at the terminal allow it: somebody who forgot to change the
// directory loses all that is theirs.
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
			if f.confirm != nil && f.confirm(fmt.Sprintf("The workspace is all of %s: the session may change everything in it. Go on?", whole)) {
				return nil
			}
			return cli.Usagef("--workspace %s: is all of %s; name a directory in it, or allow it with --whole-home", f.Workspace, whole)
		}
	}
	return nil
}

// confirmed returns what asks the person at the terminal; nil without one. Anything but yes is no,
// and what was typed before the question does not count.
func confirmed(p program) func(question string) bool {
	file, isFile := p.Stdin.(*os.File)
	if !isFile || !isTerminal(p) {
		return nil
	}
	return func(question string) bool {
		dropTyped(file)
		_, _ = fmt.Fprint(p.err(), "coordinator: "+question+" y: yes; anything else is no: ")
		var line []byte
		for key := make([]byte, 1); ; line = append(line, key[0]) { // what is behind the line is the session's
			if n, err := file.Read(key); n == 0 || err != nil || key[0] == '\n' {
				break
			}
		}
		answer := strings.ToLower(strings.TrimSpace(string(line)))
		return answer == "y" || answer == "yes"
	}
}
