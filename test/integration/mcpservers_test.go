package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/mcp/toolserver/toolservertest"
)

// mcpServers is a file of MCP servers, all of them the test server.
func mcpServers(tb testing.TB, names ...string) string {
	tb.Helper()
	servers := object{}
	for _, name := range names {
		spec := toolservertest.Program(name)
		servers[name] = object{"command": spec.Command, "env": spec.Env}
	}
	body, err := json.Marshal(object{"mcpServers": servers})
	require.NoError(tb, err)
	file := filepath.Join(tb.TempDir(), "mcp.json")
	write(tb, file, string(body))
	return file
}

// serverManifest writes a manifest of the test server into a folder.
func serverManifest(tb testing.TB, dir, name string) {
	tb.Helper()
	spec := toolservertest.Program(name)
	body, err := json.Marshal(object{"kind": "mcp", "name": name, "command": spec.Command, "env": spec.Env})
	require.NoError(tb, err)
	write(tb, filepath.Join(dir, name+".json"), string(body))
}

// mcpOf is a client of coordinator mcp on stdio.
func mcpOf(tb testing.TB, o *mcp.ClientOptions, version string, args ...string) *mcp.ClientSession {
	tb.Helper()
	home := tb.TempDir()
	command := exec.CommandContext(context.WithoutCancel(tb.Context()), coordinator, append([]string{"mcp", "--sandbox", "process"}, args...)...)
	command.Env = append(os.Environ(), "HOME="+home, "TMPDIR="+home, "TOOLFLEET_MIN_LEVEL=none")
	dieWithTests(command)
	c, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, o).Connect(tb.Context(), &mcp.CommandTransport{Command: command},
		&mcp.ClientSessionOptions{ProtocolVersion: version})
	require.NoError(tb, err)
	tb.Cleanup(func() { _ = c.Close() }) // the server may have ended
	return c
}

func mcpSaid(tb testing.TB, c *mcp.ClientSession, tool string) string {
	tb.Helper()
	result, err := c.CallTool(tb.Context(), &mcp.CallToolParams{Name: tool, Arguments: map[string]any{}})
	require.NoError(tb, err)
	said, ok := result.Content[0].(*mcp.TextContent)
	require.True(tb, ok)
	return said.Text
}

const formDefaults = `{"age":30,"name":"Ann","score":9.5,"status":"active","sure":true}`

// TestMcp_AServerAsksTheClientsPerson: what an MCP server asks in the middle of a call, the person
// in front of the client answers, where the protocol lets a client be asked then.
func TestMcp_AServerAsksTheClientsPerson(t *testing.T) {
	t.Parallel()
	config := mcpServers(t, "test")
	answers := &mcp.ClientOptions{ElicitationHandler: func(_ context.Context, r *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
		if r.Params.Message != "test__form asks: Who are you?" {
			t.Errorf("asked was %q", r.Params.Message)
		}
		return &mcp.ElicitResult{Action: "accept", Content: map[string]any{}}, nil
	}}
	require.Equal(t, "accept "+formDefaults, mcpSaid(t, mcpOf(t, answers, "2025-11-25", "--mcp-config", config), "test__form"))
	require.Contains(t, mcpSaid(t, mcpOf(t, answers, "2026-07-28", "--mcp-config", config), "test__form"), "decline null")
}

