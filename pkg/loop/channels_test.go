package loop_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/calls/ports"
	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools/toolset"
)

// SendMessage stores a message once for each call.
func (f *fleet) SendMessage(_ context.Context, channel string, m ports.ChannelMessage) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.posts == nil {
		f.posts = make(map[string][]ports.ChannelMessage)
	}
	if !slices.ContainsFunc(f.posts[channel], func(other ports.ChannelMessage) bool { return other.Call == m.Call }) {
		m.Sequence, m.Time = uint64(len(f.posts[channel])+1), time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		f.posts[channel] = append(f.posts[channel], m)
	}
	return nil
}

// ReadMessages returns what is there, or waits until ctx ends.
func (f *fleet) ReadMessages(ctx context.Context, channel string, read ports.ChannelRead) ([]ports.ChannelMessage, error) {
	f.mu.Lock()
	messages := slices.DeleteFunc(slices.Clone(f.posts[channel]), func(m ports.ChannelMessage) bool {
		return m.Sequence <= read.After || m.From == read.Reader
	})
	f.mu.Unlock()
	if len(messages) == 0 && read.Wait > 0 {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return messages[:min(len(messages), read.Limit)], nil
}

// SearchSessions returns what the test has set.
func (f *fleet) SearchSessions(_ context.Context, query wire.SessionSearchRequest, owner judge.Owner, except protocol.SessionID) (report.Found, error) {
	if f.searched == nil {
		return report.Found{}, errors.New("no index")
	}
	return f.searched(query, owner, except)
}

// calls is a reply with calls: names and arguments in turns.
func calls(prefix string, named ...string) loop.Reply {
	reply := loop.Reply{Text: "calling " + prefix}
	for i := 0; i < len(named); i += 2 {
		reply.ToolCalls = append(reply.ToolCalls, loop.ToolCall{ID: fmt.Sprint(prefix, i), Name: named[i], Arguments: named[i+1]})
	}
	return reply
}

// withSets adds toolsets to those of a family.
func (f *family) withSets(t *testing.T, names ...string) *family {
	t.Helper()
	set, err := toolset.Named(append(names, "agents")...)
	require.NoError(t, err)
	f.tools = set
	return f
}

// chat has a session and its sub-agent exchange messages.
func chat() byPrompt {
	return byPrompt{
		"go": {replies: []loop.Reply{
			calls("a", "send_message", `{"channel":"work","text":"one"}`, "send_message", `{"channel":"work","text":"two"}`, "read_messages", `{"channel":"work"}`),
			calls("b", "agent", `{"prompt":"left"}`),
			calls("c", "read_messages", `{"channel":"work","limit":1}`),
			calls("d", "read_messages", `{"channel":"work"}`, "read_messages", `{"channel":"work"}`, "read_messages", `{"channel":"work","all":true}`),
			says("done"),
		}},
		"left": {replies: []loop.Reply{
			calls("l", "read_messages", `{"channel":"work"}`, "send_message", `{"channel":"work","text":"three"}`, "send_message", `{"channel":"work","text":"four"}`),
			says("left is done"),
		}},
	}
}

func TestChannels_MessagesComeInOrder(t *testing.T) {
	t.Parallel()
	f := newFamily(t, chat()).withSets(t, "channels")
	f.mustRun(t.Context(), t)
	child := f.callID(t, 1, 2, 0)
	message := func(n int, from protocol.SessionID, text string) string {
		return fmt.Sprintf("[message %d, from session %s, 2026-01-02T03:04:05Z]\n%s", n, from, text)
	}
	three, four := message(3, protocol.SessionID(child), "three"), message(4, protocol.SessionID(child), "four")
	said := texts(f.models["go"].lastSeen())
	const none = "tool: [channel work has no new messages]"
	require.Equal(t, []string{"tool: [sent to channel work]", "tool: [sent to channel work]", none, "assistant: calling b"}, said[3:7], "its own messages are not for it")
	require.Equal(t, []string{"tool: " + three, "assistant: calling d", "tool: " + four, none, "tool: " + three + "\n\n" + four}, said[9:14])
	require.Contains(t, texts(f.models["left"].lastSeen()), "tool: "+message(1, f.session, "one")+"\n\n"+message(2, f.session, "two"))
	require.Equal(t, []string{"default.work"}, keysOf(f.fleet.posts))
}

func keysOf[V any](m map[string]V) (keys []string) {
	for key := range m {
		keys = append(keys, key)
	}
	return keys
}

func TestChannels_CrashAtAnyAppendSendsNoneTwice(t *testing.T) {
	t.Parallel()
	requireCrashesChangeNothing(t, 15, func() *family { return newFamily(t, chat()).withSets(t, "channels") }, func(_, f *family, name string) {
		var sent []string
		for _, m := range f.fleet.posts["default.work"] {
			sent = append(sent, m.Text)
		}
		require.Equal(t, []string{"one", "two", "three", "four"}, sent, name)
	})
}

func TestChannels_AStoppedTurnWaitsForNoMessage(t *testing.T) {
	t.Parallel()
	f := newFamily(t, byPrompt{"go": {replies: []loop.Reply{calls("a", "read_messages", `{"channel":"work","wait":60}`)}}}).withSets(t, "channels")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	f.opts.Observe = func(e loop.Event) {
		if e.Type == loop.EventToolCall {
			stop()
		}
		f.watch.observe(e)
	}
	result := f.mustRun(ctx, t)
	require.Equal(t, loop.OutcomeInterrupted, result.Outcome)
	require.Equal(t, string(protocol.StatusCancelled), f.journaled(t, loop.EventToolResult)[0].Status)
}

// broken is a fleet with channels that cannot be reached.
type broken struct{ *fleet }

func (broken) SendMessage(context.Context, string, ports.ChannelMessage) error {
	return errors.New("the server is lost")
}

func TestChannels_OfAFleetThatHasNone(t *testing.T) {
	t.Parallel()
	f := newFamily(t, byPrompt{"go": {replies: []loop.Reply{calls("a", "send_message", `{"channel":"work","text":"one"}`), says("done")}}}).withSets(t, "channels")
	run := func(d loop.Dispatcher) error {
		runner := mustNew(t, f.models, d, f.journal, table(t, f.tools...), &f.opts)
		_, err := runner.Run(t.Context(), f.session, loop.Input{Text: "go"})
		return err
	}
	require.ErrorContains(t, run(broken{f.fleet}), "send_message: the server is lost")
	require.NoError(t, run(f.fleet), "a later run sends the message")
	require.Len(t, f.fleet.posts["default.work"], 1)
	f.session = protocol.NewSessionID()
	require.NoError(t, run(bare{f.fleet}))
	require.Contains(t, strings.Join(texts(f.models["go"].lastSeen()), "\n"), "There are no channels here")
}

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
	f.mustRun(t.Context(), t)
	id := func(step, index int) string { return "t-" + string(f.callID(t, 1, step, index)) }
	said := texts(f.models["go"].lastSeen())
	require.Contains(t, said, "tool: [trigger "+id(1, 1)+" is set: at 2026-03-01T09:00:00Z]")
	require.Contains(t, said,
		fmt.Sprintf("tool: %s: at 2026-03-01T09:00:00Z: wake up\n%s: at the times \"0 7 * * *\": good morning\n%s: at a message in channel work", id(1, 1), id(1, 2), id(1, 4)))
	require.Contains(t, strings.Join(said, "\n"), `cron "never": must have five fields`)
	require.Contains(t, strings.Join(said, "\n"), "seconds, at: give one of them")
	require.Contains(t, strings.Join(texts(f.models["left"].lastSeen()), "\n"), "this session is not served")
	require.Len(t, s.ever, 4)
	watch := s.ever[2]
	require.Equal(t, ports.Trigger{
		ID: id(1, 4), Call: f.callID(t, 1, 1, 4), Secret: watch.Secret, Channel: "default.work", After: 1,
		Prompt: "[The trigger " + id(1, 4) + " has fired: channel work has a message. It is removed; watch_channel waits for more.]",
		Firing: ports.Firing{Name: id(1, 4), By: f.callID(t, 1, 1, 4), Channel: "work"},
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
	f.mustRun(t.Context(), t)
	results := f.journaled(t, loop.EventToolResult)
	require.Nil(t, results[19].Error)
	require.Equal(t, protocol.CodeLimitReached, results[20].Error.Code)
	f.models["remove"] = &script{replies: []loop.Reply{calls("b", "remove_trigger", `{"trigger":"`+s.ever[0].ID+`"}`), says("done")}}
	f.session = protocol.NewSessionID()
	runner := mustNew(t, f.models, f.fleet, f.journal, table(t, f.tools...), &f.opts)
	_, err := runner.Run(ports.WithTriggers(t.Context(), s), f.session, loop.Input{Text: "remove"})
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
		f.mustRun(t.Context(), t)
		require.Contains(t, strings.Join(texts(f.models["go"].lastSeen()), "\n"), "coordinator serve with coordinator submit", call[0])
	}
}

// fired is the context of a turn that a firing begins.
func fired(ctx context.Context, s *triggers, u ports.Unattended, firing *ports.Firing) context.Context {
	u.Firing = firing
	return ports.WithUnattended(ports.WithTriggers(ctx, s), &u)
}

// lively is a session whose every turn answers at once, with triggers and a channel of 25 messages.
func lively(t *testing.T) (*rig, *triggers) {
	t.Helper()
	var replies []loop.Reply
	for range 20 {
		replies = append(replies, says("done"))
	}
	r := newRig(replies...)
	for i := range 25 {
		require.NoError(t,
			r.fleet.SendMessage(t.Context(), "default.work", ports.ChannelMessage{From: "other", Call: protocol.CallID(fmt.Sprint(i)), Text: fmt.Sprint("message ", i)}))
	}
	return r, &triggers{here: map[string]bool{}}
}

// A turn that a watch begins has the unread messages in its input, and they count as read, whether
// the model reads the channel or not. Those that are too many stay for read_messages.
func TestTriggers_AFiringDeliversItsMessages(t *testing.T) {
	t.Parallel()
	r, s := lively(t)
	firing := &ports.Firing{Name: "t-1", By: "1", Channel: "work"}
	fire := func(id protocol.CallID) string {
		r.mustRunInput(fired(t.Context(), s, ports.Unattended{}, firing), t, loop.Input{Text: "look", ID: id})
		started := r.watch.of(loop.EventTurnStarted)
		require.Equal(t, "t-1", started[len(started)-1].Trigger)
		return started[len(started)-1].Input
	}
	input := fire("f1")
	for i := range 20 {
		require.Contains(t, input, fmt.Sprintf("\nmessage %d\n", i))
	}
	require.NotContains(t, input, "\nmessage 20")
	require.Contains(t, input, "[Channel work has more messages: read_messages returns them.]")
	input = fire("f2")
	require.NotContains(t, input, "message 19")
	require.True(t, strings.HasSuffix(input, "\nmessage 24"), input)
	require.Equal(t, "look\n[Its messages have been read meanwhile.]", fire("f3"))
}

// Turns that triggers begin have a distance, and a maximum number in an hour. One that comes too
// early fires again when it may, once for a schedule; the session says so, and a person's turn is
// never held up.
func TestTriggers_TurnsAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, s := lively(t)
		bounds := ports.Unattended{Floor: 2 * time.Second, PerHour: 3}
		n := 0
		fire := func(by protocol.CallID) (loop.TurnResult, protocol.CallID) {
			n++
			id := protocol.CallID(fmt.Sprint("f", n))
			result := r.mustRunInput(fired(t.Context(), s, bounds, &ports.Firing{Name: "t-" + string(by), By: by}), t, loop.Input{Text: "look", ID: id})
			return result, id
		}
		result, _ := fire("a")
		require.Equal(t, loop.OutcomeAnswered, result.Outcome)
		time.Sleep(time.Second)
		result, early := fire("a")
		require.Equal(t, codes.TurnPostponed, result.Error.Code)
		require.Contains(t, result.Error.Message, "turns that triggers begin are at least 2s apart")
		require.Len(t, s.ever, 1)
		require.Equal(t, "t-"+string(early), s.ever[0].ID)
		require.Equal(t, ports.Firing{Name: "t-a", By: "a"}, s.ever[0].Firing)
		require.Equal(t, "look", s.ever[0].Prompt)
		require.WithinDuration(t, time.Now().Add(time.Second), s.ever[0].At, 10*time.Millisecond)
		again := r.mustRunInput(fired(t.Context(), s, bounds, &ports.Firing{Name: "t-a", By: "a"}), t, loop.Input{Text: "look", ID: early})
		require.Equal(t, codes.TurnPostponed, again.Error.Code, "the call of another coordinator")
		require.Len(t, s.ever, 1)
		result, _ = fire("a")
		require.Contains(t, result.Error.Message, "as one waits already")
		result = r.mustRun(t.Context(), t, "a person")
		require.Equal(t, loop.OutcomeAnswered, result.Outcome)

		for range 2 {
			time.Sleep(2 * time.Second)
			result, _ = fire("b")
			require.Equal(t, loop.OutcomeAnswered, result.Outcome)
		}
		time.Sleep(2 * time.Second)
		result, _ = fire("b")
		require.Contains(t, result.Error.Message, "triggers have begun 3 turns of the session within an hour")
		postponed := r.watch.of(loop.EventTurnPostponed)
		require.Len(t, postponed, 3)
		require.Equal(t, "t-b", postponed[2].Trigger)
		require.Equal(t, result.Error.Message, postponed[2].Text)
		time.Sleep(time.Hour)
		result, _ = fire("b")
		require.Equal(t, loop.OutcomeAnswered, result.Outcome)
		require.Len(t, r.watch.of(loop.EventTurnStarted), 5)
	})
}

