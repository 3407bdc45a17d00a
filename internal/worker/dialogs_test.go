package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/toolfleet/toolfleet/internal/calls"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/internal/worker/kinds"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// scribe is a stateful tool: it answers with all that it was told. It tells ends, and what
// it begins to work on, to whoever waits.
type scribe struct {
	working chan string // what it works on, until the step ends
	mu      sync.Mutex
	ended   []string
}

func newScribe() *scribe { return &scribe{working: make(chan string, 1)} }

func (s *scribe) run(ctx context.Context, talk *kinds.Talk, arguments json.RawMessage) (json.RawMessage, error) {
	heard := []string{string(arguments)}
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.ended = append(s.ended, heard[0])
	}()
	for {
		answer, err := json.Marshal(heard)
		if err != nil {
			return nil, err
		}
		input, err := talk.Yield(answer)
		if err != nil {
			return nil, err
		}
		heard = append(heard, string(input))
		switch string(input) {
		case `"work"`: // until the call is stopped
			s.working <- heard[0]
			<-talk.Step().Done()
		case `"hang"`: // until the dialog is
			s.working <- heard[0]
			<-ctx.Done()
		case `"nonsense"`:
			if _, err := talk.Yield(json.RawMessage(`{`)); err != nil {
				return nil, err
			}
		case `"fail"`:
			return nil, errors.New("out of ink")
		default:
			talk.Call().Output([]byte("heard " + string(input)))
		}
	}
}

func (s *scribe) ends() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string{}, s.ended...)
}

// scribes are options of a worker with the stateful tool.
func (r *rig) scribes(s *scribe) worker.Options {
	o := r.options()
	o.Linger = -1
	o.Handlers.Stateful = map[protocol.Kind]kinds.Stateful{"scribe": {Run: s.run}}
	return o
}

// about makes a call of a session on a resource that is no sandbox.
func about(session protocol.SessionID, payload protocol.Payload) protocol.Call {
	c := newCall(session, payload)
	c.Resources = []protocol.Use{{Key: "desk/one", Access: protocol.Exclusive}}
	if _, continues := payload.(wire.DialogContinue); continues {
		c.Delivery = protocol.AtMostOnce
	}
	return c
}

func (r *rig) open(session protocol.SessionID) protocol.CallID {
	r.t.Helper()
	call := about(session, wire.DialogOpen{Tool: "scribe", Arguments: json.RawMessage(`1`)})
	got := r.dispatch(r.t.Context(), call)
	requireOK(r.t, got)
	state := value[wire.DialogOpenResult](r.t, got)
	require.Equal(r.t, call.ID, state.Dialog)
	require.JSONEq(r.t, `["1"]`, string(state.Output))
	return call.ID
}

func (r *rig) goOn(session protocol.SessionID, dialog protocol.CallID, input string) *protocol.Result {
	r.t.Helper()
	return r.dispatch(r.t.Context(), about(session, wire.DialogContinue{Dialog: dialog, Input: json.RawMessage(input)}))
}

func TestDialog_KeepsItsLaneAndItsWorker(t *testing.T) {
	t.Parallel()
	r, s := newRig(t), newScribe()
	o := r.scribes(s)
	o.Alone = true
	for range 3 {
		r.work(o)
	}
	session := protocol.NewSessionID()
	live := r.listen(t, session)
	id := r.open(session)
	var first protocol.WorkerID
	for i, want := range []string{`["1","\"a\""]`, `["1","\"a\"","null"]`} {
		got := r.goOn(session, id, []string{`"a"`, ``}[i])
		requireOK(t, got)
		require.JSONEq(t, want, string(value[wire.DialogContinueResult](t, got).Output))
		if first == "" {
			first = got.WorkerID
		}
		require.Equal(t, first, got.WorkerID)
	}
	live.until(t, wire.FrameStdout, `heard "a"heard null`)

	// A further dialog in the lane is one of its own; another session has no part in it.
	other := r.open(session)
	requireOK(t, r.goOn(session, other, `"b"`))
	got := r.goOn(protocol.NewSessionID(), id, `"c"`)
	requireFault(t, got, protocol.StatusRejected, protocol.CodeStateLost)

	got = r.goOn(session, other, `"fail"`)
	requireFault(t, got, protocol.StatusFailed, protocol.CodeToolFailed)
	require.Equal(t, wire.DialogFailed, value[wire.DialogContinueResult](t, got).Ending)
	got = r.goOn(session, id, `"nonsense"`)
	requireFault(t, got, protocol.StatusFailed, protocol.CodeToolFailed)
	requireOK(t, r.goOn(session, id, `"d"`))

	got = r.dispatch(t.Context(), about(session, wire.DialogEnd{Dialog: id}))
	requireOK(t, got)
	require.Equal(t, wire.DialogEnded, value[wire.DialogEndResult](t, got).Ending)
	require.Len(t, s.ends(), 2)
	got = r.dispatch(t.Context(), about(session, wire.DialogOpen{Tool: "nobody"}))
	requireFault(t, got, protocol.StatusRejected, codes.UnknownPayload)
}

