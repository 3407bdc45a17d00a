package integration

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire/signing"
)

// schedule runs a verb of coordinator schedule on the fleet.
func (b *broker) schedule(tb testing.TB, verb string, args ...string) finished {
	tb.Helper()
	return execute(tb, coordinator, launch{args: append(append([]string{"schedule", verb}, b.flags...), args...)})
}

// TestSchedule_EachTimeOnce: three coordinators share two schedules, and two of them are killed
// again and again. Each time starts one session with one turn, and one call of a command.
func TestSchedule_EachTimeOnce(t *testing.T) {
	t.Parallel()
	model := script(t, say("Done."))
	b := newBroker(t)
	b.shortLeases(t)
	startServe(t, model, b.flags...)
	added := b.schedule(t, "add", "--cron", "@every 1s", "--missed", "all", "often", "--", "submit", "look at the sky")
	require.Equal(t, 0, added.code, added.stderr)
	file := filepath.Join(t.TempDir(), "ran")
	startWorkers(t, 1, b.flags)
	called := b.schedule(t, "add", "--cron", "@every 1s", "--missed", "all", "ran", "--", "call", "--min-level", "none", "bash", `{"command":"echo >> `+file+`"}`)
	require.Equal(t, 0, called.code, called.stderr)
	type times struct {
		Created, Last time.Time
		Paused        bool
	}
	read := func(got finished) times {
		var all []times
		require.Equal(t, 0, got.code, got.stderr)
		require.NoError(t, json.Unmarshal([]byte(got.stdout), &all))
		return all[0] // by their names
	}
	enough := 8 * time.Second
	if long := os.Getenv("TOOLFLEET_SCHEDULE_FOR"); long != "" { // make chaos
		var err error
		enough, err = time.ParseDuration(long)
		require.NoError(t, err)
	}
	victims := []*process{startServe(t, model, b.flags...), startServe(t, model, b.flags...)}
	for i, now := 0, (times{}); now.Last.Sub(now.Created) < enough; i++ {
		victims[i%2].kill(t)
		victims[i%2] = startServe(t, model, b.flags...)
		now = read(b.schedule(t, "ls", "--json"))
	}
	paused := read(b.schedule(t, "pause", "--json", "often"))
	require.True(t, paused.Paused)
	want := int(paused.Last.Sub(paused.Created) / time.Second)
	stopped := read(b.schedule(t, "pause", "--json", "ran"))
	calls := int(stopped.Last.Sub(stopped.Created) / time.Second)

	var listed []struct {
		Turns int
		State string
	}
	require.Eventually(t, func() bool {
		ls := b.session(t, "ls", "--json", "--limit", "10000")
		require.Equal(t, 0, ls.code, ls.stderr)
		require.NoError(t, json.Unmarshal([]byte(ls.stdout), &listed))
		answered := 0
		for _, session := range listed {
			require.LessOrEqual(t, session.Turns, 1)
			if session.State == "answered" {
				answered++
			}
		}
		return answered >= want
	}, patience, perProcess)
	require.LessOrEqual(t, len(listed), want+1, "what was on its way when the schedule was paused")
	var ran []byte
	require.Eventually(t, func() bool {
		var err error
		ran, err = os.ReadFile(file)
		return err == nil && len(ran) >= calls
	}, patience, perProcess)
	require.LessOrEqual(t, len(ran), calls+1)
}

