package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/cli/environment"
	"github.com/toolfleet/toolfleet/internal/system/moment"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

type sessionCommand struct {
	lookedAt

	Pool    string        `default:"default" help:"With --nats: pool whose workers have the session's workspace, for rm, restore and pull."`
	JSON    bool          `name:"json" help:"Print JSON."`
	Timeout time.Duration `default:"60s" help:"Time limit of the command; attach and eval have none."`

	Ls struct {
		Limit   int           `default:"100" help:"Maximum number of sessions to print."`
		State   string        `placeholder:"STATE" help:"Only sessions in this state, such as running, waits_for_approval or failed."`
		Since   moment.Moment `placeholder:"TIME" help:"Only sessions that changed within this time, such as 2h or 7d, or since a time such as 2026-12-01T07:00:00+01:00."`
		Running bool          `hidden:"" env:"-"` // for the completion of a shell: no server is started
	} `cmd:"" help:"List sessions, most recently changed first."`
	Search sessionSearch `cmd:"" help:"Search the conversations and calls of all sessions for words. The first search reads all journals into an index."`
	Show   struct {
		ID string `arg:"" help:"Id of the session, the beginning of its id, or last."`
	} `cmd:"" help:"Show a session with its turns."`
	Log struct {
		ID string `arg:"" help:"Id of the session, the beginning of its id, or last."`
	} `cmd:"" help:"Print a session as run shows it: what was asked, said and done."`
	Export struct {
		ID         string `arg:"" help:"Id of the session, the beginning of its id, or last."`
		Transcript bool   `help:"Print only what was said: the inputs, replies and results, without times, ids of calls and workers."`
	} `cmd:"" help:"Print a session's journal, each event as a line of JSON, for session import and --model replay:FILE."`
	Import  sessionImport  `cmd:"" help:"Store an exported session under a new id, and print that. Its workspace and stored outputs are not part of an export."`
	Files   sessionFiles   `cmd:"" help:"List the files of a session's workspace, or print one, now or as it was after a call. Needs no worker."`
	Diff    sessionDiff    `cmd:"" help:"List the calls that changed a session's workspace, or show the changes of one. Needs no worker."`
	Pull    sessionPull    `cmd:"" help:"Copy a session's workspace, or its changes, into a directory, now or as it was after a call."`
	Restore sessionRestore `cmd:"" help:"Restore a session's workspace to its state after a call. Later states stay in its history."`
	Fork    sessionFork    `cmd:"" help:"Start a session with the workspace and conversation of another one after a call, and print its id. Contents are shared, not copied."`
	Merge   sessionMerge   `cmd:"" help:"Merge a fork into its session: the files that changed, and its answer as one message. Conflicts are printed; both versions stay."`
	Resolve sessionResolve `cmd:"" help:"Record whether a call with an unknown outcome happened. session show lists such calls, and the model reads the answer."`
	Compact sessionCompact `cmd:"" help:"Replace older replies of a session by a summary that a model writes. Its journal keeps them."`
	Eval    sessionEval    `cmd:"" help:"Run the cases of a file on a fleet, each in its own session, and check the results."`
	Cancel  struct {
		ID string `arg:"" help:"Id of the session, the beginning of its id, or last."`
	} `cmd:"" help:"Cancel a session's running and waiting turns, with their calls."`
	Attach struct {
		ID    string `arg:"" help:"Id of the session, the beginning of its id, or last."`
		Plain bool   `help:"Plain output for screen readers: progress in words, every line once."`
	} `cmd:"" help:"Follow a running turn, as submit does, and answer its questions. Detaching stops nothing."`
	Rm sessionRemove `cmd:"" help:"Remove a session: journal, workspace, results and stored outputs. Run it again if it was interrupted."`
}

type sessionRemove struct {
	Force bool   `help:"Remove the session even if a turn is open: its calls are cancelled."`
	Yes   bool   `help:"Remove a session named by last, or by the beginning of its id, without asking on a terminal."`
	ID    string `arg:"" help:"Id of the session, the beginning of its id, or last."`
}

// sessionVerb is one of the subcommands.
type sessionVerb struct {
	command *sessionCommand
	id, at  *string // nil when it is about no session, or no point of one
	act     func(ctx context.Context, p program, all *opened) error
}

// commandFunc is a command that needs nothing of others.
type commandFunc func(ctx context.Context, p program) error

func (f commandFunc) run(ctx context.Context, p program) error { return f(ctx, p) }

