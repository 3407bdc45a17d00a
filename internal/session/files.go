package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/aymanbagabas/go-udiff"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/internal/worker/checkpoint"
	"github.com/toolfleet/toolfleet/internal/workspace"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

const (
	// maxRead is the maximum size of a file that is read, and maxCompared of one that is compared.
	maxRead, maxCompared = 64 << 20, 1 << 20
	// maxDifference is the maximum size of the difference of two workspaces, which is in memory.
	maxDifference = 64 << 20
	// underWorkspace is where the files of a workspace are in its checkpoints.
	underWorkspace = workspace.Dir + "/"
)

// Files reads the workspaces that the fleet stores, without a worker.
type Files struct {
	// InPlace, when set, returns the directory in which a session works in place.
	InPlace func(protocol.SessionID) (dir string, ok bool)

	store *workspace.Store
	js    jetstream.JetStream
}

// OpenFiles opens the workspaces of sessions whose sandboxes are in a pool.
func OpenFiles(ctx context.Context, f *fleet.Fleet, pool protocol.Pool) (Files, error) {
	store, err := workspace.Open(ctx, f.Conn(pool), f.Name, f.Bodies)
	return Files{store: store, js: f.At(pool).JS}, err
}

// may judges an act on the workspace of a session. One that does not exist has no owner.
func (f Files) may(ctx context.Context, act judge.Act, id protocol.SessionID) error {
	if !judge.Bounded(ctx) {
		return nil
	}
	owner, err := f.store.Owner(ctx, sandboxHash(id))
	if errors.Is(err, workspace.ErrNone) {
		return nil
	}
	if err != nil {
		return err
	}
	return judge.Judge(ctx, act, judge.Object{Kind: judge.Workspace, ID: string(id), Owner: owner})
}

// at returns the files of a workspace after a call, to be seen.
func (f Files) at(ctx context.Context, id protocol.SessionID, call protocol.CallID) (snapshot.Tree, error) {
	if err := f.may(ctx, judge.See, id); err != nil {
		return nil, err
	}
	return f.store.At(ctx, sandboxHash(id), call)
}

func sandboxHash(id protocol.SessionID) wire.LaneHash { return wire.HashLane(sandboxLane(id)) }

// List returns the files of a workspace after a call; "" is the last one. The error wraps
// [workspace.ErrNone] if that is not stored.
func (f Files) List(ctx context.Context, id protocol.SessionID, at protocol.CallID) ([]report.File, error) {
	tree, err := f.at(ctx, id, at)
	if err != nil {
		return nil, fmt.Errorf("session %s: %w", id, err)
	}
	return ListOf(tree), nil
}

// ListOf lists the files of a workspace's checkpoint.
func ListOf(tree snapshot.Tree) []report.File {
	list := []report.File{}
	for _, name := range slices.Sorted(maps.Keys(tree)) {
		if shown, in := strings.CutPrefix(name, underWorkspace); in {
			list = append(list, fileOf(shown, tree[name]))
		}
	}
	return list
}

func fileOf(path string, node snapshot.Node) report.File {
	return report.File{Path: path, Type: node.Type, Mode: fmt.Sprintf("%04o", node.Mode), Size: node.Size, Target: node.Target}
}

// Changed returns what the last turn of a session has changed; a removed file is as it was.
func (f Files) Changed(ctx context.Context, reader *Reader, id protocol.SessionID) ([]report.File, error) {
	history, err := reader.turnOf(ctx, id, 0)
	if err == nil || errors.Is(err, ErrNone) { // without a turn, single calls may have changed files
		err = f.may(ctx, judge.See, id)
	}
	if err != nil {
		return nil, err
	}
	calls := map[protocol.CallID]bool{}
	for _, e := range history.Events {
		if e.Type == loop.EventToolCall {
			calls[e.CallID] = true
		}
	}
	before, after, err := f.store.Since(ctx, sandboxHash(id), calls)
	if err != nil {
		return nil, fmt.Errorf("session %s: %w", id, err)
	}
	var list []report.File
	eachChange(before, after, func(path string, was, is snapshot.Node, change string) {
		file := fileOf(path, is)
		if is.Type == "" {
			file = fileOf(path, was)
		}
		file.Change = change
		list = append(list, file)
	})
	return list, nil
}

