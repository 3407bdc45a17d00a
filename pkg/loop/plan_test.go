package loop_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/modeltext/render"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/policy"
)

type replArguments struct {
	Name string `json:"name"`
}

// talkers are the dialogs of a fake worker: what each has heard.
type talkers map[protocol.CallID]string

// answer carries out what calls say about dialogs; the input "end" ends one.
func (h talkers) answer(call *protocol.Call) (protocol.Value, *protocol.Error) {
	state := func(id protocol.CallID, ending wire.DialogEnding) wire.DialogState {
		output, _ := json.Marshal(h[id]) // a string
		return wire.DialogState{Dialog: id, Output: output, Ending: ending, Idle: 60_000}
	}
	switch p := call.Payload.(type) {
	case wire.DialogOpen:
		h[call.ID] = "hello"
		return wire.DialogOpenResult{DialogState: state(call.ID, "")}, nil
	case wire.DialogContinue:
		if _, lives := h[p.Dialog]; !lives {
			return wire.DialogContinueResult{DialogState: wire.DialogState{Dialog: p.Dialog, Ending: wire.DialogLost}}, wire.StateLost(wire.DialogLost)
		}
		h[p.Dialog] += " " + strings.Trim(string(p.Input), `"`)
		if string(p.Input) == `"end"` {
			return wire.DialogContinueResult{DialogState: state(p.Dialog, wire.DialogDone)}, nil
		}
		return wire.DialogContinueResult{DialogState: state(p.Dialog, "")}, nil
	case wire.DialogEnd:
		return wire.DialogEndResult{DialogState: state(p.Dialog, wire.DialogEnded)}, nil
	default:
		return protocol.FilesWriteResult{}, nil
	}
}

// handle stands in a reply of [script] for the handle of the first dialog that was opened.
const handle = "{handle}"

// say is a tool call that goes on with a handle.
func say(id, handle, input string) loop.ToolCall {
	return loop.ToolCall{ID: id, Name: "tool_continue", Arguments: fmt.Sprintf(`{"handle":%q,"input":%q}`, handle, input)}
}

func newDialogRig(session protocol.SessionID) (*rig, talkers) {
	heard := talkers{}
	opening := loop.ToolCall{ID: "open", Name: "repl", Arguments: `{"name":"a"}`}
	r := newRig(
		loop.Reply{ToolCalls: []loop.ToolCall{opening}},
		loop.Reply{ToolCalls: []loop.ToolCall{say("one", handle, "one"), say("two", handle, "two"), say("lost", "h-lost", "x")}},
		loop.Reply{ToolCalls: []loop.ToolCall{say("end", handle, "end"), say("late", handle, "late")}},
		loop.Reply{ToolCalls: []loop.ToolCall{say("later", handle, "later")}},
		says("done"), says("checked"),
	)
	r.session, r.fleet.answer = session, heard.answer
	r.tools = []tools.Tool{tools.NewStateful[replArguments, string]("repl", "Evaluate.", tools.Remote{
		Kind: "repl", Resources: []tools.Resource{{Key: "repl/{name}"}}, Pool: "gpu", MinLevel: "paths",
	})}
	return r, heard
}

func TestDialogs_GoOnWithTheCallsOfTheirLane(t *testing.T) {
	t.Parallel()
	r, heard := newDialogRig("s")
	r.mustRun(t.Context(), t, "go")
	opened := r.callID(t, 1, 1, 0)
	require.Equal(t, talkers{opened: "hello one two end late"}, heard)
	require.Equal(t, []string{"ok", "ok", "ok", "rejected", "ok", "ok", "rejected"}, statuses(r))
	require.Len(t, r.fleet.runs, 5)
	for i := range r.fleet.runs {
		call := &r.fleet.runs[i]
		require.Equal(t, []protocol.Use{{Key: "repl/a", Access: protocol.Exclusive}}, call.Resources)
		require.Equal(t, protocol.Pool("gpu"), call.Pool)
		require.Equal(t, "paths", call.MinLevel)
		if i > 0 {
			require.Equal(t, protocol.AtMostOnce, call.Delivery)
			payload, continues := call.Payload.(wire.DialogContinue)
			require.True(t, continues)
			require.Equal(t, opened, payload.Dialog)
		}
	}
	calls, results := r.watch.of(loop.EventToolCall), r.watch.of(loop.EventToolResult)
	require.Equal(t, []string{"", "repl", "repl", ""}, []string{calls[0].About, calls[1].About, calls[2].About, calls[3].About})
	require.Equal(t, render.DialogHandle(opened), results[0].Handle)
	ended := 0
	for _, e := range results {
		if e.Ending != "" {
			ended++
		}
	}
	require.Equal(t, 2-1, ended, "the fake worker says nothing of the second")
	require.Equal(t, protocol.CodeStateLost, results[len(results)-1].Error.Code)
}

