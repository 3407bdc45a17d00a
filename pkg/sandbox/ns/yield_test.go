//go:build linux

package ns_test

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// TestPriority_LongCommandsMakeWay: a command that has run for a while, and what it has started
// in sessions of its own, has a lower priority than one that begins, beside it or later.
func TestPriority_LongCommandsMakeWay(t *testing.T) {
	t.Parallel()
	s := limited(t, sandbox.Limits{})
	const script = `nice; (setsid sh -c 'sleep 2; nice' >other) & sleep 2; nice; wait; cat other`
	long := numbers(t, run(t, s, script))
	require.Len(t, long, 3)
	require.Equal(t, []int{long[0] + 5, long[0] + 5}, long[1:])
	require.Eventually(t, func() bool { return slices.Equal(long[:1], numbers(t, run(t, s, "nice"))) }, time.Minute, time.Millisecond,
		"one that begins has the priority of the long one") // on a busy machine it may be long itself
}

// TestPriority_CrowdsMakeWayCompletely: a command that is very many processes has the lowest priority, and none that comes after it.
func TestPriority_CrowdsMakeWayCompletely(t *testing.T) {
	t.Parallel()
	s := limited(t, sandbox.Limits{})
	before := numbers(t, run(t, s, "nice"))
	require.Equal(t, []int{19}, numbers(t, run(t, s, "for i in $(seq 100); do sleep 3 & done; sleep 2; nice")))
	require.Eventually(t, func() bool { return slices.Equal(before, numbers(t, run(t, s, "nice"))) }, time.Minute, time.Millisecond,
		"one that begins has the priority of the crowd")
}

func numbers(t *testing.T, r sandbox.Result) (all []int) {
	t.Helper()
	for field := range strings.FieldsSeq(string(r.Stdout.Data)) {
		n, err := strconv.Atoi(field)
		require.NoError(t, err)
		all = append(all, n)
	}
	return all
}

// TestPriority_TimersArePunctual: the first process lets its own timers be late; those of commands are not.
func TestPriority_TimersArePunctual(t *testing.T) {
	t.Parallel()
	const nanoseconds = 50_000 // the kernel's default
	s := limited(t, sandbox.Limits{})
	for _, readOnly := range []bool{false, true} {
		r, err := s.Exec(t.Context(), sandbox.Cmd{Argv: []string{"cat", "/proc/self/timerslack_ns"}, ReadOnly: readOnly})
		require.NoError(t, err)
		require.Equal(t, []int{nanoseconds}, numbers(t, r), "stderr: %s", r.Stderr.Data)
	}
}
