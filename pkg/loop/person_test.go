package loop_test

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools/toolset"
)

// person is a fleet in which somebody answers.
type person struct {
	*fleet

	// answer returns what the person does; [loop.ErrDetached] leaves the question open.
	answer func(question protocol.Question) (protocol.Answer, error)
	asked  int
}

func (p *person) Ask(
	ctx context.Context, _ protocol.SessionID, _ protocol.CallID, question protocol.Question, fits func(protocol.Answer) error, listening func() error,
) (protocol.Answer, error) {
	if err := listening(); err != nil {
		return protocol.Answer{}, err
	}
	p.asked++
	answer, err := p.answer(question)
	if err == nil && answer.Action == protocol.ActionAccept {
		err = fits(answer)
	}
	if err != nil {
		<-ctx.Done()
		return answer, errors.Join(context.Cause(ctx), err)
	}
	return answer, nil
}

// asksUser is a rig whose model asks a person.
func asksUser(t *testing.T, arguments string) *rig {
	t.Helper()
	set, err := toolset.Named("ask")
	require.NoError(t, err)
	r := newRig(loop.Reply{ToolCalls: []loop.ToolCall{{ID: "a", Name: "ask_user", Arguments: arguments}}}, says("done"))
	r.tools = set
	return r
}

func (r *rig) runWith(ctx context.Context, t *testing.T, dispatcher loop.Dispatcher) error {
	t.Helper()
	runner := mustNew(t, r.model, dispatcher, r.journal, table(t, r.tools...), &r.opts)
	_, err := runner.Run(ctx, r.session, loop.Input{Text: "go"})
	return err
}

func accepts(answer string) func(protocol.Question) (protocol.Answer, error) {
	content, _ := json.Marshal(map[string]string{"answer": answer}) // strings always encode
	return func(protocol.Question) (protocol.Answer, error) {
		return protocol.Answer{Action: protocol.ActionAccept, Content: content, By: "ada"}, nil
	}
}

func TestAskUser_TheAnswerIsTheResult(t *testing.T) {
	t.Parallel()
	r := asksUser(t, `{"question":"Which colour?","choices":["red","blue"]}`)
	require.NoError(t, r.runWith(t.Context(), t, &person{fleet: r.fleet, answer: accepts("blue")}))
	asked, results := r.journaled(t, loop.EventQuestionAsked), r.journaled(t, loop.EventToolResult)
	require.Len(t, asked, 1)
	require.Equal(t, "Which colour?", asked[0].Question.Message)
	require.Equal(t, "session/session/"+string(r.session), asked[0].Lane)
	require.JSONEq(t, `{"type":"object","properties":{"answer":{"type":"string","enum":["red","blue"]}},"required":["answer"]}`, string(asked[0].Question.Schema))
	require.Equal(t, "blue by ada", results[0].Content+" by "+results[0].By)
}

func TestAskUser_WithoutAnAnswer(t *testing.T) {
	t.Parallel()
	decline := func(protocol.Question) (protocol.Answer, error) {
		return protocol.Answer{Action: protocol.ActionDecline}, nil
	}
	for name, test := range map[string]struct {
		arguments string
		answer    func(protocol.Question) (protocol.Answer, error)
		code      protocol.Code
		says      string
	}{
		"declined":        {`{"question":"Who?"}`, decline, protocol.CodeToolFailed, "declined"},
		"not in time":     {`{"question":"Who?","timeout":1}`, accepts(" "), protocol.CodeDeadline, "Nobody answered within 1s"},
		"another choice":  {`{"question":"Who?","choices":["a","b"],"timeout":1}`, accepts("c"), protocol.CodeDeadline, "Nobody answered"},
		"nobody can ask":  {`{"question":"Who?"}`, nil, protocol.CodeToolFailed, "nobody to ask"},
		"one choice":      {`{"question":"Who?","choices":["a"]}`, decline, protocol.CodeInvalidArguments, "choices"},
		"without a text":  {`{"question":""}`, decline, protocol.CodeInvalidArguments, "question"},
		"waits for years": {`{"question":"Who?","timeout":100000}`, decline, protocol.CodeInvalidArguments, "timeout"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := asksUser(t, test.arguments)
			var dispatcher loop.Dispatcher = bare{r.fleet}
			if test.answer != nil {
				dispatcher = &person{fleet: r.fleet, answer: test.answer}
			}
			require.NoError(t, r.runWith(t.Context(), t, dispatcher))
			result := r.journaled(t, loop.EventToolResult)[0]
			require.Equal(t, test.code, result.Error.Code, result.Content)
			require.Contains(t, result.Content, test.says)
		})
	}
}

