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
	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// TestPriority_LongCommandsMakeWay: a command that has run for a while, and what it has started
// in sessions of its own, has a lower priority than one that begins, beside it or later.
func TestPriority_LongCommandsMakeWay(t *testing.T) {
	t.Parallel()
	s := limited(t, sandbox.Limits{})
	short := requireShort(t, s)
	const script = `makes_way='until [ $(nice) -gt %d ]; do sleep 0.1; done; nice'; (setsid sh -c "$makes_way" >other) & eval "$makes_way"; wait; cat other`
	require.Equal(t, []int{short + 5, short + 5}, numbers(t, run(t, s, fmt.Sprintf(script, short))))
	requireShort(t, s)
}

// requireShort checks that a command that begins has the priority of its sandbox, which is this
// process's, and returns that. On a busy machine some take so long that they have less.
func requireShort(t *testing.T, s sandbox.Sandbox) (priority int) {
	t.Helper()
	const none = 20 // is how the kernel tells of no niceness
	raw, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return slices.Equal([]int{none - raw}, numbers(t, run(t, s, "nice"))) }, time.Minute, time.Millisecond)
	return none - raw
}

// TestPriority_ManyProcessesMakeWayCompletely: a command that is very many processes has the lowest
// priority, and none that comes after it.
func TestPriority_ManyProcessesMakeWayCompletely(t *testing.T) {
	t.Parallel()
	s := limited(t, sandbox.Limits{})
	requireShort(t, s)
	const script = `for i in $(seq 100); do sleep 60 & done; for i in $(seq 30); do [ $(nice) = 19 ] && break; sleep 0.1; done; nice`
	require.Eventually(t, func() bool { return slices.Equal([]int{19}, numbers(t, run(t, s, script))) }, time.Minute, time.Millisecond,
		"nobody looks any more at one that becomes many processes so late as on a very busy machine")
	requireShort(t, s)
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
