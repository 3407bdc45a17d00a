package loop_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/policy"
)

// remote is a tool whose calls go to a lane, or in the background, or that has no plan without one.
func remote(lane string, background bool) tools.Tool {
	return tools.Tool{
		Definition: tools.Definition{Name: "mine", Description: "mine", Schema: json.RawMessage(`{"type":"object"}`)},
		Plan: func(tools.Scope, json.RawMessage) (tools.Plan, *protocol.Error) {
			if lane == "" {
				return tools.Plan{}, protocol.Errorf(protocol.CodeInvalidArguments, "not like this")
			}
			return tools.Plan{
				Payload: wire.Noop{}, Background: background,
				Resources: []protocol.Use{{Key: protocol.ResourceKey(lane), Access: protocol.Exclusive}},
			}, nil
		},
		Render: func(r *protocol.Result) string { return string(r.Status) },
	}
}

// A call that was sent before a crash, and cannot be looked for behind it, is never said not to
// have run, and runs nowhere else.
func TestRun_WhatWasSentAndIsPlannedOtherwiseIsUnknown(t *testing.T) {
	t.Parallel()
	inline := tools.New("mine", "Is another one.", func(context.Context, struct{}) (string, error) { return "said", nil })
	for name, after := range map[string][]tools.Tool{
		"no tool": nil, "no plan": {remote("", false)}, "another lane": {remote("account/8", false)}, "in place": {inline},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(asks("a", "mine", "nosuch"), asks("b", "nosuch"), says("done"))
			r.fleet.err, r.tools = errors.New("no servers"), []tools.Tool{remote("account/7", false)}
			_, err := r.run(t.Context(), t, "go")
			require.Error(t, err)
			require.Equal(t, "default/account/7", r.watch.of(loop.EventToolCall)[0].Lane)

			r.fleet.err, r.tools = nil, after
			_, err = r.run(t.Context(), t, "go")
			require.NoError(t, err)
			results := r.watch.of(loop.EventToolResult)
			require.Len(t, results, 3)
			require.Equal(t, string(protocol.StatusRejected), results[0].Status, "no such tool")
			require.Equal(t, string(protocol.StatusOutcomeUnknown), results[1].Status)
			require.Equal(t, protocol.CodeOutcomeUnknown, results[1].Error.Code)
			require.Empty(t, r.fleet.ran())
			requireOneResultEach(t, r.events(t))
		})
	}
}

// So is a job.
func TestJobs_OneThatWasSentElsewhereIsUnknown(t *testing.T) {
	t.Parallel()
	r := newRig(asks("a", "mine"), says("done"), says("heard"))
	r.fleet.err, r.tools = errors.New("no servers"), []tools.Tool{remote("account/7", true)}
	_, err := r.run(t.Context(), t, "go")
	require.NoError(t, err)
	r.fleet.err, r.tools = nil, []tools.Tool{remote("account/8", true)}
	_, err = r.run(t.Context(), t, "and")
	require.NoError(t, err)
	ended := r.watch.of(loop.EventJobEnded)
	require.Len(t, ended, 1)
	require.Equal(t, string(protocol.StatusOutcomeUnknown), ended[0].Status)
	require.Empty(t, r.fleet.ran())
}

// A call that was stopped before anybody was asked about it is asked about when its turn goes on.
func TestRun_WhatWasNotSentIsAskedAboutBehindACrash(t *testing.T) {
	t.Parallel()
	judge, err := policy.New(policy.Policy{Approval: policy.Approval{Tools: []string{"work"}}})
	require.NoError(t, err)
	r, journal := newRig(asks("a", "work"), says("done")), &crashingJournal{untilCrash: 2, kept: 1}
	r.journal, r.opts.Policy = journal, judge
	ctx, stop := context.WithCancel(t.Context())
	r.opts.Observe = func(e loop.Event) {
		if r.watch.observe(e); e.Type == loop.EventModelReply {
			stop()
		}
	}
	_, err = r.run(ctx, t, "go")
	require.ErrorIs(t, err, errCrash)
	events := r.events(t)
	require.Equal(t, loop.EventToolCall, events[len(events)-1].Type)
	require.Equal(t, string(protocol.StatusCancelled), events[len(events)-1].Status)

	_, err = r.run(t.Context(), t, "go")
	require.NoError(t, err)
	require.Empty(t, r.fleet.ran(), "there was nobody to ask")
	require.Equal(t, "refused", r.watch.of(loop.EventPolicyDecision)[0].Status)
}
