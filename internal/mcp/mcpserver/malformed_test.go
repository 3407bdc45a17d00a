package mcpserver_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/mcp/mcpserver"
	"github.com/toolfleet/toolfleet/pkg/tools/toolset"
)

// said is a message of a server.
type said struct {
	ID     json.RawMessage
	Error  struct{ Code int }
	Result struct {
		ProtocolVersion string
		Content         []struct{ Text string }
	}
}

const hello = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":%q,"capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`

// bad are messages that are refused, and by which code.
func bad() map[string]int {
	return map[string]int{
		`{"jsonrpc":"2.0","id":1,`: -32700,
		`nonsense`:                 -32700,
		`5`:                        -32600,
		`[]`:                       -32600,
		`[1]`:                      -32600,
		`{"id":1,"method":"ping"}`: -32600,
		`{"jsonrpc":"1.0","id":1,"method":"ping"}`:  -32600,
		`{"jsonrpc":"2.0","id":{},"method":"ping"}`: -32600,
	}
}

// stdio serves a client that speaks by hand. What it returns sends a message, and decodes the
// answer.
func stdio(t *testing.T, s *mcpserver.Server) func(message string, answer any) {
	t.Helper()
	in, toServer := io.Pipe()
	fromServer, out := io.Pipe()
	run(t, s, mcpserver.Stdio(in, out))
	t.Cleanup(func() { _, _ = toServer.Close(), fromServer.Close() })
	lines := bufio.NewReader(fromServer)
	return func(message string, answer any) {
		t.Helper()
		late := time.AfterFunc(5*time.Minute, func() { _ = out.CloseWithError(context.DeadlineExceeded) })
		defer late.Stop()
		go func() { _, _ = io.WriteString(toServer, message+"\n") }() // what is lost has no answer
		line, err := lines.ReadString('\n')
		require.NoError(t, err, "%.60s", message)
		require.NoError(t, json.Unmarshal([]byte(line), answer), line)
	}
}

// TestStdio_AnswersWhatIsNoMessage and reads on after it.
func TestStdio_AnswersWhatIsNoMessage(t *testing.T) {
	t.Parallel()
	s, _ := open(t, shared)
	messages := bad()
	messages[`{"jsonrpc":"2.0","id":1,"method":"`+strings.Repeat("x", mcpserver.MaxBody)+`"}`] = -32600
	messages[`{"jsonrpc":"2.0","id":1,"method":"no/such"}`] = -32601
	messages[`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":[1]}`] = -32602
	for message, code := range messages {
		t.Run(message[:min(len(message), 60)], func(t *testing.T) {
			t.Parallel()
			say := stdio(t, s)
			asks := func(message string) (got said) {
				t.Helper()
				say(message, &got)
				return got
			}
			require.Equal(t, "2025-11-25", asks(fmt.Sprintf(hello, "1999-01-01")).Result.ProtocolVersion, "which the client may refuse")
			require.Equal(t, code, asks(message).Error.Code)
			require.Zero(t, asks("\n"+`{"jsonrpc":"2.0","id":9,"method":"ping"}`).Error.Code, "nothing after it is lost")
		})
	}
}

// refusedIDs are messages that are refused under the id that they have, and what the answer says.
func refusedIDs() map[string][2]string {
	huge := strings.Repeat("x", mcpserver.MaxBody)
	return map[string][2]string{
		`{"jsonrpc":"2.0","id":9007199254740993,"method":"ping"}`: {
			"9007199254740993", "id 9007199254740993: must be a string, or a whole number of at most 9007199254740991",
		},
		`{"jsonrpc":"2.0","id":1.5,"method":"ping"}`:                                                        {"1.5", "id 1.5: must be"},
		`{"jsonrpc":"2.0","id":"s","method":"ping","params":{"_meta":{"progressToken":-9007199254740993}}}`: {`"s"`, "progressToken -9007199254740993: must be"},
		`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"id":8,"x":"` + huge + `"}}`:               {"7", "more than"},
		`{"jsonrpc":"2.0","id":"a\"b","method":"tools/call","params":{"x":"` + huge + `"}}`:                 {`"a\"b"`, "more than"},
	}
}

