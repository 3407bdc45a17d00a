package fleet_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/policy"
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
	for _, text := range []string{"tools: {deny: [\"@execute\"]}", "tools: {allow: [bash]}", "tools: {deny: [command_run]}", "commands: {allow: [ls]}", "paths: {write: [src]}", "approval: {tools: [\"@execute\"]}"} {
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
