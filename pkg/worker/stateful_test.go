package worker_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/worker"
)

type counterArguments struct {
	From int `json:"from"`
}

type counterInput struct {
	Add int `json:"add"`
}

// counter adds what it is told, until the sum is 100.
func counter(_ context.Context, d *worker.Dialog[counterInput, string], args counterArguments) (string, error) {
	for sum := args.From; ; {
		input, err := d.Yield(fmt.Sprintf("%d (%s)", sum, d.Call().Tool()))
		if err != nil {
			return fmt.Sprintf("stopped at %d", sum), nil //nolint:nilerr // the end is no failure
		}
		if sum += input.Add; sum >= 100 {
			return fmt.Sprintf("%d, enough", sum), nil
		}
	}
}

// steps is a model that calls what its functions say, each with the text of the last result.
type steps []func(last string) []loop.ToolCall

func (s steps) Reply(_ context.Context, request loop.Request, _ func(loop.Delta)) (loop.Reply, error) {
	n, last := 0, ""
	for _, m := range request.Messages {
		switch m.Role {
		case loop.RoleAssistant:
			n++
		case loop.RoleTool:
			last = m.Text
		default:
		}
	}
	if n >= len(s) {
		return loop.Reply{Text: last}, nil
	}
	return loop.Reply{ToolCalls: s[n](last)}, nil
}

// handleIn is the handle that a text names.
func handleIn(text string) string {
	_, rest, _ := strings.Cut(text, "[handle ")
	handle, _, _ := strings.Cut(rest, " ")
	return strings.TrimSuffix(handle, ":")
}

func call(name string, arguments any) loop.ToolCall {
	encoded, err := json.Marshal(arguments)
	if err != nil {
		panic(err)
	}
	return loop.ToolCall{Name: name, Arguments: string(encoded)}
}

func goOn(handle string, input any) loop.ToolCall {
	return call("tool_continue", map[string]any{"handle": handle, "input": input})
}

