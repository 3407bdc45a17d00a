package integration

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

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
	sent := execute(t, coordinator, launch{args: append([]string{"submit", "--model", sender, "--toolset", "channels"}, append(b.flags, "Tell them.")...)})
	require.Equal(t, 0, sent.code, sent.stderr)
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
