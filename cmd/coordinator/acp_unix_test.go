//go:build unix

package main

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/acp-go-sdk"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/test/processtest"
)

// editor is a client of the protocol by the library of others. It answers questions by the name of
// an option, or not at all.
type editor struct {
	*acp.ClientSideConnection
	acp.Client // what it does not offer

	answer string

	mu      sync.Mutex
	updates []acp.SessionUpdate
	of      []acp.SessionId // the session of each update
	asked   []acp.RequestPermissionRequest
	came    chan struct{} // gets a value with each update
}

func (e *editor) SessionUpdate(_ context.Context, n acp.SessionNotification) error {
	e.mu.Lock()
	e.updates, e.of = append(e.updates, n.Update), append(e.of, n.SessionId)
	e.mu.Unlock()
	e.signal()
	return nil
}

// signal has until look once more.
func (e *editor) signal() {
	select {
	case e.came <- struct{}{}:
	default:
	}
}

func (e *editor) RequestPermission(ctx context.Context, r acp.RequestPermissionRequest) (response acp.RequestPermissionResponse, err error) {
	e.mu.Lock()
	e.asked = append(e.asked, r)
	e.mu.Unlock()
	e.signal()
	if e.answer == "" {
		<-ctx.Done()
		return acp.RequestPermissionResponse{Outcome: acp.NewRequestPermissionOutcomeCancelled()}, nil
	}
	return acp.RequestPermissionResponse{Outcome: acp.NewRequestPermissionOutcomeSelected(acp.PermissionOptionId(e.answer))}, nil
}

// said is the text of a session's messages, or of its thoughts.
func (e *editor) said(id acp.SessionId, thoughts bool) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	var text strings.Builder
	for i := range e.updates {
		u := &e.updates[i]
		switch {
		case e.of[i] != id:
		case thoughts && u.AgentThoughtChunk != nil:
			text.WriteString(u.AgentThoughtChunk.Content.Text.Text)
		case !thoughts && u.AgentMessageChunk != nil:
			text.WriteString(u.AgentMessageChunk.Content.Text.Text)
		}
	}
	return text.String()
}

// calls are the calls of a session by their titles, with what the updates made of them.
func (e *editor) calls(id acp.SessionId) map[string]acp.SessionUpdateToolCall {
	e.mu.Lock()
	defer e.mu.Unlock()
	byID, all := map[acp.ToolCallId]*acp.SessionUpdateToolCall{}, map[string]acp.SessionUpdateToolCall{}
	for i := range e.updates {
		if e.of[i] != id {
			continue
		}
		if call := e.updates[i].ToolCall; call != nil {
			byID[call.ToolCallId] = new(*call)
		}
		if u := e.updates[i].ToolCallUpdate; u != nil {
			call := byID[u.ToolCallId]
			if u.Status != nil {
				call.Status = *u.Status
			}
			if u.Content != nil {
				call.Content = u.Content
			}
			if u.Locations != nil {
				call.Locations = u.Locations
			}
		}
	}
	for _, call := range byID {
		all[call.Title] = *call
	}
	return all
}

// until waits until what the client has got is as wanted.
func (e *editor) until(t *testing.T, is func() bool) {
	t.Helper()
	for late := time.After(3 * time.Minute); !is(); {
		select {
		case <-e.came:
		case <-late:
			require.Fail(t, "it did not come")
		}
	}
}

// atEditor starts coordinator acp, and connects a client with it.
func atEditor(t *testing.T, answer, model string, args ...string) *editor {
	t.Helper()
	in, out := acpProcess(t, model, args...)
	e := &editor{answer: answer, came: make(chan struct{}, 1)}
	e.ClientSideConnection = acp.NewClientSideConnection(e, in, out)
	e.SetLogger(slog.New(slog.DiscardHandler))
	initialized, err := e.Initialize(t.Context(), acp.InitializeRequest{ProtocolVersion: acp.ProtocolVersionNumber})
	require.NoError(t, err)
	require.Equal(t, acp.ProtocolVersion(1), initialized.ProtocolVersion)
	return e
}

