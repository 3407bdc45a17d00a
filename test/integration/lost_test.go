package integration

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

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
		p := start(t, worker, launch{args: append([]string{"--name", name, "--sandbox", "process", "--slots", "8", "--lease", lease.String(), "--data", t.TempDir()}, b.flags...)})
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