// eachChange calls do for each path of a workspace that differs, in order.
func eachChange(before, after snapshot.Tree, do func(path string, was, is snapshot.Node, change string)) {
	all := maps.Clone(before)
	if all == nil {
		all = snapshot.Tree{}
	}
	maps.Copy(all, after)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		path, in := strings.CutPrefix(name, underWorkspace)
		was, is := before[name], after[name]
		switch {
		case !in || was.Same(is):
		case was.Type == "":
			do(path, was, is, "created")
		case is.Type == "":
			do(path, was, is, "removed")
		default:
			do(path, was, is, "changed")
		}
	}
}

// Read returns the content of a file after a call, as [Files.List].
func (f Files) Read(ctx context.Context, id protocol.SessionID, name string, at protocol.CallID) ([]byte, error) {
	tree, err := f.at(ctx, id, at)
	if err != nil {
		return nil, fmt.Errorf("session %s: %w", id, err)
	}
	return ReadOf(ctx, f.store, tree, name)
}

// ReadOf returns the content of a file of a workspace's checkpoint.
func ReadOf(ctx context.Context, bodies snapshot.Bodies, tree snapshot.Tree, name string) ([]byte, error) {
	node, is := tree[underWorkspace+name]
	if !is || node.Type != protocol.TypeFile {
		return nil, fmt.Errorf("file %q: %w", name, ErrNoFile)
	}
	content, err := snapshot.LoadBytes(ctx, bodies, node.Parts, maxRead)
	if err != nil {
		return nil, fmt.Errorf("file %q: %w", name, err)
	}
	return content, nil
}

// ErrNoFile means that a workspace has no file of a name.
var ErrNoFile = codes.As(codes.ErrNotFound, errors.New("no file of the workspace"))

// Changes lists the calls that changed a workspace, the oldest first.
func (f Files) Changes(ctx context.Context, id protocol.SessionID) ([]report.Change, error) {
	if err := f.may(ctx, judge.See, id); err != nil {
		return nil, err
	}
	history, err := f.store.History(ctx, sandboxHash(id))
	if err == nil && len(history) == 0 {
		err = fmt.Errorf("it has no workspace: %w", workspace.ErrNone)
	}
	if err != nil {
		return nil, fmt.Errorf("session %s: %w", id, err)
	}
	return history, nil
}

// Diff says what a call changed, or with "" all calls of the session together: a line for each
// path, and the difference of texts.
func (f Files) Diff(ctx context.Context, id protocol.SessionID, call protocol.CallID) (string, error) {
	if err := f.may(ctx, judge.See, id); err != nil {
		return "", err
	}
	var before, after snapshot.Tree
	var err error
	if call == "" {
		before, after, err = f.store.Whole(ctx, sandboxHash(id))
	} else {
		before, after, err = f.store.Change(ctx, sandboxHash(id), call)
	}
	if err != nil {
		return "", fmt.Errorf("session %s: %w", id, err)
	}
	return Difference(ctx, f.store, id, before, after)
}

// Between is Diff for the states after two calls; "" is the present one.
func (f Files) Between(ctx context.Context, id protocol.SessionID, from, to protocol.CallID) (string, error) {
	var trees [2]snapshot.Tree
	for i, at := range []protocol.CallID{from, to} {
		var err error
		if trees[i], err = f.at(ctx, id, at); err != nil {
			return "", fmt.Errorf("session %s: %w", id, err)
		}
	}
	return Difference(ctx, f.store, id, trees[0], trees[1])
}