// verbs implements [group].
func (c *sessionCommand) verbs() map[string]command {
	return map[string]command{
		"ls":      sessionVerb{c, nil, nil, c.list},
		"search":  sessionVerb{c, nil, nil, c.search},
		"show":    sessionVerb{c, &c.Show.ID, nil, c.show},
		"log":     sessionVerb{c, &c.Log.ID, nil, c.log},
		"export":  sessionVerb{c, &c.Export.ID, nil, c.export},
		"import":  sessionVerb{c, nil, nil, c.importFile},
		"files":   sessionVerb{c, &c.Files.ID, &c.Files.At, c.files},
		"diff":    sessionVerb{c, &c.Diff.ID, nil, c.diff},
		"pull":    sessionVerb{c, &c.Pull.ID, &c.Pull.At, c.pull},
		"restore": sessionVerb{c, &c.Restore.ID, &c.Restore.At, c.restore},
		"fork":    sessionVerb{c, &c.Fork.ID, &c.Fork.At, c.fork},
		"merge":   sessionVerb{c, &c.Merge.From, nil, c.merge},
		"resolve": sessionVerb{c, &c.Resolve.ID, nil, c.resolveCall},
		"compact": sessionVerb{c, &c.Compact.ID, nil, c.compact},
		"eval":    commandFunc(c.eval),
		"cancel":  sessionVerb{c, &c.Cancel.ID, nil, c.cancel},
		"attach":  sessionVerb{c, &c.Attach.ID, nil, c.attach},
		"rm":      sessionVerb{c, &c.Rm.ID, nil, c.remove},
	}
}

func (v sessionVerb) run(ctx context.Context, p program) error {
	c := v.command
	pool, err := c.check()
	if err != nil {
		return err
	}
	var id protocol.SessionID
	var at fleet.At
	if v.id != nil {
		if id, err = protocol.ParseSessionID(*v.id); err != nil {
			return cli.Usagef("ID: %v", err)
		}
	}
	if v.at != nil {
		if at, err = parsePoint(*v.at); err != nil {
			return err
		}
	}
	if v.id != &c.Attach.ID { // a turn has no time limit here
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.Timeout)
		defer cancel()
	}
	all, err := c.open(ctx, p, pool)
	if err != nil {
		return err
	}
	defer all.close()
	all.at = at
	return c.about(ctx, all, id, func() error { return v.act(ctx, p, all) })
}

// minPrefix is the minimum length of a prefix that stands for an id.
const minPrefix = 4

// continueTimeout is the time limit for finding the session that --session means.
const continueTimeout = time.Minute

// find returns the session with that id, or else the only one whose id begins with it; last is the
// session that changed last. An unknown id is returned unchanged.
func (o *opened) find(ctx context.Context, id protocol.SessionID) (protocol.SessionID, error) {
	if len(id) == len(protocol.NewSessionID()) || id != "last" && len(id) < minPrefix {
		return id, nil
	}
	ids, err := o.IDs(ctx)
	if err != nil || slices.Contains(ids, id) {
		return id, err
	}
	if id == "last" && len(ids) > 0 {
		return ids[0], nil
	}
	return only("ID", id, ids)
}

// maybeGenerated reports whether text may be the beginning of a generated id.
func maybeGenerated(text string) bool {
	return len(text) >= minPrefix && len(text) < len(protocol.NewSessionID()) && strings.Trim(text, "0123456789abcdef-") == ""
}

// only returns the only id that begins with a prefix, or the prefix if none does.
func only(argument string, id protocol.SessionID, ids []protocol.SessionID) (protocol.SessionID, error) {
	ids = slices.DeleteFunc(ids, func(other protocol.SessionID) bool { return !strings.HasPrefix(string(other), string(id)) })
	switch len(ids) {
	case 0:
		return id, nil
	case 1:
		return ids[0], nil
	default:
		return "", cli.Usagef("%s %s: %d sessions have ids that begin like this, such as %s and %s: give more of the id", argument, id, len(ids), ids[0], ids[1])
	}
}

// findSession replaces --session by the session that it means, and returns that; without the flag a
// new one.
func findSession(ctx context.Context, p program, f *environment.FleetFlags, flag *string) (protocol.SessionID, error) {
	found, err := continued(ctx, p, f, *flag)
	if *flag = found; err != nil || found == "" {
		return protocol.NewSessionID(), err
	}
	id, err := protocol.ParseSessionID(found)
	if err != nil {
		return "", cli.Usagef("--session: %v", err)
	}
	return id, nil
}

