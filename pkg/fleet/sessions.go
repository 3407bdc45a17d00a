package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/internal/approval"
	"github.com/toolfleet/toolfleet/internal/dispatch"
	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/serve"
	"github.com/toolfleet/toolfleet/internal/session"
	"github.com/toolfleet/toolfleet/internal/transfer"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// ErrSessionBusy means that a session has an open turn or unfinished calls. Nothing was changed.
var ErrSessionBusy = session.ErrBusy

// Sessions reads and changes the sessions of a fleet, and the files of their workspaces. Errors
// wrap [ErrNotFound] for a session, file or call that is not stored, and [ErrRights] if the user
// of the connection lacks rights. A session that was never begun has nothing, and is not found.
type Sessions struct {
	client *Client
	pool   protocol.Pool
}

// Sessions returns the sessions of the fleet. The pool is the one whose workers have the
// workspaces of sessions; "" means [protocol.DefaultPool].
func (c *Client) Sessions(pool protocol.Pool) Sessions {
	return Sessions{c, cmp.Or(pool, protocol.DefaultPool)}
}

// open checks the ids and the pool, and the rights to read sessions and others.
func (s Sessions) open(ctx context.Context, ids []protocol.SessionID, rights ...natsio.Rights) (*fleet.Fleet, error) {
	_, err := protocol.ParsePool(string(s.pool))
	for _, id := range ids {
		_, idErr := protocol.ParseSessionID(string(id))
		err = errors.Join(err, idErr)
	}
	if err != nil {
		return nil, err
	}
	f := s.client.inner
	return f, s.client.check(ctx, append(natsio.JournalRights(f.Name), rights...)...)
}

// of is open for a method about one session.
func (s Sessions) of(ctx context.Context, id protocol.SessionID, rights ...natsio.Rights) (*fleet.Fleet, error) {
	return s.open(ctx, []protocol.SessionID{id}, rights...)
}

// reader opens the sessions for reading. In a fleet elsewhere it looks at lanes too, if the user
// may do that.
func (s Sessions) reader(ctx context.Context, ids ...protocol.SessionID) (*session.Reader, error) {
	f, err := s.open(ctx, ids)
	if err != nil {
		return nil, err
	}
	reader, err := session.NewReader(ctx, f)
	if err == nil && s.client.elsewhere {
		reader.Lanes = f.CheckRights(ctx, natsio.LaneRights(f.Name, protocol.SessionPool)) == nil
		if f.CheckRights(ctx, natsio.LaneRights(f.Name, s.pool)) == nil {
			reader.Pool = s.pool
		}
	}
	return reader, err
}

// List returns the sessions that changed last, the last one first; a limit of 0 means 100. leftOut
// is how many more there are.
func (s Sessions) List(ctx context.Context, limit int) (list []report.Session, leftOut int, err error) {
	reader, err := s.reader(ctx)
	if err != nil {
		return nil, 0, err
	}
	return reader.List(ctx, cmp.Or(limit, defaultSessions))
}

// defaultSessions is the limit of a list without one.
const defaultSessions = 100

// IDs returns the ids of all sessions, the one that changed last first.
func (s Sessions) IDs(ctx context.Context) ([]protocol.SessionID, error) {
	reader, err := s.reader(ctx)
	if err != nil {
		return nil, err
	}
	return reader.IDs(ctx)
}

// Show returns a session with its turns.
func (s Sessions) Show(ctx context.Context, id protocol.SessionID) (*report.Session, error) {
	reader, err := s.reader(ctx, id)
	if err != nil {
		return nil, err
	}
	shown, err := reader.Show(ctx, id)
	return shown, withKind(err)
}

// Unfinished returns the calls of a session that run or wait, its turns first, with WaitsFor set
// for those that no worker can run.
func (s Sessions) Unfinished(ctx context.Context, id protocol.SessionID) ([]report.Call, error) {
	f, err := s.of(ctx, id, natsio.LaneRights(s.client.inner.Name, s.pool))
	if err != nil {
		return nil, err
	}
	turns, calls, err := session.Unfinished(ctx, f, id, s.pool)
	if err != nil {
		return nil, err
	}
	dispatch.AddUnmet(ctx, f.Conn(protocol.SessionPool), f.Name, protocol.SessionPool, turns)
	dispatch.AddUnmet(ctx, f.Conn(s.pool), f.Name, s.pool, calls)
	return append(turns, calls...), nil
}

