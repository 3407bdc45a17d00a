package workspace_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/workspace"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	fleet = protocol.DefaultFleet
	named = protocol.Lane("sandbox/s")
)

var lane = wire.HashLane(named)

func mustOpen(t *testing.T, f *natsiotest.Fleet, url string) *workspace.Store {
	t.Helper()
	store, err := workspace.Open(t.Context(), f.NC, f.Name, url)
	require.NoError(t, err)
	return store
}

func mustSweep(t *testing.T, store *workspace.Store, age time.Duration) int {
	t.Helper()
	removed, err := store.Sweep(t.Context(), age)
	require.NoError(t, err)
	return removed
}

func open(t *testing.T) *workspace.Store {
	t.Helper()
	f := natsiotest.New(t, natsio.Topology{})
	store, err := workspace.Open(t.Context(), f.NC, fleet, "")
	require.NoError(t, err)
	claims(t, f, 20)
	return store
}

// claims has the claims stream have had so many records: epochs up to that are of claims.
func claims(t *testing.T, f *natsiotest.Fleet, n int) {
	t.Helper()
	for range n {
		_, err := f.JS.Publish(t.Context(), wire.ClaimSubject(f.Name, "p", lane), nil)
		require.NoError(t, err)
	}
}

// worker is a directory of a worker, and the workspace that it has taken.
type worker struct {
	t     *testing.T
	dir   string
	root  *os.Root
	index snapshot.Index
	store *workspace.Store
	*workspace.Workspace
}

func take(t *testing.T, store *workspace.Store, epoch uint64) *worker {
	t.Helper()
	taken, err := store.Take(t.Context(), named, "w", epoch)
	require.NoError(t, err)
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, root.Close()) })
	w := &worker{t: t, dir: dir, root: root, index: snapshot.Index{}, store: store, Workspace: taken}
	_, err = snapshot.Restore(t.Context(), root, w.Tree(), w.index, store, nil)
	require.NoError(t, err)
	return w
}

func (w *worker) commit(call protocol.CallID) error {
	w.t.Helper()
	delta, err := snapshot.Save(w.t.Context(), w.root, w.Tree(), w.index, w.store, nil)
	require.NoError(w.t, err)
	return w.Commit(w.t.Context(), delta, result(call))
}

func result(call protocol.CallID) *protocol.Result {
	return &protocol.Result{CallID: call, SessionID: "s-1", Status: protocol.StatusOK, Value: wire.NoopResult{}}
}

