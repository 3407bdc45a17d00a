package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"path/filepath"
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/internal/calls"
	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/session"
	"github.com/toolfleet/toolfleet/internal/session/approval"
	"github.com/toolfleet/toolfleet/internal/session/serve"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/internal/workspace/transfer"
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

// run calls a method about sessions. It needs the rights to read them, and those given.
func run[T any](
	ctx context.Context, s Sessions, ids []protocol.SessionID, rights []natsio.Rights, method func(context.Context, *fleet.Fleet) (T, error),
) (none T, err error) {
	_, err = protocol.ParsePool(string(s.pool))
	for _, id := range ids {
		_, idErr := protocol.ParseSessionID(string(id))
		err = errors.Join(err, idErr)
	}
	if err != nil {
		return none, invalid(err)
	}
	f := s.client.inner
	return do(ctx, s.client, append(natsio.JournalRights(f.Name), rights...), func(ctx context.Context) (T, error) {
		for _, id := range ids { // a method that does more than to look judges that, too
			if err := session.May(ctx, f, judge.See, id); err != nil {
				return none, err
			}
		}
		return method(ctx, f)
	})
}

// changing are the rights to change a session that is not busy, and working also those to have a
// worker change its workspace.
func (s Sessions) changing() []natsio.Rights {
	name := s.client.inner.Name
	return append(natsio.SessionRights(name), natsio.LaneRights(name, s.pool))
}

func (s Sessions) working() []natsio.Rights {
	return append(s.changing(), natsio.CallRights(s.client.inner.Name, s.pool))
}

// only is the ids of a method about one session.
func only(id protocol.SessionID) []protocol.SessionID { return []protocol.SessionID{id} }

// read calls a method that reads sessions. In a fleet elsewhere it looks at lanes too, if the user
// may do that.
func read[T any](ctx context.Context, s Sessions, ids []protocol.SessionID, method func(context.Context, *session.Reader) (T, error)) (T, error) {
	return run(ctx, s, ids, nil, func(ctx context.Context, f *fleet.Fleet) (none T, err error) {
		reader, err := s.reader(ctx, f)
		if err != nil {
			return none, err
		}
		reader.Workspaces = !s.client.elsewhere || f.CheckRights(ctx, natsio.WorkspaceListRights(f.Name, s.pool)) == nil
		if s.client.elsewhere {
			reader.Lanes = f.CheckRights(ctx, natsio.LaneRights(f.Name, protocol.SessionPool)) == nil
			if f.CheckRights(ctx, natsio.LaneRights(f.Name, s.pool)) == nil {
				reader.Pool = s.pool
			}
		}
		return method(ctx, reader)
	})
}

// reader reads sessions from where the client has read them.
func (s Sessions) reader(ctx context.Context, f *fleet.Fleet) (*session.Reader, error) {
	reader, err := session.NewReader(ctx, f)
	if err == nil {
		reader.Known = s.client.known
	}
	return reader, err
}

// List returns the sessions that changed last, the last one first; a limit of 0 means 100. leftOut
// is how many more there are.
func (s Sessions) List(ctx context.Context, limit int) (list []report.Session, leftOut int, err error) {
	list, err = read(ctx, s, nil, func(ctx context.Context, reader *session.Reader) (list []report.Session, err error) {
		list, leftOut, err = reader.List(ctx, cmp.Or(limit, defaultSessions))
		return list, err
	})
	return list, leftOut, err
}

// defaultSessions is the limit of a list without one.
const defaultSessions = 100

// IDs returns the ids of all sessions, the one that changed last first.
func (s Sessions) IDs(ctx context.Context) ([]protocol.SessionID, error) {
	return read(ctx, s, nil, func(ctx context.Context, reader *session.Reader) ([]protocol.SessionID, error) {
		return reader.IDs(ctx)
	})
}

// Show returns a session with its turns.
func (s Sessions) Show(ctx context.Context, id protocol.SessionID) (*report.Session, error) {
	return read(ctx, s, only(id), func(ctx context.Context, reader *session.Reader) (*report.Session, error) {
		return reader.Show(ctx, id)
	})
}

