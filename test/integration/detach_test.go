package integration

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// session runs a verb of coordinator session on the fleet.
func (b *broker) session(tb testing.TB, verb string, args ...string) finished {
	tb.Helper()
	return execute(tb, coordinator, launch{args: append(append([]string{"session", verb}, b.flags...), args...)})
}

// submit leaves a turn to the fleet, and returns the session's id.
func (b *broker) submit(tb testing.TB, args ...string) string {
	tb.Helper()
	got := execute(tb, coordinator, launch{args: append(append([]string{"submit", "--detach"}, b.flags...), args...)})
	require.Equal(tb, 0, got.code, got.stderr)
	require.Contains(tb, got.stderr, "session attach")
	return strings.TrimSpace(got.stdout)
}

// TestDetach_TurnIsAttachedToAndItsWorkspacePulled: whoever submits a turn can go, and come back to
// it while it runs and when it has ended.
func TestDetach_TurnIsAttachedToAndItsWorkspacePulled(t *testing.T) {
	t.Parallel()
	hold := newGate(t)
	model := script(t,
		say("Changing.", bash("c1", "echo theirs > only.txt; echo theirs > both.txt; rm gone.txt; "+hold.pass())),
		say("All changed."))
	b := newBroker(t)
	startServe(t, model, b.flags...)
	startWorkers(t, 1, b.flags)
	workspace := t.TempDir()
	for _, name := range []string{"only.txt", "both.txt", "ours.txt", "gone.txt"} {
		write(t, filepath.Join(workspace, name), "before\n")
	}
	id := b.submit(t, "--workspace", workspace, "do it")

	first := start(t, coordinator, launch{args: append([]string{"session", "attach", id}, b.flags...)})
	first.waitFor(t, `\[1\.1 bash\] › `) // live news of before are not told again
	first.signal(t, syscall.SIGINT)
	require.Equal(t, 130, first.wait(t))
	require.Contains(t, first.stderr.String(), "the turn continues")

	second := start(t, coordinator, launch{args: append([]string{"session", "attach", "--json", id}, b.flags...)})
	hold.open(t)
	require.Equal(t, 0, second.wait(t), second)
	list := events(t, second.stdout.String())
	require.Equal(t, "session_started", list[0].Type)
	require.Equal(t, "session_ended", list[len(list)-1].Type)
	require.Equal(t, "All changed.", list[len(list)-1].Text)
	require.Len(t, results(list), 1)

	ended := b.session(t, "attach", id)
	require.Equal(t, 0, ended.code, ended.stderr)
	require.Equal(t, "All changed.\n", ended.stdout)
	require.Equal(t, 1, strings.Count(ended.stderr, "✓ answered"), ended.stderr)
	require.Regexp(t, `\n  changed  both\.txt *\n +gone\.txt +deleted\n +only\.txt *\n$`, ended.stderr, "what commands changed, too")
	require.Contains(t, b.session(t, "log", id).stdout, "All changed.")

	require.Equal(t, "before\n", content(t, filepath.Join(workspace, "only.txt")), "nothing came back yet")
	write(t, filepath.Join(workspace, "ours.txt"), "ours\n")
	write(t, filepath.Join(workspace, "both.txt"), "ours\n")
	pulled := b.session(t, "pull", id, workspace)
	require.Equal(t, 0, pulled.code, pulled.stderr)
	require.Equal(t, "theirs\n", content(t, filepath.Join(workspace, "only.txt")))
	require.Equal(t, "ours\n", content(t, filepath.Join(workspace, "ours.txt")))
	require.Equal(t, "ours\n", content(t, filepath.Join(workspace, "both.txt")))
	require.NoFileExists(t, filepath.Join(workspace, "gone.txt"))
	require.Regexp(t, `left unchanged here: both\.txt; the version of the session is in both\.txt\.toolfleet-theirs\n`, pulled.stderr)

	whole := filepath.Join(t.TempDir(), "whole")
	require.Equal(t, 0, b.session(t, "pull", id, whole).code)
	require.Equal(t, "theirs\n", content(t, filepath.Join(whole, "both.txt")))
	require.Equal(t, "before\n", content(t, filepath.Join(whole, "ours.txt")))
}

// TestDetach_CancelEndsWhatRunsAndWaits: of a session that was left, by whoever knows its id.
func TestDetach_CancelEndsWhatRunsAndWaits(t *testing.T) {
	t.Parallel()
	model := script(t, say("Waiting.", bash("c1", "sleep 600")), say("Never."))
	b := newBroker(t)
	startServe(t, model, b.flags...)
	startWorkers(t, 1, b.flags)
	id := b.submit(t, "first")
	attached := start(t, coordinator, launch{args: append([]string{"session", "attach", id}, b.flags...)})
	attached.waitFor(t, `\[1\.1 bash\] › `)
	require.Equal(t, id, b.submit(t, "--session", id, "second"))

	got := b.session(t, "cancel", "--json", id)
	require.Equal(t, 0, got.code, got.stderr)
	var cancelled struct {
		Cancelled []string `json:"cancelled"`
	}
	require.NoError(t, json.Unmarshal([]byte(got.stdout), &cancelled))
	require.Len(t, cancelled.Cancelled, 2)
	require.Equal(t, 130, attached.wait(t), "the turn that is followed was interrupted")
	require.Contains(t, b.session(t, "cancel", id).stdout, "it has no turn that runs or waits")
	require.Regexp(t, `interrupted`, b.session(t, "show", id).stdout)
}

// TestWorkspace_SecondTurnKeepsWhatTheUserChangedBetween: the session's copy is not newer than the
// directory because it was there first.
func TestWorkspace_SecondTurnKeepsWhatTheUserChangedBetween(t *testing.T) {
	t.Parallel()
	model := script(t, say("Changing.", bash("c1", "echo theirs > theirs.txt")), say("Done."), say("Nothing to do."))
	b := newBroker(t)
	startWorkers(t, 1, b.flags)
	workspace := t.TempDir()
	write(t, filepath.Join(workspace, "ours.txt"), "before\n")
	args := append([]string{"run", "--model", model, "--session", "twice", "--workspace", workspace}, b.flags...)
	require.Equal(t, 0, execute(t, coordinator, launch{args: append(args, "first")}).code)
	write(t, filepath.Join(workspace, "ours.txt"), "ours\n")
	got := execute(t, coordinator, launch{args: append(args, "second")})
	require.Equal(t, 0, got.code, got.stderr)
	require.Equal(t, "ours\n", content(t, filepath.Join(workspace, "ours.txt")))
	require.NotContains(t, got.stderr, "left unchanged here", "only one side changed it")
}
