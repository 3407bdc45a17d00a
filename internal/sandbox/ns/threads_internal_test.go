//go:build linux

package ns

import (
	"fmt"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// TestThreads_AreAllThereBeforeTheFirstCommand: whatever is done at once, the first process needs
// no thread more than it has in stock. It could not get one when commands have used up the
// processes of the sandbox, and commands could reach one that comes later.
func TestThreads_AreAllThereBeforeTheFirstCommand(t *testing.T) {
	t.Parallel()
	s := openLost(t)
	run := func(cmd sandbox.Cmd) {
		result, err := s.Exec(t.Context(), cmd)
		require.NoError(t, err)
		require.Equal(t, sandbox.ReasonExited, result.Reason)
	}
	run(sandbox.Cmd{Argv: []string{"sh", "-c", `mkdir d && for i in $(seq 200); do echo "line $i" >"d/$i"; done`}})
	stock := tasksOf(t, s)
	work := []func(name string){
		func(string) { run(sandbox.Cmd{Argv: []string{"true"}, Limits: sandbox.Limits{Memory: 1 << 30}}) },
		func(string) {
			run(sandbox.Cmd{Argv: []string{"sleep", "0.03"}, Dir: "d", Limits: sandbox.Limits{Disk: 1 << 30}})
		},
		func(string) { run(sandbox.Cmd{Argv: []string{"sh", "-c", "true & true"}, ReadOnly: true}) },
		func(string) {
			_, err := s.FS().Search(t.Context(), protocol.FilesSearch{Path: ".", Pattern: "line 1.*7"}, 0)
			require.NoError(t, err)
		},
		func(name string) {
			_, err := s.FS().Write(t.Context(), protocol.FilesWrite{Path: name, Content: make([]byte, 1<<20)})
			require.NoError(t, err)
		},
	}
	var all sync.WaitGroup
	for n := range 8 * len(work) {
		all.Go(func() {
			for range 3 {
				work[n%len(work)](filepath.Join("made", strconv.Itoa(n)))
			}
		})
	}
	all.Wait()
	require.Equal(t, stock, tasksOf(t, s))
}

// tasksOf are the threads of a sandbox's first process.
func tasksOf(t *testing.T, s *Sandbox) []string {
	t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", s.current.process.Pid))
	require.NoError(t, err)
	require.NotEmpty(t, tasks)
	return tasks
}
