package worker_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker/checkpoint"
	"github.com/toolfleet/toolfleet/internal/workspace"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// A call that changes nothing has no checkpoint, also when something else has changed the files.
func TestCheckpoint_NoneForWhatOnlyReads(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o := r.options()
	r.work(o)
	store, err := workspace.Open(t.Context(), r.NC, r.Name, "")
	require.NoError(t, err)
	covered := func() (calls []protocol.CallID) {
		history, err := store.History(t.Context(), wire.HashLane(protocol.SandboxKey("s-1").Lane()))
		require.NoError(t, err)
		for _, checkpoint := range history {
			calls = append(calls, checkpoint.Calls...)
		}
		return calls
	}
	first := newCall("s-1", bash("echo one > f"))
	requireOK(t, r.dispatch(t.Context(), first))
	require.NoError(t, os.WriteFile(filepath.Join(workspaceOf(o.Data, "s-1"), "beside"), []byte("x"), 0o600))
	read := newCall("s-1", protocol.FilesRead{Path: "f"})
	read.Resources[0].Access = protocol.Shared
	requireOK(t, r.dispatch(t.Context(), read))
	require.Equal(t, []protocol.CallID{first.ID}, covered())
	second := newCall("s-1", bash("true"))
	requireOK(t, r.dispatch(t.Context(), second))
	require.Equal(t, []protocol.CallID{first.ID, second.ID}, covered())
}

// What nobody works in is removed from the disk when it is too much, and comes back from the fleet.
func TestCheckpoint_CopiesAreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o := r.options()
	o.CacheBytes = 300 << 10
	w, stop := r.work(o)
	for _, session := range []protocol.SessionID{"s-1", "s-2", "s-3"} {
		requireOK(t, r.do(session, bash("head -c 200000 /dev/urandom > random; sha256sum random > sum")))
	}
	stop()
	require.NoError(t, w.Evict(t.Context()))
	left, err := os.ReadDir(filepath.Join(o.Data, "sandboxes"))
	require.NoError(t, err)
	require.Len(t, left, 1)
	_, stop = r.work(o)
	defer stop()
	for _, session := range []protocol.SessionID{"s-1", "s-2", "s-3"} {
		requireOK(t, r.do(session, bash("sha256sum -c sum")))
	}
}

// A copy counts from its first call on: its worker may be killed before it closes it.
func TestCheckpoint_ACopyCountsWhileItIsOpen(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o := r.options()
	_, stop := r.work(o)
	requireOK(t, r.do("s-1", bash("head -c 200000 /dev/urandom > random")))
	stop()
	other := r.options()
	_, stop = r.work(other)
	defer stop()
	requireOK(t, r.do("s-1", bash("true")))
	_, bytes, known, err := checkpoint.Known(filepath.Dir(workspaceOf(other.Data, "s-1")))
	require.NoError(t, err)
	require.True(t, known)
	require.GreaterOrEqual(t, bytes, int64(200_000))
}

// The claims stream was deleted, and made again as the documents say: sessions continue.
func TestCheckpoint_AfterTheClaimsWereDeleted(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, stop := r.work(r.options())
	for range 5 {
		requireOK(t, r.do("s-2", bash("echo x >> f")))
	}
	requireOK(t, r.do("s-1", bash("echo hours of work > f")))
	stop()
	require.NoError(t, r.JS.DeleteStream(t.Context(), wire.ClaimsStream(r.Name)))
	require.NoError(t, natsio.Ensure(t.Context(), r.JS, natsio.Topology{Fleet: r.Name}))
	_, stop = r.work(r.options())
	defer stop()
	ran := value[protocol.CommandRunResult](t, r.do("s-1", bash("cat f")))
	require.Equal(t, "hours of work\n", string(ran.Stdout))
	requireOK(t, r.do("s-1", wire.WorkspaceRemove{}))
}

func bash(command string) protocol.CommandRun {
	return protocol.CommandRun{Command: command, KeepShell: true}
}

func TestCheckpoint_AnotherMachineGoesOn(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, stop := r.work(r.options())
	requireOK(t, r.do("s-1", bash(`mkdir -p a/b && echo one > a/b/f && chmod 600 a/b/f && ln -s b a/l && export LEFT=behind`)))
	requireOK(t, r.do("s-1", protocol.FilesWrite{Path: "written", Content: []byte("by a tool\n")}))
	stop()
	second := r.options()
	_, stop = r.work(second)
	ran := value[protocol.CommandRunResult](t, r.do("s-1", bash(`echo $LEFT; cat a/b/f a/l/f written; stat -c %a a/b/f; rm a/b/f; echo two >> written`)))
	require.Equal(t, "behind\none\none\nby a tool\n600\n", string(ran.Stdout))
	stop()
	_, stop = r.work(r.options())
	ran = value[protocol.CommandRunResult](t, r.do("s-1", bash(`cat written; ls a/b`)))
	require.Equal(t, "by a tool\ntwo\n", string(ran.Stdout))
	requireOK(t, r.do("s-1", bash(`echo three >> written`)))
	stop()
	r.work(second) // which has an older one
	ran = value[protocol.CommandRunResult](t, r.do("s-1", bash(`cat written`)))
	require.Equal(t, "by a tool\ntwo\nthree\n", string(ran.Stdout))
}

