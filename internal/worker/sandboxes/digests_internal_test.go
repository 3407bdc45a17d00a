package sandboxes

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

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
