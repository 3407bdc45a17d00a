//go:build linux

package ns_test

import (
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/sandbox/ns"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// TestLimits_HoldFromTheFirstInstruction: a command and what it starts at once have hard limits,
// however late this process and the first one of the sandbox get to run: the processors are busy.
func TestLimits_HoldFromTheFirstInstruction(t *testing.T) { //nolint:paralleltest // it needs the processors
	s, err := ns.New(nil).Open(t.Context(), isolation.Spec{
		ID: "limits", Workspace: t.TempDir(), Scratch: t.TempDir(), Env: map[string]string{"PATH": "/usr/bin:/bin"},
		Limits: sandbox.Limits{FileSize: 1 << 20, OpenFiles: 64},
	})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	var busy sync.WaitGroup
	for range 2 * runtime.NumCPU() {
		busy.Go(func() {
			_, _ = s.Exec(t.Context(), sandbox.Cmd{Argv: []string{"sh", "-c", "while [ ! -e done ]; do :; done"}})
		})
	}
	defer busy.Wait()
	defer func() {
		_, err := s.FS().Write(t.Context(), protocol.FilesWrite{Path: "done"})
		require.NoError(t, err)
	}()
	const script = `one() { ulimit -Hf; ulimit -Hn; }; (one)& (one)& (one & wait)& one; wait`
	for range 8 {
		result, err := s.Exec(t.Context(), sandbox.Cmd{Argv: []string{"sh", "-c", script}})
		require.NoError(t, err)
		require.Equal(t, strings.Repeat("2048\n64\n", 4), sorted(string(result.Stdout.Data)))
	}
}

// sorted puts the pairs of lines, which came in any order, in order.
func sorted(text string) string {
	sizes, files := strings.Count(text, "2048\n"), strings.Count(text, "64\n")
	if sizes == files && len(text) == sizes*len("2048\n64\n") {
		return strings.Repeat("2048\n64\n", sizes)
	}
	return text
}
