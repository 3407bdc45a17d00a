package kinds

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/sandbox/process"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/internal/worker/sandboxes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// opened is a sandbox with a workspace on the host.
func opened(tb testing.TB) (sandbox.Sandbox, string) {
	tb.Helper()
	dir := tb.TempDir()
	s, err := process.New(nil).Open(tb.Context(), isolation.Spec{
		ID: "s", Workspace: dir, Scratch: tb.TempDir(), Env: map[string]string{"PATH": os.Getenv("PATH")},
	})
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, s.Close()) })
	return s, dir
}

// runFiles runs a payload about files as the worker does.
func runFiles(t *testing.T, s sandbox.Sandbox, ops fileOps, payload protocol.Payload) error {
	t.Helper()
	call := &protocol.Call{SessionID: ops.session, Resources: []protocol.Use{{Key: "sandbox/files", Access: protocol.Exclusive}}, Payload: payload}
	a := &Attempt{Run: &lane.Run{Call: call}, env: &Env{}, laneSandbox: &sandboxes.LaneSandbox{Digests: ops.digests}, sandbox: s}
	_, err := table(Handlers{})[wire.KindOf(payload)].run(t.Context(), a, payload)
	return err
}

// Every payload about files is an operation of every sandbox.
func TestFiles_HaveEveryPayload(t *testing.T) {
	t.Parallel()
	s, _ := opened(t)
	samples, err := filepath.Glob("../../wire/testdata/v1/payload/files_*.json")
	require.NoError(t, err)
	require.NotEmpty(t, samples)
	for _, sample := range samples {
		body, err := os.ReadFile(sample)
		require.NoError(t, err)
		payload, err := wire.DecodePayload(body)
		require.NoError(t, err, sample)
		if _, err = s.FS().Do(t.Context(), payload); err != nil {
			var fault *protocol.Error
			require.ErrorAs(t, err, &fault, sample)
		}
	}
	_, err = s.FS().Do(t.Context(), protocol.CommandRun{})
	require.ErrorContains(t, err, `unknown file operation "protocol.CommandRun"`)
}

func TestGuards(t *testing.T) {
	t.Parallel()
	s, dir := opened(t)
	home := t.TempDir()
	ops := fileOps{session: "s1", digests: sandboxes.NewDigests(filepath.Join(home, "seen.jsonl"))}
	do := func(payload protocol.Payload) protocol.Code {
		err := runFiles(t, s, ops, payload)
		if err == nil {
			return ""
		}
		var fault *protocol.Error
		require.ErrorAs(t, err, &fault)
		return fault.Code
	}
	outside := func(name, content string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	outside("a", "one two")
	write := func(guard protocol.Guard, path string) protocol.Payload {
		return protocol.FilesWrite{Path: path, Content: protocol.Bytes("x"), Guard: guard}
	}
	edit := func(guard protocol.Guard, before, after string) protocol.Payload {
		return protocol.FilesEdit{Path: "a", Old: before, New: after, Guard: guard}
	}
	require.Equal(t, codes.FileNotRead, do(write(protocol.GuardRead, "a")))
	require.Equal(t, codes.FileNotRead, do(edit(protocol.GuardRead, "one", "1")))
	require.Empty(t, do(write(protocol.GuardRead, "new")), "a new file needs not be read")
	require.Empty(t, do(write(protocol.GuardRead, "new")), "nor what the session wrote itself")
	require.Empty(t, do(protocol.FilesRead{Path: "a", Limit: 1, Guard: protocol.GuardRead}))
	require.Empty(t, do(edit(protocol.GuardRead, "one", "1")), "it has been read")
	require.Empty(t, do(edit(protocol.GuardRead, "two", "2")), "edits of one step all hold")
	outside("a", "1 2 3")
	require.Equal(t, codes.FileChanged, do(edit(protocol.GuardChanged, "3", "4")))
	require.Equal(t, codes.FileChanged, do(edit(protocol.GuardRead, "3", "4")))
	require.Empty(t, do(edit("", "3", "4")), "without a guard nothing is checked")
	require.Equal(t, codes.FileChanged, do(protocol.FilesWrite{Path: "a", ExpectSHA256: strings.Repeat("0", 64)}))

	ops.digests = sandboxes.NewDigests(filepath.Join(home, "seen.jsonl")) // as another worker finds it
	require.Empty(t, do(write(protocol.GuardRead, "new")))
	require.Equal(t, codes.FileChanged, do(write(protocol.GuardRead, "a")))
	ops.session = "s2"
	require.Equal(t, codes.FileNotRead, do(protocol.FilesWrite{Path: "new", Content: protocol.Bytes("y"), Guard: protocol.GuardRead}),
		"another session has not read it")
	require.Empty(t, do(write(protocol.GuardChanged, "new")))

	outside("a.json", `{"a":1}`)
	change := protocol.FilesJSONWrite{Path: "a.json", Query: "/a", Content: []byte("2"), Guard: protocol.GuardRead}
	require.Equal(t, codes.FileNotRead, do(change))
	require.Empty(t, do(protocol.FilesJSONRead{Path: "a.json", Guard: protocol.GuardRead}))
	require.Empty(t, do(change))
	require.Empty(t, do(change))
}

// A worker may be lost after a write and before it remembers that: the next attempt writes the
// same.
func TestGuards_AWriteCanBeDoneAgain(t *testing.T) {
	t.Parallel()
	s, dir := opened(t)
	for _, guard := range []protocol.Guard{protocol.GuardChanged, protocol.GuardRead} {
		ops := fileOps{session: "s1", digests: sandboxes.NewDigests(filepath.Join(t.TempDir(), "seen.jsonl"))}
		path := filepath.Join(dir, "a-"+string(guard))
		write := func(content string) error {
			err := runFiles(t, s, ops, protocol.FilesWrite{Path: filepath.Base(path), Content: protocol.Bytes(content), Guard: guard})
			return err
		}
		require.NoError(t, os.WriteFile(path, []byte("new"), 0o600))
		require.NoError(t, write("new"), "made by an attempt that nobody remembers")
		require.NoError(t, write("newer"))
		require.NoError(t, os.WriteFile(path, []byte("newest"), 0o600))
		require.NoError(t, write("newest"), "changed by one")
		require.NoError(t, os.WriteFile(path, []byte("other"), 0o600))
		require.ErrorContains(t, write("newest"), "is not as it was read")
		content, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, "other", string(content))
	}
}

