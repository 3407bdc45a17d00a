package fleet_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/mcp/toolserver/toolservertest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/mcp"
	"github.com/toolfleet/toolfleet/pkg/tools/policy"
	"github.com/toolfleet/toolfleet/pkg/tools/toolset"
	"github.com/toolfleet/toolfleet/pkg/worker"
)

// bench is a fleet with a worker, a workspace and a log.
type bench struct {
	*fleet.Client

	t     *testing.T
	table *tools.Table
	dir   string
	log   bytes.Buffer
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{t: t, dir: t.TempDir()}
	var err error
	b.table = table(t)
	b.Client = mustConnect(t, fleet.Options{Logger: slog.New(slog.NewTextHandler(&b.log, nil))})
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	_, err = b.StartWorker(t.Context(), worker.Options{
		Driver: "process", Workspace: func(string) (string, bool) { return b.dir, true },
	})
	require.NoError(t, err)
	return b
}

func (b *bench) call(call fleet.Call, tool, arguments string) fleet.Result {
	b.t.Helper()
	call.Table, call.Session, call.Tool, call.Arguments = b.table, "s", tool, arguments
	outcome, err := b.Call(b.t.Context(), call)
	require.NoError(b.t, err)
	return outcome
}

func rules(t *testing.T, text string) *policy.Judge {
	t.Helper()
	p, err := policy.Parse("rules", []byte(text))
	require.NoError(t, err)
	judge, err := policy.New(p)
	require.NoError(t, err)
	return judge
}

func TestCall_ObeysAPolicy(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	judge := rules(t, "tools: {deny: [glob]}\ncommands: {allow: [echo]}\napproval: {tools: [write], timeout: 50ms}\nmax_calls: 2")
	for _, test := range []struct {
		tool, arguments string
		approve         func(ctx context.Context, request loop.ApprovalRequest) (protocol.Approval, error)
		code            protocol.Code
		decision        string
	}{
		{"glob", `{"pattern":"*"}`, nil, protocol.CodePolicyDenied, "decision=denied rule=tools.deny"},
		{"bash", `{"command":"echo a; rm x"}`, nil, protocol.CodePolicyDenied, "decision=denied rule=commands.allow"},
		{"bash", `{"command":"echo a"}`, nil, "", ""},
		{"write", `{"path":"a","content":""}`, nil, protocol.CodePolicyDenied, "decision=refused rule=approval.tools"},
		{"write", `{"path":"a","content":""}`, answers(false), protocol.CodePolicyDenied, "decision=refused rule=approval.tools by=ada"},
		{"write", `{"path":"a","content":""}`, silence, protocol.CodePolicyDenied, "decision=expired rule=approval.tools"},
		{"write", `{"path":"a","content":""}`, answers(true), "", "decision=approved rule=approval.tools by=ada"},
		{"nosuch", `{}`, nil, codes.UnknownTool, ""},
		{"bash", `{"command":"echo a"}`, nil, protocol.CodePolicyDenied, "decision=denied rule=max_calls"},
	} {
		b.log.Reset()
		outcome := b.call(fleet.Call{Policy: judge, Approve: test.approve}, test.tool, test.arguments)
		if test.code == "" {
			require.Equal(t, protocol.StatusOK, outcome.Status, outcome.Text)
			require.NotEmpty(t, outcome.WorkerID)
		} else {
			require.Equal(t, protocol.StatusRejected, outcome.Status)
			require.Equal(t, test.code, outcome.Error.Code)
			require.Contains(t, outcome.Text, "[rejected: "+string(test.code)+"]")
			require.Empty(t, outcome.WorkerID)
		}
		require.Contains(t, b.log.String(), test.decision)
		require.Equal(t, test.decision != "", strings.Contains(b.log.String(), "tool call decided by policy"))
	}
}

func answers(granted bool) func(ctx context.Context, request loop.ApprovalRequest) (protocol.Approval, error) {
	return func(context.Context, loop.ApprovalRequest) (protocol.Approval, error) {
		return protocol.Approval{Granted: granted, By: "ada"}, nil
	}
}

