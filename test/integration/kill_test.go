package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
)

// other is a worker that is not the one with the id.
func other(tb testing.TB, members map[string]member, id string) member {
	tb.Helper()
	for _, m := range members {
		if m.id != id {
			return m
		}
	}
	tb.Fatalf("there is no other worker than %s", id)
	return member{}
}

// TestWorker_KilledCallRunsAgainElsewhere: kill -9 of the worker that runs a call
// costs the time of a lease, not the call.
func TestWorker_KilledCallRunsAgainElsewhere(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]int{"the first call of the lane": 0, "a later call of the lane": 2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			hold, earlier, count := newGate(t), newTally(t), newTally(t)
			var steps []step
			for i := range before {
				steps = append(steps, say("Earlier.", bash(fmt.Sprintf("e%d", i), earlier.add("done"))))
			}
			steps = append(steps, say("Slow.", bash("c1", count.add("begun")+"; "+hold.pass()+"; echo finished")),
				say("After it.", bash("c2", "echo goes on")), say("Answered."))
			label := fmt.Sprintf(`\[%d\.1 bash\] +. `, before+1)
			b := newBroker(t)
			workers := startWorkers(t, 2, b.flags)
			p := start(t, coordinator, launch{args: append(append([]string{"run", "--model", script(t, steps...)}, b.flags...), "do it")})
			id := p.waitFor(t, label+`running on (\S+)\n`)[1]
			require.Contains(t, workers, id)
			waitUntil(t, func() bool { return count.count() == 1 })

			workers[id].kill(t)
			survivor := other(t, workers, id)
			p.waitFor(t, label+`running on `+survivor.id+`, attempt 2`)
			waitUntil(t, func() bool { return count.count() == 2 })
			hold.open(t)
			require.Equal(t, 0, p.wait(t))
			require.Equal(t, "Answered.\n", p.stdout.String())
			require.Regexp(t, label+`ok · on `+survivor.id+`, attempt 2(?s:.*)│ finished\n`, p.stderr)
			require.Regexp(t, `ok · on `+survivor.id+`, attempt 1(?s:.*)│ goes on\n`, p.stderr, "the lane goes on")
			require.Equal(t, before, earlier.count(), "a call that has its result is not run again")
			require.Equal(t, 2, count.count())
			requireLost(t, b.flags, id, survivor.id)
			survivor.stop(t)
		})
	}
}

// requireLost checks that the trace of the last turn has the attempt that was lost with its worker,
// within the call that another worker ended.
func requireLost(t *testing.T, flags []string, lost, next string) {
	t.Helper()
	p := start(t, coordinator, launch{args: append([]string{"trace", "last", "--json"}, flags...)})
	require.Equal(t, 0, p.wait(t))
	var trace struct {
		DurationMS float64 `json:"duration_ms"`
		Spans      []struct {
			WorkerID   string  `json:"worker_id"`
			Attempt    int     `json:"attempt"`
			DurationMS float64 `json:"duration_ms"`
			Parts      []struct {
				Reason  string  `json:"reason"`
				For     string  `json:"for"`
				Attempt int     `json:"attempt"`
				MS      float64 `json:"ms"`
			} `json:"parts"`
		} `json:"spans"`
	}
	require.NoError(t, json.Unmarshal([]byte(p.stdout.String()), &trace))
	found := false
	for _, s := range trace.Spans {
		if s.Attempt != 2 {
			continue
		}
		require.Equal(t, next, s.WorkerID)
		sum, attempt := 0.0, 0.0
		for _, part := range s.Parts {
			if sum += part.MS; part.Reason == "lost" {
				require.Equal(t, lost, part.For, "%+v", s)
				require.Equal(t, 1, part.Attempt)
				attempt += part.MS
			}
		}
		require.InDelta(t, s.DurationMS, sum, 0.1)
		require.Greater(t, attempt, sum/4, "a lease passed: %+v", s)
		found = true
	}
	require.True(t, found, "%+v", trace)
}