// Log returns the events of a session, as its journal has them; see [loop.Export].
func (s Sessions) Log(ctx context.Context, id protocol.SessionID) (loop.History, error) {
	f, err := s.of(ctx, id)
	if err != nil {
		return loop.History{}, err
	}
	history, err := session.Load(ctx, f, id)
	return history, withKind(err)
}

// Import stores events of [loop.ReadExport] as a new session, and returns how many turns these
// are. A turn that is open at their end is interrupted. The error wraps [ErrExists] if that
// session exists.
func (s Sessions) Import(ctx context.Context, events []loop.Event, id protocol.SessionID) (turns int, err error) {
	f, err := s.of(ctx, id, natsio.SessionRights(s.client.inner.Name)...)
	if err != nil {
		return 0, err
	}
	turns, err = session.Import(ctx, f.Journal, slices.Clone(events), id)
	return turns, withKind(err)
}

// At is a point of a session: the result of Call, or the end of Turn. The zero value is the end of
// the session.
type At struct {
	Call protocol.CallID
	Turn int
}

// Fork begins the session to, which must not exist, with the workspace and the conversation that a
// session had at a point, and returns how many turns that conversation has. With 0 turns only the
// workspace was forked, because the call is none of the conversation. Contents of files are
// shared.
func (s Sessions) Fork(ctx context.Context, from protocol.SessionID, at At, to protocol.SessionID) (turns int, err error) {
	name := s.client.inner.Name
	f, err := s.open(ctx, []protocol.SessionID{from, to}, append(natsio.SessionRights(name), natsio.WorkspaceRights(name))...)
	if err != nil {
		return 0, err
	}
	files, err := session.OpenFiles(ctx, f, s.pool)
	if err != nil {
		return 0, err
	}
	turns, err = files.Fork(ctx, f.Journal, from, session.At(at), to)
	return turns, withKind(err)
}

// Effects returns the calls behind a point whose effects reach outside of the workspace, those of
// sub-agents too, the last first: neither Fork nor Restore undoes them.
func (s Sessions) Effects(ctx context.Context, id protocol.SessionID, at At) ([]report.Effect, error) {
	f, err := s.of(ctx, id)
	if err != nil {
		return nil, err
	}
	effects, err := session.Effects(ctx, f.Journal, id, session.At(at))
	return reported(effects), err
}

// Revert undoes the effects behind a point by the reverts of their tools, in the order of
// [Sessions.Effects], and returns all of them. It stops at the first one that cannot be undone,
// and may be repeated. Effects without a revert stay. The error wraps [ErrSessionBusy] if the
// session is busy.
func (s Sessions) Revert(ctx context.Context, id protocol.SessionID, at At) ([]report.Effect, error) {
	name := s.client.inner.Name
	f, err := s.of(ctx, id, append(natsio.SessionRights(name), natsio.LaneRights(name, s.pool), natsio.CallRights(name, s.pool))...)
	if err != nil {
		return nil, err
	}
	effects, err := session.Effects(ctx, f.Journal, id, session.At(at))
	if err == nil {
		err = session.Revert(ctx, f, id, s.pool, effects)
	}
	return reported(effects), err
}

func reported(effects []session.Effect) (all []report.Effect) {
	for i := range effects {
		all = append(all, effects[i].Effect)
	}
	return all
}

// Resolve notes that a person found out whether a call of unknown outcome happened
// ([report.Session].Unknown); the model reads that in its next turn. The error wraps
// [ErrSessionBusy] if the session is busy.
func (s Sessions) Resolve(ctx context.Context, id protocol.SessionID, call protocol.CallID, happened bool, by string) error {
	name := s.client.inner.Name
	f, err := s.of(ctx, id, append(natsio.SessionRights(name), natsio.LaneRights(name, s.pool))...)
	if err != nil {
		return err
	}
	return withKind(session.Resolve(ctx, f, id, s.pool, call, happened, by))
}