// Conflicts says what a merge of a fork would do, by the states that are stored: after the
// checkpoint that was merged last, 0 for none.
func (f Files) Conflicts(ctx context.Context, fork, into protocol.SessionID, after uint64) (planned report.MergedFiles, err error) {
	if err := f.may(ctx, judge.See, fork); err != nil {
		return planned, err
	}
	base, theirs, at, err := f.store.Forked(ctx, sandboxHash(fork), sandboxHash(into), after)
	if err != nil {
		return planned, fmt.Errorf("session %s: %w", fork, err)
	}
	mine, err := f.at(ctx, into, "")
	if err != nil {
		return planned, fmt.Errorf("session %s: %w", into, err)
	}
	planned.Checkpoint = at.Checkpoint
	eachChange(workspace.TreeOf(base), workspace.TreeOf(theirs), func(path string, was, is snapshot.Node, change string) {
		fate, failed := snapshot.FateOf(ctx, f.store, was, mine[underWorkspace+path], is)
		err = cmp.Or(err, failed)
		switch {
		case fate == snapshot.FateTheirs && change == "removed":
			planned.Removed = append(planned.Removed, path)
		case fate == snapshot.FateTheirs:
			planned.Written = append(planned.Written, path)
		case fate == snapshot.FateMerged:
			planned.Written, planned.Merged = append(planned.Written, path), append(planned.Merged, path)
		case fate == snapshot.FateConflict:
			planned.Conflicts = append(planned.Conflicts, path)
		}
	})
	return planned, err
}

// Compare is Diff for the present workspaces of two sessions.
func (f Files) Compare(ctx context.Context, id, other protocol.SessionID) (string, error) {
	before, err := f.present(ctx, id)
	if err != nil {
		return "", fmt.Errorf("session %s: %w", id, err)
	}
	after, err := f.present(ctx, other)
	if err != nil {
		return "", fmt.Errorf("session %s: %w", other, err)
	}
	return Difference(ctx, f.store, id, before, after)
}

// WholeOutput passes on all that a call has printed or returned, if that is stored, and its size.
// It is the text, or else the value as JSON. The error wraps [ErrNoOutput] if nothing is stored.
func WholeOutput(ctx context.Context, f *fleet.Fleet, id protocol.SessionID, call protocol.CallID, read func(output io.Reader, size int64) error) error {
	for _, name := range []string{wire.PartObject(id, call, wire.PartText), wire.PartObject(id, call, wire.PartValue)} {
		for _, part := range f.Parts() {
			object, err := natsio.GetObject(ctx, part.JS, wire.KeptBucket(f.Name), name)
			if errors.Is(err, jetstream.ErrObjectNotFound) {
				continue
			}
			if err != nil {
				return fmt.Errorf("output of call %s: %w", call, err)
			}
			return read(object, object.Size())
		}
	}
	return fmt.Errorf("call %s of session %s: %w", call, id, ErrNoOutput)
}

// ErrNoOutput means that nothing more of a call's output is stored than its result has.
var ErrNoOutput = codes.As(codes.ErrNotFound, errors.New("no whole output is stored: the result has all of it, or it is older than the fleet keeps"))

// present returns what a workspace has now.
func (f Files) present(ctx context.Context, id protocol.SessionID) (snapshot.Tree, error) {
	if f.InPlace != nil {
		if dir, in := f.InPlace(id); in {
			files, err := checkpoint.Present(ctx, f.store, dir, "", sandboxHash(id), nil)
			return workspace.TreeOf(files), err
		}
	}
	return f.at(ctx, id, "")
}

// Difference says what differs between two checkpoints of a session: a line for each path, and the
// difference of texts.
func Difference(ctx context.Context, bodies snapshot.Bodies, id protocol.SessionID, before, after snapshot.Tree) (string, error) {
	var text strings.Builder
	var err error
	eachChange(before, after, func(path string, was, is snapshot.Node, change string) {
		if err == nil {
			err = difference(ctx, bodies, &text, path, was, is, change)
		}
		if err == nil && text.Len() > maxDifference {
			err = protocol.Errorf(codes.TooLarge, "the difference has more than %d bytes: ask for that of a single call, or compare archives of the files", maxDifference)
		}
	})
	if err != nil {
		return "", fmt.Errorf("session %s: %w", id, err)
	}
	return text.String(), nil
}