// TestWorker_DrainFinishesTheRunningCall: after SIGTERM a worker takes nothing new,
// ends what it has begun, and exits in order; the other one goes on.
func TestWorker_DrainFinishesTheRunningCall(t *testing.T) {
	t.Parallel()
	hold, count := newGate(t), newTally(t)
	model := script(t,
		say("Slow.", bash("c1", count.add("begun")+"; "+hold.pass()+"; echo finished > f.txt")),
		say("Next.", use("c2", "read", object{"path": "f.txt"})),
		say("Answered."))
	b := newBroker(t)
	workers := startWorkers(t, 2, b.flags)
	p := start(t, coordinator, launch{args: append(append([]string{"run", "--model", model}, b.flags...), "do it")})
	id := p.waitFor(t, `\[1\.1 bash\] +. running on (\S+)\n`)[1]
	waitUntil(t, func() bool { return count.count() == 1 })

	workers[id].signal(t, syscall.SIGTERM)
	workers[id].waitFor(t, `worker: draining, for 30s at most`)
	require.True(t, workers[id].runs(), "a call runs")
	hold.open(t)
	require.Equal(t, 0, workers[id].wait(t))
	require.Equal(t, 0, p.wait(t))
	require.Regexp(t, `\[1\.1 bash\] +. ok · on `+id+`, attempt 1`, p.stderr)
	require.Regexp(t, `\[2\.1 read\] +. ok · on `+other(t, workers, id).id+`, attempt 1(?s:.*)finished`, p.stderr)
	require.Equal(t, 1, count.count())
}

// TestWorker_SecondSignalExits: who does not want to wait says so twice.
func TestWorker_SecondSignalExits(t *testing.T) {
	t.Parallel()
	hold := newGate(t)
	b := newBroker(t)
	workers := startWorkers(t, 1, b.flags)
	p := start(t, coordinator, launch{args: append(append([]string{"run", "--model", script(t, say("", bash("c1", hold.pass())))}, b.flags...), "do it")})
	id := p.waitFor(t, `\[1\.1 bash\] +. running on (\S+)\n`)[1]
	workers[id].signal(t, syscall.SIGTERM)
	workers[id].waitFor(t, `worker: draining`)
	workers[id].signal(t, syscall.SIGTERM)
	require.Equal(t, 130, workers[id].wait(t))
}

// TestServe_ARestartWaitsForTheDrain: a coordinator with its own server says what it waits for
// after SIGTERM. One that is started meanwhile waits for it, and runs what was submitted since.
func TestServe_ARestartWaitsForTheDrain(t *testing.T) {
	t.Parallel()
	hold := newGate(t)
	model, data := script(t, say("Slow.", use("c1", "bash", object{"command": hold.pass(), "timeout": 3600})), say("Answered.")), filepath.Join(t.TempDir(), "serve")
	flags := []string{"--listen", fmt.Sprintf("127.0.0.1:%d", natsiotest.FreePorts(t, 1)[0]), "--data", data, "--drain", "10m"}
	first := startServe(t, model, flags...)
	printed := pasted(t, first.waitFor(t, `start workers with: worker (.*)\n`)[1])
	fleet := printed[:4]
	startWorkers(t, 1, printed)
	running := start(t, coordinator, launch{args: append([]string{"submit", "do it"}, fleet...)})
	running.waitFor(t, `\[1\.1 bash\] +. running on`)

	refused := execute(t, coordinator, launch{args: append([]string{"serve", "--model", model}, flags...)})
	require.Equal(t, 1, refused.code)
	require.Contains(t, refused.stderr, fmt.Sprintf("is in use by another process (process %d, since ", first.cmd.Process.Pid))

	first.signal(t, syscall.SIGTERM)
	first.waitFor(t, `coordinator: draining, for 10m0s at most \(--drain\); still running: 1 turn; .*; a second signal exits at once\n`)
	second := start(t, coordinator, launch{args: append([]string{"serve", "--model", model}, flags...)})
	second.waitFor(t, fmt.Sprintf(`is in use \(process %d, since .*, drains until \S+ at most\): waiting for that process to end\n`, first.cmd.Process.Pid))
	waiting := start(t, coordinator, launch{args: append([]string{"submit", "do it too"}, fleet...)})
	waiting.waitFor(t, `the turn waits: no coordinator serves this fleet now; the turn is stored, and starts when one does \(coordinator serve\)`)

	hold.open(t)
	require.Equal(t, 0, first.wait(t))
	second.waitFor(t, `coordinator: serving sessions`)
	require.Equal(t, 0, waiting.wait(t), waiting)
	require.Equal(t, "Answered.\n", waiting.stdout.String())
	second.signal(t, syscall.SIGTERM)
	second.waitFor(t, `coordinator: draining, for 10m0s at most \(--drain\); nothing runs;`)
	require.Equal(t, 0, second.wait(t))
}