func (w *worker) append(name, text string) {
	w.t.Helper()
	file, err := os.OpenFile(filepath.Join(w.dir, name), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	require.NoError(w.t, err)
	_, err = file.WriteString(text)
	require.NoError(w.t, err)
	require.NoError(w.t, file.Close())
}

func (w *worker) content(name string) string {
	w.t.Helper()
	body, err := os.ReadFile(filepath.Join(w.dir, name))
	require.NoError(w.t, err)
	return string(body)
}

func TestWorkspace_GoesOnElsewhere(t *testing.T) {
	t.Parallel()
	store := open(t)
	large := random(3 << 20)
	want := ""
	for epoch := range uint64(8) {
		w := take(t, store, epoch+1)
		if epoch > 0 {
			require.Equal(t, want, w.content("log"))
			require.Equal(t, large, []byte(w.content("large")))
		}
		for i := range 30 { // in all enough for a base or two
			line := fmt.Sprintf("%d.%d\n", epoch, i)
			want += line
			w.append("log", line)
			if i == 3 {
				require.NoError(t, os.WriteFile(filepath.Join(w.dir, "large"), large, 0o600))
			}
			require.NoError(t, w.commit(protocol.CallID(fmt.Sprintf("c%d-%d", epoch, i))))
		}
	}
}

func TestWorkspace_WhoHasLostItCommitsNothing(t *testing.T) {
	t.Parallel()
	store := open(t)
	first := take(t, store, 5)
	first.append("log", "one\n")
	require.NoError(t, first.commit("c1"))
	first.append("log", "two\n")
	second := take(t, store, 9)
	require.ErrorIs(t, first.commit("c2"), workspace.ErrLost)
	require.Equal(t, "one\n", second.content("log"))
	second.append("log", "deux\n")
	require.NoError(t, second.commit("c2"))
	require.ErrorIs(t, first.commit("c2"), workspace.ErrLost)
	_, err := store.Take(t.Context(), named, "w", 8)
	require.ErrorIs(t, err, workspace.ErrLost)
	require.Equal(t, "one\ndeux\n", take(t, store, 9).content("log"))
}

func TestWorkspace_ResultsAreCovered(t *testing.T) {
	t.Parallel()
	store := open(t)
	w := take(t, store, 1)
	w.append("log", "one\n")
	require.NoError(t, w.commit("c1"))
	large := result("c2")
	large.Value = protocol.FilesReadResult{Content: bytes.Repeat([]byte("abcdefghij"), 700_000)}
	require.NoError(t, w.Commit(t.Context(), &snapshot.Delta{}, large))
	for epoch := uint64(2); epoch < 4; epoch++ { // they are carried on by who only takes it
		next := take(t, store, epoch)
		found, err := next.Result(t.Context(), "c1")
		require.NoError(t, err)
		require.Equal(t, epoch+2, found.Checkpoint, "the last checkpoint has what it changed")
		found.Checkpoint = 0
		require.Equal(t, result("c1"), found)
		found, err = next.Result(t.Context(), "c2")
		require.NoError(t, err)
		require.Equal(t, large.Value, found.Value)
		found, err = next.Result(t.Context(), "c3")
		require.NoError(t, err)
		require.Nil(t, found)
	}
	w = take(t, store, 5)
	w.Settled("c2")
	require.NoError(t, w.commit("c3"))
	w = take(t, store, 6)
	found, err := w.Result(t.Context(), "c2")
	require.NoError(t, err)
	require.Nil(t, found)
}

func TestSweep_RemovesWhatNobodyNeeds(t *testing.T) {
	t.Parallel()
	store := open(t)
	w := take(t, store, 1)
	require.NoError(t, os.WriteFile(filepath.Join(w.dir, "large"), random(300<<10), 0o600))
	require.NoError(t, w.commit("c1"))
	require.NoError(t, store.Put(t.Context(), "left", []byte("by a commit that never happened")))
	n := mustSweep(t, store, workspace.SweepAge)
	require.Zero(t, n, "it may be of a commit that is under way")
	n = mustSweep(t, store, 0)
	require.Equal(t, 1, n)
	require.Equal(t, w.content("large"), take(t, store, 2).content("large"))
	require.NoError(t, store.Remove(t.Context(), lane, 3))
	n = mustSweep(t, store, 0)
	require.Equal(t, 2, n, "the content, and what says that there is none")
}

// TestSweep_ThatWasCutShort leaves a body that is named and not there: who needs it stores it
// again, and the next sweep removes what is left.
func TestSweep_ThatWasCutShort(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	store := mustOpen(t, f, "")
	store.Age()
	objects, err := f.JS.Stream(t.Context(), natsio.ObjectStream(wire.BodiesBucket(f.Name)))
	require.NoError(t, err)
	large := random(300 << 10)
	w := take(t, store, 1)
	require.NoError(t, w.root.WriteFile("large", large, 0o600))
	require.NoError(t, w.commit("c1"))
	require.NoError(t, store.Remove(t.Context(), lane, 3))
	cut := func() {
		require.NoError(t, objects.Purge(t.Context(), jetstream.WithPurgeSubject("$O."+wire.BodiesBucket(f.Name)+".C.>")))
	}
	cut()
	w = take(t, store, 2)
	require.NoError(t, w.root.WriteFile("large", large, 0o600))
	require.NoError(t, w.commit("c2"))
	n := mustSweep(t, store, 0)
	require.Equal(t, 1, n, "of the removal")
	require.Equal(t, string(large), take(t, store, 3).content("large"))

	require.NoError(t, store.Remove(t.Context(), lane, 3))
	cut()
	n = mustSweep(t, store, 0)
	require.Equal(t, 2, n)
	info, err := objects.Info(t.Context())
	require.NoError(t, err)
	require.Zero(t, info.State.Msgs)
}

// TestGet_NamesWhatIsWrong with a body in the servers of the fleet, and does not wait.
func TestGet_NamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	store := mustOpen(t, f, "")
	objects, err := f.JS.Stream(t.Context(), natsio.ObjectStream(wire.BodiesBucket(f.Name)))
	require.NoError(t, err)
	for name, change := range map[string]struct {
		chunk string
		want  error
	}{"lost": {"", workspace.ErrMissing}, "other": {"damaged", snapshot.ErrCorrupt}} {
		require.NoError(t, store.Put(t.Context(), name, []byte("content")))
		kept, err := natsio.ListObjects(t.Context(), f.JS, wire.BodiesBucket(f.Name), func(found string) bool { return found == name })
		require.NoError(t, err)
		chunks := "$O." + wire.BodiesBucket(f.Name) + ".C." + kept[0].NUID
		require.NoError(t, objects.Purge(t.Context(), jetstream.WithPurgeSubject(chunks)))
		if change.chunk != "" {
			_, err = f.JS.Publish(t.Context(), chunks, []byte(change.chunk))
			require.NoError(t, err)
		}
		_, err = store.Get(t.Context(), name)
		require.ErrorIs(t, err, change.want)
	}
	_, err = store.Get(t.Context(), "none")
	require.ErrorIs(t, err, workspace.ErrMissing)
}

