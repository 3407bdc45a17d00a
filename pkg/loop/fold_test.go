package loop

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// anyEvent draws events of all types with small numbers, so that many fit.
func anyEvent(t *rapid.T) Event {
	small := rapid.IntRange(0, 3)
	e := Event{
		Type: rapid.SampledFrom([]EventType{
			EventSessionStarted, EventTurnStarted, EventModelReply, EventToolCall, EventToolResult, EventTurnEnded,
			EventTextDelta, "from_the_future",
		}).Draw(t, "type"),
		Turn: small.Draw(t, "turn"), Step: small.Draw(t, "step"), CallFields: CallFields{Index: small.Draw(t, "index")},
		Text: "text", ResultFields: ResultFields{Content: "content"}, Status: string(OutcomeAnswered),
	}
	for range rapid.IntRange(0, 2).Draw(t, "calls") {
		e.ToolCalls = append(e.ToolCalls, ToolCall{ID: rapid.StringN(1, 3, -1).Draw(t, "id"), Name: "tool"})
	}
	if rapid.Bool().Draw(t, "usage") {
		e.Usage = &protocol.Usage{InputTokens: 2, OutputTokens: 1}
	}
	return e
}

func clone(s *session) *session {
	same := &session{taken: make(map[string]bool)}
	for id := range s.taken {
		same.taken[id] = true
	}
	for _, t := range s.turns {
		steps := make([]step, len(t.steps))
		for i, st := range t.steps {
			steps[i] = step{text: st.text, calls: append([]stepCall{}, st.calls...)}
		}
		t.steps = steps
		same.turns = append(same.turns, t)
	}
	return same
}

func TestFold_EventThatDoesNotFitChangesNothing(t *testing.T) {
	t.Parallel()
	fits := 0
	rapid.Check(t, func(t *rapid.T) {
		s := &session{taken: make(map[string]bool)}
		for range rapid.IntRange(0, 60).Draw(t, "events") {
			before, e := clone(s), anyEvent(t)
			if err := s.apply(&e); err != nil {
				require.ErrorIs(t, err, ErrJournalInvalid)
				require.Equal(t, s.conversation(""), before.conversation(""))
				require.Equal(t, s.taken, before.taken)
				continue
			}
			fits++
			requireSound(t, s)
		}
	})
	require.Positive(t, fits)
}

// requireSound checks what holds of every session: only the last turn is open, and
// only its last step lacks results.
func requireSound(t *rapid.T, s *session) {
	for i := range s.turns {
		turn := &s.turns[i]
		require.Equal(t, i+1, turn.number)
		if i < len(s.turns)-1 {
			require.NotNil(t, turn.result)
		}
		if turn.result != nil {
			require.Zero(t, turn.missing())
			require.Equal(t, len(turn.steps), turn.result.Steps)
			require.Equal(t, turn.bill.Usage, turn.result.Usage)
		}
		for j := range turn.steps {
			for _, call := range turn.steps[j].calls {
				if j < len(turn.steps)-1 {
					require.NotNil(t, call.content)
				}
			}
		}
	}
}

func TestFold_ToolMessagesStandInTheOrderOfTheCalls(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 8).Draw(t, "calls")
		events := []Event{{Type: EventTurnStarted, Turn: 1, StartFields: StartFields{Input: "go"}}, {Type: EventModelReply, Turn: 1, Step: 1}}
		indexes := make([]int, n)
		for i := range n {
			indexes[i] = i
			events[1].ToolCalls = append(events[1].ToolCalls, ToolCall{ID: string(rune('a' + i)), Name: "tool"})
		}
		for _, i := range rapid.Permutation(indexes).Draw(t, "order") {
			events = append(events, Event{
				Type: EventToolResult, Turn: 1, Step: 1, CallFields: CallFields{Index: i},
				ResultFields: ResultFields{Content: "of " + string(rune('a'+i)), Image: &Image{MediaType: "image/png", Data: []byte{byte(i)}}},
			})
		}
		s, err := fold(events)
		require.NoError(t, err)
		require.Zero(t, s.open().missing())
		messages := s.conversation("")[3:]
		require.Len(t, messages, n)
		for i, message := range messages {
			id := string(rune('a' + i))
			require.Equal(t, Message{Role: RoleTool, Text: "of " + id, ToolCallID: id, Name: "tool", Image: &Image{MediaType: "image/png", Data: []byte{byte(i)}}}, message)
		}
	})
}