// A call that is cancelled, or out of time, in the middle: the function that answers keeps
// its state, the one that does not loses it. Either way the call has one result.
func TestDialog_StoppedCalls(t *testing.T) {
	t.Parallel()
	r, s := newRig(t), newScribe()
	r.work(r.scribes(s))
	session := protocol.NewSessionID()
	stopped := func(id protocol.CallID, input string) *protocol.Result {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() {
			<-s.working
			cancel()
		}()
		return r.dispatch(ctx, about(session, wire.DialogContinue{Dialog: id, Input: json.RawMessage(input)}))
	}
	id := r.open(session)
	got := stopped(id, `"work"`)
	requireFault(t, got, protocol.StatusCancelled, protocol.CodeCancelled)
	require.JSONEq(t, `["1","\"work\""]`, string(value[wire.DialogContinueResult](t, got).Output))
	requireOK(t, r.goOn(session, id, `"on"`))

	got = stopped(id, `"hang"`)
	requireFault(t, got, protocol.StatusCancelled, protocol.CodeCancelled)
	require.Equal(t, wire.DialogInterrupted, value[wire.DialogContinueResult](t, got).Ending)
	requireFault(t, r.goOn(session, id, `"on"`), protocol.StatusRejected, protocol.CodeStateLost)

	call := about(session, wire.DialogContinue{Dialog: r.open(session), Input: json.RawMessage(`"work"`)})
	call.RunTimeout = 50
	got = r.dispatch(t.Context(), call) // on a busy machine it may be out of time before it works on anything
	requireFault(t, got, protocol.StatusTimeout, protocol.CodeRunTimeout)
}

// Cancels that race with the answer: each call has exactly one result, and what the
// dialog has heard is what the results say.
func TestDialog_CancelRacesWithTheAnswer(t *testing.T) {
	t.Parallel()
	r, s := newRig(t), newScribe()
	r.work(r.scribes(s))
	session := protocol.NewSessionID()
	id := r.open(session)
	heard := 1
	for i := range 60 {
		ctx, cancel := context.WithCancel(t.Context())
		var got *protocol.Result
		call := about(session, wire.DialogContinue{Dialog: id, Input: json.RawMessage(`"x"`)})
		require.NoError(t, r.dispatcher.Dispatch(ctx, []protocol.Call{call}, func(u loop.Update) {
			got = u.Result
			if u.State == loop.StateQueued {
				time.AfterFunc(time.Duration(i)*20*time.Microsecond, cancel)
			}
		}))
		cancel()
		if state, ran := got.Value.(wire.DialogContinueResult); ran && state.Output != nil {
			var all []string
			require.NoError(t, json.Unmarshal(state.Output, &all))
			heard++
			require.Len(t, all, heard)
			continue
		}
		require.Equal(t, protocol.StatusCancelled, got.Status)
	}
	requireOK(t, r.goOn(session, id, `"still there"`))
}

