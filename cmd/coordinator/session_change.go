package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/cli/environment"
	"github.com/toolfleet/toolfleet/internal/inplace/gitguard"
	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
	"github.com/toolfleet/toolfleet/internal/system/regular"
	"github.com/toolfleet/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/internal/terminal/prompt"
	"github.com/toolfleet/toolfleet/internal/workspace/transfer"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

type sessionPull struct {
	ID  string `arg:"" help:"Id of the session, the beginning of its id, or last."`
	Dir string `arg:"" help:"Target directory, created if missing. A directory with files gets only the session's changes; files changed on both sides are kept."`
	At  string `placeholder:"CALL" help:"Call after which the state is taken, or \"turn N\" for the end of a turn. Default: the current state."`

	IncludeIgnored bool `help:"Copy also files that .gitignore files of DIR exclude."`
	WholeHome      bool `help:"Allow DIR to be the root directory or the home directory."`

	environment.GitFlags
}

// pull copies a session's workspace into a directory.
func (c *sessionCommand) pull(ctx context.Context, p program, all *opened) error {
	dir, err := filepath.Abs(c.Pull.Dir)
	if err != nil {
		return fmt.Errorf("DIR %s: %w", c.Pull.Dir, err)
	}
	if !c.Pull.WholeHome {
		if err := environment.CheckWhole("DIR "+c.Pull.Dir, dir, nil); err != nil {
			return err
		}
	}
	options := fleet.Copy{IncludeIgnored: c.Pull.IncludeIgnored, Warn: p.warn}
	show, err := newView(p, &viewFlags{})
	if err != nil {
		return err
	}
	defer show.screen.Close()
	if err := all.known(ctx, all.id); err != nil {
		return err
	}
	here := all.inPlace(all.id)
	if here == nil {
		if options.At, err = all.callAt(ctx, all.id, all.at); err != nil {
			return err
		}
	}
	_, missing := os.Lstat(dir)
	if err := os.MkdirAll(dir, 0o777); err != nil { //nolint:gosec // as mkdir does
		return err
	}
	git, err := gitguard.NewReport(ctx, dir, c.Pull.KeepGitSettings, show.alert) // of a directory that exists
	if err != nil {
		return err
	}
	defer git.Close(ctx)
	var pulled report.Pulled
	if here != nil {
		pulled, err = here.Pull(ctx, dir, all.at)
	} else {
		pulled, err = all.Pull(ctx, all.id, dir, options)
	}
	if err != nil {
		if missing != nil {
			_ = os.Remove(dir)
		}
		return err
	}
	defer func() { git.Alert(git.Findings(ctx)) }() // last
	if !c.JSON {
		transfer.ReportSkipped(snapshot.Changes{Conflicts: pulled.Conflicts, Theirs: pulled.Theirs, Protected: pulled.Protected}, p.warn)
	}
	return c.print(p, pulled, "%s: %s written, %d removed\n", dir, terminal.Plural(len(pulled.Written), "path"), len(pulled.Removed))
}

type sessionRestore struct {
	ID string `arg:"" help:"Id of the session. No turn may run in it."`
	At string `required:"" placeholder:"CALL" help:"Call whose state is restored, or \"turn N\" for the end of a turn; session diff ID lists the calls that changed something."`

	rewindFlags
}

type sessionFork struct {
	ID string `arg:"" help:"Id of the session, the beginning of its id, or last."`
	At string `placeholder:"CALL" help:"Last call that the new session shares, or \"turn N\" for the end of a turn. Default: all calls."`

	rewindFlags
}

type sessionMerge struct {
	From string `arg:"" help:"Id of the session to merge, which began as a fork of INTO: by session fork, or as a sub-agent."`
	Into string `arg:"" help:"Id of the session that gets the files that changed in FROM, and its answer as a message. No turn may run in either of the two."`
}

// rewindFlags say what becomes of effects outside of the workspace when a session is rewound.
type rewindFlags struct {
	Revert       bool `help:"Undo the effects outside of the workspace of the calls after this point, the last call first, by the reverts of their tools."`
	LeaveEffects bool `help:"Continue although effects outside of the workspace stay."`

	Tools                   string `placeholder:"DIR" group:"Reverts of a session of this machine:" help:"Folder of the tools that revert, as for run."`
	environment.WorkerFlags `group:"Reverts of a session of this machine:"`
}