// Merge brings what a fork has changed in its workspace into the session that it was forked from,
// and adds the fork's answer to the conversation as one message. The error wraps [ErrSessionBusy]
// if one of the two is busy.
func (s Sessions) Merge(ctx context.Context, fork, into protocol.SessionID) (report.Merged, error) {
	name := s.client.inner.Name
	f, err := s.open(ctx, []protocol.SessionID{fork, into}, append(natsio.SessionRights(name), natsio.LaneRights(name, s.pool), natsio.CallRights(name, s.pool))...)
	if err != nil {
		return report.Merged{}, err
	}
	merged, err := session.Merge(ctx, f, fork, into, s.pool)
	return merged, withKind(err)
}

// Restore has a worker make the workspace of a session what it was after a call, and returns how
// many files were written and paths removed. Later states stay in the history. The error wraps
// [ErrSessionBusy] if the session is busy.
func (s Sessions) Restore(ctx context.Context, id protocol.SessionID, at protocol.CallID) (written, removed int, err error) {
	name := s.client.inner.Name
	f, err := s.of(ctx, id, natsio.LaneRights(name, s.pool), natsio.CallRights(name, s.pool))
	if err != nil {
		return 0, 0, err
	}
	restored, err := session.Restore(ctx, f, id, s.pool, at)
	return restored.Written, restored.Removed, withKind(err)
}

// Compact has a coordinator replace older replies of a session by a summary that the model writes;
// "" is the coordinator's. It returns false if there was nothing to replace. The end of ctx
// cancels it.
func (s Sessions) Compact(ctx context.Context, id protocol.SessionID, model string) (bool, error) {
	f, err := s.of(ctx, id, natsio.CallRights(s.client.inner.Name, protocol.SessionPool))
	if err != nil {
		return false, err
	}
	var limit time.Duration
	if deadline, has := ctx.Deadline(); has {
		limit = time.Until(deadline)
	}
	call := serve.NewCall(id, wire.TurnRun{Compact: true, Model: model}, limit)
	result, err := f.Dispatcher.One(ctx, &call)
	if err == nil && result.Error != nil {
		err = result.Error
	}
	if err != nil {
		return false, fmt.Errorf("session %s: %w", id, err)
	}
	value, _ := result.Value.(wire.TurnRunResult)
	return value.Compacted, nil
}

// Cancel ends the turns of a session that run or wait, with their calls, and returns their ids
// when they have ended; none if nothing runs or waits. An open turn that no serving coordinator
// has is an error: its process must be stopped, or continue it.
func (s Sessions) Cancel(ctx context.Context, id protocol.SessionID) ([]protocol.CallID, error) {
	name := s.client.inner.Name
	f, err := s.of(ctx, id, natsio.LaneRights(name, protocol.SessionPool), natsio.LaneChangeRights(name, protocol.SessionPool))
	if err != nil {
		return nil, err
	}
	return session.Cancel(ctx, f, id)
}

// Remove removes a session: its journal, its workspace, which takes a worker of the pool, its
// results and the outputs that are stored with them. One that does not exist is fine. A busy
// session is [ErrSessionBusy], unless force is set: then its calls are cancelled. After any other
// error some of it may be left: remove it again.
func (s Sessions) Remove(ctx context.Context, id protocol.SessionID, force bool) (report.Removed, error) {
	name := s.client.inner.Name
	f, err := s.of(ctx, id, append(natsio.RemoveRights(name), natsio.LaneRights(name, s.pool), natsio.LaneChangeRights(name, s.pool))...)
	if err != nil {
		return report.Removed{}, err
	}
	return session.Remove(ctx, f, id, session.Options{Pool: s.pool, Force: force})
}