// TestServe_TurnGoesOnElsewhere: kill -9 of the coordinator in the middle of a turn. The
// other one waits for the calls that run, runs none that has ended, and answers.
func TestServe_TurnGoesOnElsewhere(t *testing.T) {
	t.Parallel()
	hold, first, second, third := newGate(t), newTally(t), newTally(t), newTally(t)
	model := script(t,
		say("Once.", bash("c1", first.add("done"))),
		say("Slow.", bash("c2", second.add("begun")+"; "+hold.pass()), bash("c3", third.add("done"))),
		say("Answered."))
	b := newBroker(t)
	b.shortLeases(t)
	startWorkers(t, 2, b.flags)
	lost := startServe(t, model, b.flags...)
	p := start(t, coordinator, launch{args: append(append([]string{"submit"}, b.flags...), "do it")})
	p.waitFor(t, `\[2\.1 bash\] +. running on (\S+)\n`)
	heir := startServe(t, model, b.flags...)

	lost.kill(t)
	waitUntil(t, func() bool { return b.turnTakenOver(t) })
	hold.open(t)
	require.Equal(t, 0, p.wait(t), p)
	require.Equal(t, "Answered.\n", p.stdout.String())
	for name, count := range map[string]*tally{"ended before": first, "ran meanwhile": second, "waited meanwhile": third} {
		require.Equal(t, 1, count.count(), name)
	}
	heir.stop(t)
}

// TestServe_StartedAgainDoesNotWaitForItself: a coordinator with the fleet's server inside that is
// killed and started again knows that its earlier life is over, however long the leases are.
func TestServe_StartedAgainDoesNotWaitForItself(t *testing.T) {
	t.Parallel()
	model, data := script(t, say("Once.", bash("c1", "echo done")), say("Answered.")), t.TempDir()
	serve := func(listen string) (*process, []string) {
		p := start(t, coordinator, launch{args: []string{"serve", "--listen", listen, "--data", data, "--lease", "1h", "--model", model, "--min-level", "none"}})
		return p, pasted(t, p.waitFor(t, `start workers with: worker (--nats \S+ --creds .+) --call-keys`)[1])
	}
	lost, flags := serve("127.0.0.1:0")
	b := &broker{flags: flags}
	id := b.submit(t, "--min-level", "none", "do it")
	watcher := start(t, coordinator, launch{args: append([]string{"session", "attach", id}, flags...)})
	watcher.waitFor(t, `\[1\.1 bash\] › `) // it has the turn, and nobody runs its call
	lost.kill(t)
	watcher.kill(t)

	serve(strings.TrimPrefix(flags[1], "nats://"))
	startWorkers(t, 1, flags)
	ended := b.session(t, "attach", id)
	require.Equal(t, 0, ended.code, ended.stderr)
	require.Equal(t, "Answered.\n", ended.stdout)
}

