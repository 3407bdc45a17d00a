package mcpserver_test

import (
	"bufio"
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/access"
	"github.com/toolfleet/toolfleet/internal/mcp/mcpserver"
	"github.com/toolfleet/toolfleet/internal/telemetry/genaiconv"
	"github.com/toolfleet/toolfleet/internal/telemetry/telemetrytest"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// asking is a client of 2026-07-28 that knows tasks, as far as the SDK's does not.
type asking struct {
	t          *testing.T
	url, token string
	unaware    bool // of tasks
}

// answer is what it gets.
type answer struct {
	Result struct {
		ResultType, TaskID, Status string
		TTLMS                      int64 `json:"ttlMs"` //nolint:tagliatelle // the protocol's name
		Content                    []struct{ Text string }
		Result                     struct{ Content []struct{ Text string } }
	}
	Error struct {
		Code int
		Data json.RawMessage
	}
}

func (a asking) request(method, name, params string) (got answer) {
	a.t.Helper()
	extensions := `{"io.modelcontextprotocol/tasks": {}}`
	if a.unaware {
		extensions = `{}`
	}
	body := `{"jsonrpc": "2.0", "id": 1, "method": "` + method + `", "params": {` + params + `, "_meta": {
		"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
		"io.modelcontextprotocol/clientCapabilities": {"extensions": ` + extensions + `}
	}}}`
	request, err := http.NewRequestWithContext(a.t.Context(), http.MethodPost, a.url, strings.NewReader(body))
	require.NoError(a.t, err)
	for header, value := range map[string]string{
		"Content-Type": "application/json", "Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2026-07-28",
		"Mcp-Method": method, "Mcp-Name": name, "Authorization": "Bearer " + a.token,
	} {
		request.Header.Set(header, value)
	}
	response, err := http.DefaultClient.Do(request)
	require.NoError(a.t, err)
	defer response.Body.Close()
	said, err := io.ReadAll(response.Body)
	require.NoError(a.t, err)
	if at := bytes.LastIndex(said, []byte("data: ")); at >= 0 {
		said = said[at+len("data: "):]
	}
	require.NoError(a.t, json.Unmarshal(said, &got), "%s", said)
	return got
}

func (a asking) call(command string) answer {
	a.t.Helper()
	arguments, err := json.Marshal(map[string]any{"command": command})
	require.NoError(a.t, err)
	return a.request("tools/call", "bash", `"name": "bash", "arguments": `+string(arguments))
}

func (a asking) about(method, id string) answer {
	a.t.Helper()
	return a.request(method, id, `"taskId": "`+id+`"`)
}

// ended polls until a task has ended.
func (a asking) ended(id string) (got answer) {
	a.t.Helper()
	require.Eventually(a.t, func() bool {
		got = a.about("tasks/get", id)
		return got.Result.Status != "working"
	}, time.Minute, 20*time.Millisecond)
	return got
}

// tasksAtOnce has every call go on as a task.
func tasksAtOnce(o *mcpserver.Options) {
	o.TaskAfter = func(string) time.Duration { return 0 }
}

// TestTask_GoesOnWithoutItsRequest: any server of the fleet tells of it, and nobody who has no
// business with it.
func TestTask_GoesOnWithoutItsRequest(t *testing.T) {
	t.Parallel()
	var same mcpserver.Options
	s, workspace := open(t, shared, tasksAtOnce, func(o *mcpserver.Options) { same = *o })
	another := mcpserver.New(same)
	t.Cleanup(another.Close)
	c := asking{t: t, url: serveHTTP(t, s), token: useToken}
	made := c.call("until [ -e go ]; do sleep 0.05; done; echo done").Result
	require.Equal(t, "task", made.ResultType)
	require.Equal(t, "working", made.Status)
	require.Positive(t, made.TTLMS)
	require.Equal(t, "working", c.about("tasks/get", made.TaskID).Result.Status)
	other := asking{t: t, url: c.url, token: readToken}
	for name, code := range map[string]int{
		"another token": other.about("tasks/get", made.TaskID).Error.Code,
		"no such id":    c.about("tasks/get", "none").Error.Code,
		"cancel":        other.about("tasks/cancel", made.TaskID).Error.Code,
	} {
		require.Equal(t, -32602, code, name)
	}
	require.Equal(t, -32020, c.request("tasks/get", "x", `"taskId": "`+made.TaskID+`"`).Error.Code, "the header names another task")
	require.NoError(t, os.WriteFile(filepath.Join(workspace, "shared", "go"), nil, 0o600))
	c.url = serveHTTP(t, another)
	got := c.ended(made.TaskID).Result
	require.Equal(t, "completed", got.Status)
	require.Equal(t, "done\n", got.Result.Content[0].Text)
	require.Equal(t, "complete", c.about("tasks/cancel", made.TaskID).Result.ResultType, "it has ended, and stays as it is")
	require.Equal(t, "completed", c.about("tasks/get", made.TaskID).Result.Status)
}

func TestTask_IsCancelled(t *testing.T) {
	t.Parallel()
	s, _ := open(t, shared, tasksAtOnce)
	c := asking{t: t, url: serveHTTP(t, s), token: useToken}
	made := c.call("sleep 1000").Result
	require.Equal(t, "complete", c.about("tasks/cancel", made.TaskID).Result.ResultType)
	require.Equal(t, "cancelled", c.ended(made.TaskID).Result.Status)
}

// TestTask_IsOfItsSessionAndToken: no client has a use of an id that it made up of a call that it
// knows, or got from another, in one sandbox or several.
func TestTask_IsOfItsSessionAndToken(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*mcpserver.Options){"sandboxes of keys": func(*mcpserver.Options) {}, "one sandbox": shared} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, _ := open(t, change, tasksAtOnce)
			url := serveHTTP(t, s)
			c := asking{t: t, url: url + "/k", token: useToken}
			reader := asking{t: t, url: c.url, token: readToken}
			made := c.call("sleep 1000").Result.TaskID
			own := reader.request("tools/call", "read", `"name": "read", "arguments": {"path": "x"}`).Result.TaskID
			raw, err := base64.RawURLEncoding.DecodeString(made)
			require.NoError(t, err)
			const at = 16
			require.Equal(t, byte('{'), raw[at], "a code of 128 bits, then the fields")
			signature, err := base64.RawURLEncoding.DecodeString(own)
			require.NoError(t, err)
			forged := map[string][]byte{
				"unsigned":                  raw[at:],
				"with no code":              append(make([]byte, at), raw[at:]...),
				"with the code of its own":  append(bytes.Clone(signature[:at]), raw[at:]...),
				"with a digest as its code": append(digest(raw[at:]), raw[at:]...),
				"of another tool":           bytes.Replace(raw, []byte(`"bash"`), []byte(`"read"`), 1),
				"short":                     raw[:at-1],
			}
			for kind, id := range forged {
				for who, client := range map[string]asking{"use": c, "read": reader} {
					for _, method := range []string{"tasks/get", "tasks/update", "tasks/cancel"} {
						require.Equal(t, -32602, client.about(method, base64.RawURLEncoding.EncodeToString(id)).Error.Code, "%s, %s, %s", kind, who, method)
					}
				}
			}
			require.Equal(t, -32602, reader.about("tasks/get", made).Error.Code, "of another token")
			require.Equal(t, -32602, reader.about("tasks/cancel", made).Error.Code, "of another token")
			require.Equal(t, -32600, reader.about("tasks/cancel", own).Error.Code, "a reader cancels nothing")
			if name != "one sandbox" {
				require.Equal(t, -32602, asking{t: t, url: url + "/other", token: useToken}.about("tasks/get", made).Error.Code, "of another sandbox")
			}
			require.Equal(t, "working", c.about("tasks/get", made).Result.Status)
		})
	}
}