// acpProcess starts coordinator acp. It must end when its standard input is closed.
func acpProcess(t *testing.T, model string, args ...string) (in io.Writer, out io.Reader) {
	t.Helper()
	executable, err := os.Executable()
	require.NoError(t, err)
	program, state := filepath.Join(t.TempDir(), "coordinator"), t.TempDir()
	require.NoError(t, os.Symlink(executable, program))
	t.Cleanup(func() { processtest.EndServer(state) })
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), program, append([]string{"acp", "--model", model, "--sandbox", "process"}, args...)...)
	cmd.Env = append(os.Environ(), "XDG_STATE_HOME="+state)
	var messages strings.Builder
	cmd.Stderr = &messages
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		require.NoError(t, stdin.Close())
		killed := time.AfterFunc(3*time.Minute, func() { _ = cmd.Process.Kill() })
		defer killed.Stop()
		require.NoError(t, cmd.Wait(), messages.String())
	})
	return stdin, stdout
}

// opens opens a session in a directory.
func (e *editor) opens(t *testing.T, dir string) acp.SessionId {
	t.Helper()
	opened, err := e.NewSession(t.Context(), acp.NewSessionRequest{Cwd: dir, McpServers: []acp.McpServer{}})
	require.NoError(t, err)
	return opened.SessionId
}

// prompts runs a turn.
func (e *editor) prompts(t *testing.T, id acp.SessionId, blocks ...acp.ContentBlock) acp.StopReason {
	t.Helper()
	response, err := e.Prompt(t.Context(), acp.PromptRequest{SessionId: id, Prompt: blocks})
	require.NoError(t, err)
	return response.StopReason
}

// A turn at an editor: what the person gives it, what it shows, and what it asks.
func TestACP_ATurn(t *testing.T) {
	t.Parallel()
	e := atEditor(t, "allow", script(t, `
		{"reasoning": "I think.", "text": "I look.", "tool_calls": [
			{"name": "read", "arguments": {"path": "sub/a.txt"}},
			{"name": "edit", "arguments": {"path": "sub/a.txt", "old": "two", "new": "2"}},
			{"name": "write", "arguments": {"path": "new.txt", "content": "fresh\n"}}]},
		{"tool_calls": [{"name": "bash", "arguments": {"command": "cat sub/a.txt; exit 3"}}, {"name": "read", "arguments": {"path": "none.txt"}}]},
		{"text": "All done."}`))
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "sub"), 0o700))
	file := filepath.Join(dir, "sub", "a.txt")
	require.NoError(t, os.WriteFile(file, []byte("one\ntwo\n"), 0o600))
	id := e.opens(t, dir)
	require.Equal(t, acp.StopReasonEndTurn, e.prompts(t, id,
		acp.TextBlock("Look at "), acp.ResourceLinkBlock("a.txt", "file://"+file), acp.ImageBlock(base64.StdEncoding.EncodeToString(pixel), "image/gif"),
		acp.ResourceBlock(acp.EmbeddedResourceResource{TextResourceContents: &acp.TextResourceContents{Uri: "file:///elsewhere/b.txt", Text: "embedded"}})))
	require.Equal(t, "I think.", e.said(id, true))
	require.Equal(t, "I look.All done.", e.said(id, false))

	calls := e.calls(id)
	require.Len(t, calls, 5)
	read := calls["read sub/a.txt"]
	require.Equal(t, acp.ToolKindRead, read.Kind)
	require.Equal(t, acp.ToolCallStatusCompleted, read.Status)
	require.Equal(t, []acp.ToolCallLocation{{Path: file}}, read.Locations)
	require.Contains(t, read.Content[0].Content.Content.Text.Text, "one")
	edit := calls["edit sub/a.txt"]
	require.Equal(t, acp.ToolKindEdit, edit.Kind)
	require.Equal(t, acp.ToolDiffContent(file, "one\n2\n", "one\ntwo\n"), edit.Content[0])
	write := calls["write new.txt (1 line)"]
	require.Equal(t, acp.ToolDiffContent(filepath.Join(dir, "new.txt"), "fresh\n"), write.Content[0], "a file that is new has no old text")
	bash := calls["bash cat sub/a.txt; exit 3"]
	require.Equal(t, acp.ToolKindExecute, bash.Kind)
	require.Contains(t, bash.Content[0].Content.Content.Text.Text, "one\n2\n")
	require.Equal(t, acp.ToolCallStatusFailed, calls["read none.txt"].Status)

	require.Len(t, e.asked, 3, "calls that only look need no approval")
	for _, question := range e.asked {
		require.Equal(t, id, question.SessionId)
		require.Len(t, question.Options, 3)
		require.Equal(t, acp.ToolCallStatusCompleted, calls[*question.ToolCall.Title].Status)
	}
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, "one\n2\n", string(content), "the session works in place")

	// Another turn, of the conversation from its journal.
	_, err = e.CloseSession(t.Context(), acp.CloseSessionRequest{SessionId: id})
	require.NoError(t, err)
	_, err = e.Prompt(t.Context(), acp.PromptRequest{SessionId: id, Prompt: []acp.ContentBlock{acp.TextBlock("more")}})
	require.ErrorContains(t, err, "is not open")
	listed, err := e.ListSessions(t.Context(), acp.ListSessionsRequest{Cwd: &dir})
	require.NoError(t, err)
	require.Len(t, listed.Sessions, 1)
	require.Equal(t, id, listed.Sessions[0].SessionId)
	e.mu.Lock()
	e.updates, e.of = nil, nil
	e.mu.Unlock()
	loaded, err := e.LoadSession(t.Context(), acp.LoadSessionRequest{SessionId: id, Cwd: dir, McpServers: []acp.McpServer{}})
	require.NoError(t, err)
	require.Equal(t, acp.SessionModeId("ask"), loaded.Modes.CurrentModeId)
	require.Equal(t, "I look.All done.", e.said(id, false))
	require.Equal(t, "I think.", e.said(id, true))
	require.Equal(t, calls, e.calls(id), "the calls are shown as they were")
	user := e.updates[0].UserMessageChunk
	require.Equal(t, "Look at `sub/a.txt``/elsewhere/b.txt`", user.Content.Text.Text)
	_, err = e.CloseSession(t.Context(), acp.CloseSessionRequest{SessionId: id})
	require.NoError(t, err)
	before := len(e.updates)
	_, err = e.ResumeSession(t.Context(), acp.ResumeSessionRequest{SessionId: id, Cwd: dir})
	require.NoError(t, err)
	require.LessOrEqual(t, len(e.updates)-before, 1, "only the commands are shown")
}