// Whatever is journaled before a crash, the dialog hears each input once, in order, and the
// model sees the same.
func TestDialogs_CrashAtAnyAppendChangesNothing(t *testing.T) {
	t.Parallel()
	clean, _ := newDialogRig("s")
	clean.mustRun(t.Context(), t, "go")
	want := settled(t, clean)
	for n := 0; ; n++ {
		crashed := false
		for kept := range 3 {
			r, heard := newDialogRig("s")
			journal := &crashingJournal{untilCrash: n, kept: kept}
			r.journal = journal
			_, err := r.run(t.Context(), t, "go")
			if err == nil {
				break
			}
			crashed = true
			require.ErrorIs(t, err, errCrash)
			result := r.mustRun(t.Context(), t, "go")
			journal.untilCrash = -1
			require.Equal(t, talkers{r.callID(t, 1, 1, 0): "hello one two end late"}, heard, "append %d, %d kept", n, kept)
			if result.Turn == 1 { // else the end of the turn was stored before the crash
				require.Equal(t, want, settled(t, r))
			}
		}
		if !crashed {
			require.Greater(t, n, 8)
			return
		}
	}
}

func TestDialogs_AreBoundByThePolicyOfTheirTool(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		rules string
		want  []string
	}{
		"counted as its tool":     {"max_calls_of: {repl: 2}", []string{"ok", "ok", "rejected", "rejected", "rejected", "rejected", "rejected"}},
		"counted once":            {"max_calls: 4", []string{"ok", "ok", "ok", "rejected", "ok", "rejected", "rejected"}},
		"denied by its own name":  {"tools: {deny: [tool_continue]}", []string{"ok", "rejected", "rejected", "rejected", "rejected", "rejected", "rejected"}},
		"denied with its tool":    {"tools: {deny: [repl]}", []string{"rejected", "rejected", "rejected", "rejected", "rejected", "rejected", "rejected"}},
		"asked about as its tool": {"approval: {tools: [repl]}", []string{"ok", "ok", "rejected", "rejected", "ok", "ok", "rejected"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, _ := newDialogRig("s")
			r.opts.Policy = newJudge(t, test.rules)
			r.opts.Approve = func(_ context.Context, request loop.ApprovalRequest) (protocol.Approval, error) {
				return protocol.Approval{Granted: !strings.Contains(request.Arguments, "two")}, nil
			}
			r.mustRun(t.Context(), t, "go")
			require.Equal(t, test.want, statuses(r))
		})
	}
}

// A tool that was taken away, or is another one by now, ends its handles.
func TestDialogs_NeedTheirTool(t *testing.T) {
	t.Parallel()
	r, _ := newDialogRig("s")
	r.model.replies = []loop.Reply{
		r.model.replies[0], says("first"), {ToolCalls: []loop.ToolCall{say("one", handle, "one")}}, says("second"),
	}
	r.mustRun(t.Context(), t, "go")
	r.tools = []tools.Tool{
		tools.NewRemote[replArguments]("repl", "Evaluate.", tools.Remote{Kind: "repl"}),
		tools.NewStateful[replArguments, string]("other", "Evaluate.", tools.Remote{Kind: "other"}),
	}
	r.mustRun(t.Context(), t, "again")
	results := r.watch.of(loop.EventToolResult)
	last := results[len(results)-1]
	require.Equal(t, "rejected", last.Status)
	require.Contains(t, last.Content, "is not there any more, or is another one by now")
}

func TestDialogs_OneMessageHasEveryFaultOfAnInput(t *testing.T) {
	t.Parallel()
	r, heard := newDialogRig("s")
	wrong := loop.ToolCall{
		ID: "wrong", Name: "tool_continue", Arguments: fmt.Sprintf(`{"handle":%q,"input":7,"wait":1}`, handle),
	}
	r.model.replies = []loop.Reply{r.model.replies[0], {ToolCalls: []loop.ToolCall{wrong}}, says("done")}
	r.mustRun(t.Context(), t, "go")
	results := r.watch.of(loop.EventToolResult)
	last := results[len(results)-1]
	require.Equal(t, protocol.CodeInvalidArguments, last.Error.Code)
	require.Contains(t, last.Content, "\n- input: must be string, not number\n- wait: there is no such property; allowed are handle, input\nExpected schema: ")
	require.Equal(t, "hello", heard[r.callID(t, 1, 1, 0)], "it heard nothing")
}

// provided is a model whose provider runs tools.
type provided struct{ *script }

func (provided) Provider() string { return "cloud" }

