package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/gitguard"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/prompt"
	"github.com/toolfleet/toolfleet/internal/render"
	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
	"github.com/toolfleet/toolfleet/internal/session"
	"github.com/toolfleet/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/internal/transfer"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/workspace"
	"github.com/toolfleet/toolfleet/pkg/loop"
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

// pull copies a session's workspace into a directory.
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
	git := gitguard.NewReport(ctx, dir, show.alert)
	changes, err := fetch(ctx)
	if err != nil {
		return err
	}
	defer func() { git.Alert(git.Findings(ctx)) }() // last
	if c.JSON {
		list := func(names []string) []string { return append([]string{}, names...) }
		return printJSON(p, pulled{
			dir, list(changes.Written), list(changes.Removed), list(changes.Conflicts), list(changes.Theirs), list(changes.Protected),
		})
	}
	transfer.ReportSkipped(changes, warn)
	_, err = fmt.Fprintf(p.out(), "%s: %s written, %d removed\n", dir, terminal.Plural(len(changes.Written), "path"), len(changes.Removed))
	return err
}

// source returns what fetches the workspace into a directory, and what closes its connection.
func (c *sessionCommand) source(ctx context.Context, p program, desk sessionDesk, dir string) (fetch func(context.Context) (snapshot.Changes, error), done func(), err error) {
	w, err := transfer.Into(ctx, transfer.Options{
		Session: desk.id, Pool: desk.pool, Dir: dir, IncludeIgnored: c.Pull.IncludeIgnored, Busy: func(string) {},
		Warn: func(message string) { _, _ = fmt.Fprintln(p.err(), "coordinator: "+message) },
	})
	if err != nil {
		return nil, nil, err
	}
	at, err := parseAt(c.Pull.At)
	if err != nil {
		return nil, nil, err
	}
	if c.Nats == "" && at != "" {
		return nil, nil, cli.Usagef("--at needs --nats: sessions that ran without a fleet have their last workspace only")
	}
	if c.Nats == "" {
		local, err := c.local(p, desk)
		if err != nil {
			return nil, nil, err
		}
		from, err := local.Workspace(ctx, desk.id)
		return func(ctx context.Context) (snapshot.Changes, error) { return w.CopyFrom(ctx, from) }, func() {}, err
	}
	if w.Fleet, err = c.connect(ctx, p, natsio.CallRights(desk.fleet, desk.pool)); err != nil {
		return nil, nil, err
	}
	if fetch, err = w.Source(ctx, at); err != nil {
		w.Fleet.Close()
		return nil, nil, err
	}
	return fetch, w.Fleet.Close, nil
}

type sessionRestore struct {
	ID string `arg:"" help:"Id of the session, in which nothing runs."`
	At string `required:"" placeholder:"CALL" help:"Call whose state is restored; session diff ID lists the calls that changed something."`

	rewindFlags
}

type sessionFork struct {
	ID string `arg:"" help:"Id of the session, the beginning of its id, or last."`
	At string `placeholder:"CALL" help:"Last call that the new session shares, or \"turn N\" for the end of a turn. Default: all calls."`

	rewindFlags
}

type sessionMerge struct {
	From string `arg:"" help:"Id of the session to merge, which began as a fork of INTO: by session fork, or as a sub-agent."`
	Into string `arg:"" help:"Id of the session that gets the files that changed in FROM, and its answer as a message. In neither of the two a turn runs."`
}

// rewindFlags say what becomes of effects outside of the workspace when a session is rewound.
type rewindFlags struct {
	Revert       bool `help:"Undo the effects outside of the workspace of the calls after this point, the last call first, by the reverts of their tools."`
	LeaveEffects bool `help:"Continue although effects outside of the workspace stay."`
}