// A workspace goes back to an earlier call, and forward again: nothing of its history is lost.
func TestWorkspaceRestore_GoesBackAndForth(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, stop := r.work(r.options())
	calls := make([]protocol.Call, 3)
	for i, command := range []string{
		`mkdir d && export AT=first && cd d && echo one > f && head -c 200000 /dev/urandom > large && sha256sum large > sum && cd ..`,
		`rm d/large d/f && export AT=second && echo two > d/f2`, `mv d/sum . && rm -r d && echo file > d`,
	} {
		calls[i] = newCall("s-1", bash(command))
		requireOK(t, r.dispatch(t.Context(), calls[i]))
	}
	look := func(command string) string {
		t.Helper()
		result := r.do("s-1", protocol.CommandRun{Command: command}) // a shell of this driver remembers the worker's own path
		requireOK(t, result)
		return string(value[protocol.CommandRunResult](t, result).Stdout)
	}
	before := len(objects(t, r))
	for range 2 {
		requireOK(t, r.do("s-1", wire.WorkspaceRestore{At: calls[0].ID}))
		require.Equal(t, "one\nlarge: OK\n", look(`cd d && cat f && sha256sum -c sum`))
		shell := value[protocol.CommandRunResult](t, r.do("s-1", bash(`echo $AT`)))
		require.Equal(t, "first\n", string(shell.Stdout))
		stop()
		_, stop = r.work(r.options()) // it is a checkpoint as any other
		require.Equal(t, "f\nlarge\nsum\n", look(`ls d`))
		requireOK(t, r.do("s-1", wire.WorkspaceRestore{At: calls[2].ID}))
		require.Equal(t, "file\n", look(`cat d`))
	}
	require.Len(t, objects(t, r), before, "no content is stored again")
	requireFault(t, r.do("s-1", wire.WorkspaceRestore{At: "other"}), protocol.StatusFailed, protocol.CodeNotFound)
	require.Equal(t, "file\n", look(`cat d`))
}

// objects are the names of the bodies of the fleet.
func objects(t *testing.T, r *rig) (names []string) {
	t.Helper()
	infos, err := natsio.ListObjects(t.Context(), r.JS, wire.BodiesBucket(r.Name), func(string) bool { return true })
	require.NoError(t, err)
	for _, info := range infos {
		names = append(names, info.Name)
	}
	return names
}

// What cannot be restored is told, and the last checkpoint is what the next call works in.
func TestWorkspaceRestore_ThatFailsChangesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o := r.options()
	r.work(o)
	first := newCall("s-1", bash(`head -c 200000 /dev/urandom > large; echo one > f`))
	requireOK(t, r.dispatch(t.Context(), first))
	stored := objects(t, r)
	requireOK(t, r.do("s-1", bash(`rm large; echo two > f`)))
	require.NoError(t, natsio.DeleteObjects(t.Context(), r.JS, wire.BodiesBucket(r.Name), stored...))
	result := r.do("s-1", wire.WorkspaceRestore{At: first.ID})
	requireFault(t, result, protocol.StatusFailed, protocol.CodeWorkspaceUnavailable)
	require.Contains(t, result.Error.Message, "missing in the store of bodies")
	r.requireContent("s-1", "f", "two\n")

	requireFault(t, r.do("s-2", wire.WorkspaceRestore{At: "c"}), protocol.StatusFailed, protocol.CodeNotFound)
}

// A workspace whose contents are not in the fleet any more is a fault of the call, not a call that
// waits for ever.
func TestCheckpoint_ContentsThatAreMissing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, stop := r.work(r.options())
	requireOK(t, r.do("s-1", bash(`head -c 200000 /dev/urandom > large`)))
	stop()
	require.NoError(t, natsio.DeleteObjects(t.Context(), r.JS, wire.BodiesBucket(r.Name), objects(t, r)...))
	r.work(r.options())
	for range 2 {
		result := r.do("s-1", bash(`ls`))
		requireFault(t, result, protocol.StatusFailed, protocol.CodeWorkspaceUnavailable)
		require.Contains(t, result.Error.Message, "missing in the store of bodies")
	}
}