// What a session may use without a person is used up by turns of triggers and schedules: in the
// middle of a turn too, and with what sub-agents use. A person's turn, or a day, gives it again.
func TestTriggers_WithoutAPersonASessionIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(append(slices.Concat(hungry(4)[:5], hungry(3)[:3]), says("a person's"), says("again"), says("the next day"))...)
		s := &triggers{here: map[string]bool{}}
		bounds := ports.Unattended{Most: protocol.Spending{Steps: 4}}
		fire := func(id, by protocol.CallID) loop.TurnResult {
			result := r.mustRunInput(fired(t.Context(), s, bounds, &ports.Firing{Name: "name", By: by}), t, loop.Input{Text: "look", ID: id})
			return result
		}
		result := fire("1", "a")
		require.Equal(t, loop.OutcomeLimitReached, result.Outcome)
		require.Equal(t, "as far as I came", result.Text)
		require.Equal(t, 5, result.Steps)
		require.Contains(t, result.Error.Message, fmt.Sprintf("what session %s may use in 24 hours without a person is used up (5 steps of 4 steps)", r.session))
		require.Contains(t, fire("2", "a").Error.Message, "the turn of trigger name is postponed to ")
		require.WithinDuration(t, time.Now().Add(24*time.Hour), s.ever[0].At, time.Minute)
		require.Contains(t, fire("3", "").Error.Message, "the turn of name is left out: what the session may use")

		person, err := r.run(ports.WithUnattended(t.Context(), &bounds), t, "go on") // its own steps are not bounded
		require.NoError(t, err)
		require.Equal(t, loop.OutcomeAnswered, person.Outcome, person.Error)
		require.Equal(t, loop.OutcomeAnswered, fire("4", "").Outcome)
		bounds.Most.Steps = 1
		require.Equal(t, codes.TurnPostponed, fire("5", "").Error.Code)
		time.Sleep(24 * time.Hour)
		require.Equal(t, "the next day", fire("6", "").Text)
	})
}
