package loop_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/modeltext/render"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
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
	_, err := r.run(t.Context(), t, "go")
	require.NoError(t, err)
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
	_, err := clean.run(t.Context(), t, "go")
	require.NoError(t, err)
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
			result, err := r.run(t.Context(), t, "go")
			require.NoError(t, err)
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
			_, err := r.run(t.Context(), t, "go")
			require.NoError(t, err)
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
	_, err := r.run(t.Context(), t, "go")
	require.NoError(t, err)
	r.tools = []tools.Tool{
		tools.NewRemote[replArguments]("repl", "Evaluate.", tools.Remote{Kind: "repl"}),
		tools.NewStateful[replArguments, string]("other", "Evaluate.", tools.Remote{Kind: "other"}),
	}
	_, err = r.run(t.Context(), t, "again")
	require.NoError(t, err)
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
	_, err := r.run(t.Context(), t, "go")
	require.NoError(t, err)
	results := r.watch.of(loop.EventToolResult)
	last := results[len(results)-1]
	require.Equal(t, protocol.CodeInvalidArguments, last.Error.Code)
	require.Contains(t, last.Content, "\n- input: must be string, not number\n- wait: there is no such property; allowed are handle, input\nExpected schema: ")
	require.Equal(t, "hello", heard[r.callID(t, 1, 1, 0)], "it heard nothing")
}
