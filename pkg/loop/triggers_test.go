package loop_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/ports"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// triggers are those of one session. Adding one again changes nothing, also after it was removed.
type triggers struct {
	mu   sync.Mutex
	ever []ports.Trigger
	here map[string]bool
}

func (s *triggers) Add(_ context.Context, trigger ports.Trigger) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if trigger.Cron == "never" {
		return protocol.Errorf(protocol.CodeInvalidArguments, `cron "never": must have five fields`)
	}
	for _, other := range s.ever {
		if other.ID == trigger.ID {
			if other.Secret != trigger.Secret || other.Prompt != trigger.Prompt || other.Call != trigger.Call {
				panic("the same call sets another trigger")
			}
			return nil
		}
	}
	s.ever, s.here[trigger.ID] = append(s.ever, trigger), true
	return nil
}

func (s *triggers) List(context.Context) ([]ports.Trigger, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.ever), func(t ports.Trigger) bool { return !s.here[t.ID] }), nil
}

func (s *triggers) Remove(_ context.Context, id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.here, id)
	return nil
}

func (f *family) withTriggers(t *testing.T) (*family, *triggers) {
	t.Helper()
	s := &triggers{here: map[string]bool{}}
	f.set = s
	return f.withSets(t, "triggers", "channels"), s
}

// waits is a session that sets triggers of each kind, and removes one.
func waits() byPrompt {
	return byPrompt{
		"go": {replies: []loop.Reply{
			calls("a", "read_messages", `{"channel":"work"}`, "add_timer", `{"at":"2026-03-01T09:00:00Z","prompt":"wake up"}`,
				"add_schedule", `{"cron":"0 7 * * *","time_zone":"Europe/Berlin","prompt":"good morning"}`, "add_schedule", `{"cron":"never","prompt":"x"}`,
				"watch_channel", `{"channel":"work"}`, "list_triggers", `{}`),
			calls("b", "add_timer", `{"seconds":60,"prompt":"soon"}`, "add_timer", `{"prompt":"soon"}`),
			calls("c", "agent", `{"prompt":"left"}`),
			says("done"),
		}},
		"left": {replies: []loop.Reply{calls("l", "add_timer", `{"seconds":60,"prompt":"soon"}`), says("left is done")}},
	}
}

func TestTriggers_AreSetAndListed(t *testing.T) {
	t.Parallel()
	f, s := newFamily(t, waits()).withTriggers(t)
	require.NoError(t, f.fleet.SendMessage(t.Context(), "default.work", ports.ChannelMessage{From: "other", Text: "hello"}))
	_, err := f.run(t.Context(), t)
	require.NoError(t, err)
	id := func(step, index int) string { return "t-" + string(f.callID(t, 1, step, index)) }
	said := texts(f.models["go"].lastSeen())
	require.Contains(t, said, "tool: [trigger "+id(1, 1)+" is set: at 2026-03-01T09:00:00Z]")
	require.Contains(t, said, fmt.Sprintf("tool: %s: at 2026-03-01T09:00:00Z: wake up\n%s: at the times \"0 7 * * *\": good morning\n%s: at a message in channel work", id(1, 1), id(1, 2), id(1, 4)))
	require.Contains(t, strings.Join(said, "\n"), `cron "never": must have five fields`)
	require.Contains(t, strings.Join(said, "\n"), "seconds, at: give one of them")
	require.Contains(t, strings.Join(texts(f.models["left"].lastSeen()), "\n"), "this session is not served")
	require.Len(t, s.ever, 4)
	watch := s.ever[2]
	require.Equal(t, ports.Trigger{
		ID: id(1, 4), Call: f.callID(t, 1, 1, 4), Secret: watch.Secret, Channel: "default.work", After: 1,
		Prompt: "[The trigger " + id(1, 4) + " has fired: channel work has messages for read_messages. It is removed; watch_channel waits for more.]",
	}, watch)
	require.WithinDuration(t, time.Now().Add(time.Minute), s.ever[3].At, 30*time.Second)
	require.True(t, strings.HasSuffix(s.ever[3].Prompt, " It is removed.]\nsoon"), s.ever[3].Prompt)
	require.NotContains(t, strings.Join(said, "\n"), watch.Secret)
}

func TestTriggers_CrashAtAnyAppendSetsNoneTwice(t *testing.T) {
	t.Parallel()
	requireCrashesChangeNothing(t, 15, func() *family {
		f, s := newFamily(t, waits()).withTriggers(t)
		for i := range 16 { // with those of the session these are as many as it may have
			require.NoError(t, s.Add(t.Context(), ports.Trigger{ID: fmt.Sprint("other-", i), Channel: "default.other"}))
		}
		return f
	}, func(_, f *family, name string) {
		require.Len(t, f.set.ever, 20, name)
	})
}

func TestTriggers_AreBoundedAndRemoved(t *testing.T) {
	t.Parallel()
	var many []string
	for range 21 {
		many = append(many, "add_timer", `{"seconds":60,"prompt":"soon"}`)
	}
	f, s := newFamily(t, byPrompt{"go": {replies: []loop.Reply{calls("a", many...), says("done")}}}).withTriggers(t)
	_, err := f.run(t.Context(), t)
	require.NoError(t, err)
	results := f.journaled(t, loop.EventToolResult)
	require.Nil(t, results[19].Error)
	require.Equal(t, protocol.CodeLimitReached, results[20].Error.Code)
	f.models["remove"] = &script{replies: []loop.Reply{calls("b", "remove_trigger", `{"trigger":"`+s.ever[0].ID+`"}`), says("done")}}
	f.session = protocol.NewSessionID()
	runner, err := loop.New(f.models, f.fleet, f.journal, table(t, f.tools...), &f.opts)
	require.NoError(t, err)
	_, err = runner.Run(ports.WithTriggers(t.Context(), s), f.session, loop.Input{Text: "remove"})
	require.NoError(t, err)
	require.Contains(t, texts(f.models["remove"].lastSeen()), "tool: [trigger "+s.ever[0].ID+" is removed]")
	require.Len(t, s.here, 19)
}

// A session that no coordinator serves is told what to use instead.
func TestTriggers_OfALocalRun(t *testing.T) {
	t.Parallel()
	for _, call := range [][]string{
		{"add_timer", `{"seconds":60,"prompt":"soon"}`},
		{"add_schedule", `{"cron":"@daily","prompt":"x"}`},
		{"watch_channel", `{"channel":"work"}`},
		{"list_triggers", `{}`},
		{"remove_trigger", `{"trigger":"t"}`},
	} {
		f := newFamily(t, byPrompt{"go": {replies: []loop.Reply{calls("a", call...), says("done")}}}).withSets(t, "triggers")
		_, err := f.run(t.Context(), t)
		require.NoError(t, err)
		require.Contains(t, strings.Join(texts(f.models["go"].lastSeen()), "\n"), "coordinator serve with coordinator submit", call[0])
	}
}
