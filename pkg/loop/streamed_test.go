package loop_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// streaming passes the calls of each reply on one by one, with a pause before each but the first.
type streaming struct {
	*script

	pause time.Duration
	// breaks, if set, is called before the call at a position; its error ends the reply.
	breaks func(req loop.Request, index int) error
	// first, if set, is passed on before the reply, as one that begins again.
	first []loop.ToolCall
}

func (s *streaming) Reply(ctx context.Context, req loop.Request, delta func(loop.Delta)) (loop.Reply, error) {
	reply, err := s.script.Reply(ctx, req, delta)
	if err != nil {
		return reply, err
	}
	for i := range s.first {
		delta(loop.Delta{Call: &s.first[i], Index: i})
	}
	s.first = nil
	for i := range reply.ToolCalls {
		if i > 0 && s.pause > 0 {
			time.Sleep(s.pause)
		}
		if s.breaks != nil {
			if err := s.breaks(req, i); err != nil {
				return loop.Reply{}, err
			}
		}
		delta(loop.Delta{Call: &reply.ToolCalls[i], Index: i})
	}
	return reply, nil
}

func (r *rig) stream(t *testing.T, model *streaming) *loop.Runner {
	t.Helper()
	model.script = r.model
	runner, err := loop.New(model, r.fleet, r.journal, table(t, r.tools...), &r.opts)
	require.NoError(t, err)
	return runner
}

// Two seconds lie between the calls of a reply, and the first one takes two seconds: it has ended
// when the second one is there, so the turn takes two seconds and not four.
func TestStreamed_ACallRunsWhileTheReplyStreams(t *testing.T) {
	t.Parallel()
	turn := func(early bool) (took time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(asks("a", "work", "work"), says("done"))
			r.fleet.takes = 2 * time.Second
			begun := time.Now()
			model := &streaming{pause: 2 * time.Second}
			if !early {
				model.breaks = nil
				r.opts.Policy = newJudge(t, "approval: {tools: [work]}")
				r.opts.Approve = func(context.Context, loop.ApprovalRequest) (protocol.Approval, error) {
					return protocol.Approval{Granted: true}, nil
				}
			}
			result, err := r.stream(t, model).Run(t.Context(), r.session, loop.Input{Text: "go"})
			require.NoError(t, err)
			require.Equal(t, loop.OutcomeAnswered, result.Outcome)
			require.Equal(t, []string{"1/1/0", "1/1/1"}, r.fleet.ran())
			require.Equal(t, 2, r.fleet.sent, "the step holds what was sent early")
			took = time.Since(begun)
		})
		return took
	}
	require.Equal(t, 4*time.Second, turn(true), "the first call, and then the second one")
	require.Equal(t, 6*time.Second, turn(false), "after two seconds of the reply both calls, one after the other")
}

// A call is not sent early behind one that was not, or that a person is asked about.
func TestStreamed_OrderAndPolicy(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		calls []string
		rules string
		early int
	}{
		"all":               {[]string{"work", "greedy", "work"}, "", 3},
		"behind inline":     {[]string{"work", "inline", "work"}, "", 1},
		"denied":            {[]string{"work", "greedy", "work"}, "tools: {deny: [greedy]}", 1},
		"asked about":       {[]string{"work", "greedy", "work"}, "approval: {tools: [greedy]}", 1},
		"bounded in total":  {[]string{"work", "work", "work"}, "max_calls: 2", 2},
		"unknown":           {[]string{"nothing", "work"}, "", 0},
		"in the background": {[]string{"build", "work"}, "", 0},
	} {
		r := newJobRig(asks("a", test.calls...), says("done"))
		if test.rules != "" {
			r.opts.Policy = newJudge(t, test.rules)
		}
		_, err := r.stream(t, &streaming{}).Run(t.Context(), r.session, loop.Input{Text: "go"})
		require.NoError(t, err, name)
		early, types := 0, []loop.EventType{}
		for _, e := range r.events(t) {
			if e.Type == loop.EventModelReply {
				break
			}
			if types = append(types, e.Type); e.Type == loop.EventToolCall {
				early++
			}
		}
		require.Equal(t, test.early, early, "%s: %v", name, types)
		requireProtocol(t, r.model.lastSeen())
		for _, n := range r.fleet.times() {
			require.Equal(t, 1, n, name)
		}
	}
}

