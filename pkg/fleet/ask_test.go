package fleet_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/mcp/toolserver/toolservertest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/mcp"
	"github.com/toolfleet/toolfleet/pkg/tools/toolset"
	"github.com/toolfleet/toolfleet/pkg/worker"
)

// calling is a model that calls a tool once, and answers with its result.
type calling struct{ tool, arguments string }

func (m calling) Reply(_ context.Context, request loop.Request, _ func(loop.Delta)) (loop.Reply, error) {
	if last := request.Messages[len(request.Messages)-1]; last.Role == loop.RoleTool {
		return loop.Reply{Text: last.Text}, nil
	}
	return loop.Reply{ToolCalls: []loop.ToolCall{{ID: "1", Name: m.tool, Arguments: m.arguments}}}, nil
}

// withServer is a fleet with a session that has the tools of the test server.
func withServer(t *testing.T) (*fleet.Client, protocol.SessionID, *tools.Table) {
	t.Helper()
	f := mustConnect(t, fleet.Options{})
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	mustStart(t, f, worker.Options{Driver: "process"})
	session := protocol.NewSessionID()
	made, problems, err := f.ServerTools(t.Context(), session, []mcp.Server{
		{MCPServer: toolservertest.Program("test"), Only: []string{"form"}},
		{MCPServer: protocol.MCPServer{Name: "gone", Command: "no-such-program"}},
	}, toolset.Core())
	require.NoError(t, err)
	require.Len(t, problems, 1)
	require.ErrorContains(t, problems[0], "MCP server gone has no tools now")
	require.Len(t, made, 1)
	table, err := tools.NewTable(append(toolset.Core(), made...)...)
	require.NoError(t, err)
	return f, session, table
}

// asked runs beside a run what a person does about events of a type.
func asked(t *testing.T, of loop.EventType, do func(loop.Event)) (observe func(loop.Event)) {
	t.Helper()
	var group sync.WaitGroup
	t.Cleanup(group.Wait) // the context of the test has ended by then
	return func(e loop.Event) {
		if e.Type == of {
			group.Go(func() { do(e) })
		}
	}
}

// What an MCP server asks in the middle of a call, the program answers: in a session, and of a call
// of its own.
func TestAnswer(t *testing.T) {
	t.Parallel()
	f, session, table := withServer(t)
	answer := func(e loop.Event, content string, action protocol.Action) error {
		return f.Sessions("").Answer(context.WithoutCancel(t.Context()), e.SessionID, e.CallID, protocol.Answer{Action: action, Content: json.RawMessage(content), By: "ada"})
	}
	observe := asked(t, loop.EventQuestionAsked, func(e loop.Event) {
		errs := []error{
			answer(e, "", protocol.ActionWait), answer(e, `{"age":"old"}`, protocol.ActionAccept),
			f.Sessions("").Answer(context.WithoutCancel(t.Context()), e.SessionID, e.CallID, protocol.Answer{Question: "another", Action: protocol.ActionDecline}),
			answer(e, `{"name":"Bob"}`, protocol.ActionAccept), answer(e, "", protocol.ActionDecline),
		}
		for i, want := range []error{nil, fleet.ErrInvalid, fleet.ErrInvalid, nil, fleet.ErrNotFound} {
			if !errors.Is(errs[i], want) {
				t.Errorf("answer %d: %v", i, errs[i])
			}
		}
		if e.Name != "test__form" || e.Question.Message != "Who are you?" {
			t.Errorf("asked is %+v", e)
		}
	})
	const accepted = `accept {"age":30,"name":"Bob","score":9.5,"status":"active","sure":true}`
	runner, err := f.Runner(calling{"test__form", "{}"}, table, &loop.Options{Observe: observe})
	require.NoError(t, err)
	result, err := runner.Run(t.Context(), session, loop.Input{Text: "go"})
	require.NoError(t, err)
	require.Equal(t, accepted, result.Text)

	outcome := mustCall(t, f, fleet.Call{Table: table, Session: session, Tool: "test__form", Arguments: "{}", Observe: observe})
	require.Equal(t, accepted, outcome.Text)
	outcome = mustCall(t, f, fleet.Call{Table: table, Session: session, Tool: "test__form", Arguments: "{}"})
	require.Contains(t, outcome.Text, "decline null", "nobody is asked")

	_, _, err = f.ServerTools(t.Context(), "no/session", nil, nil)
	require.ErrorIs(t, err, protocol.ErrInvalidName)
}

// Whether a call may be made, the program says from beside the session, or another one does.
func TestApprove(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	approve := func(granted bool, note string) func(loop.Event) {
		return asked(t, loop.EventApprovalAsked, func(e loop.Event) {
			err := b.Sessions("").Approve(context.WithoutCancel(t.Context()), e.SessionID, e.CallID, protocol.Approval{Granted: granted, By: "ada", Note: note})
			if err != nil {
				t.Error(err)
			}
		})
	}
	for note, granted := range map[string]bool{"fine": true, "not now": false} {
		runner, err := b.Runner(calling{"write", `{"path":"a","content":"x"}`}, b.table, &loop.Options{
			Policy: rules(t, "approval: {tools: [write]}"), Approve: b.AwaitApproval, Observe: approve(granted, note),
		})
		require.NoError(t, err)
		result, err := runner.Run(t.Context(), protocol.NewSessionID(), loop.Input{Text: "go"})
		require.NoError(t, err)
		require.Contains(t, result.Text, note)
		require.Equal(t, granted, !strings.HasPrefix(result.Text, "[rejected"), result.Text)
	}
	require.ErrorIs(t, b.Sessions("").Approve(t.Context(), "s", wire.RandomCallID(), protocol.Approval{}), fleet.ErrNotFound)
}

// Observers may be nil.
func TestSessions_WithoutObservers(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	sessions := b.Sessions("")
	stop, err := sessions.Output("s", nil)
	require.NoError(t, err)
	runner, err := b.Runner(calling{"bash", `{"command":"echo hello"}`}, b.table, nil)
	require.NoError(t, err)
	_, err = runner.Run(t.Context(), "s", loop.Input{Text: "go"})
	require.NoError(t, err)
	stop()
	turn, err := sessions.Follow(t.Context(), "s", nil, nil)
	require.NoError(t, err)
	require.Equal(t, loop.OutcomeAnswered, turn.Outcome)
}
