package sandboxes

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gofrs/flock"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/process"
	"github.com/toolfleet/toolfleet/internal/telemetry"
	"github.com/toolfleet/toolfleet/internal/workspace"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/test/processtest"
)

var unmeasured = telemetry.NewWorkerMetrics(telemetry.Meter(), "default", "process", "none")

func TestReplaceWorkspace_LeavesTheWorkspaceOfALaneThatIsLost(t *testing.T) {
	t.Parallel()
	workspace, other := t.TempDir(), t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(other, "a"), nil, 0o600))
	o := Options{Data: t.TempDir(), Metrics: unmeasured, Settings: Settings{Driver: process.New(nil), Workspace: func(string) (string, bool) { return workspace, true }}}
	s, err := New(o)
	require.NoError(t, err)
	ctx, lose := context.WithCancel(t.Context())
	b, _, err := s.Open(ctx, "sandbox/one", "", 1, time.Now)
	require.NoError(t, err)
	t.Cleanup(s.CloseAll)
	lose()
	require.ErrorIs(t, b.ReplaceWorkspace(ctx, other), context.Canceled)
	require.FileExists(t, filepath.Join(other, "a"))
	_, _, err = s.Open(ctx, "sandbox/one", "", 1, time.Now)
	require.ErrorIs(t, err, context.Canceled, "nor is a sandbox opened")
	require.NoError(t, b.ReplaceWorkspace(t.Context(), other))
	require.FileExists(t, filepath.Join(workspace, "a"))
}

// full is a context until something of a directory is gone.
type full struct {
	context.Context //nolint:containedctx // it is one

	dir  string
	want int
}

func (c full) Err() error {
	if entries, err := os.ReadDir(c.dir); err != nil || len(entries) < c.want {
		return context.Canceled
	}
	return nil
}

func TestRemove_LeavesTheWorkspaceOfALaneThatIsLostMeanwhile(t *testing.T) {
	t.Parallel()
	o := Options{Data: t.TempDir(), Metrics: unmeasured, Settings: Settings{Driver: process.New(nil), Workspace: func(string) (string, bool) { return "", false }}}
	s, err := New(o)
	require.NoError(t, err)
	b, _, err := s.Open(t.Context(), "sandbox/one", "", 1, time.Now)
	require.NoError(t, err)
	workspace := b.Workspace()
	const files = 10
	for i := range files {
		require.NoError(t, os.WriteFile(filepath.Join(workspace, strconv.Itoa(i)), nil, 0o600))
	}
	require.ErrorIs(t, s.Remove(full{t.Context(), workspace, files}, "sandbox/one", 1), context.Canceled)
	left, err := os.ReadDir(workspace)
	require.NoError(t, err)
	require.Len(t, left, files-1)
	require.NoError(t, s.Remove(t.Context(), "sandbox/one", 1))
	require.NoDirExists(t, workspace)
}

// What a killed worker left is removed: temporary directories, and copies of workspaces that the
// fleet stores. What the lane of a directory in place has here is stored nowhere else.
func TestEvict_WhatAKilledWorkerLeft(t *testing.T) {
	t.Parallel()
	o := Options{
		Data: t.TempDir(), Metrics: unmeasured, Workspaces: &workspace.Store{}, Logger: slog.New(slog.DiscardHandler),
		Settings: Settings{Driver: process.New(nil), CacheBytes: 1 << 20, Workspace: func(string) (string, bool) { return "", false }},
	}
	s, err := New(o)
	require.NoError(t, err)
	t.Cleanup(s.CloseAll)
	_, _, err = s.Open(t.Context(), "account/acme", "", 1, time.Now)
	require.NoError(t, err)
	all := filepath.Join(o.Data, "sandboxes")
	open, err := os.ReadDir(all)
	require.NoError(t, err)
	require.Len(t, open, 1)
	mkdir := func(name string, age time.Duration) {
		require.NoError(t, os.MkdirAll(filepath.Join(all, name), 0o700))
		home := filepath.Join(all, strings.Split(name, "/")[0])
		require.NoError(t, os.Chtimes(home, time.Time{}, time.Now().Add(-age)))
	}
	mkdir(temporaryOf("account/other")+"123/workspace", 0)
	mkdir("killed/workspace", 2*abandonedAge)
	mkdir("young/workspace", 0)
	mkdir("in-place/scratch", 2*abandonedAge)
	mkdir("opened/workspace", 0)
	require.NoError(t, os.WriteFile(filepath.Join(all, "opened", "index.json"), []byte(`{"bytes":8388608}`), 0o600))
	lock := flock.New(filepath.Join(o.Data, "lock"))
	t.Cleanup(func() { require.NoError(t, lock.Close()) })
	require.NoError(t, s.Evict(t.Context(), lock))
	left, err := os.ReadDir(all)
	require.NoError(t, err)
	names := []string{}
	for _, entry := range left {
		names = append(names, entry.Name())
	}
	require.ElementsMatch(t, []string{open[0].Name(), "young", "in-place"}, names)
}

// What a worker left that was killed while it filled a workspace is removed by the next import.
func TestStaging_RemovesWhatAKilledWorkerLeft(t *testing.T) {
	t.Parallel()
	o := Options{Data: t.TempDir(), Metrics: unmeasured, Settings: Settings{Driver: process.New(nil), Workspace: func(string) (string, bool) { return "", false }}}
	s, err := New(o)
	require.NoError(t, err)
	t.Cleanup(s.CloseAll)
	b, _, err := s.Open(t.Context(), "sandbox/one", "", 1, time.Now)
	require.NoError(t, err)
	left, err := b.Staging()
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(left, "f"), nil, 0o600))
	mine := filepath.Join(filepath.Dir(left), "import-mine")
	require.NoError(t, os.Mkdir(mine, 0o700))
	next, err := b.Staging()
	require.NoError(t, err)
	require.DirExists(t, next)
	require.NoDirExists(t, left)
	require.DirExists(t, mine)
}

