package environment

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/session"
	"github.com/toolfleet/toolfleet/internal/system/regular"
	"github.com/toolfleet/toolfleet/internal/workspace"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// workspaceFile is the file in a session's data that names the directory that it uses in place.
func workspaceFile(data string, session protocol.SessionID) string {
	return filepath.Join(data, "sandboxes", string(session), "directory")
}

// maxWorkspaceFile bounds that file: a path has no more than 4 KiB.
const maxWorkspaceFile = 64 << 10

// ownWorkspace is the directory of a session that has a workspace of its own.
func ownWorkspace(data string, session protocol.SessionID) string {
	return filepath.Join(data, "sandboxes", string(session), "workspace")
}

// FindWorkspace returns the directory that a session uses: where it worked before; for a new one
// --workspace, or else the current directory; "" is an empty workspace. It refuses a session whose
// directory is gone, or that is to continue in another one. With --nats the session works on a
// copy, so only --workspace counts.
func (f *FleetFlags) FindWorkspace(flag, session string, report func(string)) (string, error) {
	id, err := protocol.ParseSessionID(session)
	if f.Nats != "" || session != "" && err != nil { // the caller reports it
		return flag, nil //nolint:nilerr // see above
	}
	if session != "" {
		dir, known, err := f.workedIn(flag, id)
		if err == nil && known && flag == "" && dir != "" {
			report("session " + session + " continues in " + dir)
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
		report("the workspace is empty, because " + dir + " contains your home directory; --workspace DIR selects a directory")
		return "", nil
	}
	return dir, nil
}

// ReportWorkspace is FindWorkspace for commands that do not show their workspace otherwise.
func (f *FleetFlags) ReportWorkspace(flag, session string, report func(string)) (string, error) {
	dir, err := f.FindWorkspace(flag, session, report)
	if err == nil && flag == "" && dir != "" && session == "" {
		report("the workspace is " + dir + " (--workspace selects another one)")
	}
	return dir, err
}

// workedIn returns where a session works, if that is known.
func (f *FleetFlags) workedIn(flag string, session protocol.SessionID) (dir string, known bool, err error) {
	p, err := locationOf(f.Data)
	if err == nil {
		err = p.earlier(session)
	}
	if err != nil {
		return "", false, err
	}
	data := p.data(session)
	other := func(dir string) error {
		return badWorkspace("%s: session %s works in %s; omit --workspace to continue there, or begin a new session", flag, session, dir)
	}
	content, err := regular.Read(workspaceFile(data, session), maxWorkspaceFile)
	if errors.Is(err, fs.ErrNotExist) {
		own := ownWorkspace(data, session)
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
	was, err := os.Stat(dir)
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

// WorkspaceError is the usage error of a directory that cannot be the workspace.
type WorkspaceError struct {
	Fault string // begins with the directory
}

func (e *WorkspaceError) Error() string { return "--workspace " + e.Fault }

func (e *WorkspaceError) Unwrap() error {
	return &cli.ExitError{Code: cli.ExitUsage, Message: e.Error()}
}

func badWorkspace(format string, args ...any) error {
	return &WorkspaceError{fmt.Sprintf(format, args...)}
}

// CheckWorkspace returns the absolute path of an existing directory; "" stays "".
func CheckWorkspace(dir string) (string, error) {
	if dir == "" {
		return "", nil
	}
	info, err := os.Stat(dir)
	if err != nil {
		return "", badWorkspace("%s: %v", dir, errors.Unwrap(err))
	}
	if !info.IsDir() { // opening a FIFO would wait
		return "", badWorkspace("%s: not a directory", dir)
	}
	opened, err := os.OpenRoot(dir) // needs the right to read it
	if err != nil {
		return "", badWorkspace("%s: %v", dir, errors.Unwrap(err))
	}
	_ = opened.Close() // nothing was written
	absolute, err := filepath.Abs(dir)
	if err != nil {
		return "", badWorkspace("%s: %v", dir, err)
	}
	return absolute, nil
}

// UseWorkspace is CheckWorkspace, and CheckWhole unless whole allows everything.
func UseWorkspace(dir string, whole bool, confirm func(question string) bool) (string, error) {
	workspace, err := CheckWorkspace(dir)
	if err != nil || whole {
		return workspace, err
	}
	err = CheckWhole(dir, workspace, confirm)
	if usage, is := errors.AsType[*cli.ExitError](err); is {
		return "", &WorkspaceError{usage.Message}
	}
	return workspace, err
}

// CheckWhole refuses a workspace that is the root directory or the home directory, unless the
// person at the terminal confirms it; a nil confirm asks nobody. A forgotten cd would let a
// session change every file of the user. named is how the person named it.
func CheckWhole(named, workspace string, confirm func(question string) bool) error {
	if workspace == "" {
		return nil
	}
	at, err := os.Stat(workspace)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return cli.Usagef("%s: %v", named, err)
	}
	home, _ := os.UserHomeDir() // "" is none
	for _, whole := range []string{string(filepath.Separator), home} {
		if info, err := os.Stat(whole); err == nil && whole != "" && os.SameFile(info, at) {
			if confirm != nil && confirm(fmt.Sprintf("The workspace is all of %s: the session may change everything in it. Continue?", whole)) {
				return nil
			}
			return cli.Usagef("%s: is all of %s; name a directory in it, or allow it with --whole-home", named, whole)
		}
	}
	return nil
}

// contains reports whether a directory is or contains another one; the root directory contains all.
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

// rememberWorkspace stores where a session works, for FindWorkspace.
func rememberWorkspace(data string, session protocol.SessionID, workspace string) error {
	file := workspaceFile(data, session)
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	return regular.Replace(file, []byte(workspace+"\n"))
}

// TemplateFlag says what a new workspace begins with.
type TemplateFlag struct {
	Template string `placeholder:"NAME" help:"Template for the workspace of a new session (template create); with --nats. A session that has a workspace keeps it."`
}

// CheckTemplate returns a usage error for a template that the session cannot begin with.
func (f *TemplateFlag) CheckTemplate(nats, dir string) error {
	switch {
	case f.Template == "":
		return nil
	case nats == "":
		return cli.Usagef("--template %s: needs --nats: a fleet stores templates", f.Template)
	case dir != "":
		return cli.Usagef("--template %s: cannot be combined with --workspace: both give the session its files", f.Template)
	}
	if err := workspace.CheckTemplate(f.Template); err != nil {
		return cli.Usagef("--template %v", err)
	}
	return nil
}

// begin creates the workspace of a session from the template, unless it has a workspace.
func (f *TemplateFlag) begin(ctx context.Context, fl *fleet.Fleet, id protocol.SessionID) error {
	if f.Template == "" {
		return nil
	}
	if there, err := session.HasWorkspace(ctx, fl.At(protocol.DefaultPool), id); err != nil || there {
		return err
	}
	store, err := workspace.Open(ctx, fl.Conn(protocol.DefaultPool), fl.Name, fl.Bodies)
	if err == nil {
		err = store.FromTemplate(ctx, f.Template, protocol.SandboxKey(string(id)).Lane())
	}
	if err != nil && !errors.Is(err, workspace.ErrExists) {
		return fmt.Errorf("--template %s: %w", f.Template, err)
	}
	return nil
}