func silence(ctx context.Context, _ loop.ApprovalRequest) (protocol.Approval, error) {
	<-ctx.Done()
	return protocol.Approval{}, context.Cause(ctx)
}

func TestCall_ThatIsStoppedWhileAPersonIsAsked(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ctx, stop := context.WithCancel(t.Context())
	outcome, err := b.Call(ctx, fleet.Call{
		Session: "s", Tool: "write", Arguments: `{"path":"a","content":""}`,
		Policy: rules(t, "approval: {tools: [write]}"),
		Approve: func(ctx context.Context, _ loop.ApprovalRequest) (protocol.Approval, error) {
			stop()
			return silence(ctx, loop.ApprovalRequest{})
		},
	})
	require.NoError(t, err)
	require.Equal(t, protocol.CodeCancelled, outcome.Error.Code)
	require.NoFileExists(t, filepath.Join(b.dir, "a"))
}

// The lexical rule lets src/link through; the worker sees where it leads.
func TestCall_RootsHoldForWhatPathsLeadTo(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for _, dir := range []string{"src", "secret"} {
		require.NoError(t, os.Mkdir(filepath.Join(b.dir, dir), 0o755))
	}
	require.NoError(t, os.WriteFile(filepath.Join(b.dir, "secret/key"), []byte("42\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(b.dir, "src/own"), []byte("1\n"), 0o600))
	require.NoError(t, os.Symlink("../secret", filepath.Join(b.dir, "src/link")))
	options := fleet.Call{Policy: rules(t, "paths: {read: [src]}")}
	for tool, arguments := range map[string]string{
		"read": `{"path":"src/link/key"}`, "write": `{"path":"src/link/key","content":""}`, "list": `{"path":"src/link"}`,
		"edit": `{"path":"src/link/key","old":"42","new":"43"}`, "multi_edit": `{"path":"src/link/key","edits":[{"old":"42","new":"43"}]}`,
		"grep": `{"pattern":"4","path":"src/link"}`, "glob": `{"pattern":"link/*","path":"src"}`, "tree": `{"path":"src/link"}`,
		"exists": `{"path":"src/link/key"}`, "json_read": `{"path":"src/link/key"}`, "json_write": `{"path":"src/link/key","content":1}`,
	} {
		b.log.Reset()
		outcome := b.call(options, tool, arguments)
		require.Equal(t, protocol.StatusRejected, outcome.Status, tool+outcome.Text)
		require.Equal(t, protocol.CodePolicyDenied, outcome.Error.Code, tool)
		require.Contains(t, outcome.Text, "leads to secret", tool)
		require.Contains(t, outcome.Text, "only these may be: src", tool)
		require.Contains(t, b.log.String(), "decision=denied rule=paths.")
	}
	require.Equal(t, protocol.StatusOK, b.call(options, "read", `{"path":"src/own"}`).Status)
	content, err := os.ReadFile(filepath.Join(b.dir, "secret/key"))
	require.NoError(t, err)
	require.Equal(t, "42\n", string(content))
	excepted := fleet.Call{Policy: rules(t, "paths: {read: [src], except: [read]}")}
	require.Equal(t, protocol.StatusOK, b.call(excepted, "read", `{"path":"src/link/key"}`).Status)
}

func TestCall_GuardsFiles(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	require.NoError(t, os.WriteFile(filepath.Join(b.dir, "a"), []byte("1\n"), 0o600))
	options := fleet.Call{Guard: protocol.GuardRead}
	require.Equal(t, codes.FileNotRead, b.call(options, "write", `{"path":"a","content":"2"}`).Error.Code)
	require.Equal(t, protocol.StatusOK, b.call(options, "read", `{"path":"a"}`).Status)
	require.Equal(t, protocol.StatusOK, b.call(options, "write", `{"path":"a","content":"2"}`).Status)
}

// A denial that only the worker can see is in the journal and the log, and spends nothing.
func TestRun_ADenialOfTheWorkerIsInTheAuditLog(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	require.NoError(t, os.MkdirAll(filepath.Join(b.dir, "src"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(b.dir, "key"), []byte("42\n"), 0o600))
	require.NoError(t, os.Symlink("../key", filepath.Join(b.dir, "src/link")))
	var seen []string
	runner, err := b.Runner(&replies{[]string{`{"path":"src/link"}`, `{"path":"src/link"}`, `{"path":"src"}`}}, b.table, &loop.Options{
		Policy: rules(t, "paths: {read: [src]}\nmax_calls: 1"), Logger: slog.New(slog.NewTextHandler(&b.log, nil)),
		Observe: func(e loop.Event) {
			if e.Type == loop.EventPolicyDecision || e.Type == loop.EventToolResult {
				seen = append(seen, fmt.Sprint(e.Step, " ", e.Type, " ", e.Status, " ", e.Rule))
			}
		},
	})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err = runner.Run(ctx, "s", loop.Input{Text: "go"})
	require.NoError(t, err)
	require.Equal(t, []string{
		"1 policy_decision denied paths.read", "1 tool_result rejected ",
		"2 policy_decision denied paths.read", "2 tool_result rejected ",
		"3 tool_result failed ", // a directory: it was let through, two denials were not counted
	}, seen)
	require.Equal(t, 2, strings.Count(b.log.String(), "decision=denied rule=paths.read"))
}

// replies is a model that reads one path after the other.
type replies struct{ left []string }

func (r *replies) Reply(context.Context, loop.Request, func(loop.Delta)) (loop.Reply, error) {
	if len(r.left) == 0 {
		return loop.Reply{Text: "done"}, nil
	}
	arguments := r.left[0]
	r.left = r.left[1:]
	return loop.Reply{ToolCalls: []loop.ToolCall{{ID: "a", Name: "read", Arguments: arguments}}}, nil
}

// A policy binds payloads and handlers as it binds tools, and the call cannot weaken it.
func TestCall_APolicyBindsPayloads(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	run := func(p *policy.Judge, call fleet.Call) fleet.Result {
		call.Policy = p
		outcome, err := b.Call(t.Context(), call)
		require.NoError(t, err)
		return outcome
	}
	remove := fleet.Call{Payload: protocol.CommandRun{Command: "echo ran > ran"}}
	for _, text := range []string{
		"tools: {deny: [\"@execute\"]}", "tools: {allow: [bash]}", "tools: {deny: [command_run]}",
		"commands: {allow: [ls]}", "paths: {write: [src]}", "approval: {tools: [\"@execute\"]}",
	} {
		outcome := run(rules(t, text), remove)
		require.Equal(t, protocol.CodePolicyDenied, outcome.Error.Code, text)
		require.Equal(t, protocol.StatusRejected, outcome.Status, text)
	}
	require.Equal(t, protocol.CodePolicyDenied, run(rules(t, "tools: {allow: [bash]}"), fleet.Call{Handler: "pay", Args: 1}).Error.Code)
	require.NoFileExists(t, filepath.Join(b.dir, "ran"))
	allowed := run(rules(t, "commands: {allow: [echo]}"), remove)
	require.NoError(t, allowed.Err())
	value, err := fleet.ValueOf[protocol.CommandRunResult](allowed, nil)
	require.NoError(t, err)
	require.Zero(t, value.ExitCode)
	require.FileExists(t, filepath.Join(b.dir, "ran"))

	approved := remove
	approved.Approve = func(_ context.Context, request loop.ApprovalRequest) (protocol.Approval, error) {
		return protocol.Approval{Granted: request.Tool == "command_run"}, nil
	}
	require.NoError(t, run(rules(t, "approval: {tools: [\"@execute\"]}"), approved).Err())

	once := remove
	once.Delivery = protocol.Idempotent
	once.Retry = &protocol.Retry{Attempts: 2}
	_, err = b.Call(t.Context(), fleet.Call{Payload: once.Payload, Delivery: once.Delivery, Retry: once.Retry, Policy: rules(t, "at_most_once: {tools: [\"@execute\"]}")})
	require.ErrorIs(t, err, protocol.ErrInvalidCall, "a call that starts once has no retry")
}

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
	stop, err := sessions.Output(t.Context(), "s", nil)
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
