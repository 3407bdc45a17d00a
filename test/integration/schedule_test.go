package integration

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// schedule runs a verb of coordinator schedule on the fleet.
func (b *broker) schedule(tb testing.TB, verb string, args ...string) finished {
	tb.Helper()
	return execute(tb, coordinator, launch{args: append(append([]string{"schedule", verb}, b.flags...), args...)})
}

// TestSchedule_EachTimeOnce: three coordinators share a schedule, and two of them are killed again
// and again. Each time starts one session with one turn.
func TestSchedule_EachTimeOnce(t *testing.T) {
	t.Parallel()
	model := script(t, say("Done."))
	b := newBroker(t)
	b.shortLeases(t)
	startServe(t, model, b.flags...)
	added := b.schedule(t, "add", "--cron", "@every 1s", "--missed", "all", "often", "--", "submit", "look at the sky")
	require.Equal(t, 0, added.code, added.stderr)
	type times struct {
		Created, Last time.Time
		Paused        bool
	}
	read := func(got finished) times {
		var all []times
		require.Equal(t, 0, got.code, got.stderr)
		require.NoError(t, json.Unmarshal([]byte(got.stdout), &all))
		require.Len(t, all, 1)
		return all[0]
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
}

// TestSchedule_Commands: what add, ls, pause, resume and rm print, and what they refuse.
func TestSchedule_Commands(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	startServe(t, script(t, say("Done.")), b.flags...)
	for text, args := range map[string][]string{
		`only turns can be scheduled; give one as: -- submit "PROMPT"`: {"--cron", "@daily", "a", "--", "run", "hello"},
		"PROMPT is empty":                             {"--cron", "@daily", "a", "--", "submit"},
		"--max-stepz":                                 {"--cron", "@daily", "a", "--", "submit", "--max-stepz", "1", "hello"},
		"--workspace, --template":                     {"--cron", "@daily", "a", "--", "submit", "--workspace", "/tmp", "hello"},
		`cron "0 0 31 2 *": there is no such day`:     {"--cron", "0 0 31 2 *", "a", "--", "submit", "hello"},
		`time zone "Mars/Base"`:                       {"--cron", "@daily", "--tz", "Mars/Base", "a", "--", "submit", "hello"},
		`name "a b": must be 1 to 64 letters, digits`: {"--cron", "@daily", "a b", "--", "submit", "hello"},
		"--session last: name the session by its id":  {"--cron", "@daily", "a", "--", "submit", "--session", "last", "hello"},
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
	got := execute(t, coordinator, launch{env: []string{"XDG_CONFIG_HOME=" + config}, args: args})
	require.Equal(t, 0, got.code, got.stderr)
	require.Equal(t, 0, b.schedule(t, "rm", "configured").code)
	got = b.schedule(t, "add", "--cron", "0 7 * * 1-5", "--tz", "Europe/Berlin", "morning", "--", "submit", "--max-steps", "3", "list the failed builds")
	require.Equal(t, 0, got.code, got.stderr)
	got = b.schedule(t, "add", "--cron", "@daily", "morning", "--", "submit", "hello")
	require.Equal(t, 1, got.code)
	require.Contains(t, got.stderr, "the schedule exists: morning")
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