// Follow follows the open turn of a session until it ends, or else shows the last turn, and returns
// how it ended. observe gets each event once, from any goroutine, one at a time. asked gets
// questions that a person may answer ([Sessions.Approve], [Client.Answer]), and the live events
// that end them; nil ignores them. The end of ctx ends Follow with its cause, not the turn.
func (s Sessions) Follow(ctx context.Context, id protocol.SessionID, observe, asked func(loop.Event)) (loop.TurnResult, error) {
	ctx, done := s.client.whileOpen(ctx)
	defer done()
	name := s.client.inner.Name
	f, err := s.of(ctx, id, natsio.CallRights(name, protocol.SessionPool), natsio.LaneRights(name, protocol.SessionPool))
	if err != nil {
		return loop.TurnResult{}, err
	}
	if asked == nil {
		asked = func(loop.Event) {}
	}
	result, err := session.Follow(ctx, f, id, observe, asked)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return result, withKind(err)
}

// Output shows what the running calls of a session write, until stop. observe gets one piece at a
// time, from other goroutines. Output is live, and some may be lost.
func (s Sessions) Output(id protocol.SessionID, observe func(protocol.CallID, Output)) (stop func(), err error) {
	if _, err := protocol.ParseSessionID(string(id)); err != nil {
		return nil, err
	}
	if err := s.client.closed(); err != nil {
		return nil, err
	}
	return session.Output(s.client.inner, id, func(f *wire.Frame) {
		observe(f.CallID, Output{Stream: string(f.Kind), Data: f.Data, Attempt: f.Attempt})
	})
}

// Approvals returns the calls of all sessions that wait for a person, also running ones that ask
// one, the oldest first.
func (s Sessions) Approvals(ctx context.Context) ([]report.Question, error) {
	f, err := s.open(ctx, nil, natsio.ApprovalRights(s.client.inner.Name, s.pool)...)
	if err != nil {
		return nil, err
	}
	reader, err := session.NewReader(ctx, f)
	if err != nil {
		return nil, err
	}
	all, err := reader.Approvals(ctx)
	return slices.DeleteFunc(all, func(q report.Question) bool {
		if q.Question != nil {
			return !approval.Asks(ctx, f.Conn(q.Pool()), f.Name, approval.Asked{Pool: q.Pool(), Session: q.SessionID, Call: q.CallID})
		}
		return !approval.Waits(ctx, f.NC, f.Name, q.SessionID, q.CallID)
	}), err
}

// Approve approves or denies a call, or accepts or declines the question of a running call of the
// pool, with default values. It returns when the waiting process has the answer. The error wraps
// [ErrNotAsked] or [ErrRefused]. [Client.Answer] answers with other values.
func (s Sessions) Approve(ctx context.Context, id protocol.SessionID, call protocol.CallID, answer protocol.Approval) error {
	f := s.client.inner
	_, err := protocol.ParseCallID(string(call))
	_, idErr := protocol.ParseSessionID(string(id))
	if err := errors.Join(err, idErr); err != nil {
		return err
	}
	if err := s.client.check(ctx, natsio.ApprovalRights(f.Name, s.pool)...); err != nil {
		return err
	}
	return approval.Say(ctx, f.NC, f.Conn(s.pool), f.Name, approval.Asked{Pool: s.pool, Session: id, Call: call}, answer)
}

// files opens the stored workspaces.
func (s Sessions) files(ctx context.Context, ids ...protocol.SessionID) (session.Files, error) {
	f, err := s.open(ctx, ids)
	if err != nil {
		return session.Files{}, err
	}
	return session.OpenFiles(ctx, f, s.pool)
}

// Files returns the files of a session's workspace after a call; "" is the last stored state. It
// needs no worker, as ReadFile, Changes, Diff and Compare.
func (s Sessions) Files(ctx context.Context, id protocol.SessionID, at protocol.CallID) (list []report.File, err error) {
	files, err := s.files(ctx, id)
	if err == nil {
		list, err = files.List(ctx, id, at)
	}
	return list, withKind(err)
}