func TestStdio_RefusesUnderTheIDThatWasSent(t *testing.T) {
	t.Parallel()
	s, _ := open(t, shared)
	messages := refusedIDs()
	messages[`{"params":{"x":["`+strings.Repeat(`\"],{`, mcpserver.MaxBody/4)+`"]}, "method" : "tools/call" , "id" : 9 , "jsonrpc":"2.0"}`] = [2]string{"9", "more than"}
	say := stdio(t, s)
	for message, want := range messages {
		var got struct {
			ID    json.RawMessage
			Error struct{ Message string }
		}
		say(message, &got)
		require.Equal(t, want[0], string(got.ID), "%.60s", message)
		require.Contains(t, got.Error.Message, want[1])
	}
}

func TestHandler_RefusesUnderTheIDThatWasSent(t *testing.T) {
	t.Parallel()
	s, _ := open(t, shared)
	web := httptest.NewServer(s.Handler(mcpserver.HTTPOptions{}))
	t.Cleanup(web.Close)
	for message, want := range refusedIDs() {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, web.URL+"/mcp", strings.NewReader(message))
		require.NoError(t, err)
		response, err := http.DefaultClient.Do(request)
		require.NoError(t, err)
		var got struct {
			ID    json.RawMessage
			Error struct{ Message string }
		}
		require.NoError(t, json.NewDecoder(response.Body).Decode(&got))
		require.NoError(t, response.Body.Close())
		require.Equal(t, want[0], string(got.ID), "%.60s", message)
		require.Contains(t, got.Error.Message, want[1])
	}
}

func TestCall_NullIsNoArguments(t *testing.T) {
	t.Parallel()
	s, _ := open(t, shared)
	result := call(t, connect(t, s, nil), "list", json.RawMessage("null"))
	require.False(t, result.IsError, text(t, result))
}

// TestStdio_Batches: versions that have batches get all answers at once, and one that could not be
// answered is refused and takes nothing with it.
func TestStdio_Batches(t *testing.T) {
	t.Parallel()
	s, _ := open(t, shared)
	asks := stdio(t, s)
	var got said
	asks(fmt.Sprintf(hello, "2025-03-26"), &got)
	require.Equal(t, "2025-03-26", got.Result.ProtocolVersion)
	const begin = `{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"bash","arguments":{"command":"echo %d >>f; cat f"}}}`
	var all []said
	asks(fmt.Sprintf("["+begin+","+begin+"]", 1, 1, 2, 2), &all)
	require.Len(t, all, 2)
	require.Equal(t, "1\n", all[0].Result.Content[0].Text)
	require.Equal(t, "1\n2\n", all[1].Result.Content[0].Text, "they keep their order")
	for _, batch := range []string{
		`[{"jsonrpc":"2.0","id":3,"method":"ping"},{"jsonrpc":"2.0","id":3,"method":"ping"}]`,
		`[{"jsonrpc":"2.0","method":"notifications/initialized"},{"jsonrpc":"2.0","id":3,"method":"ping"}]`,
		`[{"jsonrpc":"2.0","id":null,"method":"ping"}]`,
	} {
		got = said{}
		asks(batch, &got)
		require.Equal(t, -32600, got.Error.Code, batch)
	}
	got = said{}
	asks(`{"jsonrpc":"2.0","id":3,"method":"ping"}`, &got)
	require.Equal(t, "3", string(got.ID), "nothing after it is lost")
}

// posting is a client that speaks HTTP by hand.
type posting struct {
	t            *testing.T
	url, session string
	version      string
}

// posted is what it gets.
type posted struct {
	status int
	header http.Header
	body   io.ReadCloser
}

func (p posting) do(method, body string, header map[string]string) posted {
	p.t.Helper()
	request, err := http.NewRequestWithContext(p.t.Context(), method, p.url, strings.NewReader(body))
	require.NoError(p.t, err)
	all := map[string]string{
		"Authorization": "Bearer " + useToken, "Content-Type": "application/json", "Accept": "application/json, text/event-stream",
		"Mcp-Session-Id": p.session, "MCP-Protocol-Version": p.version,
	}
	maps.Copy(all, header)
	for name, value := range all {
		if value != "" {
			request.Header.Set(name, value)
		}
	}
	response, err := (&http.Client{Timeout: time.Minute}).Do(request) // of streams, too
	require.NoError(p.t, err)
	p.t.Cleanup(func() { _ = response.Body.Close() })
	return posted{response.StatusCode, response.Header, response.Body}
}