// TestWorker_ThatIsLostIsTold: kill -9 of a worker. Whoever waits for one of its calls is told that
// it is lost, by its name, how long its lease lasts, and where the call goes on.
func TestWorker_ThatIsLostIsTold(t *testing.T) {
	t.Parallel()
	const lease = 10 * time.Second * slowness
	hold, count := newGate(t), newTally(t)
	b := newBroker(t)
	model := script(t, say("Slow.", bash("c1", count.add("begun")+"; "+hold.pass())), say("Answered."))
	startServe(t, model, b.flags...)
	named := func(name string) *process {
		p := start(t, worker, launch{
			args: append([]string{"--name", name, "--sandbox", "process", "--slots", "8", "--lease", lease.String(), "--data", t.TempDir()}, b.flags...),
		})
		p.waitFor(t, `worker: `+name+`-\S+ takes calls`)
		return p
	}
	first := named("first")
	shown := execute(t, coordinator, launch{args: append([]string{"workers"}, b.flags...)})
	require.Regexp(t, `(?m)^first-\S+ `, shown.stdout)

	begin := func(args ...string) *process {
		p := start(t, coordinator, launch{args: append(args, b.flags...)})
		before := count.count()
		waitUntil(t, func() bool { return count.count() > before })
		return p
	}
	run := begin("run", "--model", model, "go")
	plain := begin("run", "--plain", "--model", model, "go")
	json := begin("run", "--json", "--model", model, "go")
	submit := begin("submit", "--session", "mine", "go")
	attach := start(t, coordinator, launch{args: append([]string{"session", "attach", "mine"}, b.flags...)})
	attach.waitFor(t, `\[1\.1 bash\] +. running on first-`)
	call := begin("call", "bash", `{"command":"`+count.add("begun")+"; "+hold.pass()+`"}`)
	named("second")

	first.kill(t)
	const lost = `worker first-\S+ is lost; its lease ends in \d+ s, then another worker takes over`
	for _, p := range []*process{run, submit, attach} {
		p.waitFor(t, `\[1\.1 bash\] `+lost+`\n(?s:.*)\[1\.1 bash\] . running on second-\S+, attempt 2\n`)
	}
	plain.waitFor(t, lost+`(?s:.*)second-\S+, attempt 2\n`)
	call.waitFor(t, `bash: `+lost)
	hold.open(t)
	for _, p := range []*process{run, plain, json, submit, attach, call} {
		require.Equal(t, 0, p.wait(t), p)
	}
	told := ofType(events(t, json.stdout.String()), "worker_lost")
	require.NotEmpty(t, told)
	require.Regexp(t, `^`+lost+`$`, told[0].Text)
	require.Equal(t, 1, told[0].Attempt)
}

// TestCall_LeavesNothing: a call of no session in a fleet leaves no workspace; one of a session
// does.
func TestCall_LeavesNothing(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	data := t.TempDir()
	start(t, worker, launch{args: append([]string{"--sandbox", "process", "--data", data}, b.flags...)}).waitFor(t, `takes calls of pool default`)
	call := func(flags ...string) {
		args := append(append([]string{"call"}, flags...), b.flags...)
		got := succeed(t, coordinator, launch{args: append(args, "write", `{"path":"a","content":"x"}`)})
		require.Empty(t, got.stderr)
	}
	call("--session", "mine")
	call()
	entries, err := os.ReadDir(filepath.Join(data, "sandboxes"))
	require.NoError(t, err)
	require.Len(t, entries, 1)
	require.Equal(t, "mine", entries[0].Name())
}

// TestSession_InUse: a session whose call runs is in use, and open when its process was lost.
func TestSession_InUse(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	startWorkers(t, 1, b.flags)
	gate := filepath.Join(t.TempDir(), "gate")
	model := script(t, say("", bash("c1", "until [ -e '"+gate+"' ]; do sleep 0.05; done")), say("Done."))
	p := start(t, coordinator, launch{args: append([]string{"run", "--session", "live", "--model", model, "go"}, b.flags...)})
	state := func() string {
		got := execute(t, coordinator, launch{args: append([]string{"session", "show", "--json", "live"}, b.flags...)})
		var info struct{ State string }
		_ = json.Unmarshal([]byte(got.stdout), &info) // there is none yet
		return info.State
	}
	require.Eventually(t, func() bool { return state() == "in_use" }, patience, perProcess)
	require.NoError(t, os.WriteFile(gate, nil, 0o600))
	require.Equal(t, 0, p.wait(t), p)
	require.Equal(t, "answered", state())
}
