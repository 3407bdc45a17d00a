package worker_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func TestWorkspaceFork_IsMergedBack(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	first, second := r.options(), r.options()
	_, stop := r.work(first)
	requireOK(t, r.do("s", protocol.CommandRun{Command: `printf '1\n2\n3\n' > both; echo one > gone; echo same > same; echo x > clash; mkdir -p .git/refs; echo a > .git/HEAD`}))
	fork := r.do("s", wire.WorkspaceFork{To: "f"})
	requireOK(t, fork)
	require.Equal(t, 5, value[wire.WorkspaceForkResult](t, fork).Files)
	requireOK(t, r.do("s", wire.WorkspaceFork{To: "f"})) // once more does nothing
	requireOK(t, r.do("s", protocol.CommandRun{Command: `printf 'one\n2\n3\n' > both; echo parent > clash`}))
	r.requireContent("f", "both", "1\n2\n3\n")
	requireOK(t, r.do("f", protocol.CommandRun{Command: `printf '1\n2\nthree\n' > both; rm gone; echo new > new; echo fork > clash; echo b > .git/HEAD`}))
	stop()

	r.work(second) // another disk
	got := r.do("s", wire.WorkspaceMerge{From: "f"})
	requireOK(t, got)
	merge := value[wire.WorkspaceMergeResult](t, got)
	require.Positive(t, merge.Checkpoint)
	require.Equal(t, wire.WorkspaceMergeResult{
		Written: []string{"both", "new"}, Removed: []string{"gone"}, Merged: []string{"both"}, Conflicts: []string{"clash"},
		Theirs: []string{"clash.toolfleet-theirs"}, Commits: true, Checkpoint: merge.Checkpoint,
	}, merge)
	r.requireContent("s", "both", "one\n2\nthree\n")
	r.requireContent("s", "clash", "parent\n")
	r.requireContent("s", "clash.toolfleet-theirs", "fork\n")
	r.requireContent("s", ".git/HEAD", "a\n")

	requireOK(t, r.do("f", protocol.FilesWrite{Path: "new", Content: []byte("newer")}))
	got = r.do("s", wire.WorkspaceMerge{From: "f", After: merge.Checkpoint})
	requireOK(t, got)
	require.Equal(t, []string{"new"}, value[wire.WorkspaceMergeResult](t, got).Written, "only what is new since")
	require.Empty(t, value[wire.WorkspaceMergeResult](t, got).Conflicts)

	requireFault(t, r.do("s", wire.WorkspaceMerge{From: "none"}), protocol.StatusFailed, protocol.CodeNotFound)
	requireFault(t, r.do("f", wire.WorkspaceMerge{From: "s"}), protocol.StatusRejected, protocol.CodeInvalidArguments)
	requireFault(t, r.do("s", wire.WorkspaceMerge{From: "a/b"}), protocol.StatusRejected, codes.InvalidPayload)
	requireFault(t, r.do("s", wire.WorkspaceFork{}), protocol.StatusRejected, codes.InvalidPayload)
}

// A directory in place is forked into a workspace of its own.
func TestWorkspaceFork_OfADirectoryInPlace(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o, dir := r.options(), t.TempDir()
	o.Workspace = func(sandbox string) (string, bool) { return dir, sandbox == "s" }
	r.work(o)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a"), []byte("one"), 0o600))
	requireOK(t, r.do("s", wire.WorkspaceFork{To: "f"}))
	requireOK(t, r.do("s", wire.WorkspaceFork{To: "g"}))
	requireOK(t, r.do("f", protocol.CommandRun{Command: `echo two > a; echo b > b`}))
	r.requireContent("s", "a", "one")
	got := r.do("s", wire.WorkspaceMerge{From: "f"})
	requireOK(t, got)
	require.Equal(t, []string{"a", "b"}, value[wire.WorkspaceMergeResult](t, got).Written)
	r.requireContent("s", "a", "two\n")
	r.requireContent("g", "a", "one")
}