// What a person rejects does not run; what they allow for the session is asked once; a mode changes
// what is asked.
func TestACP_PermissionsAndModes(t *testing.T) {
	t.Parallel()
	steps := `{"tool_calls": [{"name": "bash", "arguments": {"command": "echo 1 >>ran"}}]}, {"tool_calls": [{"name": "bash", "arguments": {"command": "echo 2 >>ran"}}]}, {"text": "Done."}`
	ran := func(dir string) string {
		content, _ := os.ReadFile(filepath.Join(dir, "ran")) // it may be missing
		return string(content)
	}
	for _, test := range []struct {
		answer, mode string
		args         []string
		asked        int
		ran          string
	}{
		{answer: "reject", mode: "ask", asked: 2},
		{answer: "allow_always", mode: "ask", asked: 1, ran: "1\n2\n"},
		{answer: "reject", mode: "auto", ran: "1\n2\n"},
		{answer: "allow", mode: "read-only"},
		{answer: "allow", mode: "auto", args: []string{"--ask-for", "bash"}, asked: 2, ran: "1\n2\n"},
		{answer: "allow_always", mode: "auto", args: []string{"--ask-for", "bash"}, asked: 2}, // it was not offered
		{answer: "allow", mode: "auto", args: []string{"--deny-tool", "bash"}},
	} {
		t.Run(strings.Join(append(test.args, test.answer, test.mode), " "), func(t *testing.T) {
			t.Parallel()
			e, dir := atEditor(t, test.answer, script(t, steps), test.args...), t.TempDir()
			id := e.opens(t, dir)
			_, err := e.SetSessionMode(t.Context(), acp.SetSessionModeRequest{SessionId: id, ModeId: acp.SessionModeId(test.mode)})
			require.NoError(t, err)
			require.Equal(t, acp.StopReasonEndTurn, e.prompts(t, id, acp.TextBlock("go")))
			require.Len(t, e.asked, test.asked)
			require.Equal(t, test.ran, ran(dir))
		})
	}
}