// TestMcpServers_AnsweredFromElsewhere: a turn of a served session has a call that asks, and
// another process answers.
func TestMcpServers_AnsweredFromElsewhere(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	model := script(t, say("Who is it?", use("c1", "test__form", object{})), say("And?", use("c2", "test__asks", object{})), say("Done."))
	startServe(t, model, append([]string{"--mcp-config", mcpServers(t, "test")}, b.flags...)...)
	startWorkers(t, 1, b.flags)
	submitted := start(t, coordinator, launch{args: append([]string{"submit", "--json", "go"}, b.flags...)})
	answer := func(question string, extra ...string) finished {
		asked := submitted.waitFor(t,
			question+`; accept its defaults with: coordinator approve --nats \S+ --creds .+ (\S+) (\S+); --deny declines, and --content JSON answers \(it must fit the schema {"`)
		return execute(t, coordinator, launch{args: append(append([]string{"approve", asked[1], asked[2]}, b.flags...), extra...)})
	}
	got := answer(`test__form asks: Who are you\?`, "--content", `{"age":"old"}`)
	require.Equal(t, 1, got.code)
	require.Contains(t, got.stderr, "the content does not fit what is asked")
	got = answer(`test__form asks: Who are you\?`, "--content", `{"name":"Bob"}`)
	require.Equal(t, 0, got.code, got.stderr)
	require.Equal(t, "answered\n", got.stdout)
	require.Equal(t, "denied\n", answer(`test__asks asks: Your name\?`, "--deny").stdout)
	require.Equal(t, 0, submitted.wait(t), submitted)
	all := results(events(t, submitted.stdout.String()))
	require.Contains(t, all["c1"].Content, `accept {"age":30,"name":"Bob","score":9.5,"status":"active","sure":true}`)
	require.Equal(t, "decline", all["c2"].Content)
}

// TestMcpServers_ADetachedTurnAsks: what a call of a turn asks that nobody follows is seen by
// everybody, survives its coordinator, and is answered by the command line that is printed.
func TestMcpServers_ADetachedTurnAsks(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	b.shortLeases(t)
	model := script(t, say("Who is it?", use("c1", "test__form", object{})), say("And?", use("c2", "test__asks", object{})), say("Done."))
	args := append([]string{"--mcp-config", mcpServers(t, "test")}, b.flags...)
	first := startServe(t, model, args...)
	id := b.submit(t, "go")
	require.Eventually(t, func() bool { return strings.Contains(b.session(t, "ls").stdout, "waits for worker") }, patience, perProcess,
		"the server's tools are asked for, and there is no worker")
	require.Regexp(t, `state +waits for worker\n`, b.session(t, "show", id).stdout)
	startWorkers(t, 1, b.flags)
	state := func(want string) func() bool {
		return func() bool { return strings.Contains(b.session(t, "ls", "--json").stdout, `"state":"`+want+`"`) }
	}
	require.Eventually(t, state("waits_for_answer"), patience, perProcess)
	require.NoError(t, first.cmd.Process.Kill())
	first.wait(t)
	startServe(t, model, args...)
	require.Eventually(t, state("waits_for_answer"), patience, perProcess, "another coordinator has the turn")
	show := b.session(t, "show", id).stdout
	require.Regexp(t, `state +waits for answer\n`, show)
	require.Contains(t, show, "test__form asks: Who are you?")
	list := func(args ...string) string {
		got := succeed(t, coordinator, launch{args: append(append([]string{"approve", "ls"}, args...), b.flags...)})
		return got.stdout
	}
	require.Contains(t, list("--json"), `"question":{"id":"`)
	command := regexp.MustCompile(`Who are you\?\n.*fit the schema \{.*\n  coordinator (approve --nats .* ` + id + ` \S+)\n`).FindStringSubmatch(list())
	require.NotNil(t, command, list())
	require.Contains(t, b.session(t, "log", id).stdout, "asks:")

	attached := start(t, coordinator, launch{args: append([]string{"session", "attach", id}, b.flags...)})
	attached.waitFor(t, `test__form asks: Who are you\?`)
	succeed(t, coordinator, launch{args: append(pasted(t, command[1]), "--content", `{"name":"Bob"}`)})
	asked := attached.waitFor(t, `test__asks asks: Your name\?; .*coordinator (approve .* `+id+` \S+); `)
	succeed(t, coordinator, launch{args: append(pasted(t, asked[1]), "--deny")})
	require.Equal(t, 0, attached.wait(t), attached)
	logged := events(t, b.session(t, "log", "--json", id).stdout)
	require.Len(t, ofType(logged, "question_asked"), 2)
	ended := ofType(logged, "question_answered")
	require.NotEmpty(t, ended)
	require.Equal(t, "decline", ended[len(ended)-1].Status)
	require.Contains(t, results(logged)["c1"].Content, `"name":"Bob"`)
	require.Regexp(t, `test__asks: answer refused by \S`, b.session(t, "log", id).stdout)
	require.Eventually(t, state("answered"), patience, perProcess)
	require.Equal(t, "no call waits for approval or for an answer\n", list())
}