// digest is what a client can make of the fields of a task and its own token.
func digest(fields []byte) []byte {
	mac := hmac.New(sha256.New, []byte(readToken))
	mac.Write(fields)
	return mac.Sum(nil)[:16]
}

// TestTask_OnlyWhoKnowsThem: quick calls and other clients get results.
func TestTask_OnlyWhoKnowsThem(t *testing.T) {
	t.Parallel()
	s, _ := open(t, shared, func(o *mcpserver.Options) { o.TaskAfter = func(string) time.Duration { return time.Hour } })
	c := asking{t: t, url: serveHTTP(t, s), token: useToken}
	got := c.call("echo quick").Result
	require.Equal(t, "complete", got.ResultType)
	require.Equal(t, "quick\n", got.Content[0].Text)

	s, _ = open(t, shared, tasksAtOnce)
	c = asking{t: t, url: serveHTTP(t, s), token: useToken, unaware: true}
	require.Equal(t, "slow\n", c.call("sleep 0.1; echo slow").Result.Content[0].Text)
	refused := c.about("tasks/get", "x").Error
	require.Equal(t, -32021, refused.Code)
	require.JSONEq(t, `{"requiredCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}}}`, string(refused.Data))
}

// TestTask_EndsWithAFleetThatDoes: a server whose fleet does not outlast it leaves no call behind,
// and one whose fleet does leaves it there.
func TestTask_EndsWithAFleetThatDoes(t *testing.T) {
	t.Parallel()
	for name, lasting := range map[string]bool{"cancelled": false, "working": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var same mcpserver.Options
			s, _ := open(t, shared, tasksAtOnce, func(o *mcpserver.Options) { o.Lasting = lasting; same = *o })
			c := asking{t: t, url: serveHTTP(t, s), token: useToken}
			made := c.call("sleep 1000").Result
			s.Close()
			same.Lasting = false
			another := mcpserver.New(same)
			t.Cleanup(another.Close)
			c.url = serveHTTP(t, another)
			require.Equal(t, name, c.about("tasks/get", made.TaskID).Result.Status)
			require.Equal(t, "complete", c.about("tasks/cancel", made.TaskID).Result.ResultType)
			require.Equal(t, "cancelled", c.ended(made.TaskID).Result.Status)
		})
	}
}