// A mode holds for tools that come between two turns, too.
func TestACP_ModesHoldForLaterTools(t *testing.T) {
	t.Parallel()
	for mode, asked := range map[string]int{"ask": 1, "read-only": 0} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			folder, dir := t.TempDir(), t.TempDir()
			e := atEditor(t, "reject",
				script(t, `{"text": "First is done."}, {"tool_calls": [{"name": "late", "arguments": {}}]}, {"text": "Second is done."}`),
				"--session-mode", mode, "--tools", folder)
			id := e.opens(t, dir)
			require.Equal(t, acp.StopReasonEndTurn, e.prompts(t, id, acp.TextBlock("one")))
			manifest := "name: late\ndescription: Writes a file.\nparameters: {type: object}\ncommand: [touch, ran]\n"
			require.NoError(t, os.WriteFile(filepath.Join(folder, "late.yaml"), []byte(manifest), 0o600))
			require.Equal(t, acp.StopReasonEndTurn, e.prompts(t, id, acp.TextBlock("two")))
			require.Contains(t, e.said(id, false), "Second is done.")
			require.Len(t, e.asked, asked)
			require.NoFileExists(t, filepath.Join(dir, "ran"))
		})
	}
}

// A turn is cancelled while a call runs, and while a person is asked. Another turn can follow.
func TestACP_Cancel(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"auto", "ask"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			e := atEditor(t, "", script(t, `{"tool_calls": [{"name": "bash", "arguments": {"command": "echo begun; sleep 1000"}}]}, {"text": "Done."}`), "--session-mode", mode)
			id := e.opens(t, t.TempDir())
			stopped := make(chan acp.StopReason, 1)
			go func() {
				response, _ := e.Prompt(t.Context(), acp.PromptRequest{SessionId: id, Prompt: []acp.ContentBlock{acp.TextBlock("go")}})
				stopped <- response.StopReason
			}()
			e.until(t, func() bool {
				e.mu.Lock()
				defer e.mu.Unlock()
				return len(e.asked) > 0 || mode == "auto" && slices.ContainsFunc(e.updates, func(u acp.SessionUpdate) bool {
					return u.ToolCallUpdate != nil && len(u.ToolCallUpdate.Content) > 0 // what it writes while it runs
				})
			})
			_, err := e.Prompt(t.Context(), acp.PromptRequest{SessionId: id, Prompt: []acp.ContentBlock{acp.TextBlock("more")}})
			require.ErrorContains(t, err, "has a turn that runs")
			require.NoError(t, e.Cancel(t.Context(), acp.CancelNotification{SessionId: id}))
			require.Equal(t, acp.StopReasonCancelled, <-stopped)
			require.Equal(t, acp.ToolCallStatusFailed, e.calls(id)["bash echo begun; sleep 1000"].Status)
			require.Equal(t, acp.StopReasonEndTurn, e.prompts(t, id, acp.TextBlock("once more")))
		})
	}
}

// An editor has several sessions at once, each in its own directory.
func TestACP_SeveralSessions(t *testing.T) {
	t.Parallel()
	e := atEditor(t, "allow", script(t, `{"tool_calls": [{"name": "bash", "arguments": {"command": "until test -e other; do sleep 0.1; done; pwd"}}]}, {"text": "Done."}`))
	var all sync.WaitGroup
	dirs, ids := []string{t.TempDir(), t.TempDir()}, make([]acp.SessionId, 2)
	for i, dir := range dirs {
		ids[i] = e.opens(t, dir)
		all.Go(func() {
			_, err := e.Prompt(t.Context(), acp.PromptRequest{SessionId: ids[i], Prompt: []acp.ContentBlock{acp.TextBlock("go")}})
			require.NoError(t, err)
		})
	}
	e.until(t, func() bool { return len(e.calls(ids[0])) == 1 && len(e.calls(ids[1])) == 1 }) // both turns run
	for _, dir := range dirs {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "other"), nil, 0o600))
	}
	all.Wait()
	for i, dir := range dirs {
		for _, call := range e.calls(ids[i]) {
			require.Contains(t, call.Content[0].Content.Content.Text.Text, filepath.Base(dir))
		}
	}
}

