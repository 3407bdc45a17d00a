package supervisor

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// run runs a shell script whose output is captured.
func run(t *testing.T, script string, out *output, wait time.Duration) {
	t.Helper()
	streams, err := openStreams(sandbox.Cmd{}, out)
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), "sh", "-c", script)
	_, cmd.Stdout, cmd.Stderr = streams.Command()
	require.NoError(t, cmd.Start())
	streams.Run()
	require.NoError(t, cmd.Wait())
	streams.Finish(wait)
}

// TestStreams_KeepTheOrderAcrossBoth has a program write to both streams in turn as fast as it can.
func TestStreams_KeepTheOrderAcrossBoth(t *testing.T) {
	t.Parallel()
	for range 20 {
		var want strings.Builder
		for i := range 100 {
			fmt.Fprintf(&want, "%d\n%d\n", i, -i)
		}
		out := newOutput(0, nil)
		run(t, `i=0; while [ $i -lt 100 ]; do echo $i; echo -$i >&2; i=$((i+1)); done`, out, time.Minute)
		require.Equal(t, strings.Replace(want.String(), "0\n0\n", "0\n-0\n", 1), string(out.Combined().Data))
	}
}

func TestStreams_TakeLargeAndManyWrites(t *testing.T) {
	t.Parallel()
	out := newOutput(1<<20, nil)
	run(t, `head -c 900000 /dev/zero | tr '\0' x; seq 1 50000 >&2`, out, time.Minute)
	require.Equal(t, strings.Repeat("x", 900_000), string(out.Captured(sandbox.Stdout).Data))
	stderr := string(out.Captured(sandbox.Stderr).Data)
	require.True(t, strings.HasPrefix(stderr, "1\n2\n") && strings.HasSuffix(stderr, "\n49999\n50000\n"))
	require.Equal(t, 50_000, strings.Count(stderr, "\n"))
}

func TestStreams_FinishDoesNotWaitForThoseWhoKeepTheOutput(t *testing.T) {
	t.Parallel()
	reader, holder, err := os.Pipe() // ends what survives
	require.NoError(t, err)
	defer reader.Close()
	out := newOutput(0, nil)
	streams, err := openStreams(sandbox.Cmd{}, out)
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), "sh", "-c", "echo said; cat >/dev/null 3>&1 <&4 &")
	_, cmd.Stdout, cmd.Stderr = streams.Command()
	cmd.ExtraFiles = []*os.File{holder, reader}
	require.NoError(t, cmd.Start())
	streams.Run()
	require.NoError(t, cmd.Wait())
	start := time.Now()
	streams.Finish(50 * time.Millisecond)
	require.Less(t, time.Since(start), time.Minute)
	require.Equal(t, "said\n", string(out.Captured(sandbox.Stdout).Data))
	require.NoError(t, holder.Close())
}

func TestStreams_FinishDoesNotWaitForThoseWhoWriteOn(t *testing.T) {
	t.Parallel()
	out := newOutput(1, nil)
	streams, err := openStreams(sandbox.Cmd{}, out)
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), "yes")
	_, cmd.Stdout, cmd.Stderr = streams.Command()
	require.NoError(t, cmd.Start())
	streams.Run()
	start := time.Now()
	streams.Finish(50 * time.Millisecond)
	require.Less(t, time.Since(start), time.Minute)
	require.Error(t, cmd.Wait(), "nobody reads any more")
}

// TestStreams_WhatWasWrittenIsTakenHoweverLate: on a busy machine nobody may have had the time to
// read it before.
func TestStreams_WhatWasWrittenIsTakenHoweverLate(t *testing.T) {
	t.Parallel()
	for range 20 {
		out := newOutput(0, nil)
		streams, err := openStreams(sandbox.Cmd{}, out)
		require.NoError(t, err)
		cmd := exec.CommandContext(t.Context(), "sh", "-c", "echo said; echo too >&2")
		_, cmd.Stdout, cmd.Stderr = streams.Command()
		require.NoError(t, cmd.Run())
		streams.Run()
		streams.Finish(-time.Second)
		require.Equal(t, "said\ntoo\n", string(out.Combined().Data))
	}
}

func TestStreams_AbandonedStreamsLeaveNothing(t *testing.T) {
	t.Parallel()
	for range 2000 { // more than there may be files open
		streams, err := openStreams(sandbox.Cmd{Stdin: []byte("x")}, newOutput(0, nil))
		require.NoError(t, err)
		streams.Abandon()
	}
}
