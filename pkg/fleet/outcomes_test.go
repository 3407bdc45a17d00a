package fleet_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio/embedded"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/mcp"
	"github.com/toolfleet/toolfleet/pkg/tools/toolset"
	"github.com/toolfleet/toolfleet/pkg/worker"
)

type method = func(context.Context) error

// methods calls each method that takes a context with valid input. sends are those that send calls.
func methods(t *testing.T, c *fleet.Client) (all, sends map[string]method) {
	t.Helper()
	call, turn, dir := shell("a", "true"), fleet.Turn{Prompt: "hello"}, t.TempDir()
	lanes, limits, schedules, sessions, templates := c.Lanes(""), c.Limits(), c.Schedules(), c.Sessions(""), c.Templates()
	stream, future := c.Stream("a", "b"), c.Go(t.Context(), call) // there is no worker
	require.Eventually(t, func() bool { return second(c.Attach(t.Context(), future.Ref())) == nil }, time.Minute, 5*time.Millisecond)
	wait := func(f *fleet.Future) error { return second(f.Wait(context.WithoutCancel(t.Context()))) }
	third := func(_, _ any, err error) error { return err }
	sends = map[string]method{
		"Client.Call":     func(ctx context.Context) error { return second(c.Call(ctx, call)) },
		"Client.Go":       func(ctx context.Context) error { return wait(c.Go(ctx, call)) },
		"Client.Submit":   func(ctx context.Context) error { return second(c.Submit(ctx, call)) },
		"Stream.Go":       func(ctx context.Context) error { return wait(stream.Go(ctx, fleet.Call{Payload: call.Payload})) },
		"Stream.Submit":   func(ctx context.Context) error { return second(stream.Submit(ctx, fleet.Call{Payload: call.Payload})) },
		"Sessions.Run":    func(ctx context.Context) error { return second(sessions.Run(ctx, turn, nil)) },
		"Sessions.Submit": func(ctx context.Context) error { return second(sessions.Submit(ctx, turn)) },
	}
	all = map[string]method{
		"Client.Attach": func(ctx context.Context) error { return second(c.Attach(ctx, future.Ref())) },
		"Client.AwaitApproval": func(ctx context.Context) error {
			return second(c.AwaitApproval(ctx, loop.ApprovalRequest{SessionID: "s", CallID: "c"}))
		},
		"Client.ServerTools": func(ctx context.Context) error {
			server := mcp.Server{MCPServer: protocol.MCPServer{Name: "one", Command: "one"}}
			return third(c.ServerTools(ctx, "s", []mcp.Server{server}, nil))
		},
		"Client.StartWorker": func(ctx context.Context) error {
			handler := worker.Handle("h", func(context.Context, *worker.Call, struct{}) (int, error) { return 0, nil })
			return second(c.StartWorker(ctx, worker.Options{Driver: "none", Handlers: []worker.Handler{handler}}))
		},
		"Client.CallRates":  func(ctx context.Context) error { return second(c.CallRates(ctx, fleet.CallQuery{}, 0)) },
		"Client.Calls":      func(ctx context.Context) error { return second(c.Calls(ctx, fleet.CallQuery{})) },
		"Client.LoggedCall": func(ctx context.Context) error { return second(c.LoggedCall(ctx, future.Ref())) },

		"Client.UnservedPools": func(ctx context.Context) error { return second(c.UnservedPools(ctx)) },
		"Client.Pools":         func(ctx context.Context) error { return second(c.Pools(ctx)) },
		"Client.Workers":       func(ctx context.Context) error { return second(c.Workers(ctx, "", time.Second)) },

		"Future.Cancel": future.Cancel,
		"Future.Wait":   func(ctx context.Context) error { return second(future.Wait(ctx)) },

		"Lanes.Cancel":        func(ctx context.Context) error { return lanes.Cancel(ctx, "a/b", "c") },
		"Lanes.CancelRunning": func(ctx context.Context) error { return second(lanes.CancelRunning(ctx, "a/b")) },
		"Lanes.List":          func(ctx context.Context) error { return second(lanes.List(ctx, 0)) },
		"Lanes.Find":          func(ctx context.Context) error { return second(lanes.Find(ctx, fleet.LaneQuery{})) },
		"Lanes.Pause":         func(ctx context.Context) error { return second(lanes.Pause(ctx, "a/b")) },
		"Lanes.Resume":        func(ctx context.Context) error { return second(lanes.Resume(ctx, "a/b")) },
		"Lanes.Show":          func(ctx context.Context) error { return second(lanes.Show(ctx, "a/b", 0)) },
		"Lanes.Unmet":         func(ctx context.Context) error { return second(lanes.Unmet(ctx)) },
		"Lanes.Wake":          func(ctx context.Context) error { return second(lanes.Wake(ctx, "a/b")) },

		"Limits.List":   func(ctx context.Context) error { return second(limits.List(ctx)) },
		"Limits.Remove": func(ctx context.Context) error { return limits.Remove(ctx, fleet.Limit{Lane: "a/*"}) },
		"Limits.Use": func(ctx context.Context) error {
			return second(limits.Use(ctx, fleet.Limit{Tenant: "a", Concurrent: 1}))
		},
		"Limits.Set": func(ctx context.Context) error { return limits.Set(ctx, fleet.Limit{Lane: "a/*", Concurrent: 1}) },

		"Schedules.Add": func(ctx context.Context) error {
			return second(schedules.Add(ctx, fleet.Schedule{Name: "a", Cron: "@daily"}, turn))
		},
		"Schedules.AddCall": func(ctx context.Context) error {
			return second(schedules.AddCall(ctx, fleet.Schedule{Name: "a", Cron: "@daily"}, call))
		},
		"Schedules.Ref": func(ctx context.Context) error { return second(schedules.Ref(ctx, "a", time.Time{})) },
		"Schedules.Page": func(ctx context.Context) error {
			_, _, err := schedules.Page(ctx, "", 1)
			return err
		},
		"Schedules.List":   func(ctx context.Context) error { return second(schedules.List(ctx)) },
		"Schedules.Pause":  func(ctx context.Context) error { return second(schedules.Pause(ctx, "a")) },
		"Schedules.Remove": func(ctx context.Context) error { return schedules.Remove(ctx, "a") },
		"Schedules.Resume": func(ctx context.Context) error { return second(schedules.Resume(ctx, "a")) },

		"Sessions.Answer": func(ctx context.Context) error {
			return sessions.Answer(ctx, "s", "c", protocol.Answer{Action: protocol.ActionDecline})
		},
		"Sessions.Approvals": func(ctx context.Context) error { return second(sessions.Approvals(ctx)) },
		"Sessions.Approve": func(ctx context.Context) error {
			return sessions.Approve(ctx, "s", "c", protocol.Approval{Granted: true})
		},
		"Sessions.Cancel":       func(ctx context.Context) error { return second(sessions.Cancel(ctx, "s")) },
		"Sessions.ChangedFiles": func(ctx context.Context) error { return second(sessions.ChangedFiles(ctx, "s")) },
		"Sessions.Changes":      func(ctx context.Context) error { return second(sessions.Changes(ctx, "s")) },
		"Sessions.CheckModel":   func(ctx context.Context) error { return sessions.CheckModel(ctx, "model") },
		"Sessions.Compact":      func(ctx context.Context) error { return second(sessions.Compact(ctx, "s", "")) },
		"Sessions.Compare":      func(ctx context.Context) error { return second(sessions.Compare(ctx, "s", "other")) },
		"Sessions.Diff":         func(ctx context.Context) error { return second(sessions.Diff(ctx, "s", "c")) },
		"Sessions.Effects":      func(ctx context.Context) error { return second(sessions.Effects(ctx, "s", fleet.At{})) },
		"Sessions.Files":        func(ctx context.Context) error { return second(sessions.Files(ctx, "s", "")) },
		"Sessions.Follow":       func(ctx context.Context) error { return second(sessions.Follow(ctx, "s", func(loop.Event) {}, nil)) },
		"Sessions.Fork":         func(ctx context.Context) error { return second(sessions.Fork(ctx, "s", fleet.At{}, "other")) },
		"Sessions.IDs":          func(ctx context.Context) error { return second(sessions.IDs(ctx)) },
		"Sessions.Event":        func(ctx context.Context) error { return second(sessions.Event(ctx, "s", "1-0")) },
		"Sessions.Import":       func(ctx context.Context) error { return second(sessions.Import(ctx, nil, "s")) },
		"Sessions.List":         func(ctx context.Context) error { return third(sessions.List(ctx, 0)) },
		"Sessions.Log":          func(ctx context.Context) error { return second(sessions.Log(ctx, "s")) },
		"Sessions.Merge":        func(ctx context.Context) error { return second(sessions.Merge(ctx, "s", "other")) },
		"Sessions.Archive":      func(ctx context.Context) error { return second(sessions.Archive(ctx, "s", "")) },
		"Sessions.File":         func(ctx context.Context) error { return second(sessions.File(ctx, "s", "a", "")) },
		"Sessions.Pack":         func(ctx context.Context) error { return second(sessions.Pack(ctx, "s", strings.NewReader(""), "")) },
		"Sessions.Pull":         func(ctx context.Context) error { return second(sessions.Pull(ctx, "s", dir, fleet.Copy{})) },
		"Sessions.Push":         func(ctx context.Context) error { return sessions.Push(ctx, "s", dir, fleet.Copy{}) },
		"Sessions.ReadFile":     func(ctx context.Context) error { return second(sessions.ReadFile(ctx, "s", "a", "")) },
		"Sessions.Remove":       func(ctx context.Context) error { return second(sessions.Remove(ctx, "s", true)) },
		"Sessions.Resolve":      func(ctx context.Context) error { return sessions.Resolve(ctx, "s", "c", true, "me") },
		"Sessions.Restore":      func(ctx context.Context) error { return third(sessions.Restore(ctx, "s", "c")) },
		"Sessions.Revert":       func(ctx context.Context) error { return second(sessions.Revert(ctx, "s", fleet.At{})) },
		"Sessions.Search":       func(ctx context.Context) error { return second(sessions.Search(ctx, fleet.Search{Words: "word"})) },
		"Sessions.Trace":        func(ctx context.Context) error { return second(sessions.Trace(ctx, "s", 0)) },
		"Sessions.Show":         func(ctx context.Context) error { return second(sessions.Show(ctx, "s")) },
		"Sessions.Unfinished":   func(ctx context.Context) error { return second(sessions.Unfinished(ctx, "s")) },
		"Sessions.Between":      func(ctx context.Context) error { return second(sessions.Between(ctx, "s", "c", "d")) },
		"Sessions.Conflicts":    func(ctx context.Context) error { return second(sessions.Conflicts(ctx, "s", "other")) },
		"Sessions.WholeOutput": func(ctx context.Context) error {
			return sessions.WholeOutput(ctx, "s", "c", func(io.Reader, int64) error { return nil })
		},

		"Templates.Create":            func(ctx context.Context) error { return templates.Create(ctx, "a", dir, fleet.Copy{}) },
		"Templates.CreateFromSession": func(ctx context.Context) error { return templates.CreateFromSession(ctx, "a", "s") },
		"Templates.List":              func(ctx context.Context) error { return second(templates.List(ctx)) },
		"Templates.Remove":            func(ctx context.Context) error { return templates.Remove(ctx, "a") },
	}
	maps.Copy(all, sends)
	var exported []string
	for _, of := range []any{c, lanes, limits, schedules, sessions, templates, stream, future} {
		kind := reflect.TypeOf(of)
		for method := range kind.Methods() {
			takes := method.Type.NumIn() > 1 && method.Type.In(1) == reflect.TypeFor[context.Context]()
			if name := reflect.Indirect(reflect.ValueOf(of)).Type().Name() + "." + method.Name; takes && !strings.HasSuffix(name, ".Output") &&
				name != "Sessions.Events" && name != "Sessions.KeepIndexed" { // these continue without the server
				exported = append(exported, name)
			}
		}
	}
	slices.Sort(exported)
	require.Equal(t, exported, slices.Sorted(maps.Keys(all)))
	return all, sends
}