// Commands of the session, which begin with a slash.
func TestACP_Commands(t *testing.T) {
	t.Parallel()
	e := atEditor(t, "allow", script(t, `{"text": "Hello."}, {"text": "Welcome."}`))
	dir := t.TempDir()
	id := e.opens(t, dir)
	e.until(t, func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return len(e.updates) > 0
	})
	require.NotEmpty(t, e.updates[0].AvailableCommandsUpdate.AvailableCommands)
	e.prompts(t, id, acp.TextBlock("hi"))
	e.prompts(t, id, acp.TextBlock("/clear"))
	e.prompts(t, id, acp.TextBlock("hi"))
	require.Equal(t, "Hello.The conversation begins again.Welcome.", e.said(id, false))
	_, err := e.LoadSession(t.Context(), acp.LoadSessionRequest{SessionId: id, Cwd: dir, McpServers: []acp.McpServer{}})
	require.NoError(t, err)
	require.Equal(t, "Hello.The conversation begins again.Welcome.Welcome.", e.said(id, false), "what is not in the conversation any more is not shown")
}

// What the client offers is used: its unsaved files if the operator says so, and forms for
// questions. An answer can have a schema, and a session is deleted while it is open.
func TestACP_WhatTheClientOffers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a.txt"), []byte("one\ntwo\n"), 0o600))
	require.NoError(t, os.Symlink("/etc/hostname", filepath.Join(dir, "outside")))
	model := script(t, `{"tool_calls": [{"name": "read", "arguments": {"path": "a.txt"}}, {"name": "read", "arguments": {"path": "outside"}}, {"name": "ask_user", "arguments": {"question": "Which?", "choices": ["x", "y"]}},
		{"name": "scratchpad", "arguments": {"action": "set", "key": "plan", "value": "- [ ] first"}}]}, {"text": "{\"n\": 7}"}`)
	in, out := acpProcess(t, model, "--unsaved", "--toolset", "core,ask,scratchpad", "--session-mode", "auto")
	lines, seen := bufio.NewReader(out), map[string][]string{}
	ask := func(method, params string) (result string) {
		_, err := fmt.Fprintf(in, `{"jsonrpc":"2.0","id":"r","method":%q,"params":%s}`+"\n", method, params)
		require.NoError(t, err)
		for {
			line, err := lines.ReadBytes('\n')
			require.NoError(t, err)
			var m struct {
				ID             json.RawMessage
				Method         string
				Params, Result json.RawMessage
				Error          *acp.RequestError
			}
			require.NoError(t, json.Unmarshal(line, &m))
			seen[m.Method] = append(seen[m.Method], string(m.Params))
			switch m.Method {
			case "":
				require.Nil(t, m.Error, method)
				return string(m.Result)
			case "fs/read_text_file":
				_, err = fmt.Fprintf(in, `{"jsonrpc":"2.0","id":%s,"result":{"content":"one\ntwo, changed\n"}}`+"\n", m.ID)
			case "elicitation/create":
				_, err = fmt.Fprintf(in, `{"jsonrpc":"2.0","id":%s,"result":{"action":"accept","content":{"answer":"y"}}}`+"\n", m.ID)
			}
			require.NoError(t, err)
		}
	}
	require.Contains(t, ask("initialize", `{"protocolVersion":1,"clientCapabilities":{"fs":{"readTextFile":true},"elicitation":{"form":{}}}}`), `"delete":{}`)
	var opened struct{ SessionID string }
	require.NoError(t, json.Unmarshal([]byte(ask("session/new", fmt.Sprintf(`{"cwd":%q,"mcpServers":[]}`, dir))), &opened))
	of := fmt.Sprintf(`"sessionId":%q`, opened.SessionID)
	answered := ask("session/prompt", `{`+of+`,"prompt":[{"type":"text","text":"go"}],"_meta":{"toolfleet/answerSchema":{"type":"object","required":["n"]}}}`)
	require.JSONEq(t, `{"stopReason":"end_turn","_meta":{"toolfleet/answer":{"n":7}}}`, answered)
	updates := strings.Join(seen["session/update"], "\n")
	require.Contains(t, updates, `-two\n+two, changed`)
	require.Len(t, seen["fs/read_text_file"], 1, "what leads out of the workspace is not asked for")
	require.Contains(t, seen["fs/read_text_file"][0], fmt.Sprintf(`"path":%q`, filepath.Join(dir, "a.txt")))
	require.Contains(t, seen["elicitation/create"][0], `"message":"Which?"`)
	require.Contains(t, seen["elicitation/create"][0], `"enum":["x","y"]`)
	require.Contains(t, updates, `"sessionUpdate":"plan"`)
	require.Contains(t, ask("session/list", `{}`), opened.SessionID)
	require.Equal(t, "{}", ask("session/delete", `{`+of+`}`))
	require.NotContains(t, ask("session/list", `{}`), opened.SessionID)
	require.Equal(t, "{}", ask("session/delete", `{`+of+`}`), "it may have been deleted elsewhere")
}

