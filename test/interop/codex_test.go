package interop

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/test/npmtest"
	"github.com/toolfleet/toolfleet/test/processtest"
)

// responses is a server of models that has its model run a command by a tool of an MCP server, and
// say its output then. Codex offers such tools in a name space, mcp__SERVER.
func responses(t *testing.T, command string) (url string) {
	t.Helper()
	arguments, err := json.Marshal(map[string]string{"command": command})
	require.NoError(t, err)
	return listen(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var asked struct {
			Input []struct {
				Type   string
				Output json.RawMessage
			}
		}
		if json.NewDecoder(r.Body).Decode(&asked) != nil {
			w.WriteHeader(http.StatusNotFound) // it was asked for something else than an answer
			return
		}
		item := map[string]any{
			"type": "function_call", "id": "f1", "call_id": "c1", "namespace": "mcp__toolfleet", "name": "bash", "arguments": string(arguments),
		}
		for _, input := range asked.Input {
			if input.Type == "function_call_output" {
				item = map[string]any{"type": "message", "id": "m1", "role": "assistant", "content": []any{
					map[string]any{"type": "output_text", "text": "The tool said: " + string(input.Output)},
				}}
			}
		}
		w.Header().Set("Content-Type", "text/event-stream")
		for _, event := range []map[string]any{
			{"type": "response.created", "response": map[string]any{"id": "r1"}},
			{"type": "response.output_item.done", "output_index": 0, "item": item},
			{"type": "response.completed", "response": map[string]any{
				"id": "r1", "usage": map[string]any{"input_tokens": 1, "output_tokens": 1, "total_tokens": 2},
			}},
		} {
			data, _ := json.Marshal(event) // it has nothing that JSON has not
			_, _ = fmt.Fprintf(w, "event: %s\ndata: %s\n\n", event["type"], data)
		}
	}))
}

// TestCodex has the agent Codex do its model's work in the shell by the fleet.
func TestCodex(t *testing.T) {
	t.Parallel()
	if !*tables {
		t.Skip("the agent is 400 MB: make interop runs it")
	}
	dir := npmtest.Install(t, "test/interop/codex", "NO TEST AGAINST CODEX")
	found, err := filepath.Glob(filepath.Join(dir, "node_modules/@openai/codex-*/vendor/*/bin/codex"))
	require.NoError(t, err)
	require.Len(t, found, 1, "of this system")
	for name, at := range map[string]func(t *testing.T, workspace string) string{
		"stdio": func(t *testing.T, workspace string) string {
			t.Helper()
			return fmt.Sprintf("command = %q\nargs = [\"mcp\", \"--workspace\", %q, \"--sandbox\", \"process\"]\nenv = {TOOLFLEET_MIN_LEVEL = \"none\", HOME = %q}\n",
				coordinator, workspace, t.TempDir())
		},
		"http": func(t *testing.T, workspace string) string {
			t.Helper()
			return "url = " + strconv.Quote(serve(t, "--workspace", workspace)) + "\n"
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			home, workspace := t.TempDir(), t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(workspace, "a.txt"), []byte("alpha\n"), 0o600))
			base := strings.TrimSuffix(responses(t, "cat a.txt; echo beta >b.txt"), "/mcp")
			require.NoError(t, os.WriteFile(filepath.Join(home, "config.toml"), []byte(
				"model = \"m\"\nmodel_provider = \"p\"\napproval_policy = \"never\"\n"+
					"[model_providers.p]\nname = \"p\"\nwire_api = \"responses\"\nbase_url = "+strconv.Quote(base+"/v1")+"\n"+
					"[mcp_servers.toolfleet]\ndefault_tools_approval_mode = \"approve\"\nstartup_timeout_sec = 120\nrequired = true\n"+at(t, workspace)), 0o600))
			cmd := exec.CommandContext(t.Context(), found[0], "exec", "--skip-git-repo-check", "--json", "--cd", workspace, "What is in a.txt?")
			cmd.Env = append(environment(home), "CODEX_HOME="+home)
			output, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", output)
			require.Regexp(t, `agent_message.*The tool said.*alpha`, string(output))
			require.FileExists(t, filepath.Join(workspace, "b.txt"))
			fmt.Printf("\n@openai/codex over %s: a command ran by tool bash of toolfleet\n", name)
		})
	}
}