// Unfinished returns the calls of a session that run or wait, its turns first, with WaitsFor set
// for those that no worker can run.
func (s Sessions) Unfinished(ctx context.Context, id protocol.SessionID) ([]report.Call, error) {
	rights := []natsio.Rights{natsio.LaneRights(s.client.inner.Name, s.pool)}
	return run(ctx, s, only(id), rights, func(ctx context.Context, f *fleet.Fleet) ([]report.Call, error) {
		turns, own, err := session.Unfinished(ctx, f, id, s.pool)
		if err != nil {
			return nil, err
		}
		calls.AddUnmet(ctx, f.Conn(protocol.SessionPool), f.Name, protocol.SessionPool, turns)
		calls.AddUnmet(ctx, f.Conn(s.pool), f.Name, s.pool, own)
		return append(turns, own...), nil
	})
}

// Log returns the events of a session, as its journal has them; see [loop.History.Export].
func (s Sessions) Log(ctx context.Context, id protocol.SessionID) (loop.History, error) {
	return run(ctx, s, only(id), nil, func(ctx context.Context, f *fleet.Fleet) (loop.History, error) { return session.Load(ctx, f, id) })
}

// Trace returns where the time of a turn went; 0 is the last one. Of a turn that is open, the lanes
// of its calls say what these wait for, if the user may look at lanes. The error wraps
// [ErrNotFound] for a turn that there is not.
func (s Sessions) Trace(ctx context.Context, id protocol.SessionID, turn int) (*report.Trace, error) {
	if turn < 0 {
		return nil, invalid(fmt.Errorf("turn %d: must be 1 or more, or 0 for the last one", turn))
	}
	return run(ctx, s, only(id), nil, func(ctx context.Context, f *fleet.Fleet) (*report.Trace, error) {
		reader, err := s.reader(ctx, f)
		if err != nil {
			return nil, err
		}
		return reader.Trace(ctx, id, turn)
	})
}

// Event returns a stored event of a session, by its [Passed].ID, with the data of its images and
// attachments. The error wraps [ErrNotFound] if the session has no such event.
func (s Sessions) Event(ctx context.Context, id protocol.SessionID, at string) (loop.Event, error) {
	return run(ctx, s, only(id), nil, func(ctx context.Context, f *fleet.Fleet) (loop.Event, error) {
		position, err := session.ParsePosition(at)
		if err != nil {
			return loop.Event{}, invalid(err)
		}
		e, err := f.Journal.Event(ctx, id, position.Sequence, position.Index)
		if err == nil && e == nil {
			err = codes.As(codes.ErrNotFound, fmt.Errorf("session %s has no event %s", id, position))
		}
		if err != nil {
			return loop.Event{}, err
		}
		return session.Observed(*e), nil
	})
}

// Import stores events of [loop.ReadExport] as a new session, and returns how many turns these
// are. A turn that is open at their end is interrupted. The error wraps [ErrExists] if that
// session exists.
func (s Sessions) Import(ctx context.Context, events []loop.Event, id protocol.SessionID) (turns int, err error) {
	return run(ctx, s, only(id), natsio.SessionRights(s.client.inner.Name), func(ctx context.Context, f *fleet.Fleet) (int, error) {
		return session.Import(ctx, f.Journal, slices.Clone(events), id)
	})
}

// At is a point of a session: the result of Call, or else the end of Turn, which counts from 1. The
// zero value is the end of the session. For effects, a negative Turn is its beginning.
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
	rights := append(natsio.SessionRights(name), natsio.WorkspaceRights(name))
	return run(ctx, s, []protocol.SessionID{from, to}, rights, func(ctx context.Context, f *fleet.Fleet) (int, error) {
		files, err := session.OpenFiles(ctx, f, s.pool)
		if err != nil {
			return 0, err
		}
		return files.Fork(ctx, f.Journal, from, session.At(at), to)
	})
}

// Effects returns the calls behind a point whose effects reach outside of the workspace, those of
// sub-agents too, the last first: neither Fork nor Restore undoes them.
func (s Sessions) Effects(ctx context.Context, id protocol.SessionID, at At) ([]report.Effect, error) {
	effects, err := run(ctx, s, only(id), nil, func(ctx context.Context, f *fleet.Fleet) ([]session.Effect, error) {
		return session.Effects(ctx, f.Journal, id, session.At(at))
	})
	return reported(effects), err
}