// rewind lists the calls behind a point whose effects reach outside of the workspace, and reverts
// them if the flags say so. It refuses to leave effects that the flags do not name.
func (f *rewindFlags) rewind(ctx context.Context, p program, all *opened, at fleet.At) ([]report.Effect, error) {
	effects, err := all.Effects(ctx, all.id, at)
	if err != nil || len(effects) == 0 {
		return nil, err
	}
	stay, can := 0, 0
	table := tabwriter.NewWriter(p.err(), 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintf(p.err(), "coordinator: the effects of %s after this point reach outside of the workspace:\n", terminal.Plural(len(effects), "call"))
	_, _ = fmt.Fprintln(table, "CALL\tTOOL\tSTATUS\tREACHES\tREVERT")
	for _, e := range effects {
		revert := cmp.Or(prose.OneLine(e.Revert), "none")
		switch {
		case e.Reverted:
			revert += " (done)"
		case e.Revert == "":
			stay++
		default:
			can++
		}
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", e.CallID, prose.OneLine(e.Tool), e.Status, orDash(strings.Join(e.Reaches, ", ")), revert)
	}
	if err := table.Flush(); err != nil {
		return nil, err
	}
	switch {
	case f.LeaveEffects:
	case stay > 0:
		return nil, &cli.ExitError{
			Code:    cli.ExitFailed,
			Message: fmt.Sprintf("nothing was changed: %s cannot be reverted; --leave-effects continues without that", terminal.Plural(stay, "call")),
		}
	case can > 0 && !f.Revert:
		return nil, &cli.ExitError{
			Code:    cli.ExitFailed,
			Message: fmt.Sprintf("nothing was changed: --revert reverts %s, --leave-effects continues without that", terminal.Plural(can, "call")),
		}
	}
	if f.Revert && can > 0 {
		return all.Revert(ctx, all.id, at)
	}
	return effects, err
}

type sessionResolve struct {
	ID       string `arg:"" help:"Id of the session. No turn may run in it."`
	Call     string `arg:"" help:"Id of the call."`
	Happened bool   `xor:"outcome" required:"" help:"The call had its effects."`
	DidNot   bool   `xor:"outcome" required:"" help:"The call had no effect."`
}

// resolveCall notes what a person found out about a call of unknown outcome.
func (c *sessionCommand) resolveCall(ctx context.Context, p program, all *opened) error {
	call, err := protocol.ParseCallID(c.Resolve.Call)
	if err != nil {
		return cli.Usagef("CALL: %v", err)
	}
	if err := all.hold(ctx, all.id); err != nil {
		return err
	}
	if err := all.Resolve(ctx, all.id, call, c.Resolve.Happened, prompt.UserName()); err != nil {
		return err
	}
	what := "happened"
	if c.Resolve.DidNot {
		what = "did not happen"
	}
	_, err = fmt.Fprintf(p.Stdout, "call %s of session %s: it %s; the model reads that in its next turn\n", call, all.id, what)
	return err
}

// parsePoint reads the id of a call, or "turn N"; "" is the present.
func parsePoint(text string) (at fleet.At, err error) {
	number, is := strings.CutPrefix(text, "turn ")
	if !is {
		if digits := strings.TrimPrefix(text, "turn"); digits != "" && strings.Trim(digits, "0123456789") == "" {
			return at, noPoint(text)
		}
		if text == "" {
			return at, nil
		}
		if at.Call, err = protocol.ParseCallID(text); err != nil {
			err = cli.Usagef("--at: %v", err)
		}
		return at, err
	}
	if at.Turn, err = strconv.Atoi(number); err != nil || at.Turn < 0 {
		return at, noPoint(text)
	}
	if at.Turn == 0 {
		at.Turn = environment.Beginning
	}
	return at, nil
}

// noPoint refuses what is neither the id of a call nor a turn.
func noPoint(text string) error {
	return cli.Usagef("--at: %q: must be the id of a call, or \"turn N\" with N from 1", text)
}

// noBeginning refuses "turn 0" of a session that does not work in place.
func noBeginning() error {
	return cli.Usagef("--at: \"turn 0\": the files before the first turn are stored only of a session that works in place; N must be at least 1")
}

// work has a session of this machine get a worker, which a fleet has: for reverts one that runs
// programs.
func (c *sessionCommand) work(ctx context.Context, p program, f *rewindFlags, all *opened) error {
	if all.local == nil {
		return nil
	}
	if !f.Revert {
		if err := all.hold(ctx, all.id); err != nil {
			return err
		}
		return all.local.Work(ctx, all.id)
	}
	local, done, err := all.local.WorkAs(ctx, environment.Options{
		Process: environment.Process{Program: p.Program, Logger: p.logger(), Client: "coordinator session"},
		Flags: &environment.Flags{
			ToolFlags: environment.ToolFlags{Tools: f.Tools}, FleetFlags: environment.FleetFlags{Connection: c.Connection},
			WorkerFlags: f.WorkerFlags, HostFlags: environment.HostFlags{Toolchains: "auto", Cache: "none"},
		},
		Session: &environment.SessionFlags{}, ID: all.id, Warn: p.warn, Alert: p.warn, Busy: func(string) {},
	})
	if err == nil {
		*all = opened{client: local.Client, local: local, done: []func(){done}, at: all.at, id: all.id}
		all.use(ctx, all.id)
	}
	return err
}

// restore restores a session's workspace to its state after a call.
func (c *sessionCommand) restore(ctx context.Context, p program, all *opened) error {
	point, here := all.at, all.inPlace(all.id)
	if here == nil {
		call, err := all.callAt(ctx, all.id, point)
		if err != nil {
			return err
		}
		point = fleet.At{Call: call}
	} else if _, err := here.At(point); err != nil {
		return err
	}
	if err := c.work(ctx, p, &c.Restore.rewindFlags, all); err != nil {
		return err
	}
	var restored struct {
		Written int             `json:"written"`
		Removed int             `json:"removed"`
		Effects []report.Effect `json:"effects,omitempty"`
	}
	var err error
	if restored.Effects, err = c.Restore.rewind(ctx, p, all, point); err != nil {
		return err
	}
	if here != nil {
		restored.Written, restored.Removed, err = c.restoreInPlace(ctx, p, all, here, point)
	} else {
		restored.Written, restored.Removed, err = all.Restore(ctx, all.id, point.Call)
	}
	if err != nil {
		return err
	}
	when := fmt.Sprintf("after call %s", point.Call)
	if here != nil {
		when = fmt.Sprintf("at the end of turn %d", max(point.Turn, 0))
	}
	return c.print(p, restored, "the workspace of session %s is as it was %s: %s written, %d removed\n",
		all.id, when, terminal.Plural(restored.Written, "file"), restored.Removed)
}

// restoreInPlace restores the directory of a session that works in place.
func (c *sessionCommand) restoreInPlace(ctx context.Context, p program, all *opened, here *environment.InPlaceFiles, point fleet.At) (written, removed int, err error) {
	log, err := all.Log(ctx, all.id)
	if err != nil {
		return 0, 0, err
	}
	last := 0
	for _, e := range log.Events {
		if e.Type == loop.EventTurnStarted {
			last = e.Turn
		}
	}
	changes, err := here.Restore(ctx, point, last, p.warn)
	transfer.ReportSkipped(changes, p.warn)
	return len(changes.Written), len(changes.Removed), err
}

// forked is what a fork prints with --json.
type forked struct {
	SessionID protocol.SessionID `json:"session_id"`
	Turns     int                `json:"turns"`
	Effects   []report.Effect    `json:"effects,omitempty"`
}

// fork starts a session with the workspace and the conversation of another one.
func (c *sessionCommand) fork(ctx context.Context, p program, all *opened) error {
	at := all.at
	if at.Turn == environment.Beginning {
		return noBeginning()
	}
	if c.Fork.Revert {
		if err := c.work(ctx, p, &c.Fork.rewindFlags, all); err != nil {
			return err
		}
	}
	var err error
	made := forked{SessionID: protocol.NewSessionID()}
	if made.Effects, err = c.Fork.rewind(ctx, p, all, at); err != nil {
		return err
	}
	if all.local == nil {
		made.Turns, err = all.Fork(ctx, all.id, at, made.SessionID)
	} else {
		made.Turns, err = all.local.Fork(ctx, all.id, at, made.SessionID, p.warn)
	}
	if err != nil {
		return err
	}
	if made.Turns == 0 && !c.JSON {
		why := "the session has had no turn"
		if at.Call != "" {
			why = "the call is not part of the session's conversation"
		}
		p.warn("only the workspace is forked: " + why)
	}
	return c.print(p, made, "%s\n", made.SessionID)
}

// merge merges a fork into the session that it is of.
func (c *sessionCommand) merge(ctx context.Context, p program, all *opened) error {
	from := all.id
	into, err := protocol.ParseSessionID(c.Merge.Into)
	if err != nil {
		return cli.Usagef("INTO: %v", err)
	}
	if into, err = all.find(ctx, into); err != nil {
		return err
	}
	if into == from {
		return cli.Usagef("INTO: is the same session as FROM, %s: a session cannot be merged into itself", into)
	}
	all.use(ctx, into)
	if all.local != nil {
		if err := all.hold(ctx, into, from); err != nil {
			return err
		}
		if _, in := all.local.InPlace(from); in { // a fork never does
			return fmt.Errorf("session %s is no fork of session %s", from, into)
		}
		if dir, in := all.local.InPlace(into); in {
			show, err := newView(p, &viewFlags{})
			if err != nil {
				return err
			}
			defer show.screen.Close()
			git, err := gitguard.NewReport(ctx, dir, false, show.alert)
			if err != nil {
				return err
			}
			defer git.Close(ctx)
			defer func() { git.Alert(git.Findings(ctx)) }() // last
		}
		if err := all.local.Work(ctx, into); err != nil {
			return err
		}
	}
	merged, err := all.Merge(ctx, from, into)
	if err != nil {
		return err
	}
	return c.print(p, merged, "%s\n", merged.Text)
}

// cancel ends the turns of a session that run or wait.
func (c *sessionCommand) cancel(ctx context.Context, p program, all *opened) error {
	cancel := all.Cancel
	if all.local != nil {
		cancel = all.local.Cancel
	}
	ids, err := cancel(ctx, all.id)
	if err == nil && len(ids) == 0 {
		err = all.known(ctx, all.id) // a misspelled one has no turn either
	}
	if err != nil {
		return err
	}
	what := "it has no turn that runs or waits"
	if len(ids) > 0 {
		what = terminal.Plural(len(ids), "turn") + " cancelled"
	}
	return c.print(p, struct {
		Cancelled []protocol.CallID `json:"cancelled"`
	}{append([]protocol.CallID{}, ids...)}, "session %s: %s\n", all.id, what)
}

// remove removes a session.
func (c *sessionCommand) remove(ctx context.Context, p program, all *opened) error {
	if stdin, isFile := p.Stdin.(*os.File); isFile && isTerminal(p) && !c.JSON && !c.Rm.Yes && c.Rm.ID != string(all.id) {
		if !prompt.Confirm(stdin, p.err(), fmt.Sprintf("coordinator: remove session %s (%s)?", all.id, c.Rm.ID)) {
			return &cli.ExitError{Code: cli.ExitFailed, Message: "session " + string(all.id) + " stays"}
		}
	}
	remove := all.Remove
	if all.local != nil {
		remove = all.local.Remove
	}
	removed, err := remove(ctx, all.id, c.Rm.Force)
	if errors.Is(err, fleet.ErrSessionBusy) && !c.Rm.Force {
		return fmt.Errorf("%w (--force)", err)
	}
	if err == nil && c.Nats != "" && removed.Events+removed.Results == 0 && removed.Bodies == 0 && !removed.Workspace {
		err = fmt.Errorf("session %s: there is no such session", all.id)
	}
	if err != nil {
		return err
	}
	workspace, schedules := "no workspace", ""
	if removed.Workspace {
		workspace = "its workspace"
	}
	if len(removed.Schedules) > 0 {
		schedules = "its schedules are removed: " + strings.Join(removed.Schedules, ", ") + "\n"
	}
	return c.print(p, removed, "session %s is removed: %d messages of its journal, %d results, %d stored outputs, %s\n%s",
		all.id, removed.Events, removed.Results, removed.Bodies, workspace, schedules)
}

type sessionImport struct {
	File string `arg:"" help:"File that session export printed; - is stdin."`
	As   string `placeholder:"ID" help:"Id of the new session. Default: a generated one."`
}

// importFile stores an exported session as a new one.
func (c *sessionCommand) importFile(ctx context.Context, p program, all *opened) error {
	id := protocol.NewSessionID()
	if c.Import.As != "" {
		var err error
		if id, err = protocol.ParseSessionID(c.Import.As); err != nil {
			return cli.Usagef("--as: %v", err)
		}
	}
	events, err := readExport(p, c.Import.File)
	if err != nil {
		return cli.Usagef("FILE %s: %v", c.Import.File, err)
	}
	store := all.Import
	if all.local != nil {
		store = all.local.Import
	}
	made := forked{SessionID: id}
	if made.Turns, err = store(ctx, events, id); err != nil {
		return err
	}
	return c.print(p, made, "%s\n", made.SessionID)
}

func readExport(p program, path string) ([]loop.Event, error) {
	if path == "-" {
		return loop.ReadExport(p.Stdin)
	}
	file, err := regular.Open(path)
	if err != nil {
		return nil, errors.Unwrap(err)
	}
	defer func() { _ = file.Close() }() // it was only read
	return loop.ReadExport(file)
}