const inspector = "@modelcontextprotocol/inspector/clients/launcher/build/index.js"

// serve starts a coordinator that serves the protocol over HTTP until the test ends, with a fleet
// of its own.
func serve(t *testing.T, args ...string) (url string) {
	t.Helper()
	url, _ = start(t, append([]string{"--sandbox", "process"}, args...)...)
	return url
}

// start starts a coordinator that serves the protocol over HTTP until the test ends, or kill ends
// it at once.
func start(t *testing.T, args ...string) (url string, kill func()) {
	t.Helper()
	at := slices.Index(args, "--data")
	if at < 0 {
		args, at = append(args, "--data", filepath.Join(t.TempDir(), "data")), len(args)
	}
	data := args[at+1]
	url, kill = startCommand(t, "MCP", append([]string{"mcp", "--listen", "127.0.0.1:0"}, args...)...)
	return processtest.Authorized(t, url, filepath.Join(data, "mcp.token")), kill
}

// startCommand starts a coordinator that says where something is.
func startCommand(t *testing.T, what string, args ...string) (url string, kill func()) {
	t.Helper()
	home := t.TempDir()
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	cmd := exec.CommandContext(ctx, coordinator, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = time.Minute
	cmd.Env = environment(home)
	said, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	ready, ended := make(chan string, 1), make(chan struct{})
	go func() {
		defer close(ended)
		for lines := bufio.NewScanner(said); lines.Scan(); {
			if at := address.FindStringSubmatch(lines.Text()); at != nil && at[1] == what {
				ready <- at[2] // it is said once
			}
		}
		_ = cmd.Wait() // it was asked to end
	}()
	t.Cleanup(func() { stop(); <-ended })
	select {
	case url = <-ready:
	case <-ended:
		t.Fatal("the coordinator ended")
	case <-time.After(patience):
		t.Fatal("the coordinator does not say where its " + what + " is")
	}
	return url, func() { _ = cmd.Process.Kill(); <-ended }
}

var address = regexp.MustCompile(`(MCP|NATS) is at ([^\s;]+)`)

func environment(home string) []string {
	return []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "TMPDIR=" + home, "TOOLFLEET_MIN_LEVEL=none"}
}

// TestInspector has the command line of the official inspector list tools, call one and read a
// file.
func TestInspector(t *testing.T) {
	t.Parallel()
	for name, target := range map[string]func(t *testing.T, workspace string) []string{
		"stdio": func(t *testing.T, workspace string) []string {
			t.Helper()
			home := t.TempDir()
			return []string{
				"-e", "HOME=" + home, "-e", "TMPDIR=" + home, "-e", "TOOLFLEET_MIN_LEVEL=none",
				coordinator, "mcp", "--workspace", workspace, "--sandbox", "process",
			}
		},
		"http": func(t *testing.T, workspace string) []string {
			t.Helper()
			return []string{serve(t, "--workspace", workspace)}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			workspace := t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(workspace, "a.txt"), []byte("alpha\n"), 0o600))
			at := target(t, workspace)
			asks := func(answer any, args ...string) {
				t.Helper()
				output, err := node(t, inspector, append(append([]string{"--cli"}, at...), args...)...)
				require.NoError(t, err, output)
				require.NoError(t, json.Unmarshal([]byte(output), answer), output)
			}
			var listed struct{ Tools []struct{ Name string } }
			asks(&listed, "--method", "tools/list")
			require.Contains(t, listed.Tools, struct{ Name string }{"bash"})
			var called struct {
				Content           []struct{ Text string }
				StructuredContent struct{ Status string }
			}
			asks(&called, "--method", "tools/call", "--tool-name", "bash", "--tool-arg", "command=cat a.txt; echo beta >b.txt")
			require.Equal(t, "ok", called.StructuredContent.Status)
			require.Equal(t, "alpha\n", called.Content[0].Text)
			require.FileExists(t, filepath.Join(workspace, "b.txt"))
			var read struct{ Contents []struct{ Text string } }
			asks(&read, "--method", "resources/read", "--uri", "toolfleet://workspace/b.txt")
			require.Equal(t, "beta\n", read.Contents[0].Text)
		})
	}
}