// A session that was told that a file is gone may make it again; one that was not may not.
func TestGuards_FilesThatAreGoneCanBeMadeAgain(t *testing.T) {
	t.Parallel()
	s, dir := opened(t)
	home := t.TempDir()
	for _, guard := range []protocol.Guard{protocol.GuardChanged, protocol.GuardRead} {
		for name, read := range map[string]protocol.Payload{
			"text": protocol.FilesRead{Path: "a", Guard: guard}, "json": protocol.FilesJSONRead{Path: "a", Guard: guard},
		} {
			ops := fileOps{session: protocol.SessionID(name + string(guard)), digests: sandboxes.NewDigests(filepath.Join(home, "seen.jsonl"))}
			require.NoError(t, os.WriteFile(filepath.Join(dir, "a"), []byte("1"), 0o600))
			err := runFiles(t, s, ops, read)
			require.NoError(t, err)
			require.NoError(t, os.Remove(filepath.Join(dir, "a")))
			write := protocol.FilesWrite{Path: "a", Content: protocol.Bytes("2"), Guard: guard}
			err = runFiles(t, s, ops, write)
			require.ErrorContains(t, err, "no longer exists")
			err = runFiles(t, s, ops, read)
			require.ErrorContains(t, err, "does not exist")
			ops.digests = sandboxes.NewDigests(filepath.Join(home, "seen.jsonl")) // as another worker finds it
			err = runFiles(t, s, ops, write)
			require.NoError(t, err)
		}
	}
}

// The file with the merged forks is bounded, and is replaced whole: a process that is killed while
// it writes leaves the one or the other.
func TestMerged_IsBoundedAndWhole(t *testing.T) {
	t.Parallel()
	path, merged := filepath.Join(t.TempDir(), "merged.json"), map[string]uint64{}
	for i := range maxMerged + 10 {
		noteMerged(merged, fmt.Sprint("fork-", i), uint64(i+100))
	}
	noteMerged(merged, "late", 1) // a fork whose last checkpoint is an old one
	require.Len(t, merged, maxMerged)
	require.NotContains(t, merged, "fork-10")
	require.Contains(t, merged, "fork-11")
	require.Contains(t, merged, "late")
	require.NoError(t, writeMerged(path, merged))
	before, err := os.Open(path)
	require.NoError(t, err)
	defer func() { require.NoError(t, before.Close()) }()
	require.NoError(t, writeMerged(path, map[string]uint64{"f": 7}))
	old, err := io.ReadAll(before)
	require.NoError(t, err)
	require.Contains(t, string(old), `"late":1`)
	read, err := readMerged(path)
	require.NoError(t, err)
	require.Equal(t, map[string]uint64{"f": 7}, read)
	require.NoError(t, os.WriteFile(path, []byte("null"), 0o600))
	read, err = readMerged(path)
	require.NoError(t, err)
	noteMerged(read, "f", 8)
	require.Equal(t, map[string]uint64{"f": 8}, read)
}

// Every payload of the protocol is in the table, but the one that stands for large ones.
func TestKinds_HaveEveryPayload(t *testing.T) {
	t.Parallel()
	samples, err := filepath.Glob("../../wire/testdata/v1/payload/*.json")
	require.NoError(t, err)
	require.NotEmpty(t, samples)
	all := table(Handlers{})
	for _, sample := range samples {
		body, err := os.ReadFile(sample)
		require.NoError(t, err)
		payload, err := wire.DecodePayload(body)
		require.NoError(t, err, sample)
		_, isUnknown := payload.(protocol.UnknownPayload)
		if wire.KindOf(payload) != wire.KindStored && !isUnknown {
			require.Contains(t, all, wire.KindOf(payload), strings.TrimSuffix(filepath.Base(sample), ".json"))
		}
	}
}