// Revert undoes the effects behind a point by the reverts of their tools, in the order of
// [Sessions.Effects], and returns all of them. It stops at the first one that cannot be undone,
// and may be repeated. Effects without a revert stay. The error wraps [ErrSessionBusy] if the
// session is busy.
func (s Sessions) Revert(ctx context.Context, id protocol.SessionID, at At) ([]report.Effect, error) {
	effects, err := run(ctx, s, only(id), s.working(), func(ctx context.Context, f *fleet.Fleet) ([]session.Effect, error) {
		effects, err := session.Effects(ctx, f.Journal, id, session.At(at))
		if err == nil {
			err = session.Revert(ctx, f, id, s.pool, effects)
		}
		return effects, err
	})
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
	_, err := run(ctx, s, only(id), s.changing(), func(ctx context.Context, f *fleet.Fleet) (struct{}, error) {
		return struct{}{}, session.Resolve(ctx, f, id, s.pool, call, happened, by)
	})
	return err
}

// Merge brings what a fork has changed in its workspace into the session that it was forked from,
// and adds the fork's answer to the conversation as one message. The error wraps [ErrSessionBusy]
// if one of the two is busy.
func (s Sessions) Merge(ctx context.Context, fork, into protocol.SessionID) (report.Merged, error) {
	return run(ctx, s, []protocol.SessionID{fork, into}, s.working(), func(ctx context.Context, f *fleet.Fleet) (report.Merged, error) {
		return session.Merge(ctx, f, fork, into, s.pool)
	})
}

// Restore has a worker make the workspace of a session what it was after a call, and returns how
// many files were written and paths removed. Later states stay in the history. The error wraps
// [ErrSessionBusy] if the session is busy.
func (s Sessions) Restore(ctx context.Context, id protocol.SessionID, at protocol.CallID) (written, removed int, err error) {
	restored, err := run(ctx, s, only(id), s.working(), func(ctx context.Context, f *fleet.Fleet) (wire.WorkspaceRestoreResult, error) {
		return session.Restore(ctx, f, id, s.pool, at)
	})
	return restored.Written, restored.Removed, err
}

// Compact has a coordinator replace older replies of a session by a summary that the model writes;
// "" is the coordinator's. It returns false if there was nothing to replace. The end of ctx
// cancels it.
func (s Sessions) Compact(ctx context.Context, id protocol.SessionID, model string) (bool, error) {
	rights := []natsio.Rights{natsio.CallRights(s.client.inner.Name, protocol.SessionPool)}
	return run(ctx, s, only(id), rights, func(ctx context.Context, f *fleet.Fleet) (bool, error) {
		var limit time.Duration
		if deadline, has := ctx.Deadline(); has {
			limit = time.Until(deadline)
		}
		if err := session.May(ctx, f, judge.Use, id); err != nil {
			return false, err
		}
		call := serve.NewCall(id, wire.TurnRun{Compact: true, Model: model}, limit)
		call.MadeAfter = f.Journal.Now(ctx)
		result, err := f.Dispatcher.Call(ctx, &call)
		if err == nil && result.Error != nil {
			err = s.client.interrupted(ctx, result)
		}
		if err != nil {
			return false, fmt.Errorf("session %s: %w", id, err)
		}
		value, _ := result.Value.(wire.TurnRunResult)
		return value.Compacted, nil
	})
}

// Cancel ends the turns of a session that run or wait, with their calls, and returns their ids
// when they have ended; none if nothing runs or waits. An open turn that no serving coordinator
// has is an error: its process must be stopped, or continue it.
func (s Sessions) Cancel(ctx context.Context, id protocol.SessionID) ([]protocol.CallID, error) {
	name := s.client.inner.Name
	rights := []natsio.Rights{natsio.LaneRights(name, protocol.SessionPool), natsio.LaneChangeRights(name, protocol.SessionPool)}
	return run(ctx, s, only(id), rights, func(ctx context.Context, f *fleet.Fleet) ([]protocol.CallID, error) {
		return session.Cancel(ctx, f, id)
	})
}