func random(n int) []byte {
	body := make([]byte, n)
	for i := range body {
		body[i] = byte(rand.Uint32())
	}
	return body
}

// A list names lanes, of which subjects have only hashes, and costs what it shows.
func TestStore_ListsWorkspacesByName(t *testing.T) {
	t.Parallel()
	store, none := open(t), func(wire.LaneHash) bool { return false }
	w := take(t, store, 1)
	w.append("f", "one\n")
	require.NoError(t, w.commit("c1"))
	odd := protocol.Lane("sandbox/a\r\nb c%20")
	require.NoError(t, store.Begin(t.Context(), odd, snapshot.Tree{}, "c"))
	require.NoError(t, store.TemplateOf(t.Context(), "template", lane))
	require.NoError(t, store.Fork(t.Context(), lane, "", forkName, all))
	list, n, err := store.List(t.Context(), none, 10)
	require.NoError(t, err)
	require.Equal(t, 3, n)
	require.Equal(t, []protocol.Lane{forkName, odd, named}, []protocol.Lane{list[0].Lane, list[1].Lane, list[2].Lane})
	for i := range 40 {
		require.NoError(t, store.Begin(t.Context(), protocol.Lane("sandbox/"+strconv.Itoa(i)), snapshot.Tree{}, "c"))
	}
	list, n, err = store.List(t.Context(), func(l wire.LaneHash) bool { return l == wire.HashLane("sandbox/39") }, 2)
	require.NoError(t, err)
	require.Equal(t, 42, n)
	require.Equal(t, []protocol.Lane{"sandbox/38", "sandbox/37"}, []protocol.Lane{list[0].Lane, list[1].Lane})
	list, _, err = store.List(t.Context(), func(l wire.LaneHash) bool { return l != lane }, 1)
	require.NoError(t, err)
	require.Equal(t, named, list[0].Lane, "although many were used after it")
}

// What is removed because of its age is nothing that a worker has taken since it was listed, or
// takes meanwhile.
func TestStore_EmptyIsNoWorkspaceInUse(t *testing.T) {
	t.Parallel()
	store := open(t)
	w := take(t, store, 1)
	w.append("f", "one\n")
	require.NoError(t, w.commit("c1"))
	listed := func() workspace.Stored {
		list, _, err := store.List(t.Context(), func(wire.LaneHash) bool { return false }, 1)
		require.NoError(t, err)
		return list[0]
	}
	old := listed()
	w = take(t, store, 2)
	_, err := store.Empty(t.Context(), old)
	require.ErrorIs(t, err, workspace.ErrLost)
	require.Len(t, w.Tree(), 1)

	at, err := store.Empty(t.Context(), listed())
	require.NoError(t, err)
	w.append("f", "two\n")
	require.ErrorIs(t, w.commit("c2"), workspace.ErrLost)
	w = take(t, store, 3) // before the rest is forgotten
	require.Empty(t, w.Tree())
	require.NoError(t, store.Forget(t.Context(), lane, at))
	w.append("g", "three\n")
	require.NoError(t, w.commit("c3"))
	require.Len(t, take(t, store, 4).Tree(), 1)
	at, err = store.Empty(t.Context(), listed())
	require.NoError(t, err)
	require.NoError(t, store.Forget(t.Context(), lane, at))
	there, err := store.Has(t.Context(), lane)
	require.NoError(t, err)
	require.False(t, there)
}

