//go:build linux

package ns_test

import (
	"fmt"
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
	short := slices.Min(slices.Concat(numbers(t, run(t, s, "nice")), numbers(t, run(t, s, "nice")), numbers(t, run(t, s, "nice")))) // on a busy machine one may be long
	const script = `makes_way='until [ $(nice) -gt %d ]; do sleep 0.1; done; nice'; (setsid sh -c "$makes_way" >other) & eval "$makes_way"; wait; cat other`
	require.Equal(t, []int{short + 5, short + 5}, numbers(t, run(t, s, fmt.Sprintf(script, short))))
	require.Eventually(t, func() bool { return slices.Equal([]int{short}, numbers(t, run(t, s, "nice"))) }, time.Minute, time.Millisecond,
		"one that begins has the priority of the long one")
}

// TestPriority_CrowdsMakeWayCompletely: a command that is very many processes has the lowest priority, and none that comes after it.
func TestPriority_CrowdsMakeWayCompletely(t *testing.T) {
	t.Parallel()
	s := limited(t, sandbox.Limits{})
	before := numbers(t, run(t, s, "nice"))
	require.Equal(t, []int{19}, numbers(t, run(t, s, "for i in $(seq 100); do sleep 60 & done; until [ $(nice) = 19 ]; do sleep 0.1; done; nice")))
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