// continued returns the session that --session means: last is the session that changed last, and a
// prefix stands for a generated id. Anything else is an id, maybe of a new session: a prefix of a
// name that a person chose stands for itself. Sessions in a --data are in no list.
func continued(ctx context.Context, p program, f *environment.FleetFlags, flag string) (string, error) {
	c, data := &lookedAt{Nats: f.Nats, Connection: f.Connection}, f.Data
	short := maybeGenerated(flag)
	switch {
	case flag != "last" && !short:
		return flag, nil
	case data != "" && c.Nats == "" && flag == "last":
		return "", cli.Usagef("--session last: the sessions in --data %s are not listed: give the session's id", data)
	case data != "" && c.Nats == "":
		return flag, nil
	}
	ctx, cancel := context.WithTimeout(ctx, continueTimeout)
	defer cancel()
	all, err := c.open(ctx, p.logger(), "", false)
	if err != nil {
		return "", err
	}
	defer all.close()
	ids, err := all.IDs(ctx)
	if all.local != nil && err == nil && flag == "last" && !slices.Contains(ids, "last") {
		ids = nil // a session that another process uses cannot be continued
		if id, lastErr := all.local.Last(ctx); id != "" || lastErr != nil {
			ids, err = []protocol.SessionID{id}, lastErr
		}
	}
	switch {
	case err != nil || slices.Contains(ids, protocol.SessionID(flag)):
		return flag, err
	case flag != "last":
		ids = slices.DeleteFunc(ids, func(id protocol.SessionID) bool { return len(id) != len(protocol.NewSessionID()) })
		id, err := only("--session", protocol.SessionID(flag), ids)
		return string(id), err
	case len(ids) == 0:
		return "", cli.Usagef("--session last: there is no session to continue; omit --session to begin one")
	}
	return string(ids[0]), nil
}

// check reads the flags; it connects to nothing.
func (c *sessionCommand) check() (pool protocol.Pool, err error) {
	if err := checkTimeout(c.Timeout); err != nil {
		return "", err
	}
	if c.Ls.Limit < 1 {
		return "", cli.Usagef("--limit %d: must be positive", c.Ls.Limit)
	}
	if states := sessionStates(); c.Ls.State != "" && !slices.Contains(states, strings.ReplaceAll(c.Ls.State, " ", "_")) {
		return "", cli.Usagef("--state %s: must be one of %s", c.Ls.State, strings.Join(states, ", "))
	}
	if err := c.Search.check(); err != nil {
		return "", err
	}
	if pool, err = protocol.ParsePool(c.Pool); err != nil {
		return "", cli.Usagef("--pool: %v", err)
	}
	return pool, nil
}

// opened are the sessions of a fleet, or of this machine, and the one that a verb is about.
type opened struct {
	fleet.Sessions

	client *fleet.Client
	local  *environment.Local // nil with --nats
	done   []func()           // in the opposite order
	id     protocol.SessionID // "" when the verb is about none
	at     fleet.At           // of that session
}

// open reaches the fleet of the flags. The caller closes it.
func (c *sessionCommand) open(ctx context.Context, p program, pool protocol.Pool) (*opened, error) {
	return c.lookedAt.open(ctx, p.logger(), pool, c.Ls.Running)
}

// lookedAt says which fleet a command looks at.
type lookedAt struct {
	Nats                   string `placeholder:"URL" brief:"NATS servers of a fleet. Default: your sessions on this machine." help:"NATS server or servers of the fleet. Default: your sessions on this machine, which ran without --nats and --data."`
	environment.Connection `group:"Fleet:"`
	Data                   string `placeholder:"DIR" help:"Data directory of the fleet, that of serve --data or run --data. No other process may use it."`
}

// open reaches the fleet; running does not start the server of this machine. The caller closes it.
func (f *lookedAt) open(ctx context.Context, logger *slog.Logger, pool protocol.Pool, running bool) (all *opened, err error) {
	if err := f.CheckFleet(); err != nil {
		return nil, err
	}
	all = &opened{}
	if f.Nats != "" {
		all.client, err = (&environment.ExistingFleet{Nats: f.Nats, Connection: f.Connection}).Client(ctx, logger)
	} else if all.local, err = environment.OpenLocal(ctx, &f.Connection, f.Data, running, logger); err == nil {
		all.client = all.local.Client
	}
	if err != nil {
		return nil, err
	}
	all.Sessions = all.client.Sessions(pool)
	all.done = append(all.done, func() { _ = all.client.Close() }) // nothing of it is left to lose
	return all, nil
}