// requireNotSent checks the errors of methods that send calls.
func requireNotSent(t *testing.T, sends map[string]method, name string, err error) {
	t.Helper()
	if sends[name] != nil {
		require.ErrorIs(t, err, fleet.ErrNotSent, name)
		require.NotErrorIs(t, err, fleet.ErrUnknownOutcome, name)
	}
}

// Each method of a closed client, with an ended context, or without a server has one outcome.
func TestOutcomes_OfEachMethod(t *testing.T) {
	t.Parallel()
	connect := func(t *testing.T) *fleet.Client {
		t.Helper()
		client := mustConnect(t, fleet.Options{URL: natsiotest.Serve(t, natsiotest.Alone(t, "", "")).ClientURL()})
		t.Cleanup(func() { require.NoError(t, client.Close()) })
		return client
	}
	t.Run("closed", func(t *testing.T) {
		t.Parallel()
		client := connect(t)
		all, sends := methods(t, client)
		require.NoError(t, client.Close())
		for name, call := range all {
			err := call(t.Context())
			require.ErrorIs(t, err, fleet.ErrClosed, name)
			require.NotErrorIs(t, err, fleet.ErrUnreachable, name)
			require.NotErrorIs(t, err, fleet.ErrInvalid, name)
			requireNotSent(t, sends, name, err)
		}
		_, err := client.Sessions("").Output(t.Context(), "s", func(protocol.CallID, fleet.Output) {})
		require.ErrorIs(t, err, fleet.ErrClosed)
	})
	t.Run("ended context", func(t *testing.T) {
		t.Parallel()
		client := connect(t)
		all, sends := methods(t, client)
		ctx, cancel := context.WithCancelCause(t.Context())
		cause := errors.New("the user left")
		cancel(cause)
		for name, call := range all {
			err := call(ctx)
			require.ErrorIs(t, err, cause, name)
			require.NotErrorIs(t, err, fleet.ErrUnreachable, name)
			require.NotErrorIs(t, err, fleet.ErrInvalid, name)
			requireNotSent(t, sends, name, err)
		}
		list, err := client.Lanes("").List(t.Context(), 0)
		require.NoError(t, err)
		require.Len(t, list.Lanes, 1, "only that of the future has something")
	})
	t.Run("lost server", func(t *testing.T) {
		t.Parallel()
		server, err := embedded.Start(t.Context(), embedded.Options{Data: t.TempDir(), Listen: "127.0.0.1:0"})
		require.NoError(t, err)
		defer server.Close()
		lost := lossLogger{make(chan struct{})}
		client := mustConnect(t, fleet.Options{URL: server.URL(), Creds: server.CredentialFile(), Logger: slog.New(lost)})
		defer func() { require.NoError(t, client.Close()) }()
		all, sends := methods(t, client)
		server.Close()
		<-lost.told
		for name, call := range all {
			patience := 100 * time.Millisecond
			if sends[name] != nil { // a call that is being sent when its time ends may have been sent
				patience = time.Second
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			err, over := call(ctx), ctx.Err()
			cancel()
			if over != nil { // else what waits to be sent to the server is too much
				require.ErrorIs(t, err, over, name)
			}
			if name != "Future.Wait" { // which asks the server nothing
				require.ErrorIs(t, err, fleet.ErrUnreachable, name)
			}
			require.NotErrorIs(t, err, fleet.ErrClosed, name)
			requireNotSent(t, sends, name, err)
		}
		_, err = client.Lanes("").List(t.Context(), 0)
		require.ErrorIs(t, err, fleet.ErrUnreachable, "it does not wait for ever")
		_, err = fleet.Connect(t.Context(), fleet.Options{URL: server.URL()})
		require.ErrorIs(t, err, fleet.ErrUnreachable)
	})
}

// A method that waits ends when its client is closed.
func TestOutcomes_OfMethodsThatWait(t *testing.T) {
	t.Parallel()
	client := mustConnect(t, fleet.Options{})
	all, _ := methods(t, client)
	ended := make(chan error, 5)
	go func() { ended <- client.Sessions("").KeepIndexed(t.Context()) }()
	for _, name := range []string{"Client.AwaitApproval", "Future.Wait", "Sessions.Run", "Sessions.Compact"} {
		go func() { ended <- all[name](t.Context()) }()
	}
	sessions := client.Lanes(protocol.SessionPool)
	require.Eventually(t, func() bool {
		list, err := sessions.List(t.Context(), 0)
		return err == nil && len(list.Lanes) == 2 // the turn and the compaction are sent
	}, time.Minute, 5*time.Millisecond)
	require.NoError(t, client.Close())
	for range cap(ended) {
		require.ErrorIs(t, <-ended, fleet.ErrClosed)
	}
}

// program is a program that was written for another system: it calls that system's tools, and
// reads their texts as it always did.
type program struct {
	*bench

	options fleet.Call
}

func newProgram(t *testing.T, set, denied string) *program {
	t.Helper()
	p := &program{bench: newBench(t)}
	named, err := toolset.Named(set)
	require.NoError(t, err)
	p.table, err = tools.NewTable(named...)
	require.NoError(t, err)
	p.options = fleet.Call{Policy: rules(t, "tools: {deny: ["+denied+"]}")}
	return p
}

func (p *program) text(tool string, arguments map[string]any) string {
	p.t.Helper()
	encoded, err := json.Marshal(arguments)
	require.NoError(p.t, err)
	return p.call(p.options, tool, string(encoded)).Text
}

var keptHandle = regexp.MustCompile(`path="(result:[^":]+)`)

// TestFormats_AProgramThatParsesJSON finds its way by the fields alone, in success and failure.
func TestFormats_AProgramThatParsesJSON(t *testing.T) {
	t.Parallel()
	p := newProgram(t, "openrath", "workspace_path_exists")
	type value = map[string]any
	call := func(tool string, arguments value) (parsed value) {
		t.Helper()
		text := p.text(tool, arguments)
		require.NoError(t, json.Unmarshal([]byte(text), &parsed), text)
		return parsed
	}
	fails := func(kind, tool string, arguments value) {
		t.Helper()
		parsed := call(tool, arguments)
		require.Equal(t, false, parsed["ok"], parsed)
		require.Equal(t, kind, parsed["error_kind"], parsed)
		require.NotEmpty(t, parsed["message"])
		require.NotEmpty(t, parsed["detail"])
	}
	require.InDelta(t, 5, call("write_workspace_file", value{"path": "d/a", "content": "hello"})["bytes_written"], 0)
	require.Equal(t, value{"data": "hello"}, call("read_workspace_file", value{"path": "d/a"}))
	require.Equal(t, []any{value{"name": "a", "path": "d/a", "is_dir": false}}, call("list_workspace_files", value{"path": "d"})["entries"])
	ran := call("run_shell_command", value{"cmd": "cat d/a; echo no >&2; exit 3"})
	require.InDelta(t, 3, ran["exit_code"], 0)
	require.Equal(t, []any{"hello", "no\n"}, []any{ran["stdout"], ran["stderr"]})
	require.Positive(t, ran["elapsed_ms"])
	fails("file_not_found", "read_workspace_file", value{"path": "none"})
	fails("tool_execution_exception", "run_shell_command", value{"cmd": "a\nb"})
	fails("timeout", "run_code", value{"language": "sh", "code": "sleep 1000", "timeout": 0.5})
	fails("unknown_tool", "nope", value{})
	fails("tool_policy_denied", "workspace_path_exists", value{"path": "d"})
	cut := call("run_shell_command", value{"cmd": "seq 20000"})
	require.Contains(t, cut["stdout"], "\n20000\n")
	missing, isText := cut["truncated"].(string)
	require.True(t, isText, cut["truncated"])
	found := keptHandle.FindStringSubmatch(missing)
	require.NotNil(t, found, cut["truncated"])
	require.Contains(t, call("read_workspace_file", value{"path": found[1] + ":10000"})["data"], " 10000\t10000\n")
}

// TestFormats_AProgramThatReadsCodes takes "ok" for a change, and CODE: for a failure.
func TestFormats_AProgramThatReadsCodes(t *testing.T) {
	t.Parallel()
	p := newProgram(t, "smithers", "edit")
	type value = map[string]any
	code := regexp.MustCompile(`^([A-Z_]+): `)
	fails := func(want, tool string, arguments value) {
		t.Helper()
		text := p.text(tool, arguments)
		found := code.FindStringSubmatch(text)
		require.NotNil(t, found, text)
		require.Equal(t, want, found[1])
	}
	require.Equal(t, "ok", p.text("write", value{"path": "a", "content": "one\ntwo\n"}))
	require.Equal(t, "one\ntwo\n", p.text("read", value{"path": "a"}))
	require.Equal(t, "a:2:two\n", p.text("grep", value{"pattern": "w"}))
	require.Empty(t, p.text("grep", value{"pattern": "x"}))
	require.Equal(t, "one\n", p.text("bash", value{"cmd": "head", "args": []string{"-n", "1", "a"}}))
	require.Equal(t, "TOOL_COMMAND_FAILED: Command failed with exit code 3\nno\n",
		p.text("bash", value{"cmd": "sh", "args": []string{"-c", "echo no >&2; exit 3"}}))
	fails("PROCESS_FAILED", "bash", value{"cmd": "no-such-program"})
	fails("INVALID_INPUT", "bash", value{"cmd": " "})
	fails("TOOL_PATH_ESCAPE", "read", value{"path": "../a"})
	fails("ENOENT", "read", value{"path": "none"})
	fails("TOOL_GREP_FAILED", "grep", value{"pattern": "("})
	fails("POLICY_DENIED", "edit", value{"path": "a", "patch": "@@ -1 +1 @@\n-one\n+1\n"})
	cut := p.text("bash", value{"cmd": "seq", "args": []string{"20000"}})
	found := keptHandle.FindStringSubmatch(cut)
	require.NotNil(t, found, cut[max(0, len(cut)-300):])
	require.Contains(t, p.text("read", value{"path": found[1] + ":10000"}), " 10000\t10000\n")
}

// TestFormats_AProgramThatTestsForError believes everything else.
func TestFormats_AProgramThatTestsForError(t *testing.T) {
	t.Parallel()
	p := newProgram(t, "files", "write_file")
	type value = map[string]any
	denied := p.options
	p.options = fleet.Call{}
	call := func(tool string, arguments value) (text string, failed bool) {
		t.Helper()
		text = p.text(tool, arguments)
		return text, strings.HasPrefix(text, "Error: ")
	}
	works := func(want, tool string, arguments value) {
		t.Helper()
		text, failed := call(tool, arguments)
		require.False(t, failed, text)
		require.Equal(t, want, text)
	}
	fails := func(want, tool string, arguments value) {
		t.Helper()
		text, failed := call(tool, arguments)
		require.True(t, failed, text)
		require.Contains(t, text, want)
	}
	works("Successfully wrote to 'd/a'", "write_file", value{"path": "d/a", "content": "x\nx\n"})
	works("Successfully edited 'd/a'", "edit_file", value{"path": "d/a", "search": "x", "replace": "y"})
	works("y\nx\n", "read_file", value{"path": "d/a"})
	works("No files found", "list_files", value{})
	works("d/a", "list_files", value{"pattern": "**"})
	works("d/a:2: x", "search_files", value{"pattern": "x"})
	works("No matches found", "search_files", value{"pattern": "z"})
	fails("Error: File not found 'none'", "read_file", value{"path": "none"})
	fails("Error: Invalid path '../a'", "read_file", value{"path": "../a"})
	fails("Error: Search string not found in 'd/a'", "edit_file", value{"path": "d/a", "search": "z", "replace": ""})
	fails("Error: Unknown tool 'nope'", "nope", value{})
	fails("content: is required", "write_file", value{"path": "d/a"})
	lines := slices.Repeat([]string{"long line"}, 20_000)
	works("Successfully wrote to 'long'", "write_file", value{"path": "long", "content": strings.Join(lines, "\n")})
	cut, failed := call("read_file", value{"path": "long"})
	require.False(t, failed)
	found := keptHandle.FindStringSubmatch(cut)
	require.NotNil(t, found, cut[max(0, len(cut)-300):])
	rest, failed := call("read_file", value{"path": found[1] + ":20000"})
	require.False(t, failed)
	require.Contains(t, rest, " 20000\tlong line\n")
	p.options = denied
	fails("is not allowed in this session", "write_file", value{"path": "d/a", "content": ""})
}

// asker is a model that makes two calls which come to nothing, and answers with what it reads.
type asker struct{}

func (asker) Reply(_ context.Context, request loop.Request, _ func(loop.Delta)) (loop.Reply, error) {
	var read []string
	for _, message := range request.Messages {
		if message.Role == loop.RoleTool {
			read = append(read, message.Text)
		}
	}
	if len(read) > 0 {
		return loop.Reply{Text: strings.Join(read, "\n")}, nil
	}
	return loop.Reply{ToolCalls: []loop.ToolCall{
		{ID: "1", Name: "nope", Arguments: `{}`},
		{ID: "2", Name: "write_file", Arguments: `{"path":"a","content":""}`},
	}}, nil
}

// TestFormats_WhatASessionRefuses is worded as what a worker answers.
func TestFormats_WhatASessionRefuses(t *testing.T) {
	t.Parallel()
	p := newProgram(t, "files", "write_file")
	runner, err := p.Runner(asker{}, p.table, &loop.Options{Policy: p.options.Policy})
	require.NoError(t, err)
	result, err := runner.Run(t.Context(), "s", loop.Input{Text: "Try."})
	require.NoError(t, err)
	require.Equal(t, "Error: Unknown tool 'nope'\nError: The tool write_file is not allowed in this session.", result.Text)
}