// TestAskUser_ResumedTurnsAskAgain: a question lives as long as its coordinator waits. The journal
// has it once.
func TestAskUser_ResumedTurnsAskAgain(t *testing.T) {
	t.Parallel()
	r := asksUser(t, `{"question":"Who?"}`)
	ctx, detach := context.WithCancelCause(t.Context())
	leaves := &person{fleet: r.fleet, answer: func(protocol.Question) (protocol.Answer, error) {
		detach(loop.ErrDetached)
		return protocol.Answer{}, loop.ErrDetached
	}}
	require.ErrorIs(t, r.runWith(ctx, t, leaves), loop.ErrDetached)
	require.Empty(t, r.journaled(t, loop.EventToolResult))
	r.watch.events = nil
	next := &person{fleet: r.fleet, answer: accepts("me")}
	require.NoError(t, r.runWith(t.Context(), t, next))
	require.Equal(t, 1, next.asked)
	require.Len(t, r.watch.of(loop.EventQuestionAsked), 1, "observers can answer it")
	require.Len(t, r.journaled(t, loop.EventQuestionAsked), 1)
	require.Equal(t, "me", r.journaled(t, loop.EventToolResult)[0].Content)
}

// TestAskUser_StoppedTurns: the call of a turn that is stopped is cancelled.
func TestAskUser_StoppedTurns(t *testing.T) {
	t.Parallel()
	r := asksUser(t, `{"question":"Who?"}`)
	ctx, stop := context.WithCancel(t.Context())
	require.NoError(t, r.runWith(ctx, t, &person{fleet: r.fleet, answer: func(protocol.Question) (protocol.Answer, error) {
		stop()
		return protocol.Answer{}, context.Canceled
	}}))
	require.Equal(t, string(protocol.StatusCancelled), r.journaled(t, loop.EventToolResult)[0].Status)
}

// journaled are the events of a type in the journal.
func (r *rig) journaled(t *testing.T, of loop.EventType) (events []loop.Event) {
	t.Helper()
	for _, e := range r.events(t) {
		if e.Type == of {
			events = append(events, e)
		}
	}
	return events
}

// TestQuestion_IsJournaledWithItsAnswer: the journal has what a call asked and who answered it; the
// end of a question that nobody knows changes nothing.
func TestQuestion_IsJournaledWithItsAnswer(t *testing.T) {
	t.Parallel()
	r := newRig(asks("a", "work"), says("done"))
	r.fleet.asks = func(*protocol.Call) []loop.Update {
		return []loop.Update{
			{Question: &protocol.Question{ID: "q", Message: "Who?"}},
			{Answered: &protocol.Answer{Question: "other", Action: protocol.ActionDecline}},
			{Answered: &protocol.Answer{Question: "q", Action: protocol.ActionAccept, By: "ada"}},
			{Answered: &protocol.Answer{Question: "q", Action: protocol.ActionCancel}},
		}
	}
	r.mustRun(t.Context(), t, "go")
	asked, answered := r.journaled(t, loop.EventQuestionAsked), r.journaled(t, loop.EventAnswered)
	require.Len(t, asked, 1)
	require.Equal(t, &protocol.Question{ID: "q", Message: "Who?"}, asked[0].Question)
	require.Equal(t, r.callID(t, 1, 1, 0), asked[0].CallID)
	require.NotEmpty(t, asked[0].Lane)
	require.Len(t, answered, 1)
	require.Equal(t, "accept by ada", answered[0].Status+" by "+answered[0].By)
	require.Equal(t, asked, r.watch.of(loop.EventQuestionAsked), "once")
	require.Equal(t, answered, r.watch.of(loop.EventAnswered))
}

// slowJournal calls before ahead of each append.
type slowJournal struct {
	loop.Journal

	before func(events []loop.Event)
}

func (j slowJournal) Append(ctx context.Context, session protocol.SessionID, last uint64, events ...loop.Event) (uint64, error) {
	j.before(events)
	return j.Journal.Append(ctx, session, last, events...)
}

// TestQuestion_ObserversDoNotWaitForTheJournal: a worker gives up after [wire.AskWait] unless
// somebody takes the question on.
func TestQuestion_ObserversDoNotWaitForTheJournal(t *testing.T) {
	t.Parallel()
	r := newRig(asks("a", "work"), says("done"))
	r.fleet.asks = func(*protocol.Call) []loop.Update {
		return []loop.Update{{Question: &protocol.Question{ID: "q", Message: "Who?"}}}
	}
	var seen []loop.Event
	r.journal = slowJournal{r.journal, func(events []loop.Event) {
		if events[0].Type == loop.EventQuestionAsked {
			seen = r.watch.of(loop.EventQuestionAsked)
		}
	}}
	r.mustRun(t.Context(), t, "go")
	require.Len(t, seen, 1)
	require.Equal(t, seen, r.watch.of(loop.EventQuestionAsked), "once")
	require.Equal(t, seen, r.journaled(t, loop.EventQuestionAsked), "with the same time, by which attach knows it")
}