func TestStateful_GoesOnWhereItStood(t *testing.T) {
	t.Parallel()
	f, err := fleet.Connect(t.Context(), fleet.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	_, err = f.StartWorker(t.Context(), worker.Options{
		Driver: "process", Handlers: []worker.Handler{worker.HandleStateful("counter", counter, nil)},
	})
	require.NoError(t, err)
	table, err := tools.NewTable(tools.NewStateful[counterArguments, counterInput]("counter", "Count.", tools.Remote{
		Kind: "counter", Resources: []tools.Resource{{Key: "counter/{$session}"}},
	}))
	require.NoError(t, err)
	require.Equal(t, []string{"counter", "tool_continue", "tool_end"}, table.Names())

	var handle, second string
	var mu sync.Mutex
	var results []loop.Event
	model := steps{
		func(string) []loop.ToolCall { return []loop.ToolCall{call("counter", counterArguments{From: 1})} },
		func(last string) []loop.ToolCall {
			handle = handleIn(last)
			return []loop.ToolCall{goOn(handle, counterInput{2}), goOn(handle, counterInput{3}), goOn("h-none", nil), goOn(handle, "two")}
		},
		func(string) []loop.ToolCall {
			return []loop.ToolCall{goOn(handle, counterInput{94}), goOn(handle, counterInput{1}), call("counter", counterArguments{})}
		},
		func(last string) []loop.ToolCall {
			second = handleIn(last)
			return []loop.ToolCall{goOn(handle, counterInput{1}), call("tool_end", map[string]string{"handle": second}), goOn(second, counterInput{1})}
		},
		func(string) []loop.ToolCall { return []loop.ToolCall{goOn(second, counterInput{1})} },
	}
	runner, err := f.Runner(model, table, &loop.Options{Observe: func(e loop.Event) {
		mu.Lock()
		defer mu.Unlock()
		if e.Type == loop.EventToolResult {
			results = append(results, e)
		}
	}})
	require.NoError(t, err)
	_, err = runner.Run(t.Context(), "s", loop.Input{Text: "count"})
	require.NoError(t, err)

	text := func(step, index int) string {
		for i := range results {
			if results[i].Step == step && results[i].Index == index {
				return results[i].Status + " " + results[i].Content
			}
		}
		return ""
	}
	require.Contains(t, text(1, 0), "ok 1 (counter)\n[handle "+handle+": tool_continue continues, and tool_end ends it. ")
	require.Contains(t, text(1, 0), "after 10m0s without a call")
	require.Equal(t, "ok 3 (tool_continue)\n[handle "+handle+" can be continued]", text(2, 0))
	require.Equal(t, "ok 6 (tool_continue)\n[handle "+handle+" can be continued]", text(2, 1), "in the order of the calls")
	require.Contains(t, text(2, 2), "rejected [rejected: not_found]\nThere is no handle \"h-none\" in this session. Those that can be continued are: "+handle+" (counter).")
	require.Contains(t, text(2, 3), "rejected [rejected: invalid_tool_arguments]")
	require.Contains(t, text(2, 3), "input: ")
	require.Equal(t, "ok 100, enough\n[handle "+handle+" has ended: done]", text(3, 0))
	require.Contains(t, text(3, 1), "rejected [rejected: state_lost]\nThe handle cannot be continued any more: its tool was done with it.", "by the worker")
	require.Contains(t, text(4, 0),
		"its tool was done with it. A new call of its tool begins anew, with a new handle. Those that can be continued are: "+second,
		"by the journal")
	require.Equal(t, "ok stopped at 0\n[handle "+second+" has ended: ended]", text(4, 1))
	require.Contains(t, text(4, 2), "it was ended on request")
	require.Contains(t, text(5, 0), "There is none that can be continued.")

	outcome, err := f.Call(t.Context(), fleet.Call{Table: table, Session: "s", Tool: "counter", Arguments: `{"from":1}`})
	require.NoError(t, err)
	require.Equal(t, protocol.CodeInternal, outcome.Error.Code)
	require.Contains(t, outcome.Error.Message, "works only there")
}

type lineInput struct {
	Line string `json:"line"`
}

// notes appends lines to a file of the session's workspace, by a command for each.
func notes(_ context.Context, d *worker.Dialog[lineInput, string], args lineInput) (string, error) {
	for line := args.Line; ; {
		box, err := d.Call().Sandbox(d.Step())
		if err != nil {
			return "", err
		}
		r, err := box.Exec(d.Step(), sandbox.Cmd{Argv: []string{"sh", "-c", `echo "$0" >>notes; cat notes`, line}})
		if err != nil {
			return "", err
		}
		input, err := d.Yield(string(r.Stdout.Data))
		if err != nil {
			return "", err
		}
		line = input.Line
	}
}

func TestStateful_WorksInTheSandboxOfItsSession(t *testing.T) {
	t.Parallel()
	f, err := fleet.Connect(t.Context(), fleet.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	dir := t.TempDir()
	_, err = f.StartWorker(t.Context(), worker.Options{
		Driver: "process", Workspace: func(string) (string, bool) { return dir, true },
		Handlers: []worker.Handler{worker.HandleStateful("notes", notes, nil)},
	})
	require.NoError(t, err)
	table, err := tools.NewTable(tools.NewStateful[lineInput, lineInput]("notes", "Note.", tools.Remote{Kind: "notes"}))
	require.NoError(t, err)
	var handle string
	model := steps{
		func(string) []loop.ToolCall { return []loop.ToolCall{call("notes", lineInput{"first"})} },
		func(last string) []loop.ToolCall {
			handle = handleIn(last)
			return []loop.ToolCall{goOn(handle, lineInput{"second"})}
		},
	}
	runner, err := f.Runner(model, table, nil)
	require.NoError(t, err)
	result, err := runner.Run(t.Context(), "s", loop.Input{Text: "note"})
	require.NoError(t, err)
	require.Equal(t, "first\nsecond\n\n[handle "+handle+" can be continued]", result.Text)
	content, err := os.ReadFile(filepath.Join(dir, "notes"))
	require.NoError(t, err)
	require.Equal(t, "first\nsecond\n", string(content))
}