// A tool that a provider runs is declared to its models, with its hint, and to no other.
func TestNative_IsForItsProviderAlone(t *testing.T) {
	t.Parallel()
	web := tools.Tool{
		Definition: tools.Definition{Name: "web", Description: "Search.", Native: map[string]json.RawMessage{"cloud": json.RawMessage(`{"type":"search"}`)}},
		Metadata:   tools.Metadata{Hint: "Search before you guess."},
	}
	r := newRig(says("done"))
	elsewhere := &script{replies: []loop.Reply{says("done")}}
	for _, test := range []struct {
		model loop.Model
		seen  *script
		has   bool
	}{{r.model, r.model, false}, {provided{elsewhere}, elsewhere, true}} {
		r.session += "x"
		runner := mustNew(t, test.model, r.fleet, r.journal, table(t, web), &r.opts)
		mustRun(t.Context(), t, runner, r.session, loop.Input{Text: "go"})
		var names []string
		for _, definition := range test.seen.seen[0].Tools {
			names = append(names, definition.Name)
		}
		if test.has {
			require.Contains(t, names, "web")
			require.Contains(t, test.seen.lastSeen()[0].Text, "- web: Search before you guess.")
		} else {
			require.NotContains(t, names, "web")
			require.NotContains(t, test.seen.lastSeen()[0].Text, "Search before you guess.")
		}
	}
}

// drawn is a model of a provider that makes an image.
func drawn(t *testing.T) *rig {
	t.Helper()
	first := asks("a", "work")
	first.Native = []loop.NativeCall{
		{Name: "search", Input: "dots\xff", Output: "https://dots.example/", Failed: true},
		{Name: "draw", Input: "a dot", Image: &loop.Image{MediaType: "image/png", Data: []byte("\x89PNG")}},
	}
	r := newRig(first, says("done"), says("checked"))
	native := tools.Definition{Name: "draw", Description: "Draw.", Native: map[string]json.RawMessage{"cloud": json.RawMessage(`{"type":"draw"}`)}}
	r.tools = []tools.Tool{{Definition: native}}
	return r
}

// What the provider's tools returned is journaled, and an image becomes a file of the workspace.
func TestNative_ImagesAreStored(t *testing.T) {
	t.Parallel()
	r := drawn(t)
	r.mustRun(t.Context(), t, "go")
	var native []loop.Event
	for _, e := range r.events(t) {
		if e.Type == loop.EventNativeCall {
			native = append(native, e)
		}
	}
	require.Len(t, native, 2)
	require.Equal(t, "dots\uFFFD", native[0].Text)
	require.Equal(t, "https://dots.example/", native[0].Content)
	require.Equal(t, "failed", native[0].Status)
	require.Equal(t, "\x89PNG", string(native[1].Image.Data))
	require.Equal(t, 1, native[1].Index)

	require.Len(t, r.fleet.runs, 2)
	stored, is := r.fleet.runs[1].Payload.(protocol.FilesWrite)
	require.True(t, is)
	require.Equal(t, "\x89PNG", string(stored.Content))
	require.Regexp(t, `^generated/[0-9a-f]{12}\.png$`, stored.Path)
	requireProtocol(t, r.model.lastSeen())
	require.Equal(t, native[1].ToolCallID, r.model.lastSeen()[4].ToolCallID)

	// A model that calls the tool itself gets a sentence, and stores nothing.
	r = drawn(t)
	r.model.replies[0] = asks("a", "draw")
	r.mustRun(t.Context(), t, "go")
	require.Empty(t, r.fleet.runs)
	require.Contains(t, r.model.lastSeen()[3].Text, "is run by the model's provider")
}

func TestNative_CrashAtAnyAppendStoresAnImageOnce(t *testing.T) {
	t.Parallel()
	for n, crashed := 0, true; crashed; n++ {
		crashed = false
		for kept := range 4 {
			r, journal := drawn(t), &crashingJournal{untilCrash: n, kept: kept}
			r.journal = journal
			if _, err := r.run(t.Context(), t, "go"); err != nil {
				crashed = true
				r.mustRun(t.Context(), t, "go")
			}
			require.Len(t, r.fleet.runs, 2, "append %d, of which %d events are stored", n+1, kept)
			require.Equal(t, []byte("\x89PNG"), []byte(r.fleet.runs[1].Payload.(protocol.FilesWrite).Content)) //nolint:errcheck,forcetypeassert // else it panics
		}
	}
}

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
			r.mustRun(t.Context(), t, "go")
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
	r.mustRun(t.Context(), t, "go")
	r.fleet.err, r.tools = nil, []tools.Tool{remote("account/8", true)}
	r.mustRun(t.Context(), t, "and")
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

	r.mustRun(t.Context(), t, "go")
	require.Empty(t, r.fleet.ran(), "there was nobody to ask")
	require.Equal(t, "refused", r.watch.of(loop.EventPolicyDecision)[0].Status)
}