func TestFold_RefusesWhatNoSessionWrites(t *testing.T) {
	t.Parallel()
	started := Event{Type: EventTurnStarted, Turn: 1}
	asked := Event{Type: EventModelReply, Turn: 1, Step: 1, ReplyFields: ReplyFields{ToolCalls: []ToolCall{{ID: "a"}}}}
	answered := Event{Type: EventModelReply, Turn: 1, Step: 1}
	result := Event{Type: EventToolResult, Turn: 1, Step: 1}
	ended := Event{Type: EventTurnEnded, Turn: 1}
	tests := []struct {
		name   string
		events []Event
	}{
		{"a turn inside a turn", []Event{started, {Type: EventTurnStarted, Turn: 2}}},
		{"a turn left out", []Event{{Type: EventTurnStarted, Turn: 2}}},
		{"a reply without a turn", []Event{asked}},
		{"a reply after the end", []Event{started, ended, asked}},
		{"a step left out", []Event{started, {Type: EventModelReply, Turn: 1, Step: 2}}},
		{"a reply before the results", []Event{started, asked, {Type: EventModelReply, Turn: 1, Step: 2}}},
		{"a reply after the answer", []Event{started, answered, {Type: EventModelReply, Turn: 1, Step: 2}}},
		{"a result before a reply", []Event{started, {Type: EventToolResult, Turn: 1}}},
		{"a result of another turn", []Event{started, asked, {Type: EventToolResult, Turn: 2, Step: 1}}},
		{"a result of no call", []Event{started, asked, {Type: EventToolResult, Turn: 1, Step: 1, CallFields: CallFields{Index: 1}}}},
		{"a second result", []Event{started, asked, result, result}},
		{"an end before the results", []Event{started, asked, ended}},
		{"a second end", []Event{started, ended, ended}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			_, err := fold(test.events)
			require.ErrorIs(t, err, ErrJournalInvalid)
			_, err = fold(test.events[:len(test.events)-1])
			require.NoError(t, err)
		})
	}
}

func TestUniqueIDs_KeepsWhatIsUnique(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		id := rapid.SampledFrom([]string{"", "a", "b", "call_1_2_0", "call_1_2_1", "call_1_2_1_1"})
		calls := rapid.SliceOfN(rapid.Map(id, func(id string) ToolCall { return ToolCall{ID: id} }), 0, 6).Draw(t, "calls")
		taken := make(map[string]bool)
		for _, used := range rapid.SliceOf(id).Draw(t, "taken") {
			taken[used] = true
		}
		seen := make(map[string]bool)
		for i, call := range uniqueIDs(calls, taken, 1, 2) {
			require.NotEmpty(t, call.ID)
			require.False(t, taken[call.ID] || seen[call.ID])
			if calls[i].ID != "" && !taken[calls[i].ID] && !seen[calls[i].ID] {
				require.Equal(t, calls[i].ID, call.ID)
			}
			seen[call.ID] = true
		}
	})
}

func TestInput_SameTurn(t *testing.T) {
	t.Parallel()
	file := func(name, data string) []Attachment {
		return []Attachment{{Name: name, Image: Image{Data: []byte(data)}}}
	}
	tests := []struct {
		name           string
		input, started Input
		want           bool
	}{
		{"same text", Input{Text: "a"}, Input{Text: "a"}, true},
		{"other text", Input{Text: "b"}, Input{Text: "a"}, false},
		{"nothing resumes all", Input{}, Input{Text: "a", ID: "1"}, true},
		{"nothing resumes all without an id", Input{}, Input{Text: "a"}, true},
		{"the id decides", Input{Text: "b", ID: "1"}, Input{Text: "a", ID: "1"}, true},
		{"other id", Input{Text: "a", ID: "2"}, Input{Text: "a", ID: "1"}, false},
		{"no id against an id", Input{Text: "a"}, Input{Text: "a", ID: "1"}, false},
		{"id against no id", Input{Text: "a", ID: "1"}, Input{Text: "a"}, false},
		{"same file", Input{Text: "a", Attachments: file("a", "x")}, Input{Text: "a", Attachments: file("a", "x")}, true},
		{"a file that is gone", Input{Text: "a", Attachments: file("a", "x")}, Input{Text: "a", Attachments: file("a", "")}, true},
		{"the text without its file", Input{Text: "a"}, Input{Text: "a", Attachments: file("a", "x")}, true},
		{"other contents", Input{Text: "a", Attachments: file("a", "y")}, Input{Text: "a", Attachments: file("a", "x")}, false},
		{"other name", Input{Text: "a", Attachments: file("b", "x")}, Input{Text: "a", Attachments: file("a", "x")}, false},
		{"a file more", Input{Text: "a", Attachments: file("a", "x")}, Input{Text: "a"}, false},
		{"a file alone", Input{Attachments: file("a", "x")}, Input{Text: "a"}, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, test.want, test.input.Same(test.started))
		})
	}
}

func TestUnfinished_TellsWhatFailed(t *testing.T) {
	t.Parallel()
	require.True(t, reflect.DeepEqual(
		protocol.Errorf(protocol.CodeFleetUnavailable, "gone"),
		unfinished(t.Context(), TurnResult{}, errors.New("gone")).Error))
}

// TestUnfinished_TimeLimit: a turn whose end cannot be journaled ends by its limit, not as
// interrupted.
func TestUnfinished_TimeLimit(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(codes.TimeLimit(time.Second))
	require.Equal(t, OutcomeLimitReached, unfinished(ctx, TurnResult{}, errors.New("gone")).Outcome)
	ctx, cancel = context.WithCancelCause(t.Context())
	cancel(nil)
	require.Equal(t, OutcomeInterrupted, unfinished(ctx, TurnResult{}, errors.New("gone")).Outcome)
}