// Law: a call waits for no call of another lane: also not while the repositories of a directory
// that the other one uses in place are looked at.
func TestOpen_ASlowRepositoryHoldsUpNoOtherLane(t *testing.T) {
	git, err := exec.LookPath("git")
	if err != nil {
		t.Skip("needs git")
	}
	bin, slow, other := t.TempDir(), t.TempDir(), t.TempDir()
	begun, ends := filepath.Join(bin, "begun"), filepath.Join(bin, "ends")
	script := fmt.Sprintf("#!/bin/sh\nif mkdir '%s' 2>/dev/null; then while [ ! -e '%s' ]; do sleep 0.05; done; fi\nexec '%s' \"$@\"\n", begun, ends, git)
	processtest.WriteProgram(t, filepath.Join(bin, "git"), []byte(script))
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	for _, dir := range []string{slow, other} {
		out, err := exec.CommandContext(t.Context(), git, "init", "-q", dir).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	o := Options{Data: t.TempDir(), Metrics: unmeasured, Settings: Settings{Driver: process.New(nil), Workspace: func(id string) (string, bool) {
		return map[string]string{"slow": slow, "same": slow, "other": other}[id], id != "own"
	}}}
	s, err := New(o)
	require.NoError(t, err)
	t.Cleanup(s.CloseAll)
	opened := make(chan error, 2)
	open := func(id protocol.Lane) {
		_, _, err := s.Open(t.Context(), "sandbox/"+id, "", 1, time.Now)
		opened <- err
	}
	go open("slow")
	require.Eventually(t, func() bool { _, err := os.Stat(begun); return err == nil }, time.Minute, time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, _, err = s.Open(ctx, "sandbox/same", "", 1, time.Now)
	require.ErrorContains(t, err, context.DeadlineExceeded.Error(), "a lane of the same directory waits until its call ends")
	for _, id := range []protocol.Lane{"own", "other"} {
		_, _, err := s.Open(t.Context(), "sandbox/"+id, "", 1, time.Now)
		require.NoError(t, err)
	}
	require.Empty(t, opened, "its repository is still looked at")
	go open("same")
	require.NoError(t, os.WriteFile(ends, nil, 0o600))
	require.NoError(t, <-opened)
	require.NoError(t, <-opened)
}

// What is remembered of the same files again and again takes no more room, and is what came last.
func TestDigests_FileStaysSmall(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "seen.jsonl")
	remembered := NewDigests(path)
	const files, rounds = 3, 2000
	for round := range rounds {
		for file := range files {
			remembered.Note(protocol.GuardRead, "s1", strconv.Itoa(file), fmt.Sprintf("%d of %d", round, file))
		}
	}
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	require.LessOrEqual(t, bytes.Count(content, []byte("\n")), 2*files+spareLines)
	found := NewDigests(path) // as another worker finds it
	for file := range files {
		want := fmt.Sprintf("%d of %d", rounds-1, file)
		require.Equal(t, want, remembered.Expect(protocol.GuardRead, "s1", strconv.Itoa(file), ""))
		require.Equal(t, want, found.Expect(protocol.GuardRead, "s1", strconv.Itoa(file), ""))
	}
	require.Empty(t, found.Expect(protocol.GuardRead, "s2", "0", ""))
}

// A file that was cut short when its worker was killed is read as far as it goes, and goes on
// behind that.
func TestDigests_CutLine(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "seen.jsonl")
	NewDigests(path).Note(protocol.GuardRead, "s1", "a", "1")
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, append(content, content[:len(content)/2]...), 0o600))
	for _, file := range []string{"b", "c"} {
		NewDigests(path).Note(protocol.GuardRead, "s1", file, "2")
	}
	found := NewDigests(path)
	for file, want := range map[string]string{"a": "1", "b": "2", "c": "2"} {
		require.Equal(t, want, found.Expect(protocol.GuardRead, "s1", file, ""), file)
	}
}

// A command without isolation can put anything in the place of the file.
func TestDigests_WhatIsNoFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "seen.jsonl")
	require.NoError(t, os.Symlink("/dev/zero", path))
	require.Empty(t, NewDigests(path).Expect(protocol.GuardRead, "s1", "a", ""))
	NewDigests(path).Note(protocol.GuardRead, "s1", "a", "1")
	require.Equal(t, "1", NewDigests(path).Expect(protocol.GuardRead, "s1", "a", ""))
}

// Root may enter everything, so this shows something when an ordinary user runs it.
func TestRemoveUnmounted_DirectoriesThatNobodyMayEnter(t *testing.T) {
	t.Parallel()
	home, outside := filepath.Join(t.TempDir(), "home"), t.TempDir()
	inner := filepath.Join(home, "a", "b")
	require.NoError(t, os.MkdirAll(inner, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(inner, "file"), nil, 0o400))
	require.NoError(t, os.Symlink(outside, filepath.Join(home, "link")))
	require.NoError(t, os.Chmod(inner, 0))
	require.NoError(t, os.Chmod(filepath.Dir(inner), 0))
	require.NoError(t, RemoveUnmounted(home))
	require.NoDirExists(t, home)
	require.DirExists(t, outside)
}

// Idle sandboxes are bounded by memory and by files, of which other things of the process need
// some.
func TestWarmest_HasMemoryAndFiles(t *testing.T) {
	t.Parallel()
	require.Equal(t, 100, warmCapacity(100*WarmSandbox, 1<<20))
	require.Equal(t, 170, warmCapacity(1000*WarmSandbox, 1024))
	require.Zero(t, warmCapacity(-1, 1024))
}