// impatient has clients that know no tasks wait for next to nothing.
func impatient(o *mcpserver.Options) { o.Patience = 200 * time.Millisecond }

// TestLater_WhoKnowsNoTasksReadsTheResult: a call that takes long goes on, and says where its
// result will be.
func TestLater_WhoKnowsNoTasksReadsTheResult(t *testing.T) {
	t.Parallel()
	s, workspace := open(t, shared, impatient)
	c, other := connect(t, s, nil), connect(t, s, nil)
	later := func(command string) (path, uri string) {
		t.Helper()
		result := bash(t, c, command)
		require.False(t, result.IsError)
		require.Equal(t, "working", field(t, result, "status"))
		path = "result:" + as[string](t, field(t, result, "call_id"))
		require.Contains(t, text(t, result), path)
		return path, as[*mcp.ResourceLink](t, result.Content[1]).URI
	}
	read := func(path string) *mcp.CallToolResult {
		t.Helper()
		return call(t, other, "read", map[string]any{"path": path})
	}
	wait := "until [ -e go ]; do sleep 0.05; done; "
	path, uri := later(wait + "echo done")
	require.Equal(t, "working", field(t, read(path), "status"), "it still goes on")
	resource, err := c.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri})
	require.NoError(t, err)
	require.Contains(t, resource.Contents[0].Text, "still runs")
	require.NoError(t, os.WriteFile(filepath.Join(workspace, "shared", "go"), nil, 0o600))
	require.Eventually(t, func() bool { return field(t, read(path), "status") == "ok" }, time.Minute, time.Millisecond)
	require.Equal(t, "done\n", text(t, read(path)), "what the call would have been answered with")
	resource, err = c.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri})
	require.NoError(t, err)
	require.Equal(t, "done\n", resource.Contents[0].Text)
}

// TestLater_ItsEndIsTold also where there is nothing to read: reading waits for the end of a call.
func TestLater_ItsEndIsTold(t *testing.T) {
	t.Parallel()
	var same mcpserver.Options
	s, _ := open(t, shared, impatient, func(o *mcpserver.Options) { same = *o })
	c := connect(t, s, nil)
	result := bash(t, c, "sleep 1000")
	require.Equal(t, "working", field(t, result, "status"))
	id := as[string](t, field(t, result, "call_id"))
	path := "result:" + id
	require.NoError(t, same.Dispatcher.Cancel(t.Context(), &protocol.Call{
		ID: protocol.CallID(id), SessionID: "shared", Pool: protocol.DefaultPool, Resources: []protocol.Use{{Key: protocol.SandboxKey("shared")}},
	}))
	require.Eventually(t, func() bool {
		result = call(t, c, "read", map[string]any{"path": path})
		return field(t, result, "status") != "working"
	}, time.Minute, time.Millisecond)
	require.True(t, result.IsError)
	require.Equal(t, "cancelled", field(t, result, "status"))
	require.Equal(t, text(t, result), text(t, call(t, c, "read", map[string]any{"path": path})), "also later")
}

