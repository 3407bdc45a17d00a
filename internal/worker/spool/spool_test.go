package spool_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/toolfleet/toolfleet/internal/worker/spool"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func read(t require.TestingT, s *spool.Spool, streams ...sandbox.Stream) []byte {
	all, err := io.ReadAll(s.Reader(streams...))
	require.NoError(t, err)
	return all
}

// TestSpool_HasAllInItsOrder, each stream alone and both together, however it is written.
func TestSpool_HasAllInItsOrder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		s := spool.New(dir)
		defer s.Close()
		var want [3]bytes.Buffer
		for i := range rapid.IntRange(0, 20).Draw(t, "writes") {
			stream := rapid.SampledFrom([]sandbox.Stream{sandbox.Stdout, sandbox.Stderr}).Draw(t, "stream")
			size := rapid.SampledFrom([]int{0, 1, 100, 70_000, 300_000}).Draw(t, "size")
			data := bytes.Repeat([]byte{byte('a' + i)}, size)
			s.Write(stream, data)
			want[0].Write(data)
			want[stream].Write(data)
		}
		require.NoError(t, s.Err())
		require.True(t, bytes.Equal(want[0].Bytes(), read(t, s, sandbox.Stdout, sandbox.Stderr)))
		require.True(t, bytes.Equal(want[1].Bytes(), read(t, s, sandbox.Stdout)))
		require.True(t, bytes.Equal(want[2].Bytes(), read(t, s, sandbox.Stderr)))
		require.EqualValues(t, want[2].Len(), s.Total(sandbox.Stderr))
		require.Zero(t, s.Missing(sandbox.Stdout, sandbox.Stderr))
	})
}

// TestSpool_KeepsHeadAndTail of what is more than it keeps, within its bound.
func TestSpool_KeepsHeadAndTail(t *testing.T) {
	t.Parallel()
	for _, size := range []int{spool.MaxStored, 2*spool.MaxStored + 12345, 3 * spool.MaxStored} {
		s := spool.New(t.TempDir())
		defer s.Close()
		pad := strings.Repeat("x", 1016)
		for i := 0; i < size; i += 1024 {
			if i%(16<<20) == 0 {
				s.Write(sandbox.Stderr, fmt.Appendf(nil, "at %d\n", i))
			}
			s.Write(sandbox.Stdout, fmt.Appendf(nil, "%07x%s\n", i/1024, pad))
		}
		out := string(read(t, s, sandbox.Stdout))
		head, rest, cut := strings.Cut(out, "\n[... ")
		require.True(t, cut)
		var missing int
		_, err := fmt.Sscanf(rest, "%d bytes left out", &missing)
		require.NoError(t, err)
		_, tail, _ := strings.Cut(rest, "...]\n")
		require.EqualValues(t, s.Missing(sandbox.Stdout), missing)
		require.EqualValues(t, s.Total(sandbox.Stdout), len(head)+missing+len(tail))
		require.LessOrEqual(t, len(head)+len(tail), spool.MaxStored)
		require.Greater(t, len(head), spool.MaxStored/2-1000)
		require.Greater(t, len(tail), spool.MaxStored/2-5<<20)
		require.True(t, strings.HasPrefix(head, "0000000"+pad+"\n0000001"+pad+"\n"))
		require.True(t, strings.HasSuffix(tail, fmt.Sprintf("\n%07x%s\n", (size-1)/1024, pad)))
		require.True(t, strings.HasPrefix(string(read(t, s, sandbox.Stderr)), "at 0\nat 16777216\n"))
	}
}

// TestSpool_LeavesNothing in its directory, also while it is used.
func TestSpool_LeavesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := spool.New(dir)
	for range 64 {
		s.Write(sandbox.Stdout, make([]byte, 1<<20))
	}
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
	require.NoError(t, s.Close())
	require.Error(t, func() error { _, err := io.ReadAll(s.Reader(sandbox.Stdout)); return err }())
}

func TestSpool_SaysThatItCannotKeep(t *testing.T) {
	t.Parallel()
	s := spool.New(t.TempDir() + "/none")
	s.Write(sandbox.Stdout, []byte("little"))
	require.NoError(t, s.Err(), "it needs no file")
	s.Write(sandbox.Stdout, make([]byte, 1<<20))
	require.Error(t, s.Err())
	s.Write(sandbox.Stdout, []byte("more"))
	require.EqualValues(t, 1<<20+10, s.Total(sandbox.Stdout))
	require.NoError(t, s.Close())
}