// rewind lists the calls behind a point whose effects reach outside of the workspace, and reverts
// them if the flags say so. It refuses to leave effects that the flags do not name.
func (f rewindFlags) rewind(ctx context.Context, p program, fl *fleet.Fleet, desk sessionDesk, at session.At) ([]session.Effect, error) {
	effects, err := session.Effects(ctx, fl.Journal, desk.id, at)
	if err != nil || len(effects) == 0 {
		return nil, err
	}
	stay, can := 0, 0
	table := tabwriter.NewWriter(p.err(), 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintf(p.err(), "coordinator: the effects of %s after this point reach outside of the workspace:\n", terminal.Plural(len(effects), "call"))
	_, _ = fmt.Fprintln(table, "CALL\tTOOL\tSTATUS\tREACHES\tREVERT")
	for _, e := range effects {
		revert := cmp.Or(printableName(e.Revert), "none")
		switch {
		case e.Reverted:
			revert += " (done)"
		case e.Revert == "":
			stay++
		default:
			can++
		}
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", e.CallID, printableName(e.Tool), e.Status, orDash(strings.Join(e.Reaches, ", ")), revert)
	}
	if err := table.Flush(); err != nil {
		return nil, err
	}
	switch {
	case f.LeaveEffects:
	case stay > 0:
		return nil, &cli.ExitError{Code: cli.ExitFailed, Message: fmt.Sprintf("nothing was changed: %s cannot be reverted; --leave-effects continues without that", terminal.Plural(stay, "call"))}
	case can > 0 && !f.Revert:
		return nil, &cli.ExitError{Code: cli.ExitFailed, Message: fmt.Sprintf("nothing was changed: --revert reverts %s, --leave-effects continues without that", terminal.Plural(can, "call"))}
	}
	if f.Revert && can > 0 {
		err = session.Revert(ctx, fl, desk.id, desk.pool, effects)
	}
	return effects, err
}

type sessionResolve struct {
	ID       string `arg:"" help:"Id of the session, in which nothing runs."`
	Call     string `arg:"" help:"Id of the call."`
	Happened bool   `xor:"outcome" required:"" help:"The call had its effects."`
	DidNot   bool   `xor:"outcome" required:"" help:"The call had no effect."`
}

// resolveCall notes what a person found out about a call of unknown outcome.
func (c *sessionCommand) resolveCall(ctx context.Context, p program, desk sessionDesk) error {
	call, err := protocol.ParseCallID(c.Resolve.Call)
	if err != nil {
		return cli.Usagef("CALL: %v", err)
	}
	fl, err := c.reach(ctx, p, desk, append(natsio.SessionRights(desk.fleet), natsio.LaneRights(desk.fleet, desk.pool))...)
	if err != nil {
		return err
	}
	defer fl.Close()
	if err := session.Resolve(ctx, fl, desk.id, desk.pool, call, c.Resolve.Happened, prompt.UserName()); err != nil {
		return err
	}
	what := "happened"
	if c.Resolve.DidNot {
		what = "did not happen"
	}
	_, err = fmt.Fprintf(p.Stdout, "call %s of session %s: it %s; the model reads that in its next turn\n", call, desk.id, what)
	return err
}

// parseAt reads the id of a call; "" is none.
func parseAt(at string) (protocol.CallID, error) {
	if at == "" {
		return "", nil
	}
	call, err := protocol.ParseCallID(at)
	if err != nil {
		return "", cli.Usagef("--at: %v", err)
	}
	return call, nil
}

// restore restores a session's workspace to its state after a call.
func (c *sessionCommand) restore(ctx context.Context, p program, desk sessionDesk) error {
	at, err := parseAt(c.Restore.At)
	if err != nil {
		return err
	}
	if c.Nats == "" {
		return cli.Usagef("--nats is missing: sessions that ran without a fleet have their last workspace only")
	}
	fl, err := c.connect(ctx, p, natsio.LaneRights(desk.fleet, desk.pool), natsio.CallRights(desk.fleet, desk.pool))
	if err != nil {
		return err
	}
	defer fl.Close()
	effects, err := c.Restore.rewind(ctx, p, fl, desk, session.At{Call: at})
	if err != nil {
		return err
	}
	restored, err := session.Restore(ctx, fl, desk.id, desk.pool, at)
	if err != nil {
		return err
	}
	if c.JSON {
		return printJSON(p, struct {
			wire.WorkspaceRestoreResult

			Effects []session.Effect `json:"effects,omitempty"`
		}{restored, effects})
	}
	_, err = fmt.Fprintf(p.Stdout, "the workspace of session %s is as it was after call %s: %s written, %d removed\n",
		desk.id, at, terminal.Plural(restored.Written, "file"), restored.Removed)
	return err
}

// forked is what a fork prints with --json.
type forked struct {
	SessionID protocol.SessionID `json:"session_id"`
	Turns     int                `json:"turns"`
	Effects   []session.Effect   `json:"effects,omitempty"`
}

// fork starts a session with the workspace and the conversation of another one.
func (c *sessionCommand) fork(ctx context.Context, p program, desk sessionDesk) error {
	at, err := session.ParseAt(c.Fork.At)
	if err != nil {
		return cli.Usagef("--at: %v", err)
	}
	if c.Nats == "" {
		return cli.Usagef("--nats is missing: sessions that ran without a fleet have their last workspace only")
	}
	fl, err := c.connect(ctx, p, append(natsio.SessionRights(desk.fleet), natsio.WorkspaceRights(desk.fleet))...)
	if err != nil {
		return err
	}
	defer fl.Close()
	store, err := workspace.Open(ctx, fl.Conn(desk.pool), desk.fleet)
	if err != nil {
		return err
	}
	made := forked{SessionID: protocol.NewSessionID()}
	if made.Effects, err = c.Fork.rewind(ctx, p, fl, desk, at); err != nil {
		return err
	}
	to := sessionDesk{id: made.SessionID}.lane()
	if err := forkWorkspace(ctx, fl.Journal, store, desk, at, to); err != nil {
		return fmt.Errorf("session %s: %w", desk.id, err)
	}
	if made.Turns, err = session.Fork(ctx, fl.Journal, desk.id, at, made.SessionID); err != nil {
		return errors.Join(err, store.Remove(context.WithoutCancel(ctx), to))
	}
	if c.JSON {
		return printJSON(p, made)
	}
	if made.Turns == 0 {
		_, _ = fmt.Fprintln(p.Stderr, "coordinator: the workspace alone is forked: the call is none of the session's conversation")
	}
	_, err = fmt.Fprintln(p.Stdout, made.SessionID)
	return err
}

// forkWorkspace begins a workspace with the files that a session had at a point. It begins none if
// the session had none there.
func forkWorkspace(ctx context.Context, journal loop.Journal, store *workspace.Store, desk sessionDesk, at session.At, to wire.LaneHash) error {
	has := func(path string) bool { return path != "processes.json" }
	if at.Turn == 0 {
		err := store.Fork(ctx, desk.lane(), at.Call, to, has)
		if at.Call == "" || !errors.Is(err, workspace.ErrNone) {
			return err
		}
	}
	behind, known, err := session.Behind(ctx, journal, desk.id, at)
	switch {
	case err != nil:
		return err
	case !known && at.Turn > 0:
		return fmt.Errorf("turn %d: not there, or it has not ended", at.Turn)
	case !known:
		return fmt.Errorf("call %s: %w", at.Call, workspace.ErrNone)
	}
	last, err := store.Before(ctx, desk.lane(), behind)
	if err != nil || last == "" {
		return err
	}
	return store.Fork(ctx, desk.lane(), last, to, has)
}

// merge merges a fork into the session that it is of.
func (c *sessionCommand) merge(ctx context.Context, p program, from sessionDesk) error {
	into := from
	var err error
	if into.id, err = protocol.ParseSessionID(c.Merge.Into); err != nil {
		return cli.Usagef("INTO: %v", err)
	}
	if into.id, err = c.resolve(ctx, p, into); err != nil {
		return err
	}
	if c.Nats == "" {
		return cli.Usagef("--nats is missing: sessions that ran without a fleet have no forks but those of their sub-agents")
	}
	rights := append(natsio.SessionRights(from.fleet), natsio.LaneRights(from.fleet, from.pool), natsio.CallRights(from.fleet, from.pool))
	fl, err := c.connect(ctx, p, rights...)
	if err != nil {
		return err
	}
	defer fl.Close()
	merged, err := session.Merge(ctx, fl, from.id, into.id, from.pool)
	if err != nil {
		return err
	}
	if c.JSON {
		return printJSON(p, merged)
	}
	_, err = fmt.Fprintln(p.out(), render.MergeText(merged.WorkspaceMergeResult))
	return err
}

// cancel ends the turns of a session that run or wait.
func (c *sessionCommand) cancel(ctx context.Context, p program, desk sessionDesk) error {
	if c.Nats == "" { // the process that runs it has its server
		f, err := c.reach(ctx, p, desk)
		if err != nil {
			return fmt.Errorf("%w; stop that process (Ctrl-C)", err)
		}
		f.Close()
		return c.cancelled(p, desk, nil)
	}
	f, err := c.connect(ctx, p, natsio.LaneRights(desk.fleet, protocol.SessionPool), natsio.LaneChangeRights(desk.fleet, protocol.SessionPool))
	if err != nil {
		return err
	}
	defer f.Close()
	ids, err := session.Cancel(ctx, f, desk.id)
	if err != nil {
		return err
	}
	return c.cancelled(p, desk, ids)
}

// cancelled prints what was cancelled.
func (c *sessionCommand) cancelled(p program, desk sessionDesk, ids []protocol.CallID) error {
	if c.JSON {
		return printJSON(p, struct {
			Cancelled []protocol.CallID `json:"cancelled"`
		}{append([]protocol.CallID{}, ids...)})
	}
	what := "nothing of it runs or waits"
	if len(ids) > 0 {
		what = terminal.Plural(len(ids), "turn") + " cancelled"
	}
	_, err := fmt.Fprintf(p.Stdout, "session %s: %s\n", desk.id, what)
	return err
}

// remove removes a session.
func (c *sessionCommand) remove(ctx context.Context, p program, desk sessionDesk) error {
	if stdin, isFile := p.Stdin.(*os.File); isFile && isTerminal(p) && !c.JSON && !c.Rm.Yes && c.Rm.ID != string(desk.id) {
		if !prompt.Confirm(stdin, p.err(), fmt.Sprintf("coordinator: remove session %s (%s)?", desk.id, c.Rm.ID)) {
			return &cli.ExitError{Code: cli.ExitFailed, Message: "session " + string(desk.id) + " stays"}
		}
	}
	removed, err := c.removed(ctx, p, desk)
	if errors.Is(err, session.ErrBusy) {
		return fmt.Errorf("%w (--force)", err)
	}
	if err != nil {
		return err
	}
	if c.JSON {
		return printJSON(p, removed)
	}
	workspace := "no workspace"
	if removed.Workspace {
		workspace = "its workspace"
	}
	_, err = fmt.Fprintf(p.Stdout, "session %s is removed: %d messages of its journal, %d results, %d kept bodies, %s\n",
		desk.id, removed.Events, removed.Results, removed.Bodies, workspace)
	return err
}

func (c *sessionCommand) removed(ctx context.Context, p program, desk sessionDesk) (session.Removed, error) {
	if c.Nats == "" {
		local, err := c.local(p, desk)
		if err != nil {
			return session.Removed{}, err
		}
		return local.Remove(ctx, desk.id, c.Rm.Force)
	}
	fl, err := c.connect(ctx, p, append(natsio.RemoveRights(desk.fleet), natsio.LaneRights(desk.fleet, desk.pool), natsio.LaneChangeRights(desk.fleet, desk.pool))...)
	if err != nil {
		return session.Removed{}, err
	}
	defer fl.Close()
	removed, err := session.Remove(ctx, fl, desk.id, session.Options{Pool: desk.pool, Force: c.Rm.Force})
	if err == nil && removed == (session.Removed{}) {
		err = fmt.Errorf("session %s: %w", desk.id, session.ErrNone)
	}
	return removed, err
}

type sessionImport struct {
	File string `arg:"" help:"File that session export printed; - is stdin."`
	As   string `placeholder:"ID" help:"Id of the new session. Default: a generated one."`
}

// importFile stores an exported session as a new one.
func (c *sessionCommand) importFile(ctx context.Context, p program, desk sessionDesk) error {
	desk.id = protocol.NewSessionID()
	if c.Import.As != "" {
		var err error
		if desk.id, err = protocol.ParseSessionID(c.Import.As); err != nil {
			return cli.Usagef("--as: %v", err)
		}
	}
	events, err := readExport(p, c.Import.File)
	if err != nil {
		return cli.Usagef("FILE %s: %v", c.Import.File, err)
	}
	f, err := c.create(ctx, p, desk)
	if err != nil {
		return err
	}
	defer f.Close()
	made := forked{SessionID: desk.id}
	if made.Turns, err = session.Import(ctx, f.Journal, events, desk.id); err != nil {
		return err
	}
	if c.JSON {
		return printJSON(p, made)
	}
	_, err = fmt.Fprintln(p.Stdout, made.SessionID)
	return err
}

func readExport(p program, path string) ([]loop.Event, error) {
	if path == "-" {
		return loop.ReadExport(p.Stdin)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, errors.Unwrap(err)
	}
	defer func() { _ = file.Close() }() // it was only read
	return loop.ReadExport(file)
}

// create connects to the fleet that gets a new session, or starts the session's own.
func (c *sessionCommand) create(ctx context.Context, p program, desk sessionDesk) (*fleet.Fleet, error) {
	if c.Nats != "" {
		return c.connect(ctx, p, natsio.SessionRights(desk.fleet)...)
	}
	local, err := c.local(p, desk)
	if err != nil {
		return nil, err
	}
	return local.Create(ctx, desk.id)
}