// Remove removes a session: its journal, its workspace, which takes a worker of the pool, its
// results and the outputs that are stored with them. One that does not exist is fine. A busy
// session is [ErrSessionBusy], unless force is set: then its calls are cancelled. After any other
// error some of it may be left: remove it again.
func (s Sessions) Remove(ctx context.Context, id protocol.SessionID, force bool) (report.Removed, error) {
	name := s.client.inner.Name
	rights := slices.Concat(natsio.RemoveRights(name), natsio.SessionRights(name), []natsio.Rights{natsio.LaneRights(name, s.pool), natsio.LaneChangeRights(name, s.pool)})
	return run(ctx, s, only(id), rights, func(ctx context.Context, f *fleet.Fleet) (report.Removed, error) {
		return session.Remove(ctx, f, id, session.Options{Pool: s.pool, Force: force})
	})
}

// Follow follows the open turn of a session until it ends, or else shows the last turn, and returns
// how it ended. observe gets each event once, from any goroutine, one at a time. asked gets
// questions that a person may answer ([Sessions.Approve], [Sessions.Answer]), and the events that
// end them; nil ignores them. The end of ctx ends Follow with its cause, not the turn.
func (s Sessions) Follow(ctx context.Context, id protocol.SessionID, observe, asked func(loop.Event)) (loop.TurnResult, error) {
	observe, asked = orIgnore(observe), orIgnore(asked)
	name := s.client.inner.Name
	rights := []natsio.Rights{natsio.CallRights(name, protocol.SessionPool), natsio.LaneRights(name, protocol.SessionPool)}
	return run(ctx, s, only(id), rights, func(ctx context.Context, _ *fleet.Fleet) (loop.TurnResult, error) {
		result, err := s.client.tails().Follow(ctx, id, observe, asked)
		if err != nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return result, err
	})
}

// Output shows what the running calls of a session write, until stop. observe gets one piece at a
// time, from other goroutines; nil ignores them. Output is live, and some may be lost, also while
// the connection is: it continues when the client has connected again. After Close nothing comes.
// The end of ctx does not end it.
func (s Sessions) Output(ctx context.Context, id protocol.SessionID, observe func(protocol.CallID, Output)) (stop func(), err error) {
	if _, err := protocol.ParseSessionID(string(id)); err != nil {
		return nil, invalid(err)
	}
	return do(ctx, s.client, nil, func(ctx context.Context) (func(), error) {
		if observe == nil {
			return func() {}, nil
		}
		var gaps gaps
		return session.Output(ctx, s.client.inner, id, func(f *wire.Frame) { observe(f.CallID, gaps.output(f)) })
	})
}

// Approvals returns the calls of all sessions that wait for a person, also running ones that ask
// one, the oldest first. For a user who may not answer, it also returns those that no process waits
// for any more, because only a possible answer finds that out.
func (s Sessions) Approvals(ctx context.Context) ([]report.Question, error) {
	return run(ctx, s, nil, nil, func(ctx context.Context, f *fleet.Fleet) ([]report.Question, error) {
		reader, err := s.reader(ctx, f)
		if err != nil {
			return nil, err
		}
		all, err := reader.Approvals(ctx)
		all = slices.DeleteFunc(all, func(q report.Question) bool { return session.May(ctx, f, judge.See, q.SessionID) != nil })
		if errors.Is(f.CheckRights(ctx, natsio.ApprovalRights(f.Name, s.pool)...), natsio.ErrRights) {
			return all, err
		}
		return slices.DeleteFunc(all, func(q report.Question) bool {
			if q.Question != nil {
				return !approval.Asks(ctx, f.Conn(q.Pool()), f.Name, approval.Asked{Pool: q.Pool(), Session: q.SessionID, Call: q.CallID})
			}
			return !approval.Waits(ctx, f.NC, f.Name, q.SessionID, q.CallID)
		}), err
	})
}

// Approve approves a call that waits for a person, or denies it if answer.Granted is false. It also
// accepts, with default values, or declines what a running call asks; [Sessions.Answer] answers
// with other values. Approve returns when the waiting process has the answer. The error wraps
// [ErrNotFound] when nothing waits for it: it was answered, or its time is over.
func (s Sessions) Approve(ctx context.Context, id protocol.SessionID, call protocol.CallID, answer protocol.Approval) error {
	rights := natsio.ApprovalRights(s.client.inner.Name, s.pool)
	return s.answer(ctx, id, call, rights, func(ctx context.Context, f *fleet.Fleet, asked approval.Asked) error {
		if err := session.May(ctx, f, judge.Approve, id); err != nil {
			return err
		}
		answer.Giver = nil
		if who := judge.Of(ctx); answer.Session && (who.Known == judge.ByToken || !who.Expires.IsZero()) {
			answer.Giver = &protocol.Giver{Token: who.Token, Until: who.Expires}
		}
		return approval.Say(ctx, f.NC, f.Conn(s.pool), f.Name, asked, answer)
	})
}