// Bad input is refused with an error that names the field.
func TestACP_BadInput(t *testing.T) {
	t.Parallel()
	in, out := acpProcess(t, script(t, `{"text": "Hello."}`))
	lines := bufio.NewReader(out)
	ask := func(line string) (code int, text string) {
		_, err := fmt.Fprintln(in, line)
		require.NoError(t, err)
		for {
			answer, err := lines.ReadBytes('\n')
			require.NoError(t, err)
			var m struct {
				Method string
				Error  acp.RequestError
				Result struct{ SessionID string }
			}
			require.NoError(t, json.Unmarshal(answer, &m))
			if m.Method == "" {
				return m.Error.Code, m.Error.Message + m.Result.SessionID
			}
		}
	}
	request := func(method, params string) (int, string) {
		return ask(fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":%s}`, method, params))
	}
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
	code, id := request("session/new", fmt.Sprintf(`{"cwd":%q,"mcpServers":[]}`, dir))
	require.Zero(t, code)
	prompt := func(blocks string) string { return fmt.Sprintf(`{"sessionId":%q,"prompt":%s}`, id, blocks) }
	for _, test := range []struct {
		method, params string
		want           string
	}{
		{"initialize", `{}`, "protocolVersion: is missing"},
		{"initialize", `{"protocolVersion":"1"}`, "protocolVersion: is of the type string: must be integer"},
		{"session/new", `[]`, "params: is of the type array: must be object"},
		{"session/new", `{"mcpServers":[]}`, "cwd: is missing"},
		{"session/new", `{"cwd":"src"}`, `cwd: "src": must be an absolute path`},
		{"session/new", `{"cwd":"/no/such"}`, "cwd: /no/such: no such file"},
		{"session/new", fmt.Sprintf(`{"cwd":%q}`, filepath.Join(dir, "file")), "is not a directory"},
		{"session/new", `{"cwd":"/"}`, "cwd: /:"},
		{"session/new", fmt.Sprintf(`{"cwd":%q,"mcpServers":[{"name":"a b","command":"x"}]}`, dir), `mcpServers[0]: name "a b"`},
		{"session/new", fmt.Sprintf(`{"cwd":%q,"mcpServers":[{"type":"sse","name":"a","url":"http://x"}]}`, dir), `mcpServers[0].type: "sse"`},
		{"session/load", fmt.Sprintf(`{"cwd":%q,"mcpServers":[]}`, dir), "sessionId: is missing"},
		{"session/load", fmt.Sprintf(`{"sessionId":"../x","cwd":%q}`, dir), "sessionId: "},
		{"session/load", fmt.Sprintf(`{"sessionId":"none","cwd":%q}`, dir), "there is no session none"},
		{"session/prompt", `{"sessionId":"none","prompt":[]}`, "sessionId: session none is not open"},
		{"session/prompt", prompt(`[]`), "prompt: is empty"},
		{"session/prompt", prompt(`7`), "prompt: is of the type number: must be array"},
		{"session/prompt", prompt(`[{"type":"text","text":"hi"},{"type":"video"}]`), `prompt[1].type: "video"`},
		{"session/prompt", prompt(`[{"type":"text","text":7}]`), "prompt[0].text: is of the type number"},
		{"session/prompt", prompt(`[{"type":"image","data":"?","mimeType":"image/png"}]`), "prompt[0].data: must be an image in base64"},
		{"session/prompt", prompt(`[{"type":"image","data":"aGVs","mimeType":"image/png"}]`), ""},
		{"session/prompt", prompt(`[{"type":"resource","resource":{"uri":"file:///a"}}]`), "prompt[0].resource: has neither text nor blob"},
		{"session/set_mode", fmt.Sprintf(`{"sessionId":%q,"modeId":"yolo"}`, id), `modeId: "yolo": must be one of ask, auto, read-only`},
		{"session/list", `{"cursor":"2"}`, "cursor: "},
		{"session/none", `{}`, "Method not found: session/none"},
	} {
		code, text := request(test.method, test.params)
		require.Contains(t, text, test.want, "%s %s", test.method, test.params)
		require.True(t, code != 0 || test.want == "", "%s %s", test.method, test.params)
	}
	code, _ = ask(`{"jsonrpc":`)
	require.Equal(t, -32700, code)
	code, _ = ask(`[{"jsonrpc":"2.0","id":1,"method":"initialize"}]`)
	require.Equal(t, -32600, code)
	code, _ = ask(`{"jsonrpc":"2.0","id":1}`)
	require.Equal(t, -32600, code)
	code, text := ask(`{"jsonrpc":"2.0","id":1,"method":"session/prompt","params":"` + strings.Repeat("x", 40<<20) + `"}`)
	require.Equal(t, -32600, code)
	require.Contains(t, text, "must be at most 33554432")
	code, _ = request("initialize", `{"protocolVersion":1}`)
	require.Zero(t, code, "it serves on")
}

// A command line that cannot work is refused before an editor connects.
func TestACP_Flags(t *testing.T) {
	t.Parallel()
	executable, err := os.Executable()
	require.NoError(t, err)
	program := filepath.Join(t.TempDir(), "coordinator")
	require.NoError(t, os.Symlink(executable, program))
	for want, args := range map[string][]string{
		"--model":                        nil,
		"--data: editors open":           {"--model", script(t, `{"text": "Hello."}`), "--data", t.TempDir()},
		`must be one of "ask"`:           {"--session-mode", "yolo"},
		"--model: model script:/no/such": {"--model", "script:/no/such"},
	} {
		cmd := exec.CommandContext(t.Context(), program, append([]string{"acp"}, args...)...)
		output, err := cmd.CombinedOutput()
		exit, failed := errors.AsType[*exec.ExitError](err)
		require.True(t, failed, "%s", output)
		require.Equal(t, 2, exit.ExitCode())
		require.Contains(t, string(output), want)
	}
}

// A session has the tools of the editor's MCP servers, and a mode holds for them, too.
func TestACP_ServersOfTheEditor(t *testing.T) {
	t.Parallel()
	executable, err := os.Executable()
	require.NoError(t, err)
	server := filepath.Join(t.TempDir(), "mcptest")
	require.NoError(t, os.Symlink(executable, server))
	e := atEditor(t, "allow", script(t, `{"tool_calls": [{"name": "test__count", "arguments": {}}]}, {"text": "Done."}`))
	opened, err := e.NewSession(t.Context(), acp.NewSessionRequest{
		Cwd: t.TempDir(), McpServers: []acp.McpServer{{Stdio: &acp.McpServerStdio{Name: "test", Command: server, Args: []string{}, Env: []acp.EnvVariable{}}}},
	})
	require.NoError(t, err)
	require.Equal(t, acp.StopReasonEndTurn, e.prompts(t, opened.SessionId, acp.TextBlock("go")))
	require.Len(t, e.asked, 1)
	for _, call := range e.calls(opened.SessionId) {
		require.Equal(t, acp.ToolCallStatusCompleted, call.Status, "%+v", call)
	}
}
