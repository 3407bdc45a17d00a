package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/httpapi"
	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/manifest"
	"github.com/toolfleet/toolfleet/pkg/tools/policy"
	"github.com/toolfleet/toolfleet/pkg/tools/toolset"
	goworker "github.com/toolfleet/toolfleet/pkg/worker"
)

// deed is one act as a tool call.
type deed struct {
	act       judge.Class
	tool      string
	arguments object
	payload   protocol.Payload // the same in Go
}

// deeds are all acts. What they do may fail for other reasons than a policy where nothing is there.
func deeds() []deed {
	return []deed{
		{judge.ClassRead, "read", object{"path": "f"}, protocol.FilesRead{Path: "f"}},
		{judge.ClassWrite, "write", object{"path": "w", "content": "x"}, protocol.FilesWrite{Path: "w", Content: []byte("x")}},
		{judge.ClassExecute, "bash", object{"command": "true"}, protocol.CommandRun{Command: "true"}},
		{judge.ClassMessage, "send_message", object{"channel": "c", "text": "x"}, nil},
		{judge.ClassTrigger, "remove_trigger", object{"trigger": "none"}, nil},
		{judge.ClassUse, "own", object{}, nil},
	}
}

// through tries the deeds by a interface under a policy, and returns which of them it denied.
type through func(t *testing.T, rules policy.Policy, folder string, all []deed) (denied map[judge.Class]bool)

// policyFile is a file with rules; "" without any.
func policyFile(t *testing.T, rules policy.Policy) []string {
	t.Helper()
	if rules.Zero() {
		return nil
	}
	body := encode(t, rules)
	file := filepath.Join(t.TempDir(), "policy.json")
	write(t, file, string(body))
	return []string{"--policy", file}
}