// Answer answers what a running call of the pool asks a person, such as the form of an MCP server,
// or what a session asks by the tool ask_user. Questions are in [Sessions.Approvals], and come as
// [loop.EventQuestionAsked] to Observe of [loop.Options] and [Call], and to [Sessions.Follow].
//
// Set answer.Question to the id of the question: then a late answer to an earlier one is refused.
// The pool of a call is the first segment of [loop.Event].Lane.
//
// Answer returns when the waiting process has the answer. The error wraps [ErrNotFound] when no
// call waits for it: it has one, or its time is over. It wraps [ErrInvalid] when the answer does
// not fit the question, which then stays open. What a running call asks is declined after 2 s:
// answer with [protocol.ActionWait] first to have half of the time that the call has left.
func (s Sessions) Answer(ctx context.Context, id protocol.SessionID, call protocol.CallID, answer protocol.Answer) error {
	rights := natsio.AnswerRights(s.client.inner.Name, s.pool)
	return s.answer(ctx, id, call, rights, func(ctx context.Context, f *fleet.Fleet, asked approval.Asked) error {
		if err := session.May(ctx, f, judge.Use, id); err != nil {
			return err
		}
		return approval.Reply(ctx, f.NC, f.Conn(s.pool), f.Name, asked, answer)
	})
}

// answer calls a method that needs rights and answers about a call.
func (s Sessions) answer(
	ctx context.Context, id protocol.SessionID, call protocol.CallID, rights []natsio.Rights, method func(context.Context, *fleet.Fleet, approval.Asked) error,
) error {
	_, err := protocol.ParseCallID(string(call))
	_, idErr := protocol.ParseSessionID(string(id))
	_, poolErr := protocol.ParsePool(string(s.pool))
	if err := errors.Join(err, idErr, poolErr); err != nil {
		return invalid(err)
	}
	return act(ctx, s.client, rights, func(ctx context.Context) error {
		return method(ctx, s.client.inner, approval.Asked{Pool: s.pool, Session: id, Call: call, Signer: s.client.inner.Signer})
	})
}

// inFiles calls a method about stored workspaces.
func inFiles[T any](
	ctx context.Context, s Sessions, ids []protocol.SessionID, rights []natsio.Rights, method func(context.Context, session.Files) (T, error),
) (T, error) {
	return run(ctx, s, ids, rights, func(ctx context.Context, f *fleet.Fleet) (none T, err error) {
		files, err := session.OpenFiles(ctx, f, s.pool)
		if err != nil {
			return none, err
		}
		return method(ctx, files)
	})
}

// Files returns the files of a session's workspace after a call; "" is the last stored state. It
// needs no worker, as ReadFile, Changes, Diff and Compare.
func (s Sessions) Files(ctx context.Context, id protocol.SessionID, at protocol.CallID) (list []report.File, err error) {
	return inFiles(ctx, s, only(id), nil, func(ctx context.Context, files session.Files) ([]report.File, error) { return files.List(ctx, id, at) })
}

// ReadFile returns a file of a session's workspace after a call, as [Sessions.Files] names it; at
// most 64 MiB.
func (s Sessions) ReadFile(ctx context.Context, id protocol.SessionID, path string, at protocol.CallID) (content []byte, err error) {
	return inFiles(ctx, s, only(id), nil, func(ctx context.Context, files session.Files) ([]byte, error) { return files.Read(ctx, id, path, at) })
}

// File is a file of a session's workspace.
type File struct {
	report.File

	SHA256   string // of its content, in hex
	Modified time.Time

	content *session.Content
}

// Open reads the content until ctx ends. Of a large file, the parts that are read are loaded.
func (f *File) Open(ctx context.Context) io.ReadSeeker { return f.content.Open(ctx) }

// File returns a file as [Sessions.ReadFile] does, to be read in parts.
func (s Sessions) File(ctx context.Context, id protocol.SessionID, path string, at protocol.CallID) (*File, error) {
	return inFiles(ctx, s, only(id), nil, func(ctx context.Context, files session.Files) (*File, error) {
		content, err := files.Open(ctx, id, path, at)
		if err != nil {
			return nil, err
		}
		return &File{content.File, content.SHA256, content.Modified, content}, nil
	})
}