// whenTold waits until something is so, of which there is at least one word.
func whenTold(t *testing.T, changed <-chan struct{}, so func() bool) {
	t.Helper()
	told := false
	for limit := time.After(patience); !so() || !told; {
		select {
		case <-changed:
			told = true
		case <-time.After(perProcess): // the last word may have been of an earlier change
		case <-limit:
			require.FailNow(t, "no word of a change")
		}
	}
}

// TestMcp_ServersToolsComeAndGo: a client is told when an MCP server has another tool, which it can
// call then.
func TestMcp_ServersToolsComeAndGo(t *testing.T) {
	t.Parallel()
	changed := make(chan struct{}, 9)
	c := mcpOf(t, &mcp.ClientOptions{
		ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) { changed <- struct{}{} },
	}, "", "--mcp-config", mcpServers(t, "test"))
	has := func() bool {
		listed, err := c.ListTools(t.Context(), nil)
		require.NoError(t, err)
		return slices.ContainsFunc(listed.Tools, func(tool *mcp.Tool) bool { return tool.Name == "test__grown" })
	}
	require.False(t, has())
	require.Equal(t, "grown", mcpSaid(t, c, "test__grow"))
	whenTold(t, changed, func() bool {
		mcpSaid(t, c, "test__count") // whose result says so, if those before were too early
		return has()
	})
	require.Equal(t, "new", mcpSaid(t, c, "test__grown"))
}

// TestMcp_ServersOfTheFolderComeAndGo: a client is told of the tools of a server whose manifest
// comes into the folder, and when it leaves.
func TestMcp_ServersOfTheFolderComeAndGo(t *testing.T) {
	t.Parallel()
	dir, changed := t.TempDir(), make(chan struct{}, 9)
	c := mcpOf(t, &mcp.ClientOptions{
		ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) { changed <- struct{}{} },
	}, "", "--tools", dir)
	has := func() bool {
		t.Helper()
		listed, err := c.ListTools(t.Context(), nil)
		require.NoError(t, err)
		return slices.ContainsFunc(listed.Tools, func(tool *mcp.Tool) bool { return tool.Name == "test__count" })
	}
	require.False(t, has())
	serverManifest(t, dir, "test")
	whenTold(t, changed, has)
	require.Equal(t, "1 calls, 0 overlap", mcpSaid(t, c, "test__count"))
	require.NoError(t, os.Remove(filepath.Join(dir, "test.json")))
	whenTold(t, changed, func() bool { return !has() })
}

// TestMcpServers_OfManifests: turns of a served session have the servers of the folder as they are
// when a turn begins, beside those of --mcp-config, whose names are taken.
func TestMcpServers_OfManifests(t *testing.T) {
	t.Parallel()
	b, dir := newBroker(t), t.TempDir()
	count := say("Counting.", use("c1", "test__count", object{}), use("c2", "other__count", object{}))
	serverManifest(t, dir, "test")
	serverManifest(t, dir, "other")
	serve := startServe(t, script(t, count, say("Done.")), append([]string{"--mcp", "127.0.0.1:0", "--tools", dir, "--mcp-config", mcpServers(t, "other")}, b.flags...)...)
	startWorkers(t, 1, b.flags)
	c, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(t.Context(), &mcp.StreamableClientTransport{
		Endpoint: mcpURL(t, serve), DisableStandaloneSSE: true,
	}, nil)
	require.NoError(t, err)
	defer func() { _ = c.Close() }() // nothing more is asked
	has := func(want bool) {         // once the coordinator has looked
		require.Eventually(t, func() bool {
			listed, err := c.ListTools(t.Context(), nil)
			require.NoError(t, err)
			return want == slices.ContainsFunc(listed.Tools, func(tool *mcp.Tool) bool { return tool.Name == "test__count" })
		}, patience, 10*time.Millisecond)
	}
	has(true)
	require.Equal(t, "1 calls, 0 overlap", mcpSaid(t, c, "test__count"))
	turn := func() map[string]event {
		got := succeed(t, coordinator, launch{args: append([]string{"submit", "--json", "go"}, b.flags...)})
		return results(events(t, got.stdout))
	}
	all := turn()
	require.Equal(t, "1 calls, 0 overlap", all["c1"].Content)
	require.Equal(t, "1 calls, 0 overlap", all["c2"].Content)
	serve.waitFor(t, `other.json:1: the name other is that of a server of --mcp-config`)
	require.NoError(t, os.Remove(filepath.Join(dir, "test.json")))
	all = turn()
	require.Contains(t, all["c1"].Content, "unknown_tool")
	has(false)
	require.Equal(t, "1 calls, 0 overlap", all["c2"].Content)
}

