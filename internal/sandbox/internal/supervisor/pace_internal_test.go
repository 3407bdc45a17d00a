//go:build unix

package supervisor

import (
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// TestStreams_WhoWritesVeryMuchIsReadSlowly, to the end, and told: here very much is a megabyte.
func TestStreams_WhoWritesVeryMuchIsReadSlowly(t *testing.T) {
	t.Parallel()
	const much = 1 << 20
	out := newOutput(1000, nil)
	streams, err := openStreams(sandbox.Cmd{}, out)
	require.NoError(t, err)
	streams.pace = rate.NewLimiter(much/2, much)
	cmd := exec.CommandContext(t.Context(), "sh", "-c", "head -c 3145728 /dev/zero; echo end; echo too >&2")
	_, cmd.Stdout, cmd.Stderr = streams.Command()
	start := time.Now()
	require.NoError(t, cmd.Start())
	streams.Run()
	require.NoError(t, cmd.Wait())
	streams.Finish(time.Minute)
	require.Greater(t, time.Since(start), 3500*time.Millisecond)
	got := out.Captured(sandbox.Stdout)
	require.Greater(t, got.Throttled, time.Second/2) // a busy machine reads slowly by itself
	require.Less(t, got.Throttled, time.Since(start))
	require.EqualValues(t, 3*much+4, got.Total)
	require.Contains(t, string(got.Data), "end\n")
	require.GreaterOrEqual(t, out.Combined().Throttled, got.Throttled+out.Captured(sandbox.Stderr).Throttled)
}

// TestApart_WhatWasWrittenIsTakenHoweverLate, whether the output has ended by then or something
// holds it open.
func TestApart_WhatWasWrittenIsTakenHoweverLate(t *testing.T) {
	t.Parallel()
	for name, ended := range map[string]bool{"ended": true, "held open": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, stdout, stderr, err := openUnordered()
			require.NoError(t, err)
			defer p.close()
			defer stdout.Close()
			defer stderr.Close()
			said := strings.Repeat("said ", 2000)
			_, err = stdout.WriteString(said)
			require.NoError(t, err)
			_, err = stderr.WriteString("too")
			require.NoError(t, err)
			if ended {
				require.NoError(t, stdout.Close())
				require.NoError(t, stderr.Close())
			}
			p.endAt(time.Now().Add(-time.Second))
			out := newOutput(0, nil)
			p.copy(func(stream sandbox.Stream, data []byte) { _, _ = out.Writer(stream).Write(data) })
			require.Equal(t, said, string(out.Captured(sandbox.Stdout).Data))
			require.Equal(t, "too", string(out.Captured(sandbox.Stderr).Data))
		})
	}
}