// TestQuestion_IsToldAgainByWhoResumes: a worker asks once, so whoever goes on with the turn tells
// what is not answered, and journals it no second time.
func TestQuestion_IsToldAgainByWhoResumes(t *testing.T) {
	t.Parallel()
	r := newRig(asks("a", "work"), says("done"))
	ctx, detach := context.WithCancelCause(t.Context())
	r.fleet.asks = func(*protocol.Call) []loop.Update {
		detach(loop.ErrDetached)
		return []loop.Update{
			{Question: &protocol.Question{ID: "answered"}},
			{Answered: &protocol.Answer{Question: "answered", Action: protocol.ActionDecline}},
			{Question: &protocol.Question{ID: "open", Message: "Who?"}},
		}
	}
	_, err := r.run(ctx, t, "go")
	require.ErrorIs(t, err, loop.ErrDetached)
	r.watch.events = nil
	r.fleet.asks = func(*protocol.Call) []loop.Update {
		return []loop.Update{{Answered: &protocol.Answer{Question: "open", Action: protocol.ActionAccept}}}
	}
	r.mustRun(t.Context(), t, "go")
	again := r.watch.of(loop.EventQuestionAsked)
	require.Len(t, again, 1)
	require.Equal(t, "Who?", again[0].Question.Message)
	require.NotEmpty(t, again[0].Lane)
	require.Len(t, r.journaled(t, loop.EventQuestionAsked), 2)
	require.Len(t, r.journaled(t, loop.EventAnswered), 2)
}

// TestQuestion_AFloodStaysOutOfTheJournal: whoever has a worker's key may ask for ever.
func TestQuestion_AFloodStaysOutOfTheJournal(t *testing.T) {
	t.Parallel()
	const flood = 100
	r := newRig(asks("a", "work"), says("done"))
	r.fleet.asks = func(*protocol.Call) (updates []loop.Update) {
		for n := range flood {
			updates = append(updates, loop.Update{Question: &protocol.Question{ID: strconv.Itoa(n)}})
		}
		return updates
	}
	r.mustRun(t.Context(), t, "go")
	require.Len(t, r.journaled(t, loop.EventQuestionAsked), 16)
	require.Len(t, r.watch.of(loop.EventQuestionAsked), flood)
}

// TestQuestion_OfAPromotedCallIsAsked: what a call asks at the moment of its promotion, or later,
// is journaled and shown as that of every call, and ends with the job.
func TestQuestion_OfAPromotedCallIsAsked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newJobRig(asks("a", "work"), says("I wait."), about("c", "job_wait", `{"job":"job_1_1_0"}`), says("done"))
		r.opts.PromoteAfter, r.fleet.takes = time.Minute, 90*time.Second
		sent := 0
		r.fleet.asks = func(*protocol.Call) []loop.Update {
			if sent++; sent != 2 {
				return nil // its step does not get the question any more, and nothing repeats it later
			}
			return []loop.Update{
				{Question: &protocol.Question{ID: "q1", Message: "Who?"}},
				{Answered: &protocol.Answer{Question: "q1", Action: protocol.ActionAccept, By: "ada"}},
				{Question: &protocol.Question{ID: "q2", Message: "Where?"}},
			}
		}
		_, err := r.run(t.Context(), t, "go")
		require.NoError(t, err)
		asked := r.journaled(t, loop.EventQuestionAsked)
		require.Len(t, asked, 2)
		require.Equal(t, r.callID(t, 1, 1, 0), asked[0].CallID)
		require.Equal(t, "default/call/"+string(asked[0].CallID), asked[0].Lane)
		require.Equal(t, asked, r.watch.of(loop.EventQuestionAsked))
		answered := r.journaled(t, loop.EventAnswered)
		require.Len(t, answered, 1)
		require.Equal(t, "q1 ada", answered[0].Question.ID+" "+answered[0].By)
		_, err = r.run(t.Context(), t, "wait")
		require.NoError(t, err)
		require.Empty(t, loop.StateOf(r.events(t)).Questions)
	})
}

// A question of a job does not answer the approval that is asked meanwhile, and ends with the job.
func TestQuestion_OfAJobInTheState(t *testing.T) {
	t.Parallel()
	of := func(kind loop.EventType, call protocol.CallID) loop.Event {
		return loop.Event{Type: kind, Turn: 1, Step: 1, CallFields: loop.CallFields{CallID: call}}
	}
	started, question := of(loop.EventToolResult, "job"), of(loop.EventQuestionAsked, "job")
	started.Job, question.Question = "job_1_1_0", &protocol.Question{ID: "q"}
	events := []loop.Event{of(loop.EventTurnStarted, ""), of(loop.EventToolCall, "job"), started, of(loop.EventApprovalAsked, "other"), question}
	state := loop.StateOf(events)
	require.NotNil(t, state.Approval)
	require.Len(t, state.Questions, 1)
	require.Empty(t, loop.StateOf(append(events, of(loop.EventJobEnded, "job"))).Questions)
}