func ways() map[string]through {
	var client *fleet.Client // of Go
	return map[string]through{
		"turns": func(t *testing.T, rules policy.Policy, folder string, all []deed) map[judge.Class]bool {
			t.Helper()
			var calls []object
			for _, d := range all {
				calls = append(calls, use(string(d.act), d.tool, d.arguments))
			}
			flags := append(policyFile(t, rules), "--json", "--tools", folder, "--toolset", "core,channels,triggers")
			got := execute(t, coordinator, launch{args: runFlags(t, script(t, say("Trying.", calls...), say("Done.")), t.TempDir(), flags...)})
			denied := map[judge.Class]bool{}
			for id, result := range results(events(t, got.stdout)) {
				denied[judge.Class(id)] = result.Error != nil && result.Error.Code == "policy_denied"
			}
			require.Len(t, denied, len(all), got.stderr)
			return denied
		},
		"call": func(t *testing.T, rules policy.Policy, folder string, all []deed) map[judge.Class]bool {
			t.Helper()
			denied := map[judge.Class]bool{}
			for _, d := range all {
				arguments := encode(t, d.arguments)
				got := execute(t, coordinator, launch{
					args: append([]string{"call", d.tool, string(arguments), "--data", t.TempDir(), "--sandbox", "process", "--tools", folder}, policyFile(t, rules)...),
				})
				require.Contains(t, got.stdout, `"status"`, got.stderr)
				denied[d.act] = strings.Contains(got.stdout, "policy_denied")
			}
			return denied
		},
		"call --batch": func(t *testing.T, rules policy.Policy, folder string, all []deed) map[judge.Class]bool {
			t.Helper()
			var lines strings.Builder
			for _, d := range all {
				line := encode(t, object{"tool": d.tool, "arguments": d.arguments})
				lines.Write(append(line, '\n'))
			}
			got := execute(t, coordinator, launch{
				args:  append([]string{"call", "--batch", "-", "--data", t.TempDir(), "--sandbox", "process", "--tools", folder}, policyFile(t, rules)...),
				stdin: lines.String(),
			})
			denied := map[judge.Class]bool{}
			for i, d := range all {
				denied[d.act] = strings.Contains(got.stderr, "line "+strconv.Itoa(i+1)+": policy_denied")
			}
			return denied
		},
		"MCP tools/call": func(t *testing.T, rules policy.Policy, folder string, all []deed) map[judge.Class]bool {
			t.Helper()
			c := mcpWith(t, append(policyFile(t, rules), "--tools", folder)...)
			denied := map[judge.Class]bool{}
			for _, d := range all {
				result, err := c.CallTool(t.Context(), &mcp.CallToolParams{Name: d.tool, Arguments: d.arguments})
				require.NoError(t, err)
				typed := encode(t, result.StructuredContent)
				denied[d.act] = strings.Contains(string(typed), "policy_denied")
			}
			return denied
		},
		"MCP resources/read": func(t *testing.T, rules policy.Policy, folder string, all []deed) map[judge.Class]bool {
			t.Helper()
			c := mcpWith(t, append(policyFile(t, rules), "--tools", folder)...)
			denied := map[judge.Class]bool{}
			for _, d := range all {
				_, err := c.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "toolfleet://workspace/f"})
				denied[d.act] = err != nil && strings.Contains(err.Error(), "policy_denied")
			}
			return denied
		},
		"HTTP": overHTTP(),
		"schedule": func(t *testing.T, rules policy.Policy, folder string, all []deed) map[judge.Class]bool {
			t.Helper()
			b := newBroker(t)
			serving := startServe(t, script(t, say("Done.")), append(append(policyFile(t, rules), "--tools", folder), b.flags...)...)
			startWorkers(t, 1, b.flags)
			for _, d := range all {
				arguments := encode(t, d.arguments)
				got := b.schedule(t, "add", "--cron", "@every 1s", string(d.act), "--", "call", "--min-level", "none", "--tools", folder, d.tool, string(arguments))
				require.Equal(t, 0, got.code, got.stderr)
			}
			denied := map[judge.Class]bool{}
			require.Eventually(t, func() bool {
				var ran []struct{ Name, Outcome string }
				require.NoError(t, json.Unmarshal([]byte(b.schedule(t, "ls", "--json").stdout), &ran))
				for _, s := range ran {
					refused := strings.Contains(serving.stderr.String(), "a schedule's call is not allowed and was skipped\" schedule="+s.Name)
					if refused || s.Outcome != "" {
						denied[judge.Class(s.Name)] = refused
					}
				}
				return len(denied) == len(all)
			}, patience, perProcess)
			return denied
		},
		"Go Client.Call": func(t *testing.T, rules policy.Policy, _ string, all []deed) map[judge.Class]bool {
			t.Helper()
			if client == nil {
				client = processFleet(t, goworker.Handle("own", func(context.Context, *goworker.Call, object) (object, error) { return object{}, nil }))
			}
			rule, err := policy.New(rules)
			require.NoError(t, err)
			denied := map[judge.Class]bool{}
			for _, d := range all {
				call := fleet.Call{Payload: d.payload, Policy: rule}
				if d.payload == nil {
					call.Handler, call.Args = protocol.Kind(d.tool), d.arguments
				}
				result, err := client.Call(t.Context(), call)
				require.NoError(t, err)
				denied[d.act] = result.Error != nil && result.Error.Code == protocol.CodePolicyDenied
				if rules.Zero() {
					require.NotEqual(t, protocol.StatusRejected, result.Status, result.Error)
				}
			}
			return denied
		},
	}
}

// overHTTP tries the deeds by the HTTP API: first by that of a process, whose flags have the rules,
// and then by the same handler in this process.
func overHTTP() through {
	var ask func(method, path string, body object) (status int, answer []byte)
	var client *fleet.Client
	return func(t *testing.T, rules policy.Policy, folder string, all []deed) map[judge.Class]bool {
		t.Helper()
		if ask == nil {
			ask = httpWith(t, append(policyFile(t, rules), "--tools", folder)...)
		} else {
			if client == nil {
				client = processFleet(t)
			}
			ask = httpHere(t, client, rules, folder)
		}
		denied := map[judge.Class]bool{}
		for _, d := range all {
			status, body := ask(http.MethodPost, "/v1/calls?wait_ms=60000", object{"tool": d.tool, "arguments": d.arguments})
			require.Contains(t, []int{http.StatusAccepted, http.StatusForbidden}, status, "%s", body)
			denied[d.act] = strings.Contains(string(body), "policy_denied")
		}
		return denied
	}
}