// A reply that breaks off is journaled with the calls that were sent; the model is asked again, and
// reads their results.
func TestStreamed_AReplyThatBreaksOff(t *testing.T) {
	t.Parallel()
	r := newRig(asks("a", "work", "work", "work"), asks("b", "work"), says("done"))
	broken := errors.New("the stream broke")
	model := &streaming{breaks: func(req loop.Request, index int) error {
		if req.Step == 1 && index == 2 {
			return broken
		}
		return nil
	}}
	result, err := r.stream(t, model).Run(t.Context(), r.session, loop.Input{Text: "go"})
	require.NoError(t, err)
	require.Equal(t, loop.OutcomeAnswered, result.Outcome)
	require.Equal(t, []string{"1/1/0", "1/1/1", "1/2/0"}, r.fleet.ran())
	reply := r.watch.of(loop.EventModelReply)[0]
	require.Equal(t, "broken_off", reply.Finish)
	require.Len(t, reply.ToolCalls, 2)
	require.Equal(t, "asking a", reply.Text)
	requireProtocol(t, r.model.lastSeen())
}

// A model that begins its reply again with another call has that journaled as well: what was sent
// was sent.
func TestStreamed_AReplyThatBeginsAgain(t *testing.T) {
	t.Parallel()
	other := loop.ToolCall{ID: "other", Name: "work", Arguments: `{"n":7}`}
	for name, first := range map[string][]loop.ToolCall{"the same": {asks("a", "work").ToolCalls[0]}, "another": {other}} {
		r := newRig(asks("a", "work", "work"), says("done"))
		result, err := r.stream(t, &streaming{first: first}).Run(t.Context(), r.session, loop.Input{Text: "go"})
		require.NoError(t, err, name)
		require.Equal(t, loop.OutcomeAnswered, result.Outcome, name)
		replies := r.watch.of(loop.EventModelReply)
		if name == "the same" {
			require.Len(t, replies[0].ToolCalls, 2)
			require.Empty(t, replies[0].Finish)
			continue
		}
		require.Equal(t, []loop.ToolCall{other}, replies[0].ToolCalls)
		require.Equal(t, "broken_off", replies[0].Finish)
	}
}

// After a crash at any append every call has run at most once, and has its result.
func TestStreamed_CrashAtAnyAppend(t *testing.T) {
	t.Parallel()
	for n := 0; ; n++ {
		crashed := false
		for kept := range 3 {
			name := fmt.Sprintf("append %d, of which %d events are stored", n+1, kept)
			r, journal := newRig(asks("a", "work", "greedy", "inline", "work"), asks("b", "work", "work"), says("done"), says("done"), says("checked"), says("checked")), &crashingJournal{untilCrash: n, kept: kept}
			r.journal = journal
			runner := r.stream(t, &streaming{})
			_, err := runner.Run(t.Context(), r.session, loop.Input{Text: "go"})
			if err != nil {
				crashed = true
				require.ErrorIs(t, err, errCrash, name)
				_, err = runner.Run(t.Context(), r.session, loop.Input{Text: "go"})
			}
			journal.untilCrash = -1
			require.NoError(t, err, name)
			result, err := runner.Run(t.Context(), r.session, loop.Input{Text: "check"})
			require.NoError(t, err, name)
			require.Equal(t, loop.OutcomeAnswered, result.Outcome, name)
			requireProtocol(t, r.model.lastSeen())
			for place, n := range r.fleet.times() {
				require.Equal(t, 1, n, "%s: %s", name, place)
			}
			require.Empty(t, r.fleet.stopped, name)
			results := map[protocol.CallID]bool{}
			for _, e := range r.events(t) {
				if e.Type == loop.EventToolResult {
					results[e.CallID] = true
				}
			}
			for _, call := range r.fleet.runs {
				require.True(t, results[call.ID], "%s: call without a result", name)
			}
		}
		if !crashed {
			require.Greater(t, n, 12)
			return
		}
	}
}

// A turn that is stopped while a reply streams ends as interrupted, with the calls that were sent.
func TestStreamed_Interrupted(t *testing.T) {
	t.Parallel()
	r := newRig(asks("a", "work", "work"), says("done"))
	ctx, stop := context.WithCancel(t.Context())
	model := &streaming{breaks: func(_ loop.Request, index int) error {
		if index == 1 {
			stop()
			return ctx.Err()
		}
		return nil
	}}
	result, err := r.stream(t, model).Run(ctx, r.session, loop.Input{Text: "go"})
	require.NoError(t, err)
	require.Equal(t, loop.OutcomeInterrupted, result.Outcome)
	require.Len(t, r.watch.of(loop.EventToolResult), 1)
	require.True(t, slices.Contains(r.watch.types(), loop.EventModelReply))
}