// ReadFile returns a file of a session's workspace after a call, as [Sessions.Files] names it; at
// most 64 MiB.
func (s Sessions) ReadFile(ctx context.Context, id protocol.SessionID, path string, at protocol.CallID) (content []byte, err error) {
	files, err := s.files(ctx, id)
	if err == nil {
		content, err = files.Read(ctx, id, path, at)
	}
	return content, withKind(err)
}

// Changes returns the stored states of a session's workspace, the oldest first.
func (s Sessions) Changes(ctx context.Context, id protocol.SessionID) (list []report.Change, err error) {
	files, err := s.files(ctx, id)
	if err == nil {
		list, err = files.Changes(ctx, id)
	}
	return list, withKind(err)
}

// ChangedFiles returns the files that the last turn of a session has changed, with Change set; a
// removed one is as it was.
func (s Sessions) ChangedFiles(ctx context.Context, id protocol.SessionID) (list []report.File, err error) {
	f, err := s.of(ctx, id, natsio.WorkspaceRights(s.client.inner.Name))
	if err != nil {
		return nil, err
	}
	files, err := session.OpenFiles(ctx, f, s.pool)
	if err == nil {
		list, err = files.Changed(ctx, f.Journal, id)
	}
	return list, withKind(err)
}

// Diff says what a call changed in a session's workspace: a line for each path, with the unified
// difference of texts up to 1 MiB.
func (s Sessions) Diff(ctx context.Context, id protocol.SessionID, call protocol.CallID) (text string, err error) {
	files, err := s.files(ctx, id)
	if err == nil {
		text, err = files.Diff(ctx, id, call)
	}
	return text, withKind(err)
}

// Compare is Diff between the last workspaces of two sessions.
func (s Sessions) Compare(ctx context.Context, id, other protocol.SessionID) (text string, err error) {
	files, err := s.files(ctx, id, other)
	if err == nil {
		text, err = files.Compare(ctx, id, other)
	}
	return text, withKind(err)
}

// Copy says how [Sessions.Push] and [Sessions.Pull] copy a directory. The zero value is fine.
type Copy struct {
	// At is the call after which Pull takes the state; "" is the last one.
	At protocol.CallID
	// IncludeIgnored copies also files that .gitignore files of the directory exclude.
	IncludeIgnored bool
	// MinLevel is the minimum level of the sandbox, as [Call].MinLevel.
	MinLevel string
	// Warn gets sentences for a person, such as what was not copied; nil ignores them.
	Warn func(string)
}

func (c *Copy) options(s Sessions, id protocol.SessionID, dir string) transfer.Options {
	warn := c.Warn
	if warn == nil {
		warn = func(string) {}
	}
	return transfer.Options{
		Fleet: s.client.inner, Session: id, Pool: s.pool, Dir: dir, MinLevel: cmp.Or(c.MinLevel, s.client.least()), IncludeIgnored: c.IncludeIgnored,
		Warn: warn, Busy: func(string) {},
	}
}

// Push fills the workspace of a session with a copy of a directory of this machine, which takes a
// worker. A session that has a workspace keeps it. Files that look like secrets are copied only if
// a file .toolfleetignore includes them.
func (s Sessions) Push(ctx context.Context, id protocol.SessionID, dir string, options Copy) error {
	name := s.client.inner.Name
	if _, err := s.of(ctx, id, natsio.CallRights(name, s.pool), natsio.UploadRights(name)); err != nil {
		return err
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	_, err = transfer.Send(ctx, options.options(s, id, dir))
	return err
}

// Pull copies the workspace of a session into a directory of this machine, which is created if it
// is missing. A directory with files gets only the session's changes, and files that changed on
// both sides stay as they are. It takes a worker if workers store no states of workspaces.
func (s Sessions) Pull(ctx context.Context, id protocol.SessionID, dir string, options Copy) (report.Pulled, error) {
	if _, err := s.of(ctx, id, natsio.CallRights(s.client.inner.Name, s.pool)); err != nil {
		return report.Pulled{}, err
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return report.Pulled{}, err
	}
	pulled, err := transfer.Pull(ctx, options.options(s, id, dir), options.At)
	return pulled, withKind(err)
}