// Calls of one step that continue one dialog run in their order.
func TestDialog_OneStepIsInOrder(t *testing.T) {
	t.Parallel()
	r, s := newRig(t), newScribe()
	for range 2 {
		r.work(r.scribes(s))
	}
	session := protocol.NewSessionID()
	id := r.open(session)
	calls, want := make([]protocol.Call, 0), []string{"1"}
	for _, input := range []string{`1`, `2`, `3`, `4`, `5`, `6`, `7`, `8`} {
		calls = append(calls, about(session, wire.DialogContinue{Dialog: id, Input: json.RawMessage(input)}))
		want = append(want, input)
	}
	results := map[protocol.CallID]*protocol.Result{}
	require.NoError(t, r.dispatcher.Dispatch(t.Context(), calls, func(u loop.Update) {
		if u.State == loop.StateDone {
			results[u.CallID] = u.Result
		}
	}))
	for i := range calls {
		var heard []string
		requireOK(t, results[calls[i].ID])
		require.NoError(t, json.Unmarshal(value[wire.DialogContinueResult](t, results[calls[i].ID]).Output, &heard))
		require.Equal(t, want[:i+2], heard)
	}
}

// A worker that stops ends its dialogs; the next one says that they are lost.
func TestDialog_EndsWithItsWorker(t *testing.T) {
	t.Parallel()
	r, s := newRig(t), newScribe()
	o := r.scribes(s)
	_, stop := r.work(o)
	session := protocol.NewSessionID()
	id := r.open(session)
	stop()
	require.Equal(t, []string{"1"}, s.ends())
	r.work(o)
	got := r.goOn(session, id, `"a"`)
	requireFault(t, got, protocol.StatusRejected, protocol.CodeStateLost)
	require.Equal(t, wire.DialogLost, value[wire.DialogContinueResult](t, got).Ending)
	got = r.dispatch(t.Context(), about(session, wire.DialogEnd{Dialog: id}))
	requireOK(t, got)
}

// A worker that is cut off in the middle of a call ends the dialog with its lease. The call
// is outcome_unknown, never run again; what comes after it is told that the state is lost.
func TestDialog_LostWorkerInTheMiddleOfACall(t *testing.T) {
	t.Parallel()
	r, s := newRig(t), newScribe()
	o := r.scribes(s)
	o.AckWait = shortLease
	nc, link := r.ConnectVia()
	cut, err := worker.New(t.Context(), nc, o)
	require.NoError(t, err)
	r.run(cut)
	session := protocol.NewSessionID()
	id := r.open(session)
	result := make(chan *protocol.Result, 1)
	go func() { result <- r.goOn(session, id, `"work"`) }()
	<-s.working
	link.Cut()
	require.Eventually(t, func() bool { return len(s.ends()) == 1 }, patience, time.Millisecond, "a lost lane is quiet")
	r.work(o)
	requireFault(t, <-result, protocol.StatusOutcomeUnknown, protocol.CodeOutcomeUnknown)
	requireFault(t, r.goOn(session, id, `"on"`), protocol.StatusRejected, protocol.CodeStateLost)
	link.Mend()
	require.Eventually(t, nc.IsConnected, patience, time.Millisecond)
}

func TestDialog_SpansOfLaterCallsAreLinkedToTheFirst(t *testing.T) {
	t.Parallel()
	r, s := newRig(t), newScribe()
	recorder, provider := recordSpans(t)
	o := r.scribes(s)
	o.Tracer = provider.Tracer("worker")
	_, stop := r.work(o)
	var err error
	r.dispatcher, err = calls.New(t.Context(), r.NC, r.Name, nil)
	require.NoError(t, err)
	session := protocol.NewSessionID()
	id := r.open(session)
	requireOK(t, r.goOn(session, id, `"a"`))
	stop()
	var tool []sdktrace.ReadOnlySpan
	for _, span := range recorder.Ended() {
		if span.Name() == "execute_tool test" {
			tool = append(tool, span)
		}
	}
	require.Len(t, tool, 2)
	require.Len(t, tool[1].Links(), 1)
	require.Equal(t, tool[0].SpanContext().SpanID(), tool[1].Links()[0].SpanContext.SpanID())
}