// about acts on the session of an id, as [opened.find] finds it; "" is none.
func (f *lookedAt) about(ctx context.Context, all *opened, id protocol.SessionID, act func() error) (err error) {
	if id != "" {
		if id, err = all.find(ctx, id); err != nil {
			return err
		}
		all.use(ctx, id)
	}
	err = act()
	if errors.Is(err, fleet.ErrNotFound) && f.Nats+f.Data == "" {
		err = cmp.Or(environment.Earlier(id), err)
	}
	return err
}

// use selects the session of a verb; one of this machine has a pool of its own.
func (o *opened) use(ctx context.Context, id protocol.SessionID) {
	if o.id = id; o.local != nil {
		o.Sessions = o.client.Sessions(o.local.Pool(ctx, id))
	}
}

func (o *opened) close() {
	for _, done := range slices.Backward(o.done) {
		done()
	}
}

// hold has this process alone change sessions of this machine until all is closed.
func (o *opened) hold(ctx context.Context, ids ...protocol.SessionID) error {
	if o.local == nil {
		return nil
	}
	release, err := o.local.Hold(ctx, ids...)
	if err == nil {
		o.done = slices.Insert(o.done, 0, release) // after the worker
	}
	return err
}

// known returns an error for an id that is no session's of this machine.
func (o *opened) known(ctx context.Context, id protocol.SessionID) error {
	if o.local == nil {
		return nil
	}
	return o.local.Known(ctx, id)
}

// IDs is [fleet.Sessions.IDs].
func (o *opened) IDs(ctx context.Context) ([]protocol.SessionID, error) {
	if o.local != nil {
		return o.local.IDs(ctx)
	}
	return o.Sessions.IDs(ctx)
}

// Show is [fleet.Sessions.Show].
func (o *opened) Show(ctx context.Context, id protocol.SessionID) (*report.Session, error) {
	if o.local != nil {
		return o.local.Show(ctx, id)
	}
	return o.Sessions.Show(ctx, id)
}

// Compare is [fleet.Sessions.Compare], also for sessions of this machine that work in place.
func (o *opened) compare(ctx context.Context, id, other protocol.SessionID, warn func(string)) (string, error) {
	if o.local != nil {
		return o.local.Compare(ctx, id, other, warn)
	}
	return o.Compare(ctx, id, other)
}

// inPlace are the stored files of a session of this machine that works in place; nil of any other
// one.
func (o *opened) inPlace(id protocol.SessionID) *environment.InPlaceFiles {
	if o.local == nil {
		return nil
	}
	return o.local.InPlaceFiles(id)
}

// print prints what a verb returns: for scripts, or in words.
func (c *sessionCommand) print(p program, value any, format string, args ...any) error {
	if c.JSON {
		return printJSON(p, value)
	}
	_, err := fmt.Fprintf(p.out(), format, args...)
	return err
}

// callAt returns the last call up to a point that changed files of a session; "" is the present.
func (o *opened) callAt(ctx context.Context, id protocol.SessionID, at fleet.At) (last protocol.CallID, err error) {
	switch at.Turn {
	case 0:
		return at.Call, nil
	case environment.Beginning:
		return "", noBeginning()
	}
	log, err := o.Log(ctx, id)
	if err != nil {
		return "", err
	}
	calls, ended := map[protocol.CallID]bool{}, false
	for _, e := range log.Events {
		if e.Type == loop.EventToolCall && e.Turn <= at.Turn {
			calls[e.CallID] = true
		}
		ended = ended || e.Type == loop.EventTurnEnded && e.Turn == at.Turn
	}
	if !ended {
		return "", fmt.Errorf("session %s: turn %d: not there, or it has not ended", id, at.Turn)
	}
	changes, err := o.Changes(ctx, id)
	for _, change := range changes {
		for _, call := range change.Calls {
			if calls[call] {
				last = call
			}
		}
	}
	if err == nil && last == "" {
		err = fmt.Errorf("session %s: no call had changed files by the end of turn %d", id, at.Turn)
	}
	return last, err
}

// sessionStates are all states of a session, also as [report.StateWords] says them.
func sessionStates() []string {
	return []string{
		string(loop.OutcomeAnswered), string(loop.OutcomeFailed), string(loop.OutcomeLimitReached), string(loop.OutcomeInterrupted),
		"running", report.StateOpen, report.StateInUse, report.StateLost, report.StateWaitsForApproval, report.StateWaitsForAnswer, report.StateWaitsForWorker,
		report.StateWaitsForCoordinator, report.StateForked, report.StateInvalid, report.StateUncompleted, report.StateRemoving, report.StateWorkspaceOnly,
	}
}