// begin starts a session of the protocol, which ends with the test.
func (p posting) begin() posting {
	p.t.Helper()
	response := p.do(http.MethodPost, fmt.Sprintf(hello, p.version), nil)
	require.Equal(p.t, http.StatusOK, response.status)
	p.session = response.header.Get("Mcp-Session-Id")
	_, answer := event(p.t, bufio.NewReader(response.body), false) // the session is there with the answer, not with its head
	require.Equal(p.t, p.version, answer.Result.ProtocolVersion)
	p.t.Cleanup(func() {
		request, _ := http.NewRequestWithContext(context.WithoutCancel(p.t.Context()), http.MethodDelete, p.url, nil)
		for name, value := range map[string]string{"Authorization": "Bearer " + useToken, "Mcp-Session-Id": p.session, "MCP-Protocol-Version": p.version} {
			request.Header.Set(name, value)
		}
		if response, err := http.DefaultClient.Do(request); err == nil {
			_ = response.Body.Close()
		}
	})
	require.Equal(p.t, http.StatusAccepted, p.do(http.MethodPost, `{"jsonrpc":"2.0","method":"notifications/initialized"}`, nil).status)
	return p
}

// event reads the next event of a stream that has data, and its id.
func event(t *testing.T, lines *bufio.Reader, empty bool) (id string, got said) {
	t.Helper()
	for {
		line, err := lines.ReadString('\n')
		require.NoError(t, err)
		name, value, _ := strings.Cut(strings.TrimRight(line, "\r\n"), ": ")
		switch {
		case name == "id":
			id = value
		case name == "" && empty && id != "":
			return id, got
		case name == "data" && value != "":
			require.NoError(t, json.Unmarshal([]byte(value), &got), value)
			return id, got
		}
	}
}