// processFleet is a fleet in this process, with a worker.
func processFleet(t *testing.T, handlers ...goworker.Handler) *fleet.Client {
	t.Helper()
	client, err := fleet.Connect(t.Context(), fleet.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	_, err = client.StartWorker(t.Context(), goworker.Options{Driver: "process", Handlers: handlers})
	require.NoError(t, err)
	return client
}

// httpHere sends requests to an HTTP API in this process.
func httpHere(t *testing.T, client *fleet.Client, rules policy.Policy, folder string) (ask func(method, path string, body object) (status int, answer []byte)) {
	t.Helper()
	own, err := manifest.Open(folder)
	require.NoError(t, err)
	table, err := tools.NewTable(append(toolset.Core(), own.Load().Tools...)...)
	require.NoError(t, err)
	o := httpapi.Options{Client: client, Table: func() *tools.Table { return table }, Version: "test"}
	if !rules.Zero() {
		o.Policy, err = policy.New(rules)
		require.NoError(t, err)
	}
	server := httptest.NewServer(httpapi.New(o))
	t.Cleanup(server.Close)
	return httpAPI{server.URL, ""}.ask(t)
}

// mcpWith is a client of an MCP server that has some flags.
func mcpWith(t *testing.T, flags ...string) *mcp.ClientSession {
	t.Helper()
	home, workspace := t.TempDir(), t.TempDir()
	write(t, filepath.Join(workspace, "f"), "text\n")
	command := exec.CommandContext(context.WithoutCancel(t.Context()), coordinator, append([]string{"mcp", "--workspace", workspace, "--sandbox", "process"}, flags...)...)
	command.Env = append(os.Environ(), "HOME="+home, "TMPDIR="+home, "TOOLFLEET_MIN_LEVEL=none")
	dieWithTests(command)
	return mcpClient(t, &mcp.CommandTransport{Command: command})
}

// httpAPI is an HTTP API in a process of its own.
type httpAPI struct {
	url, token string
}

// startHTTP starts one with some flags.
func startHTTP(t *testing.T, flags ...string) httpAPI {
	t.Helper()
	home := t.TempDir()
	command := exec.CommandContext(t.Context(), coordinator, append([]string{"http", "--data", t.TempDir(), "--sandbox", "process", "--until-stdin-closes"}, flags...)...)
	command.Env = append(os.Environ(), "HOME="+home, "TMPDIR="+home, "TOOLFLEET_MIN_LEVEL=none")
	dieWithTests(command)
	stdin, err := command.StdinPipe()
	require.NoError(t, err)
	stdout, err := command.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, command.Start())
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = command.Wait() // the end of the test may have killed it
	})
	var made struct {
		URL   string `json:"url"`
		Token string `json:"token_file"`
	}
	require.NoError(t, json.NewDecoder(stdout).Decode(&made))
	token, err := os.ReadFile(made.Token)
	require.NoError(t, err)
	return httpAPI{made.URL, strings.TrimSpace(string(token))}
}

// send sends a request, and reads the answer.
func (a httpAPI) send(ctx context.Context, method, path string, body io.Reader, header http.Header) (status int, answer []byte, kind string, err error) {
	request, err := http.NewRequestWithContext(ctx, method, a.url+path, body)
	if err != nil {
		return 0, nil, "", err
	}
	request.Header = header
	request.Header.Set("Authorization", "Bearer "+a.token)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, nil, "", err
	}
	defer response.Body.Close()
	answer, err = io.ReadAll(response.Body)
	return response.StatusCode, answer, response.Header.Get("Content-Type"), err
}

