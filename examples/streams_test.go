package examples_test

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/worker"
)

// The program is killed with -9 while it shows output: started again it follows what it had sent,
// nothing runs twice, and its results are the same.
func TestStreams_KilledAndStartedAgainHaveTheSameResults(t *testing.T) {
	t.Parallel()
	url := natsiotest.Serve(t, natsiotest.Alone(t, "", "")).ClientURL()
	host, err := fleet.Connect(t.Context(), fleet.Options{URL: url})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, host.Close()) })
	if _, err = host.StartWorker(t.Context(), worker.Options{}); errors.Is(err, isolation.ErrLevel) {
		t.Skipf("no sandbox driver isolates here: %v", err)
	}
	require.NoError(t, err)
	program := filepath.Join(t.TempDir(), "streams")
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", program, "./streams")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	built, err := build.CombinedOutput()
	require.NoError(t, err, "%s", built)

	// run starts the program, and kills it at a line of its output if one is given.
	run := func(job, killAt string) (results []string) {
		command := exec.CommandContext(t.Context(), program, url, job)
		out, err := command.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, command.Start())
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			if killAt != "" && strings.Contains(lines.Text(), killAt) {
				require.NoError(t, command.Process.Kill())
			}
			if rest, found := strings.CutPrefix(lines.Text(), job+"-"); found {
				results = append(results, rest)
			}
		}
		if err := command.Wait(); killAt == "" {
			require.NoError(t, err)
		}
		return results
	}
	want := []string{
		`fetch ok ""`, `compile ok "compiled 1\ncompiled 2\ncompiled 3\ncompiled 4\ncompiled 5\n"`,
		`pack ok "compiled 1\ncompiled 2\ncompiled 3\ncompiled 4\ncompiled 5\npacked\n"`, `link ok "fetched\nlinked\n"`, `serve cancelled ""`,
	}
	require.Equal(t, want, run("whole", ""))
	require.Empty(t, run("killed", "compiled 2"))
	require.Empty(t, run("killed", "compiled 5"))
	require.Equal(t, want, run("killed", ""))
	require.Equal(t, want, run("killed", ""), "stored results can be read again")
}