// TestMcp_WhatServersReturn: a client has each part of what a tool of an MCP server returns, and
// what the server says of the tool.
func TestMcp_WhatServersReturn(t *testing.T) {
	t.Parallel()
	c := mcpOf(t, nil, "", "--mcp-config", mcpServers(t, "test"))
	listed, err := c.ListTools(t.Context(), nil)
	require.NoError(t, err)
	byName := map[string]*mcp.Tool{}
	for _, tool := range listed.Tools {
		byName[tool.Name] = tool
	}
	parts, grow := byName["test__parts"], byName["test__grow"]
	require.Equal(t, "All parts", parts.Title)
	require.False(t, *parts.Annotations.OpenWorldHint)
	require.True(t, *grow.Annotations.OpenWorldHint)
	require.False(t, *grow.Annotations.DestructiveHint)
	require.True(t, grow.Annotations.IdempotentHint)
	require.True(t, *byName["test__count"].Annotations.DestructiveHint)
	schema := encode(t, parts.OutputSchema)
	require.Contains(t, string(schema), `"structured":{"properties":{"n":{"type":"integer"}},"type":"object"}`)

	result, err := c.CallTool(t.Context(), &mcp.CallToolParams{Name: "test__parts", Arguments: map[string]any{}})
	require.NoError(t, err)
	content := encode(t, result.Content)
	require.JSONEq(t, `[
		{"type": "text", "text": "a text"}, {"type": "image", "data": "iVBORw==", "mimeType": "image/png"},
		{"type": "audio", "data": "AQI=", "mimeType": "audio/wav"},
		{"type": "resource_link", "uri": "file:///a.txt", "name": "a.txt", "description": "A file."},
		{"type": "resource", "resource": {"uri": "test://b", "text": "inside", "mimeType": "text/plain"}}
	]`, string(content))
	typed := encode(t, result.StructuredContent)
	require.Contains(t, string(typed), `"structured":{"n":1}`)
	require.NotContains(t, string(typed), "iVBORw==", "it is there already")
}

// TestMcp_ManyClientsAtOnce: each of 64 clients has its own sandbox and its own answers.
func TestMcp_ManyClientsAtOnce(t *testing.T) {
	t.Parallel()
	b, model := newBroker(t), script(t, say("Done."))
	startWorkers(t, 1, append(b.flags, "--lease", "1m")) // of a machine that does much else
	url := mcpURL(t, startServe(t, model, append(b.flags, "--mcp", "127.0.0.1:0")...))
	const clients, calls = 64, 3
	var group sync.WaitGroup
	for i := range clients {
		group.Go(func() {
			c, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(t.Context(), &mcp.StreamableClientTransport{
				Endpoint: fmt.Sprintf("%s/%d", url, i), DisableStandaloneSSE: true,
			}, nil)
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = c.Close() }() // nothing more is asked
			want := ""
			for n := range calls {
				want += fmt.Sprintf("%d.%d\n", i, n)
				result, err := c.CallTool(t.Context(), &mcp.CallToolParams{Name: "bash", Arguments: map[string]any{
					"command": fmt.Sprintf("echo %d.%d >>log; cat log", i, n),
				}})
				if err != nil {
					t.Error(err)
					return
				}
				if said, ok := result.Content[0].(*mcp.TextContent); !ok || said.Text != want {
					t.Errorf("client %d, call %d: %v", i, n, result.Content[0])
				}
			}
		})
	}
	group.Wait()
}
