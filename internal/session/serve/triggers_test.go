package serve_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/calls/channel"
	"github.com/toolfleet/toolfleet/internal/calls/ports"
	"github.com/toolfleet/toolfleet/internal/session/journal"
	"github.com/toolfleet/toolfleet/internal/session/schedule"
	"github.com/toolfleet/toolfleet/internal/session/serve"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// tireless watches a channel in each of its turns, and writes to another one.
type tireless struct{}

func (tireless) Reply(_ context.Context, req loop.Request, _ func(loop.Delta)) (loop.Reply, error) {
	usage := protocol.Usage{InputTokens: 10, OutputTokens: 1}
	if req.Messages[len(req.Messages)-1].Role == loop.RoleTool {
		return loop.Reply{Text: "I wait.", Usage: usage}, nil
	}
	watches, writes, _ := strings.Cut(req.Messages[1].Text, " ")
	reply := loop.Reply{Usage: usage, ToolCalls: []loop.ToolCall{{ID: "w", Name: "watch_channel", Arguments: `{"channel":"` + watches + `"}`}}}
	if writes != "" {
		reply.ToolCalls = append(reply.ToolCalls, loop.ToolCall{ID: "s", Name: "send_message", Arguments: `{"channel":"` + writes + `","text":"hello"}`})
	}
	return reply, nil
}

// woken runs a server and its schedules, and returns the events of a session.
func woken(t *testing.T, bounds ports.Unattended) (*rig, func(protocol.SessionID) []loop.Event) {
	t.Helper()
	r := newRig(t, answer)
	js, err := jetstream.New(r.NC)
	require.NoError(t, err)
	schedules, err := schedule.Open(t.Context(), js, r.Name)
	require.NoError(t, err)
	channels, err := channel.Open(t.Context(), js, r.Name)
	require.NoError(t, err)
	j, err := journal.Open(t.Context(), r.NC, r.Name)
	require.NoError(t, err)
	r.serve(r.Connect(), "a", func(o *serve.Options) {
		o.Models, o.Schedules, o.Unattended = map[string]loop.Model{"script": tireless{}}, schedules, bounds
	})
	runner := schedule.Runner{Store: schedules, Channels: channels, Send: r.dispatcher.Submit, Logger: slog.New(slog.DiscardHandler)}
	r.run(func(ctx, _ context.Context) error {
		runner.Run(ctx)
		return nil
	})
	return r, func(session protocol.SessionID) []loop.Event {
		history, err := j.Load(t.Context(), session)
		require.NoError(t, err)
		return history.Events
	}
}

func number(events []loop.Event, kind loop.EventType) (n int) {
	for i := range events {
		if events[i].Type == kind {
			n++
		}
	}
	return n
}

func (r *rig) begin(t *testing.T, prompt string) protocol.SessionID {
	t.Helper()
	session := protocol.NewSessionID()
	result := r.submit(t.Context(), serve.NewCall(session, wire.TurnRun{Prompt: prompt, Toolsets: []string{"channels", "triggers"}}, 0))
	require.Nil(t, result.Error)
	return session
}

// One message begins one turn, although the model watches the channel again and never reads it.
func TestServer_AWatchDoesNotFireWithoutEnd(t *testing.T) {
	t.Parallel()
	r, events := woken(t, ports.Unattended{})
	watcher := r.begin(t, "work")
	r.begin(t, "none work")
	require.Eventually(t, func() bool { return number(events(watcher), loop.EventTurnEnded) == 2 }, patience, 10*time.Millisecond)
	r.begin(t, "none work")
	require.Eventually(t, func() bool { return number(events(watcher), loop.EventTurnEnded) == 3 }, patience, 10*time.Millisecond)
	all := events(watcher)
	for _, e := range all {
		if e.Type == loop.EventTurnStarted && e.Turn > 1 {
			require.Equal(t, 1, strings.Count(e.Input, "\nhello"), "the turn before had the other message")
		}
	}
	require.Equal(t, 3, number(all, loop.EventTurnStarted))
}

// Sessions that wake each other have as many turns in an hour as they may, and say so.
func TestServer_SessionsThatWakeEachOtherAreBounded(t *testing.T) {
	t.Parallel()
	r, events := woken(t, ports.Unattended{Floor: time.Millisecond, PerHour: 3})
	one := r.begin(t, "a b")
	other := r.begin(t, "b a")
	for _, session := range []protocol.SessionID{one, other} {
		require.Eventually(t, func() bool { // the session that is not woken has no message to wait for
			return number(events(one), loop.EventTurnPostponed)+number(events(other), loop.EventTurnPostponed) > 0
		}, patience, 10*time.Millisecond)
		require.LessOrEqual(t, number(events(session), loop.EventTurnStarted), 1+3)
	}
}

// A coordinator is lost after it has sent the call of a trigger, and before it has removed its
// record: the turn, which comes too early, is postponed, as no other one waits.
func TestServer_ATriggerThatHasFiredDoesNotWait(t *testing.T) {
	t.Parallel()
	r := newRig(t, answer)
	js, err := jetstream.New(r.NC)
	require.NoError(t, err)
	schedules, err := schedule.Open(t.Context(), js, r.Name)
	require.NoError(t, err)
	r.serve(r.Connect(), "a", func(o *serve.Options) {
		o.Models, o.Schedules, o.Unattended = map[string]loop.Model{"script": tireless{}}, schedules, ports.Unattended{Floor: time.Hour}
	})
	session := r.begin(t, "work to")
	require.Nil(t, r.submit(t.Context(), serve.NewCall(session, wire.TurnRun{Prompt: "work to", Toolsets: []string{"channels", "triggers"}}, 0)).Error)
	var by []protocol.CallID // the calls that set the triggers
	for _, e := range r.events(session) {
		if e.Type == loop.EventToolCall && e.Name == "send_message" {
			by = append(by, e.CallID)
		}
	}
	require.Len(t, by, 2)
	fire := func(name string) protocol.Result {
		s := schedule.Schedule{
			Name: "t-" + name, KeepSession: true, Secret: "secret", Trigger: schedule.Trigger{Once: time.Now(), By: by[0]},
			Call: serve.NewCall(session, wire.TurnRun{Prompt: "look to", Trigger: &wire.TurnTrigger{Name: "t-" + name, By: by[0]}}, 0),
		}
		by = by[1:]
		require.NoError(t, schedules.AddTrigger(t.Context(), s))
		stored, err := schedules.Get(t.Context(), s.Name)
		require.NoError(t, err)
		return *r.submit(t.Context(), stored.At(stored.Once))
	}
	require.Nil(t, fire("one").Error)
	result := fire("other")
	require.Contains(t, result.Error.Message, "the turn of trigger t-other is postponed to ")
	_, err = schedules.Get(t.Context(), "t-"+string(result.CallID))
	require.NoError(t, err)
}
