//go:build unix

//nolint:thelper // these are tests
package sandboxtest

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

func testLimits(t *testing.T, s suite) {
	s.run(t, map[string]func(*testing.T, *box){
		"out of time":                              limitsTimeout,
		"a command may clean up":                   limitsGraceful,
		"what a command started may clean up":      limitsGracefulChild,
		"a command that does not listen is killed": limitsIgnored,
		"cancel":                                 limitsCancel,
		"a deadline of the context is a timeout": limitsDeadline,
		"an ended context starts nothing":        limitsNotStarted,
	})
	t.Run("a command cannot widen the sandbox's limits", func(t *testing.T) {
		t.Parallel()
		wide := sandbox.Limits{Wall: time.Hour, Output: 1 << 20}
		cmd := shell("sleep 1000")
		cmd.Limits = wide
		require.Equal(t, sandbox.ReasonTimeout, s.open(t, sandbox.Limits{Wall: 200 * time.Millisecond}).exec(t, cmd).Reason)
		cmd = shell("printf %0200d 1")
		cmd.Limits = wide
		require.True(t, s.open(t, sandbox.Limits{Output: 100}).exec(t, cmd).Stdout.Truncated)
	})
}

// firstWall is the time that a command gets to say something before it is out of time. On a busy
// machine it may need more.
const firstWall = 200 * time.Millisecond

// outOfTime runs a command that says something and does not end, with more and more time until it
// is out of that after it has.
func (b *box) outOfTime(t *testing.T, cmd sandbox.Cmd) sandbox.Result {
	t.Helper()
	for cmd.Limits.Wall = firstWall; ; cmd.Limits.Wall *= 2 {
		result := b.exec(t, cmd)
		require.Equal(t, sandbox.ReasonTimeout, result.Reason)
		require.GreaterOrEqual(t, result.Wall, cmd.Limits.Wall)
		if result.Stdout.Total > 0 || cmd.Limits.Wall > patience {
			return result
		}
	}
}

func limitsTimeout(t *testing.T, b *box) {
	w := b.newWitness(t)
	cmd := shell("exec 3>fifo; echo more >&2; echo partial; exec sleep 1000")
	cmd.Limits.Grace = time.Hour // it needs none
	result := b.outOfTime(t, cmd)
	require.Equal(t, -1, result.ExitCode)
	require.Equal(t, "SIGTERM", result.Signal)
	require.Equal(t, "partial\n", string(result.Stdout.Data))
	require.Equal(t, "more\n", string(result.Stderr.Data))
	w.requireDead(t)
}

func limitsGraceful(t *testing.T, b *box) {
	cmd := shell(`trap 'echo bye; exit 4' TERM; echo hello; while :; do sleep 0.01; done`)
	cmd.Limits.Grace = time.Hour // it needs little of it
	result := b.outOfTime(t, cmd)
	require.Equal(t, 4, result.ExitCode)
	require.Equal(t, "hello\nbye\n", string(result.Stdout.Data))
}

// limitsGracefulChild has a shell that dies at once of what its child can handle.
func limitsGracefulChild(t *testing.T, b *box) {
	w := b.newWitness(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cmd := shell(`sh -c 'exec 3>fifo; trap "sleep 0.2; echo cleaned >&3; exit" TERM; echo ready >&3; while :; do sleep 0.01; done'; true`)
	cmd.Limits.Grace = patience
	done := b.async(ctx, t, cmd)
	require.Equal(t, "ready\n", w.line(t))
	cancel()
	require.Equal(t, sandbox.ReasonCancelled, receive(t, done).Reason)
	require.Equal(t, "cleaned\n", w.requireDead(t))
}

func limitsIgnored(t *testing.T, b *box) {
	w := b.newWitness(t)
	cmd := shell(`exec 3>fifo; trap "" TERM INT HUP; echo hello; while :; do sleep 0.01; done`)
	cmd.Limits.Grace = 200 * time.Millisecond
	result := b.outOfTime(t, cmd)
	require.Equal(t, "SIGKILL", result.Signal)
	require.Equal(t, "hello\n", string(result.Stdout.Data))
	require.GreaterOrEqual(t, result.Wall, firstWall+cmd.Limits.Grace)
	w.requireDead(t)
}

func limitsCancel(t *testing.T, b *box) {
	w := b.newWitness(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := b.async(ctx, t, shell("echo out; exec 3>fifo; echo ready >&3; sleep 1000"))
	require.Equal(t, "ready\n", w.line(t))
	cancel()
	result := receive(t, done)
	require.Equal(t, sandbox.ReasonCancelled, result.Reason)
	require.Equal(t, "out\n", string(result.Stdout.Data))
	w.requireDead(t)
}

func limitsDeadline(t *testing.T, b *box) {
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	result := receive(t, b.async(ctx, t, shell("sleep 1000")))
	require.Equal(t, sandbox.ReasonTimeout, result.Reason)
}

func limitsNotStarted(t *testing.T, b *box) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	result := receive(t, b.async(ctx, t, shell("touch started")))
	require.Equal(t, sandbox.ReasonCancelled, result.Reason)
	require.Equal(t, -1, result.ExitCode)
	require.NoFileExists(t, b.host("started"))
}