// tables has tests print what the programs of others found.
var tables = flag.Bool("tables", false, "print the tables of the conformance suites")

// patience bounds a run of a program of others.
const patience = 5 * time.Minute

// install returns the Node that programs of others need, and where their packages are.
func install(t *testing.T) (node, dir string) {
	t.Helper()
	dir = npmtest.Install(t, "test/interop", "NO TEST AGAINST PROGRAMS OF OTHERS")
	node = filepath.Join(dir, "node_modules", "node-linux-"+map[string]string{"amd64": "x64", "arm64": "arm64"}[runtime.GOARCH], "bin", "node")
	if _, err := os.Stat(node); err != nil {
		t.Skipf("no test against programs of others: no Node 22 for this system: %v", err)
	}
	return node, dir
}

// node runs a program of an npm package, and returns what it wrote to standard output.
func node(t *testing.T, script string, args ...string) (string, error) {
	t.Helper()
	binary, dir := install(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, append([]string{filepath.Join(dir, "node_modules", script)}, args...)...)
	cmd.Dir = t.TempDir() // where the suites leave what they found
	cmd.WaitDelay = time.Minute
	output, err := cmd.Output()
	if failed, ok := errors.AsType[*exec.ExitError](err); ok {
		err = fmt.Errorf("%w\n%s", err, failed.Stderr)
	}
	return string(output), err
}

// suite and nextSuite are the official ones, for protocol versions with sessions and for the one
// without.
const (
	suite     = "@modelcontextprotocol/conformance/dist/index.js"
	nextSuite = "@modelcontextprotocol/conformance-next/dist/index.js"
)

// scenario is the line of a suite about one.
var scenario = regexp.MustCompile(`(?m)^([✓✗]) ([A-Za-z0-9_/-]+): \d+ passed`)

// scenarios are what a suite says that it ran, by whether they passed.
func scenarios(t *testing.T, title, output string) (passed, failed []string) {
	t.Helper()
	begin, end := strings.Index(output, "SUMMARY ==="), strings.LastIndex(output, "Total: ")
	require.Less(t, max(begin, 0), end, output)
	for _, found := range scenario.FindAllStringSubmatch(output[begin:end], -1) {
		if found[1] == "✓" {
			passed = append(passed, found[2])
		} else {
			failed = append(failed, found[2])
		}
	}
	if *tables {
		fmt.Printf("\n%s: %d of %d scenarios\n%s\n", title, len(passed), len(passed)+len(failed), output[begin:])
	}
	return passed, failed
}

// TestConformance_2025_11_25 runs every scenario of the official suite for protocol versions with
// sessions.
func TestConformance_2025_11_25(t *testing.T) {
	t.Parallel()
	output, err := node(t, suite, "server", "--url", startFixture(t), "--suite", "all")
	require.NoError(t, err, output)
	passed, failed := scenarios(t, "conformance 0.1.16, server", output)
	require.Empty(t, failed, output)
	require.Len(t, passed, 32, output)
}

// TestConformance_Client has workers be the client of every client scenario of the official suite,
// by calls of a coordinator with its server among --mcp-config.
func TestConformance_Client(t *testing.T) {
	t.Parallel()
	if !*tables {
		t.Skip("it takes half a minute: make interop runs it")
	}
	script, err := filepath.Abs("testdata/client.sh")
	require.NoError(t, err)
	self, err := os.Executable()
	require.NoError(t, err)
	// It runs all at once, and its exit code is about scenarios that are not passed here, too.
	output, _ := node(t, suite, "client", "--suite", "all", "--timeout", "120000", "--command", fmt.Sprintf("COORDINATOR=%s PERSON=%s sh %s", coordinator, self, script))
	passed, failed := scenarios(t, "conformance 0.1.16, client", output)
	require.Len(t, slices.Concat(passed, failed), 26, output)
	require.ElementsMatch(t, []string{
		"auth/client-credentials-jwt", "auth/cross-app-access-complete-flow", // there are no such logins
		"auth/2025-03-26-oauth-metadata-backcompat", // whose issuer is not where its metadata are
	}, failed, output)
}
