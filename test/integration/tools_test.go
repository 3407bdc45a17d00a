package integration

import (
	"encoding/json"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTools_OfAFolder: a session uses a program of the user's as a tool, on workers that
// are processes of their own; what is broken in the folder is told and left out.
func TestTools_OfAFolder(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	folder := t.TempDir()
	write(t, filepath.Join(folder, "shout.yaml"), `
name: shout
description: Write a file in capitals.
parameters: {type: object, properties: {path: {type: string}}, required: [path]}
command: [sh, "{tools}/shout.sh"]
resources: [{key: "sandbox/{$sandbox}/{path...}"}]
`)
	write(t, filepath.Join(folder, "shout.sh"), `path=$(sed -n 's/.*"path":"\([^"]*\)".*/\1/p')
[ -f "$path" ] || { echo "there is no $path" >&2; exit 4; }
tr a-z A-Z <"$path" >.new && mv .new "$path" && printf '{"shouted": "%s"}' "$path"
`)
	write(t, filepath.Join(folder, "broken.yaml"), "name: broken\nspeed: high\n")
	startWorkers(t, 2, append([]string{"--tools", folder}, b.flags...))
	model := script(t,
		say("Shouting.", use("c1", "shout", object{"path": "a.txt"}), use("c2", "read", object{"path": "a.txt"}), use("c3", "shout", object{"path": "b.txt"})),
		say("Done."))
	workspace := t.TempDir()
	write(t, filepath.Join(workspace, "a.txt"), "hello\n")
	args := append([]string{"run", "--json", "--model", model, "--tools", folder, "--workspace", workspace}, b.flags...)
	got := succeed(t, coordinator, launch{args: append(args, "shout")})
	require.Contains(t, got.stderr, `broken.yaml:2: there is no field "speed"`)
	all := results(events(t, got.stdout))
	require.JSONEq(t, `{"shouted": "a.txt"}`, all["c1"].Content)
	require.Contains(t, all["c2"].Content, "HELLO", "the read waits for the tool that has the file")
	require.Equal(t, "failed", all["c3"].Status)
	require.Contains(t, all["c3"].Content, "the tool failed (exit code 4): there is no b.txt")
	require.Equal(t, "HELLO\n", content(t, filepath.Join(workspace, "a.txt")))
}

// TestTools_OfAWorkerWithAHandler: sessions side by side call a Go function on two workers beside
// one that lacks it; calls for one account never overlap, or money would be lost. Commands are left
// to the worker that has sandboxes.
func TestTools_OfAWorkerWithAHandler(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	ledger, data := t.TempDir(), t.TempDir()
	plain := startWorkers(t, 1, b.flags)
	for range 2 {
		p := start(t, refunds, launch{args: append([]string{"--data", data}, b.flags...), env: []string{"LEDGER=" + ledger}})
		p.waitFor(t, `takes calls of pool default.* sandbox none`)
	}
	folder, err := filepath.Abs(filepath.Join(module, "examples", "refunds", "tools"))
	require.NoError(t, err)
	model := script(t,
		say("Paying.",
			use("c1", "refund", object{"account": "acme", "cents": 100}),
			use("c2", "refund", object{"account": "acme", "cents": 100}),
			use("c3", "refund", object{"account": "other", "cents": 1}),
			use("c4", "refund", object{"account": "acme", "cents": 0}),
			bash("c5", "true")),
		say("Paid."))
	const sessions = 4
	var running []*process
	for range sessions {
		running = append(running, start(t, coordinator, launch{
			args: append(append([]string{"run", "--json", "--model", model, "--tools", folder}, b.flags...), "pay"),
		}))
	}
	for _, p := range running {
		require.Equal(t, 0, p.wait(t), p)
		all := results(events(t, p.stdout.String()))
		require.Equal(t, "ok", all["c1"].Status, all["c1"].Content)
		require.Equal(t, "rejected", all["c4"].Status)
		require.Contains(t, all["c4"].Content, "cents: is 0, must be 1 or more")
		require.Equal(t, "ok", all["c5"].Status, all["c5"].Content)
		require.Contains(t, plain, all["c5"].WorkerID)
	}
	var acme struct {
		Refunded int            `json:"refunded"`
		Calls    map[string]int `json:"calls"`
	}
	require.NoError(t, json.Unmarshal([]byte(content(t, filepath.Join(ledger, "acme.json"))), &acme))
	require.Equal(t, 200*sessions, acme.Refunded)
	require.Len(t, acme.Calls, 2*sessions)
}

// TestTools_InTheBackground: a job outlives the turn and the process that started it; the
// next one is told how it ended.
func TestTools_InTheBackground(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	folder, gate := t.TempDir(), filepath.Join(t.TempDir(), "gate")
	write(t, filepath.Join(folder, "train.yaml"), `
name: train
description: Train a model.
command: "until [ -e \"$GATE\" ]; do sleep 0.05; done; echo '{\"accuracy\": 0.93}'"
resources: []
background: true
`)
	write(t, filepath.Join(folder, "fails.yaml"), `
name: fails
description: Train another model.
command: "until [ -e \"$GATE\" ]; do sleep 0.05; done; echo no memory >&2; : >\"$GATE.failed\"; exit 3"
resources: []
background: true
`)
	startWorkers(t, 1, append([]string{"--tools", folder, "--env", "GATE=" + gate}, b.flags...))
	first := script(t,
		say("Training.", use("c1", "train", object{}), bash("c2", "echo beside"), use("f1", "fails", object{})),
		say("It trains."),
		say("Waiting.", use("c3", "job_wait", object{"job": "job_1_1_0", "timeout": 120})),
		say("Other work.", bash("c4", "until [ -e \"$GATE.failed\" ]; do sleep 0.05; done; sleep 2")), // its end is told a moment later
		say("Other work.", bash("c5", "sleep 1")),
		say("Trained."))
	args := append([]string{"run", "--json", "--model", first, "--tools", folder, "--toolset", "core,jobs", "--session", "training"}, b.flags...)
	got := succeed(t, coordinator, launch{args: append(args, "train")})
	list := events(t, got.stdout)
	all := results(list)
	require.Equal(t, "ok", all["c1"].Status)
	require.Contains(t, all["c1"].Content, "job_1_1_0 runs in the background")
	require.Equal(t, "beside\n", all["c2"].Content)
	require.Empty(t, ofType(list, "job_ended"))

	write(t, gate, "")
	got = succeed(t, coordinator, launch{args: append(args, "and now?")})
	list = events(t, got.stdout)
	require.Contains(t, results(list)["c3"].Content, "[job_1_1_0 has ended: ok]\n{\"accuracy\":0.93}")
	ended := ofType(list, "job_ended")
	require.Len(t, ended, 2)
	failed := ended[slices.IndexFunc(ended, func(e event) bool { return e.Name == "fails" })]
	require.Equal(t, "failed", failed.Status)
	require.Contains(t, failed.Content, "[failed: tool_failed]")
	require.Contains(t, failed.Content, "no memory")
	require.NotContains(t, failed.raw, "told", "nobody asked: it is told at the next step")
}

// A call for a pool without workers says so when its time is over, and does not run later.
func TestTools_OfAPoolWithoutWorkers(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	folder, ran := t.TempDir(), filepath.Join(t.TempDir(), "ran")
	write(t, filepath.Join(folder, "train.yaml"), "name: train\ndescription: Train.\ncommand: echo >>'"+ran+"'\nresources: [{key: gpu/one}]\npool: gpu\n")
	startWorkers(t, 1, b.flags)
	call := append([]string{"call", "--tools", folder, "--timeout", "3s", "train", "{}"}, b.flags...)
	got := execute(t, coordinator, launch{args: call})
	require.Equal(t, 1, got.code)
	require.Contains(t, got.stdout, `"status":"outcome_unknown","content":"[outcome_unknown: no_worker]\npool gpu has no worker, and none was seen to take the call`)
	require.NotContains(t, got.stdout, "lost")

	late := start(t, worker, launch{args: append([]string{"--sandbox", "process", "--data", t.TempDir(), "--pool", "gpu"}, b.flags...)})
	late.waitFor(t, `takes calls of pool gpu`)
	other := execute(t, coordinator, launch{args: append([]string{"call", "--tools", folder, "--timeout", "2m", "train", "{}"}, b.flags...)})
	require.Equal(t, 0, other.code, other.stdout+other.stderr)
	require.Equal(t, "\n", content(t, ran), "once: the first call never runs")
}

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

	got := succeed(t, coordinator, launch{args: append([]string{"run", "--json"}, args...)})
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
	got := succeed(t, coordinator, launch{args: append(args, "begin")})
	before := results(events(t, got.stdout))
	require.Equal(t, before["c1"].WorkerID, before["c2"].WorkerID)
	require.Contains(t, before["c2"].Content, "1 refunds, 100 cents")

	workers[before["c1"].WorkerID].kill(t)
	got = succeed(t, coordinator, launch{args: append(args, "go on")})
	all := results(events(t, got.stdout))
	require.Equal(t, "rejected", all["c3"].Status)
	require.Contains(t, all["c3"].Content,
		"[rejected: state_lost]\nThe handle cannot be continued any more: the worker that had its state stopped, was lost, or let go of it.")
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
	succeed(t, coordinator, launch{args: append(append([]string{"run", "--model", model}, flags...), "begin")})
	for _, p := range workers {
		p.stop(t)
	}
}