// TestSchedule_SignedCalls: a schedule starts a tool call, whose result is found by its time. With
// keys for calls only who has the coordinators' key may add it.
func TestSchedule_SignedCalls(t *testing.T) {
	t.Parallel()
	b, keys, model := newBroker(t), t.TempDir(), script(t, say("Done."))
	_, err := signing.Make(keys)
	require.NoError(t, err)
	key := []string{"--sign-key", filepath.Join(keys, signing.PrivateFile)}
	startServe(t, model, append(key, b.flags...)...)
	startWorkers(t, 1, append([]string{"--call-keys", filepath.Join(keys, signing.PublicFile)}, b.flags...))
	add := []string{"--cron", "@every 1s", "log", "--", "call", "--min-level", "none", "--timeout", "1m", "bash", `{"command":"echo >> log; wc -l < log"}`}
	got := b.schedule(t, "add", add...)
	require.Equal(t, 2, got.code, got.stderr)
	require.Regexp(t, `call: coordinator \S+ signs calls with key "[0-9a-f]{16}", and this process with "": both need the same key \(--sign-key\)`, got.stderr)
	require.Equal(t, "[]\n", b.schedule(t, "ls", "--json").stdout, "nothing was added")
	got = b.schedule(t, "result", "log")
	require.Equal(t, 1, got.code)
	require.Contains(t, got.stderr, "there is no such schedule: log")

	require.Equal(t, 0, b.schedule(t, "add", append(key, add...)...).code)
	var all []struct {
		Last    time.Time
		Outcome string
	}
	require.Eventually(t, func() bool {
		got = b.schedule(t, "ls", "--json")
		require.NoError(t, json.Unmarshal([]byte(got.stdout), &all))
		return all[0].Outcome == "ok"
	}, patience, perProcess)
	require.Regexp(t, `"tool":"bash","payload":\{.*"command":"echo >> log`, got.stdout)
	require.Equal(t, 0, b.schedule(t, "pause", "log").code)
	require.Regexp(t, `(?m)^log +@every 1s +UTC .* ok +paused +call bash \{`, b.schedule(t, "ls").stdout)
	for _, at := range []string{"", all[0].Last.Format(time.RFC3339)} {
		args := []string{"log"}
		if at != "" {
			args = append(args, "--time", at)
		}
		got = b.schedule(t, "result", args...)
		require.Equal(t, 0, got.code, got.stderr)
		require.Regexp(t, `"status":"ok".*"session_id":".+"call_id":".+`, got.stdout)
	}
	got = b.schedule(t, "result", "--time", "2020-01-01T00:00:00Z", "log")
	require.Equal(t, 2, got.code, got.stderr)
	require.Contains(t, got.stderr, "time 2020-01-01T00:00:00Z: schedule log started nothing at that time")
}