func TestHTTP_BadMessages(t *testing.T) {
	t.Parallel()
	s, _ := open(t, shared)
	url := serveHTTP(t, s)
	sessions := posting{t: t, url: url, version: "2025-11-25"}.begin()
	newest := posting{t: t, url: url, version: "2026-07-28"}
	refused := func(p posting, body string, status, code int) {
		t.Helper()
		response := p.do(http.MethodPost, body, map[string]string{"Mcp-Method": "tools/list"})
		require.Equal(t, status, response.status, body)
		if code == 0 { // the words are the SDK's
			return
		}
		var got said
		require.NoError(t, json.NewDecoder(response.body).Decode(&got), body)
		require.Equal(t, code, got.Error.Code, body)
	}
	for message, code := range bad() {
		refused(sessions, message, http.StatusBadRequest, code)
		refused(newest, message, http.StatusBadRequest, code)
	}
	giant := strings.Repeat(" ", mcpserver.MaxBody+1)
	refused(sessions, giant, http.StatusRequestEntityTooLarge, -32600)
	refused(newest, giant, http.StatusRequestEntityTooLarge, -32600)

	const list = `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":%q,` +
		`"io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}}}`
	unknown := strings.ReplaceAll(list, "tools/list", "no/such")
	refused(sessions, fmt.Sprintf(unknown, "2025-11-25"), http.StatusBadRequest, 0)
	response := newest.do(http.MethodPost, fmt.Sprintf(unknown, "2026-07-28"), map[string]string{"Mcp-Method": "no/such"})
	require.Equal(t, http.StatusNotFound, response.status)
	refused(newest, `[{"jsonrpc":"2.0","id":1,"method":"tools/list"}]`, http.StatusBadRequest, 0)
	refused(sessions, `[{"jsonrpc":"2.0","id":1,"method":"tools/list"}]`, http.StatusBadRequest, 0)
	refused(posting{t: t, url: url, version: "2030-01-01"}, fmt.Sprintf(list, "2030-01-01"), http.StatusBadRequest, -32022)
	refused(posting{t: t, url: url, version: "1999-01-01"}, fmt.Sprintf(list, "1999-01-01"), http.StatusBadRequest, 0)
	refused(newest, fmt.Sprintf(list, "2025-11-25"), http.StatusBadRequest, -32020)
	sessions.session = "none"
	refused(sessions, `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, http.StatusNotFound, 0)
}

// TestHTTP_ALostStreamGoesOn: a client that lost the stream of its call finds the result by the id
// of the last event that it got.
func TestHTTP_ALostStreamGoesOn(t *testing.T) {
	t.Parallel()
	s, workspace := open(t, shared)
	c := posting{t: t, url: serveHTTP(t, s), version: "2025-11-25"}.begin()
	lost := c.do(http.MethodPost, `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"bash","arguments":{
		"command":"touch begun; until [ -e go ]; do sleep 0.05; done; echo done"}}}`, nil)
	last, _ := event(t, bufio.NewReader(lost.body), true)
	require.NoError(t, lost.body.Close())
	require.NoError(t, os.MkdirAll(filepath.Join(workspace, "shared"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(workspace, "shared", "go"), nil, 0o600))
	var again posted
	require.Eventually(t, func() bool { // once the server has seen that the stream is lost
		again = c.do(http.MethodGet, "", map[string]string{"Last-Event-ID": last, "Content-Type": ""})
		return again.status != http.StatusConflict
	}, time.Minute, 10*time.Millisecond)
	require.Equal(t, http.StatusOK, again.status)
	_, got := event(t, bufio.NewReader(again.body), false)
	require.Equal(t, "7", string(got.ID))
	require.NotEmpty(t, got.Result.Content, "%+v", got)
	require.Equal(t, "done\n", got.Result.Content[0].Text)

	refused := c.do(http.MethodGet, "", map[string]string{"Last-Event-ID": "none", "Content-Type": ""})
	require.Equal(t, http.StatusBadRequest, refused.status)
}

// TestTools_ReturnWhatTheySay: each core tool's results fit the schema that it tells, which knows
// the type of the value.
func TestTools_ReturnWhatTheySay(t *testing.T) {
	t.Parallel()
	s, _ := open(t, shared)
	c := connect(t, s, nil)
	listed, err := c.ListTools(t.Context(), nil)
	require.NoError(t, err)
	schemas := map[string]*jsonschema.Resolved{}
	for _, tool := range listed.Tools {
		body, err := json.Marshal(tool.OutputSchema)
		require.NoError(t, err)
		var schema jsonschema.Schema
		require.NoError(t, json.Unmarshal(body, &schema))
		value := schema.Properties["value"]
		require.NotEmpty(t, len(value.Properties)+len(value.AnyOf), tool.Name)
		schemas[tool.Name], err = schema.Resolve(nil)
		require.NoError(t, err)
		require.Error(t,
			schemas[tool.Name].Validate(map[string]any{"status": "ok", "session_id": "s", "value": map[string]any{}}),
			"of %s not everything is a value", tool.Name)
	}
	called := map[string]bool{}
	for _, one := range []struct{ tool, arguments string }{
		{"write", `{"path": "a.txt", "content": "one\ntwo\n"}`},
		{"read", `{"path": "a.txt"}`},
		{"edit", `{"path": "a.txt", "old": "one", "new": "three"}`},
		{"multi_edit", `{"path": "a.txt", "edits": [{"old": "two", "new": "four"}]}`},
		{"exists", `{"path": "a.txt"}`},
		{"exists", `{"path": "none"}`},
		{"list", `{}`},
		{"tree", `{}`},
		{"glob", `{"pattern": "*"}`},
		{"grep", `{"pattern": "four"}`},
		{"grep", `{"pattern": "nothing"}`},
		{"json_write", `{"path": "a.json", "content": {"a": 1}}`},
		{"json_read", `{"path": "a.json"}`},
		{"bash", `{"command": "echo out; echo err >&2; exit 3"}`},
		{"bash", `{"command": "printf '\\377'"}`},
		{"bash", `{"command": "sleep 60", "background": true}`},
		{"bash", `{"command": "seq 1 60000"}`},
		{"run_code", `{"language": "sh", "code": "echo hello"}`},
		{"process", `{"action": "list"}`},
		{"read", `{"path": "none"}`},
	} {
		result := call(t, c, one.tool, json.RawMessage(one.arguments))
		require.NoError(t, schemas[one.tool].Validate(result.StructuredContent), "%s %s: %v", one.tool, one.arguments, result.StructuredContent)
		called[one.tool] = called[one.tool] || as[map[string]any](t, result.StructuredContent)["value"] != nil
	}
	for _, tool := range toolset.Core() {
		require.True(t, called[tool.Name], tool.Name)
	}
}
