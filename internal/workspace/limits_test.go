package workspace_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/workspace"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// fileOf is a file of so many parts; all that a workspace may have is mostParts.
func fileOf(parts int) snapshot.Node {
	part := snapshot.Part{Size: snapshot.MaxPart, Sum: "s", Body: "b"}
	return snapshot.Node{Type: protocol.TypeFile, Size: int64(parts) * snapshot.MaxPart, Parts: slices.Repeat([]snapshot.Part{part}, parts)}
}

const mostParts = snapshot.DefaultMaxBytes / snapshot.MaxPart

// TestTake_OfTooMuch is refused by name, by whoever reads it; what was there before can still be
// read.
func TestTake_OfTooMuch(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	store := mustOpen(t, f, "")
	w := take(t, store, 1)
	w.append("log", "one\n")
	require.NoError(t, w.commit("c1"))
	tree, err := json.Marshal(snapshot.Tree{"f": fileOf(mostParts + 1)})
	require.NoError(t, err)
	parts, _, err := snapshot.StoreBytes(t.Context(), store, tree)
	require.NoError(t, err)
	message, err := json.Marshal(map[string]any{"type": "checkpoint", "version": 1, "epoch": 2, "calls": []string{"c2"}, "base": parts, "delta": map[string]any{}})
	require.NoError(t, err)
	_, err = f.JS.Publish(t.Context(), wire.WorkspaceSubject(f.Name, lane), message)
	require.NoError(t, err)

	_, err = store.Take(t.Context(), named, "w", 3)
	require.ErrorIs(t, err, workspace.ErrInvalid)
	require.ErrorIs(t, err, snapshot.ErrLimit)
	require.ErrorContains(t, err, "more than 68719476736 bytes together")
	require.Equal(t, map[string]string{"log": "one\n"}, forked(t, store, lane, "c1"))
}

// TestCommit_OfTooMuch is refused by name; then nothing was committed, and the workspace goes on.
func TestCommit_OfTooMuch(t *testing.T) {
	t.Parallel()
	store := open(t)
	full := snapshot.Tree{"f": fileOf(mostParts + 1)}
	w := take(t, store, 1)
	dir := func(name string) *snapshot.Delta {
		return &snapshot.Delta{Set: snapshot.Tree{name: {Type: protocol.TypeDir}}}
	}
	require.NoError(t, w.Commit(t.Context(), dir("d"), result("c1")))
	require.ErrorIs(t, w.Commit(t.Context(), &snapshot.Delta{Set: full}, result("c2")), snapshot.ErrLimit)
	require.NoError(t, w.Commit(t.Context(), dir("e"), result("c3")))
	require.ErrorIs(t, store.Begin(t.Context(), forkName, full), snapshot.ErrLimit)
	has, err := store.Has(t.Context(), fork)
	require.NoError(t, err)
	require.False(t, has)
	history, err := store.History(t.Context(), lane)
	require.NoError(t, err)
	require.Len(t, history, 2)
}

// TestCommit_OfTooMuchByAndBy: what is replaced or removed makes room again.
func TestCommit_OfTooMuchByAndBy(t *testing.T) {
	t.Parallel()
	store := open(t)
	file := func(name string, parts int) *snapshot.Delta {
		return &snapshot.Delta{Set: snapshot.Tree{"d": {Type: protocol.TypeDir}, name: fileOf(parts)}}
	}
	w := take(t, store, 1)
	require.NoError(t, w.Commit(t.Context(), file("d/f", mostParts-1), result("c1")))
	require.NoError(t, w.Commit(t.Context(), file("d/f", mostParts-1), result("c2")), "what is replaced counts once")
	require.NoError(t, w.Commit(t.Context(), file("g", 1), result("c3")), "all that it may have")
	require.ErrorIs(t, w.Commit(t.Context(), file("h", 1), result("c4")), snapshot.ErrLimit)
	require.NoError(t, w.Commit(t.Context(), &snapshot.Delta{Removed: snapshot.Names{"d"}}, result("c5")))
	require.NoError(t, w.Commit(t.Context(), file("h", 1), result("c6")))
	next, err := store.Take(t.Context(), named, "w", 2)
	require.NoError(t, err)
	require.Len(t, next.Tree(), 3)
	require.NoError(t, next.Commit(t.Context(), file("d/f", mostParts-2), result("c7")))
	require.ErrorIs(t, next.Commit(t.Context(), file("i", 1), result("c8")), snapshot.ErrLimit)
}