// TestSchedule_Commands: what add, ls, pause, resume and rm print, and what they refuse.
func TestSchedule_Commands(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	startServe(t, script(t, say("Done.")), b.flags...)
	for text, args := range map[string][]string{
		`turns and calls can be scheduled; give one as: -- submit "PROMPT", or -- call TOOL ARGUMENTS`: {"--cron", "@daily", "a", "--", "run", "hello"},

		`tool "none"`:                                 {"--cron", "@daily", "a", "--", "call", "none"},
		`command`:                                     {"--cron", "@daily", "a", "--", "call", "bash", `{"command":1}`},
		`the arguments are not JSON`:                  {"--cron", "@daily", "a", "--", "call", "bash", `{"command":`},
		`expected "<tool>"`:                           {"--cron", "@daily", "a", "--", "call"},
		`unknown flag --batch`:                        {"--cron", "@daily", "a", "--", "call", "--batch", "-"},
		`tools.deny`:                                  {"--cron", "@daily", "a", "--", "call", "--deny-tool", "bash", "bash", `{"command":"id"}`},
		`there is nobody to ask`:                      {"--cron", "@daily", "a", "--", "call", "--ask-for", "bash", "bash", `{"command":"id"}`},
		`tenant "A"`:                                  {"--cron", "@daily", "a", "--", "call", "--tenant", "A", "bash", `{"command":"id"}`},
		`cron "61 * * * *"`:                           {"--cron", "61 * * * *", "a", "--", "call", "bash", `{"command":"id"}`},
		`--session last: give`:                        {"--cron", "@daily", "a", "--", "call", "--session", "last", "bash", `{"command":"id"}`},
		`--timeout -1s: must not be negative`:         {"--cron", "@daily", "a", "--", "call", "--timeout=-1s", "bash", `{"command":"id"}`},
		"PROMPT is empty":                             {"--cron", "@daily", "a", "--", "submit"},
		"--max-stepz":                                 {"--cron", "@daily", "a", "--", "submit", "--max-stepz", "1", "hello"},
		"--workspace, --template":                     {"--cron", "@daily", "a", "--", "submit", "--workspace", "/tmp", "hello"},
		`cron "0 0 31 2 *": there is no such day`:     {"--cron", "0 0 31 2 *", "a", "--", "submit", "hello"},
		`time zone "Mars/Base"`:                       {"--cron", "@daily", "--tz", "Mars/Base", "a", "--", "submit", "hello"},
		`name "a b": must be 1 to 64 letters, digits`: {"--cron", "@daily", "a b", "--", "submit", "hello"},
		"--session last: give the id of the session":  {"--cron", "@daily", "a", "--", "submit", "--session", "last", "hello"},
		`no coordinator serves model "openai:none"`:   {"--cron", "@daily", "a", "--", "submit", "--model", "openai:none", "hello"},
		"--missed must be one of":                     {"--cron", "@daily", "--missed", "never", "a", "--", "submit", "hello"},
	} {
		got := b.schedule(t, "add", args...)
		require.Equal(t, 2, got.code, got.stderr)
		require.Contains(t, got.stderr, text)
	}
	require.Equal(t, "[]\n", b.schedule(t, "ls", "--json").stdout, "nothing was added")
	config := t.TempDir() // settings of other commands are not in the way
	write(t, filepath.Join(config, "toolfleet", "config.yaml"), "log-level: info\nrun:\n  slots: 3\n")
	args := append(append([]string{"schedule", "add"}, b.flags...), "--cron", "@daily", "configured", "--", "submit", "hello")
	succeed(t, coordinator, launch{env: []string{"XDG_CONFIG_HOME=" + config}, args: args})
	require.Equal(t, 0, b.schedule(t, "rm", "configured").code)
	got := b.schedule(t, "add", "--cron", "0 7 * * 1-5", "--tz", "Europe/Berlin", "morning", "--", "submit", "--max-steps", "3", "list the failed builds")
	require.Equal(t, 0, got.code, got.stderr)
	got = b.schedule(t, "add", "--cron", "@daily", "morning", "--", "submit", "hello")
	require.Equal(t, 1, got.code)
	require.Contains(t, got.stderr, "the schedule exists, and schedule rm removes it: morning")
	got = b.schedule(t, "ls")
	require.Regexp(t, `(?m)^morning +0 7 \* \* 1-5 +Europe/Berlin +- +- +- +20\d\d-.*T07:00:00\+0[12]:00 +list the failed builds$`, got.stdout)
	require.Equal(t, 0, b.schedule(t, "add", "--cron", "@every 1s", "soon", "--", "submit", "hello").code)
	require.Eventually(t, func() bool {
		return strings.Contains(b.schedule(t, "ls", "--json").stdout, `"outcome":"answered"`)
	}, patience, perProcess, "how the last turn ended")
	require.Equal(t, 0, b.schedule(t, "rm", "soon").code)
	got = b.schedule(t, "pause", "morning")
	require.Regexp(t, `(?m)^morning .* paused +list`, got.stdout)
	got = b.schedule(t, "resume", "--json", "morning")
	require.Contains(t, got.stdout, `"paused":false`)
	require.NotContains(t, got.stdout, "secret")
	require.Equal(t, 0, b.schedule(t, "rm", "morning").code)
	got = b.schedule(t, "rm", "morning")
	require.Equal(t, 1, got.code)
	require.Contains(t, got.stderr, "there is no such schedule: morning")
}

