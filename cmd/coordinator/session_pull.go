package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/gitguard"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
	"github.com/toolfleet/toolfleet/internal/session"
	"github.com/toolfleet/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/internal/workspace"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

type sessionPull struct {
	ID  string `arg:"" help:"Id of the session, the beginning of its id, or last."`
	Dir string `arg:"" help:"Target directory, created if missing. A directory with files gets only the session's changes; files changed on both sides are kept."`
	At  string `placeholder:"CALL" help:"Call after which the state is taken. Default: the current state. Needs no worker if workers keep checkpoints."`

	IncludeIgnored bool `help:"Copy also files that .gitignore files of DIR exclude."`
}

// pulled is what a pull prints with --json.
type pulled struct {
	Dir       string   `json:"dir"`
	Written   []string `json:"written"`
	Removed   []string `json:"removed"`
	Conflicts []string `json:"conflicts"`
	Theirs    []string `json:"theirs"`
	Protected []string `json:"protected"`
}

// pull brings a session's workspace into a directory.
func (c *sessionCommand) pull(ctx context.Context, p program, desk sessionDesk) error {
	dir, err := filepath.Abs(c.Pull.Dir)
	if err != nil {
		return fmt.Errorf("DIR %s: %w", c.Pull.Dir, err)
	}
	fetch, done, err := c.source(ctx, p, desk, dir)
	if err != nil {
		return err
	}
	defer done()
	if err := os.MkdirAll(dir, 0o777); err != nil { //nolint:gosec // as mkdir does; the umask says who else may read it
		return fmt.Errorf("DIR: %w", err)
	}
	warn := func(message string) { _, _ = fmt.Fprintln(p.err(), "coordinator: "+message) }
	show, err := newView(p, &viewFlags{})
	if err != nil {
		return err
	}
	defer show.screen.Close()
	git := watchGit(ctx, dir, show.alert)
	changes, err := fetch(ctx)
	if err != nil {
		return err
	}
	defer func() { git.tell(git.findings(ctx)) }() // last
	if c.JSON {
		list := func(names []string) []string { return append([]string{}, names...) }
		return printJSON(p, pulled{
			dir, list(changes.Written), list(changes.Removed), list(changes.Conflicts), list(changes.Theirs), list(changes.Protected),
		})
	}
	tellChanges(changes, warn)
	_, err = fmt.Fprintf(p.out(), "%s: %s written, %d removed\n", dir, terminal.Plural(len(changes.Written), "path"), len(changes.Removed))
	return err
}

// source says how the workspace is fetched into a directory, and what ends that.
func (c *sessionCommand) source(ctx context.Context, p program, desk sessionDesk, dir string) (fetch func(context.Context) (snapshot.Changes, error), done func(), err error) {
	warn := func(message string) { _, _ = fmt.Fprintln(p.err(), "coordinator: "+message) }
	empty, err := isEmpty(dir)
	if err != nil {
		return nil, nil, err
	}
	protect := []string{}
	var settings *gitSettings
	if !empty {
		places, err := gitguard.Protected(ctx, dir)
		if err != nil {
			return nil, nil, err
		}
		protect, settings = places.Protect, newGitSettings(dir, places.Configs)
	}
	at, err := parseAt(c.Pull.At)
	if err != nil {
		return nil, nil, err
	}
	if c.Nats == "" && at != "" {
		return nil, nil, cli.Usagef("--at needs --nats: workspaces of sessions that ran without a fleet have no checkpoints")
	}
	if c.Nats == "" {
		local, err := c.local(p, desk)
		if err != nil {
			return nil, nil, err
		}
		from, err := local.Workspace(ctx, desk.id)
		return func(ctx context.Context) (changes snapshot.Changes, err error) {
			err = inOrder(ctx, dir, "session pull", desk.id, warn, func() (err error) {
				changes, err = copyInto(ctx, from, dir, protect)
				return err
			})
			return changes, err
		}, func() {}, err
	}
	f, err := c.connect(ctx, p, natsio.CallRights(desk.fleet, desk.pool))
	if err != nil {
		return nil, nil, err
	}
	w := &remoteWorkspace{fleet: f, session: desk.id, pool: desk.pool, dir: dir, protect: protect, git: settings, copyFlags: copyFlags{IncludeIgnored: c.Pull.IncludeIgnored, everything: empty}, busy: func(string) {}, warn: warn}
	if fetch, err = c.whence(ctx, desk, w, at); err == nil && !empty {
		w.base, err = w.loadBase(ctx)
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return fetch, f.Close, nil
}

// whence says who has the workspace: the fleet, or a worker on its disk.
func (c *sessionCommand) whence(ctx context.Context, desk sessionDesk, w *remoteWorkspace, at protocol.CallID) (func(context.Context) (snapshot.Changes, error), error) {
	var err error
	if w.store, err = workspace.Open(ctx, w.fleet.Conn(desk.pool), desk.fleet); err != nil {
		return nil, err
	}
	kept, err := w.store.Ref(ctx, desk.lane(), at)
	if err == nil {
		return func(ctx context.Context) (snapshot.Changes, error) { return w.take(ctx, kept) }, nil
	}
	err = fmt.Errorf("session %s: %w", desk.id, err)
	if at != "" || !errors.Is(err, workspace.ErrNone) {
		return nil, err
	}
	if there, err := session.HasWorkspace(ctx, w.fleet.At(desk.pool), desk.id); err != nil || !there {
		return nil, errors.Join(err, fmt.Errorf("session %s has no workspace in fleet %s", desk.id, desk.fleet))
	}
	return w.fetch, nil
}

// isEmpty reports whether a directory has nothing in it, or is not there.
func isEmpty(dir string) (bool, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("DIR: %w", err)
	}
	return len(entries) == 0, nil
}

// copyInto brings a directory of this machine into another one. Nobody knows when the two were the
// same, so what differs stays as it is.
func copyInto(ctx context.Context, from, dir string, protect []string) (changes snapshot.Changes, err error) {
	root, err := os.OpenRoot(from)
	if err != nil {
		return changes, fmt.Errorf("open the workspace: %w", err)
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	to, err := os.OpenRoot(dir)
	if err != nil {
		return changes, fmt.Errorf("open DIR: %w", err)
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	bodies, err := os.MkdirTemp(dir, ".toolfleet-*.tmp")
	if err != nil {
		return changes, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(bodies)) }()
	kept := snapshot.Directory(bodies)
	delta, err := snapshot.Save(ctx, root, snapshot.Tree{}, snapshot.Index{}, kept, nil)
	if err == nil {
		err = delta.Outline(ctx, kept)
	}
	if err != nil {
		return changes, err
	}
	return snapshot.Sync(ctx, to, nil, delta.Set, kept, &snapshot.Options{Protect: protect})
}
