package integration

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// deaf is a file that nobody reads.
func deaf(t *testing.T) *os.File {
	t.Helper()
	reader, writer, err := os.Pipe()
	require.NoError(t, err)
	require.NoError(t, reader.Close())
	t.Cleanup(func() { _ = writer.Close() })
	return writer
}

// TestPipe_AReaderThatWentAwayEndsNoSession: what was begun is done, and that nobody has read it is
// told.
func TestPipe_AReaderThatWentAwayEndsNoSession(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	startWorkers(t, 1, b.flags)
	model := script(t, say("", bash("c1", "yes | head -n 1")), say("done"))
	for name, flags := range map[string][]string{"answer": nil, "events": {"--json"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var stderr strings.Builder
			cmd := exec.CommandContext(t.Context(), coordinator, append(append([]string{"run", "--session", name, "--model", model, "go"}, flags...), b.flags...)...)
			cmd.Env, cmd.Dir = append(os.Environ(), "HOME="+t.TempDir(), "TOOLFLEET_MIN_LEVEL=none"), t.TempDir()
			cmd.Stdout, cmd.Stderr = deaf(t), &stderr
			require.Error(t, cmd.Run())
			require.Equal(t, 1, cmd.ProcessState.ExitCode(), stderr.String())
			require.Contains(t, stderr.String(), "broken pipe")
			shown := execute(t, coordinator, launch{args: append([]string{"session", "show", name}, b.flags...)})
			require.Contains(t, shown.stdout, "answered")
		})
	}
}

// TestPipe_AWorkerNeedsNobodyToReadItsLog: it takes calls when what it says goes nowhere.
func TestPipe_AWorkerNeedsNobodyToReadItsLog(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	cmd := exec.CommandContext(t.Context(), worker, append([]string{"--sandbox", "process", "--data", t.TempDir(), "--log-level", "debug"}, b.flags...)...)
	cmd.Env, cmd.Stderr = append(os.Environ(), "HOME="+t.TempDir()), deaf(t)
	dieWithTests(cmd)
	require.NoError(t, cmd.Start())
	defer func() { // it has lived until now
		require.NoError(t, cmd.Process.Signal(os.Interrupt))
		require.NoError(t, cmd.Wait())
	}()
	got := execute(t, coordinator, launch{args: append([]string{"call", "bash", `{"command":"echo hi"}`, "--timeout", "2m"}, b.flags...)})
	require.Equal(t, 0, got.code, got.stdout+got.stderr)
}

// TestSubmit_SaysThatNobodyServes: a turn that nobody takes is no silence.
func TestSubmit_SaysThatNobodyServes(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	startWorkers(t, 1, b.flags)
	p := start(t, coordinator, launch{args: append([]string{"submit", "go"}, b.flags...)})
	p.waitFor(t, `the turn waits: no coordinator serves this fleet now`)
	p.signal(t, os.Interrupt)
	p.wait(t)
}

// TestSubmit_ShowsItsOwnTurn: whoever waits for another one's turn of the session is told so, and
// shown nothing of it.
func TestSubmit_ShowsItsOwnTurn(t *testing.T) {
	t.Parallel()
	hold := newGate(t)
	b := newBroker(t)
	startWorkers(t, 1, b.flags)
	startServe(t, script(t, say("First.", bash("c1", "echo begun; "+hold.pass())), say("One."), say("Two."), say("Three.")), b.flags...)
	submit := func(extra ...string) *process {
		return start(t, coordinator, launch{args: append(append([]string{"submit", "--session", "row", "go"}, b.flags...), extra...)})
	}
	one := submit()
	one.waitFor(t, `\[1\.1 bash\] +. running on (\S+)\n`)
	two := submit()
	two.waitFor(t, `the turn has waited 3s: .* an earlier turn of the session still runs`)
	three := submit("--json")
	three.waitFor(t, `the turn has waited 3s`)
	hold.open(t)
	for p, answer := range map[*process]string{one: "One.\n", two: "Two.\n"} {
		require.Equal(t, 0, p.wait(t), p)
		require.Equal(t, answer, p.stdout.String())
	}
	require.NotContains(t, two.stderr.String(), "One.")
	require.Equal(t, 0, three.wait(t), three)
	var texts []string
	for _, e := range ofType(events(t, three.stdout.String()), "model_reply") {
		texts = append(texts, e.Text)
	}
	require.Equal(t, []string{"Three."}, texts)
}