// Archive has the files of a session's workspace.
type Archive struct{ inner *session.Archive }

// Write writes the archive in a format: tar, tar.gz or tar.zst. After an error it is not complete.
func (a *Archive) Write(ctx context.Context, to io.Writer, format string) error {
	return a.inner.Write(ctx, to, format)
}

// Archive returns the files of a session's workspace after a call, as [Sessions.Files], to be
// written as an archive; at most 64 GiB.
func (s Sessions) Archive(ctx context.Context, id protocol.SessionID, at protocol.CallID) (*Archive, error) {
	return inFiles(ctx, s, only(id), nil, func(ctx context.Context, files session.Files) (*Archive, error) {
		archive, err := files.Archive(ctx, id, at)
		return &Archive{archive}, err
	})
}

// Pack stores what a tar archive has, which may be compressed by gzip or zstd, and returns the
// payload of a [Call] that lays it over a directory of the session's workspace; "" is the
// workspace. The call does that whole or not at all. Its resource is the directory. A
// *[protocol.Error] says why an archive is refused: it has at most 8 GiB and 200,000 entries, and
// nothing that could reach outside of the directory.
func (s Sessions) Pack(ctx context.Context, id protocol.SessionID, from io.Reader, dir string) (protocol.Payload, error) {
	rights := []natsio.Rights{natsio.UploadRights(s.client.inner.Name)}
	return inFiles(ctx, s, only(id), rights, func(ctx context.Context, files session.Files) (protocol.Payload, error) {
		return files.Pack(ctx, s.client.inner, id, from, dir)
	})
}

// Changes returns the stored states of a session's workspace, the oldest first.
func (s Sessions) Changes(ctx context.Context, id protocol.SessionID) (list []report.Change, err error) {
	return inFiles(ctx, s, only(id), nil, func(ctx context.Context, files session.Files) ([]report.Change, error) { return files.Changes(ctx, id) })
}

// ChangedFiles returns the files that the last turn of a session has changed, with Change set; a
// removed one is as it was.
func (s Sessions) ChangedFiles(ctx context.Context, id protocol.SessionID) (list []report.File, err error) {
	f := s.client.inner
	return inFiles(ctx, s, only(id), []natsio.Rights{natsio.WorkspaceRights(f.Name)}, func(ctx context.Context, files session.Files) ([]report.File, error) {
		reader, err := s.reader(ctx, f)
		if err != nil {
			return nil, err
		}
		return files.Changed(ctx, reader, id)
	})
}

// Diff says what a call changed in a session's workspace, or with "" all of its calls together: a
// line for each path, with the unified difference of texts up to 1 MiB.
func (s Sessions) Diff(ctx context.Context, id protocol.SessionID, call protocol.CallID) (text string, err error) {
	return inFiles(ctx, s, only(id), nil, func(ctx context.Context, files session.Files) (string, error) { return files.Diff(ctx, id, call) })
}

// Between is Diff between the states after two calls; "" is the last one.
func (s Sessions) Between(ctx context.Context, id protocol.SessionID, from, to protocol.CallID) (text string, err error) {
	return inFiles(ctx, s, only(id), nil, func(ctx context.Context, files session.Files) (string, error) {
		return files.Between(ctx, id, from, to)
	})
}

// Conflicts says what Merge would do now, by the states of the workspaces that are stored. It
// changes nothing, and needs no worker.
func (s Sessions) Conflicts(ctx context.Context, fork, into protocol.SessionID) (report.MergedFiles, error) {
	f := s.client.inner
	return inFiles(ctx, s, []protocol.SessionID{fork, into}, nil, func(ctx context.Context, files session.Files) (report.MergedFiles, error) {
		history, err := session.Load(ctx, f, into)
		if err != nil {
			return report.MergedFiles{}, err
		}
		return files.Conflicts(ctx, fork, into, session.MergedUpTo(history.Events, fork))
	})
}

