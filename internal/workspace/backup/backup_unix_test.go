//go:build unix

package backup

import (
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire/codes"
)

// project is a directory and where its states are stored.
type project struct {
	t           *testing.T
	dir, folder string
}

func newProject(t *testing.T) *project {
	t.Helper()
	return &project{t, t.TempDir(), Folder(t.TempDir(), "s")}
}

func (p *project) at(name string) string { return filepath.Join(p.dir, name) }

func (p *project) write(name, content string) {
	p.t.Helper()
	require.NoError(p.t, os.WriteFile(p.at(name), []byte(content), 0o600))
}

func (p *project) requireFiles(want map[string]string) {
	p.t.Helper()
	for name, content := range want {
		found, err := os.ReadFile(p.at(name))
		require.NoError(p.t, err)
		require.Equal(p.t, content, string(found), name)
	}
}

// The changes since a state are shown, and undone.
func TestStates_DifferAndAreRestored(t *testing.T) {
	t.Parallel()
	p := newProject(t)
	p.write("changed", "old\n")
	p.write("gone", "was here\n")
	p.write("binary", "a\xff")
	p.write("mode", "same\n")
	require.NoError(t, os.Mkdir(p.at(".git"), 0o700))
	p.write(".git/index", "before")
	require.NoError(t, os.Symlink("changed", p.at("link")))
	s := Open(p.dir, p.folder)
	begin := s.Save(t.Context(), 1, Before)
	text, err := s.Diff(t.Context(), begin)
	require.NoError(t, err)
	require.Empty(t, text)

	p.write("changed", "new\n")
	p.write("binary", "b\xff")
	p.write("made", "now\n")
	p.write(".git/index", "after")
	require.NoError(t, os.Remove(p.at("gone")))
	require.NoError(t, os.Chmod(p.at("mode"), 0o700))
	require.NoError(t, os.Remove(p.at("link")))
	require.NoError(t, os.Symlink("made", p.at("link")))
	text, err = s.Diff(t.Context(), begin)
	require.NoError(t, err)
	require.Equal(t, `Binary or large file binary differs
--- a/changed
+++ b/changed
@@ -1 +1 @@
-old
+new
--- a/gone
+++ /dev/null
@@ -1 +0,0 @@
-was here
--- a/link
+++ b/link
@@ -1 +1 @@
-changed
\ No newline at end of file
+made
\ No newline at end of file
--- /dev/null
+++ b/made
@@ -0,0 +1 @@
+now
Mode of mode differs
`, text)

	changes, err := s.Restore(t.Context(), begin, nil, nil)
	require.NoError(t, err)
	require.Equal(t, []string{"made"}, changes.Removed)
	require.ElementsMatch(t, []string{"binary", "changed", "gone", "link", "mode"}, changes.Written)
	p.requireFiles(map[string]string{"changed": "old\n", "gone": "was here\n", "binary": "a\xff", ".git/index": "after"})

	none := Refused("not possible without --workspace")
	_, err = none.Restore(t.Context(), none.Save(t.Context(), 1, Before), nil, nil)
	require.ErrorContains(t, err, "not possible without --workspace")
	_, err = none.Diff(t.Context(), none.Save(t.Context(), 1, Before))
	require.ErrorContains(t, err, "not possible without --workspace")
}

// TestStates_WhatADifferenceHasSeen is in the next state, also if nothing changes after that.
func TestStates_WhatADifferenceHasSeen(t *testing.T) {
	t.Parallel()
	p := newProject(t)
	p.write("a", "old\n")
	s := Open(p.dir, p.folder)
	begin := s.Save(t.Context(), 1, Before)
	p.write("a", "by hand\n")
	text, err := s.Diff(t.Context(), begin)
	require.NoError(t, err)
	require.Contains(t, text, "+by hand")
	next := s.Save(t.Context(), 2, Before)
	p.write("a", "by the session\n")
	_, err = s.Restore(t.Context(), next, nil, nil)
	require.NoError(t, err)
	p.requireFiles(map[string]string{"a": "by hand\n"})
}