// TestSchedule_ListsAndResults: what waits for a message is no paused schedule, commands are shown
// as they are, and a schedule that has not started says so.
func TestSchedule_ListsAndResults(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	model := script(t, say("Waiting.", use("c1", "watch_channel", object{"channel": "work"}), use("c2", "remove_trigger", object{"trigger": "t-none"})), say("Done."))
	startServe(t, model, b.flags...)
	added := b.schedule(t, "add", "--cron", "0 0 1 1 *", "yearly", "--", "call", "--min-level", "none", "bash", `{"command":"sort <a >b && ls"}`)
	require.Equal(t, 0, added.code, added.stderr)
	succeed(t, coordinator, launch{args: append([]string{"submit", "--toolset", "triggers", "wait for work"}, b.flags...)})

	listed := b.schedule(t, "ls")
	require.Equal(t, 0, listed.code, listed.stderr)
	require.Regexp(t, `(?m)^t-\S+ +message in default\.work .* waiting `, listed.stdout)
	require.NotContains(t, listed.stdout, "paused")
	require.Contains(t, listed.stdout, "sort <a >b && ls")
	require.NotContains(t, listed.stdout, `\u003`)

	result := b.schedule(t, "result", "yearly")
	require.Equal(t, 1, result.code, result.stderr)
	require.Regexp(t, `schedule yearly has not started anything yet: it starts at \d{4}-01-01T00:00:00Z`, result.stderr)
	paused := b.schedule(t, "pause", "yearly")
	require.Contains(t, paused.stdout, " paused ")
	require.Contains(t, b.schedule(t, "result", "yearly").stderr, "has not started anything yet: it is paused")
}

// TestWatcher_EachFiringBeginsOneTurn: examples/watcher sets a timer, a schedule and a watch of a
// channel. Its coordinator is killed, another one starts, and a message is sent. Each time and the
// message begin one turn.
func TestWatcher_EachFiringBeginsOneTurn(t *testing.T) {
	t.Parallel()
	example, err := filepath.Abs("../../examples/watcher")
	require.NoError(t, err)
	watcher, sender := "script:"+filepath.Join(example, "watcher.json"), "script:"+filepath.Join(example, "sender.json")
	b := newBroker(t)
	b.shortLeases(t)
	serve := func() *process { return startServe(t, watcher, append([]string{"--model", sender}, b.flags...)...) }
	first := serve()
	id := b.submit(t, "--toolset", "triggers,channels", "Watch the builds.")
	inputs := func(with string) (n int) {
		got := b.session(t, "export", id)
		require.Equal(t, 0, got.code, got.stderr)
		for line := range strings.Lines(got.stdout) {
			var e struct{ Type, Input string }
			require.NoError(t, json.Unmarshal([]byte(line), &e))
			if e.Type == "turn_started" && strings.Contains(e.Input, with) {
				n++
			}
		}
		return n
	}
	const timer, times, message = "Say that you are awake.", "Look at the builds.", "Say what it is about."
	require.Eventually(t, func() bool { return inputs(times) > 0 }, patience, perProcess)
	first.kill(t)
	serve()
	succeed(t, coordinator, launch{args: append([]string{"submit", "--model", sender, "--toolset", "channels"}, append(b.flags, "Tell them.")...)})
	require.Eventually(t, func() bool { return inputs(message) == 1 && inputs(times) > 2 }, patience, perProcess)

	type fired struct {
		Name, Cron    string
		Created, Last time.Time
	}
	var all []fired
	got := b.schedule(t, "ls", "--json")
	require.Equal(t, 0, got.code, got.stderr)
	require.NoError(t, json.Unmarshal([]byte(got.stdout), &all))
	schedule := slices.IndexFunc(all, func(s fired) bool { return s.Cron == "@every 3s" })
	require.GreaterOrEqual(t, schedule, 0)
	require.LessOrEqual(t, len(all), 2, "what has fired once is removed; a turn that came too early after another one waits")
	got = b.schedule(t, "pause", "--json", all[schedule].Name)
	require.Equal(t, 0, got.code, got.stderr)
	require.NoError(t, json.Unmarshal([]byte(got.stdout), &all))
	want := int(all[0].Last.Sub(all[0].Created) / (3 * time.Second))
	require.Eventually(t, func() bool { return inputs(times) >= want }, patience, perProcess)
	require.LessOrEqual(t, inputs(times), want+1, "what was on its way when the schedule was paused")
	require.Equal(t, []int{1, 1}, []int{inputs(timer), inputs(message)})

	require.Eventually(t, func() bool { return b.session(t, "rm", id).code == 0 }, patience, perProcess, "once no turn waits")
	got = b.schedule(t, "ls", "--json")
	require.Equal(t, "[]", strings.TrimSpace(got.stdout), "the triggers of a removed session")
}