func difference(ctx context.Context, bodies snapshot.Bodies, text *strings.Builder, path string, was, is snapshot.Node, change string) error {
	if change == "created" {
		change = "new"
	}
	text.WriteString(prose.DiffHead(change, string(cmp.Or(is.Type, was.Type)), path))
	old, err := textOf(ctx, bodies, was)
	if err != nil {
		return err
	}
	now, err := textOf(ctx, bodies, is)
	if err == nil && old != now {
		text.WriteString(udiff.Unified(prose.OneLine("a/"+path), prose.OneLine("b/"+path), old, now))
	}
	return err
}

// textOf is the content of a small text file; "" of anything else.
func textOf(ctx context.Context, bodies snapshot.Bodies, node snapshot.Node) (string, error) {
	if node.Type != protocol.TypeFile || node.Size > maxCompared {
		return "", nil
	}
	content, err := snapshot.LoadBytes(ctx, bodies, node.Parts, maxRead)
	if err != nil || !utf8.Valid(content) || strings.ContainsRune(string(content), 0) {
		return "", err
	}
	return string(content), nil
}

// Fork begins a session with the workspace and the conversation that another one had at a point,
// and returns how many turns that conversation has; 0 means that only the workspace was forked.
func (f Files) Fork(ctx context.Context, journal loop.Journal, from protocol.SessionID, at At, to protocol.SessionID) (turns int, err error) {
	return f.begin(ctx, journal, from, at, to, func() error { return f.fork(ctx, journal, from, at, sandboxLane(to)) })
}

// ForkDirectory is Fork for a session that works in a directory in place: the new session gets a
// copy of the files that the directory has now, whatever the point of the conversation is.
func (f Files) ForkDirectory(ctx context.Context, journal loop.Journal, from protocol.SessionID, dir string, at At, to protocol.SessionID) (turns int, err error) {
	return f.begin(ctx, journal, from, at, to, func() error {
		if _, known, err := Behind(ctx, journal, from, at); err != nil || at != (At{}) && !known {
			return cmp.Or(err, at.unknown())
		}
		_, err := checkpoint.ForkDirectory(ctx, f.store, dir, "", sandboxHash(from), sandboxLane(to), wire.RandomCallID(), nil)
		return err
	})
}

// begin begins a session: its workspace by fork, and its conversation.
func (f Files) begin(ctx context.Context, journal loop.Journal, from protocol.SessionID, at At, to protocol.SessionID, fork func() error) (turns int, err error) {
	c, err := forkOf(ctx, journal, from, at, to)
	if err == nil {
		err = f.may(ctx, judge.Use, from)
	}
	if err == nil {
		c.occupied, err = f.store.Has(ctx, sandboxHash(to))
	}
	if err == nil {
		err = c.run(ctx, func() error { return f.files(ctx, c, fork) })
	}
	if err != nil {
		return 0, fmt.Errorf("session %s: %w", from, err)
	}
	return c.turns, nil
}

// maxForks is how often the files of an interrupted fork are made again: its process may still run,
// and make them as well.
const maxForks = 5

// files begins the workspace of a fork. What an earlier attempt has made is replaced: its origin
// may have changed since.
func (f Files) files(ctx context.Context, c *copying, fork func() error) (err error) {
	for range maxForks {
		if c.again {
			if err := f.store.Remove(ctx, sandboxHash(c.to), 0); err != nil {
				return err
			}
		}
		if err = fork(); !c.again || !errors.Is(err, workspace.ErrExists) {
			break
		}
	}
	return err
}

// fork begins a workspace with the files that a session had at a point; none if it had none there.
func (f Files) fork(ctx context.Context, journal loop.Journal, from protocol.SessionID, at At, to protocol.Lane) error {
	has := func(path string) bool { return path != "processes.json" }
	if at.Turn == 0 {
		err := f.store.Fork(ctx, sandboxHash(from), at.Call, to, has)
		if !errors.Is(err, workspace.ErrNone) {
			return err
		}
	}
	behind, known, err := Behind(ctx, journal, from, at)
	switch {
	case err != nil:
		return err
	case !known && at == (At{}):
		return ErrNone
	case !known:
		return at.unknown()
	}
	last, err := f.store.Before(ctx, sandboxHash(from), behind)
	if err != nil || last == "" {
		return err
	}
	return f.store.Fork(ctx, sandboxHash(from), last, to, has)
}