// A removal that ends between its two writes leaves an empty workspace, which the next one removes.
func TestDiscard_CompletesOneThatWasCutShort(t *testing.T) {
	t.Parallel()
	nc := natsiotest.New(t, natsio.Topology{}).NC
	store, err := workspace.Open(t.Context(), nc, fleet, "")
	require.NoError(t, err)
	require.NoError(t, workspace.Discard(t.Context(), nc, fleet, "", named), "there is none")
	w := take(t, store, 1)
	w.append("f", "one\n")
	require.NoError(t, w.commit("c1"))
	list, _, err := store.List(t.Context(), func(wire.LaneHash) bool { return false }, 1)
	require.NoError(t, err)
	_, err = store.Empty(t.Context(), list[0]) // and then the process is lost
	require.NoError(t, err)
	require.NoError(t, workspace.Discard(t.Context(), nc, fleet, "", named))
	there, err := store.Has(t.Context(), lane)
	require.NoError(t, err)
	require.False(t, there)
	w.append("f", "two\n")
	require.ErrorIs(t, w.commit("c2"), workspace.ErrLost, "a worker that still has it")
}

// A worker that has lost a lane, and whose removal of the workspace arrives late, removes nothing
// of the next holder.
func TestRemove_IsFencedByTheEpoch(t *testing.T) {
	t.Parallel()
	store := open(t)
	take(t, store, 1).append("f", "one\n")
	w := take(t, store, 2)
	w.append("f", "two\n")
	require.NoError(t, w.commit("c1"))
	require.ErrorIs(t, store.Remove(t.Context(), lane, 1), workspace.ErrLost)
	require.ErrorIs(t, store.Remove(t.Context(), lane, 0), workspace.ErrLost)
	w.append("f", "three\n")
	require.NoError(t, w.commit("c2"))
	require.Equal(t, "two\nthree\n", take(t, store, 3).content("f"))
	require.NoError(t, store.Remove(t.Context(), lane, 3))
	w.append("f", "four\n")
	require.ErrorIs(t, w.commit("c3"), workspace.ErrLost)
	require.NoError(t, store.Remove(t.Context(), lane, 3), "there is none")
}

// A removal that ends between its two writes leaves an empty workspace, which the next one removes;
// one that cannot be read is removed, too, and one for which there is no room.
func TestRemove_Completes(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	store := mustOpen(t, f, "")
	gone := func(epoch uint64) {
		t.Helper()
		require.NoError(t, store.Remove(t.Context(), lane, epoch))
		there, err := store.Has(t.Context(), lane)
		require.NoError(t, err)
		require.False(t, there)
	}
	w := take(t, store, 1)
	w.append("f", "one\n")
	require.NoError(t, w.commit("c1"))
	list, _, err := store.List(t.Context(), func(wire.LaneHash) bool { return false }, 1)
	require.NoError(t, err)
	_, err = store.Empty(t.Context(), list[0]) // and then the process is lost
	require.NoError(t, err)
	gone(1)

	_, err = f.JS.Publish(t.Context(), wire.WorkspaceSubject(f.Name, lane), []byte("of a later version"))
	require.NoError(t, err)
	gone(1)

	require.NoError(t, take(t, store, 1).commit("c2"))
	stream, err := f.JS.Stream(t.Context(), wire.WorkspacesStream(f.Name))
	require.NoError(t, err)
	config := stream.CachedInfo().Config
	config.MaxBytes = int64(stream.CachedInfo().State.Bytes)
	_, err = f.JS.UpdateStream(t.Context(), config)
	require.NoError(t, err)
	gone(1)
}

// Epochs are sequences of the claims stream. One that was made again, or restored from a backup,
// gives smaller ones than before: workspaces that were taken under later ones are taken all the
// same.
func TestTake_AfterTheClaimsBeganAgain(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	store := mustOpen(t, f, "")
	w := take(t, store, 5000)
	w.append("f", "one\n")
	require.NoError(t, w.commit("c1"))
	claims(t, f, 3)
	next := take(t, store, 3)
	require.Equal(t, "one\n", next.content("f"))
	w.append("f", "two\n")
	require.ErrorIs(t, w.commit("c2"), workspace.ErrLost)
	_, err := store.Take(t.Context(), named, "w", 2)
	require.ErrorIs(t, err, workspace.ErrLost, "of the same stream")
	require.NoError(t, store.Remove(t.Context(), lane, 3))
}