// TestTake_OfEndlessChanges ends with the first checkpoint that makes too much, and reads none
// behind it.
func TestTake_OfEndlessChanges(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	store := mustOpen(t, f, "")
	for i := range 20 { // of 4 GiB each
		node := fileOf(mostParts / 16)
		message, err := json.Marshal(map[string]any{"type": "checkpoint", "version": 1, "epoch": 1, "delta": snapshot.Delta{Set: snapshot.Tree{"f" + strconv.Itoa(i): node}}})
		require.NoError(t, err)
		_, err = f.JS.Publish(t.Context(), wire.WorkspaceSubject(f.Name, lane), message)
		require.NoError(t, err)
	}
	_, err := store.Take(t.Context(), named, "w", 2)
	require.ErrorIs(t, err, snapshot.ErrLimit)
	require.ErrorContains(t, err, "checkpoint 17: ")
}

// TestReadUpload_OfLaterVersions: fields that are not known are passed over.
func TestReadUpload_OfLaterVersions(t *testing.T) {
	t.Parallel()
	got, err := workspace.ReadUpload(strings.NewReader(`{"before":["x"],"after":7,"delta":{"added":{"a":1},"set":{"d":{"type":"dir","owner":1}}},"more":"text"}`))
	require.NoError(t, err)
	require.Equal(t, &workspace.Upload{After: 7, Delta: snapshot.Delta{Set: snapshot.Tree{"d": {Type: protocol.TypeDir}}}}, got)
}

// TestReadUpload_OfOthers is refused by name.
func TestReadUpload_OfOthers(t *testing.T) {
	t.Parallel()
	_, err := workspace.ReadUpload(strings.NewReader(`{"after":0,"delta":{"set":{"../f":{"type":"dir"}}}}`))
	require.ErrorIs(t, err, workspace.ErrInvalid)
	require.ErrorIs(t, err, snapshot.ErrUnsafe)
}

// A workspace may have all the bodies that 64 GiB are in, or one for each small commit: their names
// are more than a message can have in its header. None of them is garbage.
func TestCommit_OfManyBodies(t *testing.T) {
	t.Parallel()
	store := open(t)
	w := take(t, store, 1)
	tree := snapshot.Tree{}
	name := func(i int) string { return fmt.Sprintf("%043d", i) }
	for i := range mostParts {
		tree["f"+strconv.Itoa(i)] = snapshot.Node{
			Type: protocol.TypeFile, Size: snapshot.MaxPart, Parts: []snapshot.Part{{Size: snapshot.MaxPart, Sum: name(i), Body: name(i)}},
		}
	}
	for _, i := range []int{0, mostParts / 2, mostParts - 1} {
		require.NoError(t, store.Put(t.Context(), name(i), []byte("body")))
	}
	require.NoError(t, w.Commit(t.Context(), &snapshot.Delta{Set: tree}, result("c1")))
	require.NoError(t, store.Fork(t.Context(), lane, "", forkName, all))
	next, err := store.Take(t.Context(), named, "w", 2)
	require.NoError(t, err)
	require.Len(t, next.Tree(), mostParts)
	for _, of := range []wire.LaneHash{lane, fork} {
		mustSweep(t, store, 0)
		for _, i := range []int{0, mostParts / 2, mostParts - 1} {
			_, err = store.Get(t.Context(), name(i))
			require.NoError(t, err)
		}
		require.NoError(t, store.Remove(t.Context(), of, 2))
	}
	mustSweep(t, store, 0)
	_, err = store.Get(t.Context(), name(0))
	require.ErrorIs(t, err, workspace.ErrMissing)
}

