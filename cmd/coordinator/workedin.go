package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// workedIn is the file in a session's data that names the directory that it uses in place.
func workedIn(data string, session protocol.SessionID) string {
	return filepath.Join(data, "sandboxes", string(session), "directory")
}

// place returns the directory that a session uses: where it worked before, or, of a new one, what
// the flag says, or else the current directory. "" is an empty workspace. A session whose directory
// is gone, or that is to go on in another one, is refused. Over a fleet, which works on a copy,
// nothing is sent that was not named.
func (f *fleetFlags) place(flag, session string, say func(string)) (string, error) {
	id, err := protocol.ParseSessionID(session)
	if f.Nats != "" || session != "" && err != nil { // which is reported elsewhere
		return flag, nil //nolint:nilerr // see above
	}
	if session != "" {
		dir, known, err := f.before(flag, id)
		if err == nil && known && flag == "" && dir != "" {
			say("session " + session + " goes on in " + dir)
		}
		if known || err != nil {
			return dir, err
		}
	}
	if flag != "" {
		return flag, nil
	}
	dir, err := os.Getwd()
	if err != nil {
		return "", nil //nolint:nilerr // it was removed
	}
	if home, _ := os.UserHomeDir(); contains(dir, home) {
		say("the workspace is empty, because " + dir + " has your home directory; --workspace DIR works in a directory")
		return "", nil
	}
	return dir, nil
}

// here is place for commands that do not show their workspace otherwise.
func (f *fleetFlags) here(flag, session string, say func(string)) (string, error) {
	dir, err := f.place(flag, session, say)
	if err == nil && flag == "" && dir != "" && session == "" {
		say("the workspace is " + dir + " (--workspace names another one)")
	}
	return dir, err
}

// before returns where a session works, if that is known.
func (f *fleetFlags) before(flag string, session protocol.SessionID) (dir string, known bool, err error) {
	data, _, err := f.dataDir(session, true)
	if err != nil {
		return "", false, err
	}
	other := func(dir string) error {
		return cli.Usagef("--workspace %s: session %s works in %s; leave --workspace out to go on there, or begin a new session", flag, session, dir)
	}
	content, err := os.ReadFile(workedIn(data, session))
	if errors.Is(err, fs.ErrNotExist) {
		own := filepath.Join(data, "sandboxes", string(session), "workspace")
		if _, err := os.Stat(own); err != nil {
			return "", false, nil //nolint:nilerr // it has not worked anywhere
		}
		if flag != "" {
			return "", true, other(own)
		}
		return "", true, nil
	}
	if err != nil {
		return "", false, err
	}
	dir = strings.TrimSuffix(string(content), "\n")
	was, err := os.Stat(dir) //nolint:gosec // a file of ours names it, and it is looked at only
	if flag == "" && err != nil {
		return "", true, cli.Usagef("--session %s: works in %s, which cannot be used: %v", session, dir, errors.Unwrap(err))
	}
	if flag != "" {
		if is, statErr := os.Stat(flag); err != nil || statErr != nil || !os.SameFile(was, is) {
			return "", true, other(dir)
		}
	}
	return dir, true, nil
}

// contains reports whether a directory is, or has, another one; the root directory has all.
func contains(dir, other string) bool {
	at, err := os.Stat(dir)
	if err != nil {
		return false
	}
	for _, below := range []string{other, string(filepath.Separator)} {
		for ; below != ""; below = filepath.Dir(below) {
			if info, err := os.Stat(below); err == nil && os.SameFile(info, at) {
				return true
			}
			if below == filepath.Dir(below) {
				break
			}
		}
	}
	return false
}

// remembered notes where a session works, for place.
func remembered(data string, session protocol.SessionID, workspace string) error {
	file := workedIn(data, session)
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(workspace+"\n"), 0o600)
}
