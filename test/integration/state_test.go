package integration

import (
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// batches starts n workers that have the stateful tool refund_batch, by their ids, and
// returns the flags of coordinators that have it too.
func batches(t *testing.T, b *broker, n int, ledger string) (workers map[string]*process, flags []string) {
	t.Helper()
	workers, data := map[string]*process{}, t.TempDir()
	for range n {
		p := start(t, refunds, launch{args: append([]string{"--sandbox", "process", "--lease", lease.String(), "--data", data}, b.flags...), env: []string{"LEDGER=" + ledger}})
		workers[p.waitFor(t, `worker: (\S+) takes calls of pool default`)[1]] = p
	}
	folder, err := filepath.Abs(filepath.Join(module, "examples", "refunds", "tools"))
	require.NoError(t, err)
	return workers, append([]string{"--tools", folder}, b.flags...)
}

// opened stands for the handle of the batch that a call has opened.
func opened(call string) string { return "{{" + call + " h-[0-9a-f]+}}" }

var handle = regexp.MustCompile(`h-[0-9a-f]+`)

func goOn(id, handle string, input object) object {
	return use(id, "tool_continue", object{"handle": handle, "input": input})
}

// TestState_OutlivesItsCoordinator: kill -9 of the coordinator between two calls of a
// stateful tool. The next one goes on with the handle, and what the tool knows is there.
func TestState_OutlivesItsCoordinator(t *testing.T) {
	t.Parallel()
	hold, b, ledger := newGate(t), newBroker(t), t.TempDir()
	_, flags := batches(t, b, 2, ledger)
	batch := opened("c1")
	model := script(t,
		say("Opening.", use("c1", "refund_batch", object{"account": "acme"})),
		say("Adding.", goOn("c2", batch, object{"cents": 100}), use("c3", "refund", object{"account": "acme", "cents": 7}), goOn("c4", batch, object{"cents": 50})),
		say("Slow.", bash("c5", hold.pass())),
		say("Paying.", goOn("c6", batch, object{"pay": true}), goOn("c7", batch, object{"cents": 1})),
		say("Paid."))
	args := append(append([]string{"--session", "batches", "--model", model}, flags...), "pay")
	p := start(t, coordinator, launch{args: append([]string{"run"}, args...)})
	p.waitFor(t, `\[3\.1 bash\] +. running on`)
	p.kill(t)
	hold.open(t)

	got := execute(t, coordinator, launch{args: append([]string{"run", "--json"}, args...)})
	require.Equal(t, 0, got.code, got.stderr)
	all := results(events(t, got.stdout))
	require.Regexp(t, `^acme has got back 157 cents in all\n\[handle h-[0-9a-f]+ has ended: done\]$`, all["c6"].Content)
	require.Equal(t, "rejected", all["c7"].Status)
	require.Contains(t, all["c7"].Content, "state_lost")
}

// TestState_EndsWithItsWorker: kill -9 of the worker that has the state. The next call
// with the handle is told so, nothing was paid, and the tool can begin anew elsewhere.
func TestState_EndsWithItsWorker(t *testing.T) {
	t.Parallel()
	b, ledger := newBroker(t), t.TempDir()
	workers, flags := batches(t, b, 2, ledger)
	first, second := opened("c1"), opened("c4")
	model := script(t,
		say("Opening.", use("c1", "refund_batch", object{"account": "acme"})),
		say("Adding.", goOn("c2", first, object{"cents": 100})),
		say("Later."),
		say("Going on.", goOn("c3", first, object{"cents": 100}), use("c4", "refund_batch", object{"account": "acme"})),
		say("Once more.", goOn("c5", first, object{"pay": true}), goOn("c6", second, object{"cents": 5})),
		say("Paying.", goOn("c7", second, object{"pay": true})),
		say("Paid."))
	args := append([]string{"run", "--json", "--session", "lost", "--model", model}, flags...)
	got := execute(t, coordinator, launch{args: append(args, "begin")})
	require.Equal(t, 0, got.code, got.stderr)
	before := results(events(t, got.stdout))
	require.Equal(t, before["c1"].WorkerID, before["c2"].WorkerID)
	require.Contains(t, before["c2"].Content, "1 refunds, 100 cents")

	workers[before["c1"].WorkerID].kill(t)
	got = execute(t, coordinator, launch{args: append(args, "go on")})
	require.Equal(t, 0, got.code, got.stderr)
	all := results(events(t, got.stdout))
	require.Equal(t, "rejected", all["c3"].Status)
	require.Contains(t, all["c3"].Content, "[rejected: state_lost]\nThe handle cannot be continued any more: the worker that had its state stopped, was lost, or let go of it.")
	require.NotEqual(t, before["c1"].WorkerID, all["c3"].WorkerID)
	require.Contains(t, all["c5"].Content, "Those that can be continued are: "+handle.FindString(all["c4"].Content)+" (refund_batch)")
	require.Contains(t, all["c6"].Content, "1 refunds, 5 cents")
	require.Contains(t, all["c7"].Content, "acme has got back 5 cents in all")
}

// TestState_EndsWhenItsWorkerStops: a worker that is told to stop does not wait for handles
// that nobody uses, and the tool's function gets to clean up.
func TestState_EndsWhenItsWorkerStops(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	workers, flags := batches(t, b, 1, t.TempDir())
	model := script(t, say("Opening.", use("c1", "refund_batch", object{"account": "acme"})), say("Later."))
	got := execute(t, coordinator, launch{args: append(append([]string{"run", "--model", model}, flags...), "begin")})
	require.Equal(t, 0, got.code, got.stderr)
	for _, p := range workers {
		p.stop(t)
	}
}
