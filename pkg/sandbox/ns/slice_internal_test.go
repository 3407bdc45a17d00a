//go:build linux

package ns

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// TestPriority_OnlyTheFirstProcessHasShortSlices: it comes first when it wants the processor, and
// commands do not.
func TestPriority_OnlyTheFirstProcessHasShortSlices(t *testing.T) {
	t.Parallel()
	own, err := unix.SchedGetAttr(0, 0)
	require.NoError(t, err)
	if own.Policy != unix.SCHED_NORMAL || own.Runtime == 0 {
		t.Skip("UNSUPPORTED: the kernel has no slices of one's own (before Linux 6.12), or not for this process")
	}
	s := openLost(t)
	ctx, cancel := context.WithCancel(t.Context())
	up, done := make(chan struct{}, 1), make(chan struct{})
	go func() {
		defer close(done)
		_, _ = s.Exec(ctx, sandbox.Cmd{
			Argv: []string{"sh", "-c", "echo up; exec sleep 1000"}, Live: func(sandbox.Stream, []byte) { up <- struct{}{} },
		})
	}()
	<-up
	var commands int
	for _, task := range tasksOf(t, s) {
		text, err := os.ReadFile(filepath.Join(task, "children"))
		require.NoError(t, err)
		for pid := range strings.FieldsSeq(string(text)) {
			require.Equal(t, own.Runtime, sliceOf(t, pid))
			commands++
		}
	}
	require.Equal(t, 1, commands)
	cancel()
	<-done // then the thread that has forked has its own slice again
	for _, task := range tasksOf(t, s) {
		require.Equal(t, uint64(100_000), sliceOf(t, filepath.Base(task)))
	}
}

// tasksOf are the threads of a sandbox's first process.
func tasksOf(t *testing.T, s *Sandbox) []string {
	t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", s.current.process.Pid))
	require.NoError(t, err)
	require.NotEmpty(t, tasks)
	return tasks
}

// sliceOf is the slice of time of a thread, in nanoseconds.
func sliceOf(t *testing.T, id string) uint64 {
	t.Helper()
	pid, err := strconv.Atoi(id)
	require.NoError(t, err)
	attr, err := unix.SchedGetAttr(pid, 0)
	require.NoError(t, err)
	return attr.Runtime
}