// httpWith sends requests to an HTTP API of a workspace that has some flags.
func httpWith(t *testing.T, flags ...string) (ask func(method, path string, body object) (status int, answer []byte)) {
	t.Helper()
	workspace := t.TempDir()
	write(t, filepath.Join(workspace, "f"), "text\n")
	return startHTTP(t, append([]string{"--workspace", workspace}, flags...)...).ask(t)
}

// ask sends requests.
func (a httpAPI) ask(t *testing.T) func(method, path string, body object) (status int, answer []byte) {
	t.Helper()
	return func(method, path string, body object) (status int, answer []byte) {
		sent := io.Reader(http.NoBody)
		if body != nil {
			sent = bytes.NewReader(encode(t, body))
		}
		status, answer, _, err := a.send(t.Context(), method, path, sent, http.Header{"Content-Type": {"application/json"}})
		if err != nil {
			return 0, []byte(err.Error())
		}
		return status, answer
	}
}

// TestPolicy_EveryInterfaceJudgesAlike: by each interface each act is denied by a rule that is
// about it, and by no other. In Go that is each rule; where each is a process, each act and each
// rule are tried, not each pair. An interface or an act without a way to try it fails the test.
func TestPolicy_EveryInterfaceJudgesAlike(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	write(t, filepath.Join(folder, "own.yaml"), "name: own\ndescription: Does nothing.\nparameters: {type: object}\ncommand: [\"true\"]\n")
	tries := ways()
	for _, way := range judge.Interfaces() {
		if len(way.Classes) == 0 {
			continue
		}
		try := tries[way.Name]
		require.NotNil(t, try, way.Name)
		var all []deed
		for _, act := range way.Classes {
			for _, d := range deeds() {
				if d.act == act {
					all = append(all, d)
				}
			}
		}
		require.Len(t, all, len(way.Classes), way.Name)
		named := func(d deed) string { // as rules name it
			if way.Name == "Go Client.Call" && d.payload != nil {
				return map[judge.Class]string{judge.ClassRead: "files_read", judge.ClassWrite: "files_write", judge.ClassExecute: "command_run"}[d.act]
			}
			return d.tool
		}
		rules := map[string]struct {
			of      func(d deed) policy.Policy
			classes bool // own tools have none
		}{
			"nothing":     {of: func(deed) policy.Policy { return policy.Policy{} }},
			"tools.deny":  {of: func(d deed) policy.Policy { return policy.Policy{Tools: policy.Names{Deny: []string{named(d)}}} }},
			"tools.allow": {of: func(d deed) policy.Policy { return policy.Policy{Tools: policy.Names{Allow: others(all, d, named)}} }},
			"a class": {of: func(d deed) policy.Policy {
				return policy.Policy{Tools: policy.Names{Deny: []string{"@" + string(d.act)}}}
			}, classes: true},
			"approval": {of: func(d deed) policy.Policy { return policy.Policy{Approval: policy.Approval{Tools: []string{named(d)}}} }},
			"a bound":  {of: func(d deed) policy.Policy { return policy.Policy{MaxCallsOf: map[string]int{named(d): 0}} }},
		}
		t.Run(way.Name, func(t *testing.T) {
			t.Parallel()
			for j, name := range slices.Sorted(maps.Keys(rules)) {
				rule := rules[name]
				for i, about := range all {
					paired := j%len(all) == i || i%len(rules) == j
					if rule.classes && about.act == judge.ClassUse || way.Name != "Go Client.Call" && !paired {
						continue
					}
					tried, want := all, map[judge.Class]bool{}
					if way.Name == "call" && name != "nothing" { // each is a process of its own
						tried = []deed{about}
					}
					for _, d := range tried {
						want[d.act] = name != "nothing" && d.act == about.act
					}
					require.Equal(t, want, try(t, rule.of(about), folder, tried), "%s: %s", name, about.act)
					if name == "nothing" {
						break
					}
				}
			}
		})
	}
}

// others are the names of all deeds but one; one that there is not, if that leaves none.
func others(all []deed, but deed, named func(deed) string) []string {
	names := []string{"none"}
	for _, d := range all {
		if d.act != but.act {
			names = append(names, named(d))
		}
	}
	return names
}
