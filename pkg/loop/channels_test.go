package loop_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/calls/ports"
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
	_, err := f.run(t.Context(), t)
	require.NoError(t, err)
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
	result, err := f.run(ctx, t)
	require.NoError(t, err)
	require.Equal(t, loop.OutcomeInterrupted, result.Outcome)
	require.Equal(t, string(protocol.StatusCancelled), f.journaled(t, loop.EventToolResult)[0].Status)
}

// lone is a fleet without channels; broken has some that cannot be reached.
type (
	lone   struct{ loop.Dispatcher }
	broken struct{ *fleet }
)

func (broken) SendMessage(context.Context, string, ports.ChannelMessage) error {
	return errors.New("the server is lost")
}

func TestChannels_OfAFleetThatHasNone(t *testing.T) {
	t.Parallel()
	f := newFamily(t, byPrompt{"go": {replies: []loop.Reply{calls("a", "send_message", `{"channel":"work","text":"one"}`), says("done")}}}).withSets(t, "channels")
	run := func(d loop.Dispatcher) error {
		runner, err := loop.New(f.models, d, f.journal, table(t, f.tools...), &f.opts)
		require.NoError(t, err)
		_, err = runner.Run(t.Context(), f.session, loop.Input{Text: "go"})
		return err
	}
	require.ErrorContains(t, run(broken{f.fleet}), "send_message: the server is lost")
	require.NoError(t, run(f.fleet), "a later run sends the message")
	require.Len(t, f.fleet.posts["default.work"], 1)
	f.session = protocol.NewSessionID()
	require.NoError(t, run(lone{f.fleet}))
	require.Contains(t, strings.Join(texts(f.models["go"].lastSeen()), "\n"), "There are no channels here")
}