// TestLater_WhoHearsOfTheCallWaits: progress is what keeps a client patient.
func TestLater_WhoHearsOfTheCallWaits(t *testing.T) {
	t.Parallel()
	s, _ := open(t, shared, impatient)
	params := &mcp.CallToolParams{Name: "bash", Arguments: map[string]any{"command": "sleep 1; echo done"}}
	params.SetProgressToken("p")
	result, err := connect(t, s, nil).CallTool(t.Context(), params)
	require.NoError(t, err)
	require.Equal(t, "done\n", text(t, result))
}

// TestHTTP_KeysAreOfTheirToken: what two tokens call by one name is not one sandbox, and the key of
// none is one like any other.
func TestHTTP_KeysAreOfTheirToken(t *testing.T) {
	t.Parallel()
	s, _ := open(t)
	const annToken, cidToken, deeToken = "0123456789abcdef-ann", "0123456789abcdef-cid", "0123456789abcdef-cid-too"
	tokens, err := access.ReadTokens(strings.NewReader("ann use " + annToken + "\ncid use " + cidToken + "\ncid use " + deeToken + "\n"))
	require.NoError(t, err)
	web := httptest.NewServer(s.Handler(mcpserver.HTTPOptions{Access: access.NewTokens(tokens...)}))
	t.Cleanup(web.Close)
	t.Cleanup(as[*http.Transport](t, http.DefaultTransport).CloseIdleConnections)
	said := func(token, path, command string) string {
		t.Helper()
		got := asking{t: t, url: web.URL + path, token: token, unaware: true}.call(command)
		require.Zero(t, got.Error.Code)
		return got.Result.Content[0].Text
	}
	said(annToken, "/mcp/key", "echo ann >f")
	said(cidToken, "/mcp/key", "echo cid >g")
	require.Equal(t, "f\n", said(annToken, "/mcp/key", "ls"))
	require.Equal(t, "g\n", said(cidToken, "/mcp/key", "ls"))
	require.Equal(t, "g\n", said(deeToken, "/mcp/key", "ls"), "two tokens of one name")
	require.Contains(t, said(annToken, "/mcp", "ls; echo ann >none"), "no output")
	require.Contains(t, said(cidToken, "/mcp", "ls"), "no output")
	require.Equal(t, "none\n", said(annToken, "/mcp", "ls"))
}

// TestHTTP_SessionsWithoutAKeyHaveTheirOwn: two sessions of the protocol that one token begins at
// one address share nothing.
func TestHTTP_SessionsWithoutAKeyHaveTheirOwn(t *testing.T) {
	t.Parallel()
	s, _ := open(t)
	at := posting{t: t, url: serveHTTP(t, s), version: "2025-11-25"}
	one, two := at.begin(), at.begin()
	require.NotEqual(t, one.session, two.session)
	says := func(p posting, command string) string {
		t.Helper()
		arguments, err := json.Marshal(map[string]any{"command": command})
		require.NoError(t, err)
		response := p.do(http.MethodPost, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"bash","arguments":`+string(arguments)+`}}`, nil)
		_, got := event(t, bufio.NewReader(response.body), false)
		return got.Result.Content[0].Text
	}
	says(one, "echo 1 >f")
	require.Contains(t, says(two, "ls; echo 2 >f"), "no output")
	require.Equal(t, "1\n", says(one, "cat f"))
}

// How long a session of the protocol lasted is a metric; the end of the server ends those that are
// open.
func TestHTTP_MeasuresSessions(t *testing.T) { //nolint:paralleltest // it sets the process's meter
	meter := telemetrytest.NewMeter(t)
	meter.Install()
	s, _ := open(t)
	at := posting{t: t, url: serveHTTP(t, s), version: "2025-11-25"}
	ended := at.begin()
	at.begin()
	const attributes = "mcp.protocol.version=2025-11-25,network.transport=tcp"
	require.Empty(t, meter.Read(t, genaiconv.MetricMCPServerSession))
	ended.do(http.MethodDelete, "", nil)
	require.Eventually(t, func() bool { return meter.Read(t, genaiconv.MetricMCPServerSession)[attributes] == 1 }, time.Minute, time.Millisecond)
	s.Close()
	require.EqualValues(t, 2, meter.Read(t, genaiconv.MetricMCPServerSession)[attributes])
}