// Nothing is removed while it is not known what is needed.
func TestSweep_NamesThatCannotBeRead(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	store := mustOpen(t, f, "")
	require.NoError(t, store.Put(t.Context(), "garbage", []byte("body")))
	msg := nats.NewMsg(wire.WorkspaceSubject(f.Name, lane))
	msg.Header.Set("Toolfleet-Body-Names", `[{"size":3,"sum":"s","body":"missing"}]`)
	_, err := f.JS.PublishMsg(t.Context(), msg)
	require.NoError(t, err)
	_, err = store.Sweep(t.Context(), 0)
	require.ErrorIs(t, err, workspace.ErrMissing)
	require.ErrorContains(t, err, string(lane))
	_, err = store.Get(t.Context(), "garbage")
	require.NoError(t, err)
}

// Results of many calls that end at once are more than a message of most servers has.
func TestCommit_ResultsOfManyCalls(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	store := mustOpen(t, f, "")
	w := take(t, store, 1)
	var results []*protocol.Result
	for i := range 100 {
		r := result(protocol.CallID("c" + strconv.Itoa(i)))
		r.Value = protocol.FilesReadResult{Content: random(20 << 10)}
		results = append(results, r)
	}
	require.NoError(t, w.Commit(t.Context(), &snapshot.Delta{Set: snapshot.Tree{"d": {Type: protocol.TypeDir}}}, results...))
	stream, err := f.JS.Stream(t.Context(), wire.WorkspacesStream(f.Name))
	require.NoError(t, err)
	last, err := stream.GetLastMsgForSubject(t.Context(), wire.WorkspaceSubject(f.Name, lane))
	require.NoError(t, err)
	require.Less(t, len(last.Data), 100<<10)
	next := take(t, store, 2)
	for _, want := range results {
		got, err := next.Result(t.Context(), want.CallID)
		require.NoError(t, err)
		require.Equal(t, want.Value, got.Value)
	}
}

// A commit with large results, changes and a base at once names the bodies of all of them.
func TestCommit_NamesEachBody(t *testing.T) {
	t.Parallel()
	store := open(t)
	w := take(t, store, 1)
	w.append("large", string(random(200_000)))
	delta, err := snapshot.Save(t.Context(), w.root, w.Tree(), w.index, store, nil)
	require.NoError(t, err)
	for i := range 10_000 { // enough for a base
		delta.Set[strconv.Itoa(i)] = snapshot.Node{Type: protocol.TypeDir, Mode: 0o700}
	}
	delta.Inline = []byte("carried")
	delta.Set["small"] = snapshot.Node{Type: protocol.TypeFile, Size: 7, Parts: []snapshot.Part{{Size: 7, Sum: "s"}}}
	delta.Stored = slices.Grow(delta.Stored, 10)
	r := result("c1")
	r.Value = protocol.FilesReadResult{Content: random(100 << 10)}
	require.NoError(t, w.Commit(t.Context(), delta, r))
	n := mustSweep(t, store, 0)
	require.Zero(t, n)
	next, err := store.Take(t.Context(), named, "w", 2)
	require.NoError(t, err)
	got, err := next.Result(t.Context(), "c1")
	require.NoError(t, err)
	require.Equal(t, r.Value, got.Value)
}

// What the client refuses to send it refuses always.
func TestCommit_ThatCannotBeSent(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	store := mustOpen(t, f, "")
	w := take(t, store, 1)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := w.Commit(ctx, &snapshot.Delta{Set: snapshot.Tree{"d": {Type: protocol.TypeDir}}}, result(protocol.CallID(strings.Repeat("x", int(f.NC.MaxPayload())))))
	require.ErrorIs(t, err, nats.ErrMaxPayload)
	require.ErrorContains(t, err, "store checkpoint of")
	require.NoError(t, ctx.Err())
	require.NoError(t, w.commit("c1"))
}