// WholeOutput passes on all that a call has printed or returned, if its result has only a part of
// it, and its size in bytes. The error is that of read, or wraps [ErrNotFound] if nothing is
// stored: then the result has all of it, or it is older than the fleet keeps.
func (s Sessions) WholeOutput(ctx context.Context, id protocol.SessionID, call protocol.CallID, read func(output io.Reader, size int64) error) error {
	if _, err := protocol.ParseCallID(string(call)); err != nil {
		return invalid(err)
	}
	_, err := run(ctx, s, only(id), nil, func(ctx context.Context, f *fleet.Fleet) (struct{}, error) {
		return struct{}{}, session.WholeOutput(ctx, f, id, call, read)
	})
	return err
}

// Compare is Diff between the last workspaces of two sessions.
func (s Sessions) Compare(ctx context.Context, id, other protocol.SessionID) (text string, err error) {
	return inFiles(ctx, s, []protocol.SessionID{id, other}, nil, func(ctx context.Context, files session.Files) (string, error) { return files.Compare(ctx, id, other) })
}

// Copy says how [Sessions.Push], [Sessions.Pull] and [Templates.Create] copy a directory. The zero
// value is fine.
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
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	name := s.client.inner.Name
	rights := []natsio.Rights{natsio.CallRights(name, s.pool), natsio.UploadRights(name)}
	_, err = run(ctx, s, only(id), rights, func(ctx context.Context, f *fleet.Fleet) (struct{}, error) {
		if err := session.May(ctx, f, judge.Use, id); err != nil {
			return struct{}{}, err
		}
		_, err := transfer.Send(ctx, options.options(s, id, dir))
		return struct{}{}, err
	})
	return err
}

// Pull copies the workspace of a session into a directory of this machine, which is created if it
// is missing. A directory with files gets only the session's changes, and files that changed on
// both sides stay as they are. It takes a worker if workers store no states of workspaces.
func (s Sessions) Pull(ctx context.Context, id protocol.SessionID, dir string, options Copy) (report.Pulled, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return report.Pulled{}, err
	}
	rights := []natsio.Rights{natsio.CallRights(s.client.inner.Name, s.pool)}
	return run(ctx, s, only(id), rights, func(ctx context.Context, _ *fleet.Fleet) (report.Pulled, error) {
		return transfer.Pull(ctx, options.options(s, id, dir), options.At)
	})
}

// Passed is what [Sessions.Events] passes on: an event, a piece of what a running call writes, or
// that live ones were lost. One of Event, Output, Lost and Stored is set, but for the first one: it
// says that the session may be followed.
type Passed struct {
	Event *loop.Event
	// ID is that of a stored event: Events continues behind it. What is only live has none.
	ID string
	// Output is what the call CallID writes.
	Output *Output
	CallID protocol.CallID
	// Lost means that the reader did not keep up with what is only live. Stored events are never
	// lost.
	Lost bool
	// Stored means that every event has been passed on that was stored when the session began to be
	// followed. It comes once.
	Stored bool
}

// Events follows a session: it passes on every stored event behind the one with the id after, or
// from the first one if that is "", in order and each once, and what is only live as it comes. It
// ends with the error that it passes on last: the cause of an ended ctx, [loop.ErrRemoved] for a
// session that is removed, or a fleet that does not answer. An id behind the last event is invalid.
// A session without events is followed until it has some, if it is then one that the principal may
// see. Readers of one session do not wait for each other.
func (s Sessions) Events(ctx context.Context, id protocol.SessionID, after string) iter.Seq2[Passed, error] {
	return func(yield func(Passed, error) bool) {
		var from session.Position
		_, err := run(ctx, s, only(id), nil, func(context.Context, *fleet.Fleet) (_ struct{}, err error) {
			if after != "" {
				if from, err = session.ParsePosition(after); err != nil {
					err = invalid(err)
				}
			}
			return struct{}{}, err
		})
		if err != nil {
			yield(Passed{}, err)
			return
		}
		ctx, done := s.client.whileOpen(ctx)
		defer done()
		var gaps gaps
		for p, err := range s.client.tails().Tail(ctx, id, from) {
			made := Passed{Event: p.Event, Lost: p.Lost, Stored: p.Stored}
			if (p.At != session.Position{}) {
				made.ID = p.At.String()
			}
			if p.Output != nil {
				made.CallID, made.Output = p.Output.CallID, new(gaps.output(p.Output))
			}
			if !yield(made, hidden(err)) {
				return
			}
		}
	}
}
