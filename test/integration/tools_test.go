package integration

import (
	"encoding/json"
	"path/filepath"
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
	got := execute(t, coordinator, launch{args: append(args, "shout")})
	require.Equal(t, 0, got.code, got.stderr)
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
	got := execute(t, coordinator, launch{args: append(args, "train")})
	require.Equal(t, 0, got.code, got.stderr)
	list := events(t, got.stdout)
	all := results(list)
	require.Equal(t, "ok", all["c1"].Status)
	require.Contains(t, all["c1"].Content, "job_1_1_0 runs in the background")
	require.Equal(t, "beside\n", all["c2"].Content)
	require.Empty(t, ofType(list, "job_ended"))

	write(t, gate, "")
	got = execute(t, coordinator, launch{args: append(args, "and now?")})
	require.Equal(t, 0, got.code, got.stderr)
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