// Another process finds the states of the ends of turns. What was changed after the last one stays
// when an earlier one is restored.
func TestStates_OutliveTheirProcess(t *testing.T) {
	t.Parallel()
	p := newProject(t)
	p.write("a", "0\n")
	first := Open(p.dir, p.folder)
	for turn := 1; turn <= 3; turn++ {
		first.Save(t.Context(), turn, Before)
		p.write("a", fmt.Sprintln(turn))
		p.write(fmt.Sprint("made", turn), "x\n")
		if turn != 3 { // it is killed in the last turn
			first.Save(t.Context(), turn, End)
		}
	}
	s := Open(p.dir, p.folder)
	require.Equal(t, []int{0, 1, 2}, s.Turns())
	_, err := s.At(3)
	require.ErrorIs(t, err, codes.ErrNotFound)
	require.ErrorContains(t, err, "the end of turn 3 is not stored: stored is the end of turns 0 to 2")
	_, ok := s.Left(3)
	require.False(t, ok)
	end := s.Save(t.Context(), 3, End)

	p.write("mine", "kept\n")
	p.write("made3", "mine\n")
	one, err := s.At(1)
	require.NoError(t, err)
	changes, err := s.Restore(t.Context(), one, &end, nil)
	require.NoError(t, err)
	require.Equal(t, []string{"made3"}, changes.Conflicts)
	p.requireFiles(map[string]string{"a": "1\n", "mine": "kept\n", "made3": "mine\n"})
	require.NoFileExists(t, p.at("made2"))
	require.NoError(t, s.NoteRestored(3, one))

	s = Open(p.dir, p.folder)
	left, ok := s.Left(3)
	require.True(t, ok)
	three, err := s.At(3)
	require.NoError(t, err)
	_, err = s.Restore(t.Context(), three, &left, nil)
	require.NoError(t, err)
	p.requireFiles(map[string]string{"a": "3\n", "made2": "x\n", "mine": "kept\n"})

	require.Empty(t, Open(t.TempDir(), p.folder).Turns(), "they are of one directory")
	require.NoError(t, os.WriteFile(filepath.Join(p.folder, "states.json"), []byte("{"), 0o600))
	_, err = Open(p.dir, p.folder).Last()
	require.ErrorContains(t, err, "cannot be read")
}

// What is stored is bounded by number, size and age, the oldest goes first, and contents that no
// state needs go with it.
func TestStates_AreBounded(t *testing.T) {
	t.Parallel()
	p := newProject(t)
	s := Open(p.dir, p.folder)
	s.bounds = bounds{bytes: 100_000, states: 4}
	stored := func() (total int64) {
		_, total, err := s.sizes()
		require.NoError(t, err)
		return total
	}
	large := make([]byte, 40_000)
	for turn := 1; turn <= 5; turn++ {
		_, _ = rand.Read(large)
		p.write("large", string(large))
		s.Save(t.Context(), turn, End)
	}
	require.Equal(t, []int{4, 5}, s.Turns())
	require.LessOrEqual(t, stored(), int64(100_000))
	for turn := 6; turn <= 12; turn++ {
		s.Save(t.Context(), turn, End)
	}
	require.Equal(t, []int{9, 10, 11, 12}, s.Turns())
	require.Less(t, stored(), int64(60_000))
	for i := range s.list[:3] {
		s.list[i].Time = time.Now().Add(-maxAge - time.Minute)
	}
	s.Save(t.Context(), 13, End)
	require.Equal(t, []int{12, 13}, s.Turns())

	enormous := make([]byte, 200_000)
	_, _ = rand.Read(enormous)
	p.write("large", string(enormous))
	s.Save(t.Context(), 14, End)
	require.Equal(t, []int{14}, s.Turns(), "the latest one stays, however large it is")
	_, _, err := s.Files(t.Context(), s.list[0])
	require.NoError(t, err)

	sessions := filepath.Dir(filepath.Dir(filepath.Dir(p.folder)))
	Sweep(sessions)
	require.DirExists(t, p.folder)
	old := time.Now().Add(-maxAge - time.Minute)
	require.NoError(t, os.Chtimes(filepath.Join(p.folder, "states.json"), old, old))
	Sweep(sessions)
	require.NoDirExists(t, p.folder)
	state := s.Save(t.Context(), 15, End) // of a process that goes on
	_, _, err = s.Files(t.Context(), state)
	require.NoError(t, err)
	require.Equal(t, []int{15}, s.Turns())
}

func TestTurnsText(t *testing.T) {
	t.Parallel()
	for want, turns := range map[string][]int{
		"": {}, "turn 3": {3}, "turns 0 to 2": {0, 1, 2}, "turns 1 and 3": {1, 3}, "turns 1 to 2, 4 and 6 to 7": {1, 2, 4, 6, 7},
	} {
		require.Equal(t, want, TurnsText(turns))
	}
}

// A process that continues a turn does not take what the lost one had changed for the state before
// it.
func TestStates_OfATurnThatAnotherProcessContinues(t *testing.T) {
	t.Parallel()
	p := newProject(t)
	p.write("a", "old\n")
	Open(p.dir, p.folder).Save(t.Context(), 1, Before)
	p.write("a", "half\n")
	s := Open(p.dir, p.folder)
	before := s.Resume(t.Context(), 1)
	p.write("a", "new\n")
	s.Save(t.Context(), 1, End)
	begin, err := s.At(0)
	require.NoError(t, err)
	for _, state := range []State{before, begin} {
		p.write("a", "new\n")
		_, err := s.Restore(t.Context(), state, nil, nil)
		require.NoError(t, err)
		p.requireFiles(map[string]string{"a": "old\n"})
	}

	resumed := s.Resume(t.Context(), 3) // nothing is stored before it
	p.write("a", "later\n")
	_, err = s.Restore(t.Context(), resumed, nil, nil)
	require.NoError(t, err)
	p.requireFiles(map[string]string{"a": "old\n"})
	_, err = s.At(2)
	require.ErrorIs(t, err, codes.ErrNotFound)
}
