package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/rogpeppe/go-internal/testscript"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/cli/workercmd"
	"github.com/toolfleet/toolfleet/internal/mcp/login/logintest"
	"github.com/toolfleet/toolfleet/internal/mcp/toolserver/toolservertest"
	"github.com/toolfleet/toolfleet/internal/natsio/shared"
	"github.com/toolfleet/toolfleet/internal/worker/kinds"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools/policy"
	"github.com/toolfleet/toolfleet/test/processtest"
)

func TestMain(m *testing.M) {
	testscript.Main(leftBehind{m}, map[string]func(){"coordinator": main, "worker": func() {
		os.Exit(workercmd.Run(workercmd.FromProcess(version), kinds.Handlers{}))
	}, "mcptest": toolservertest.Serve, "browser": func() {
		if err := logintest.Browse(context.Background(), os.Stdin); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}})
}

// leftBehind runs tests, and fails if they leave a server in the background.
type leftBehind struct{ *testing.M }

// Run implements [testscript.TestingM].
func (m leftBehind) Run() int {
	code := m.M.Run()
	self, err := os.Executable()
	if err == nil {
		self, err = filepath.EvalSymlinks(self)
	}
	if left := processtest.Left(self); code == 0 && (err != nil || len(left) > 0) {
		fmt.Fprintf(os.Stderr, "the tests have left processes (%v):\n%s\n", err, strings.Join(left, "\n"))
		return 1
	}
	return code
}

// TestScripts runs the real command line, without any server; what needs processes that
// live together is tested in test/integration.
func TestScripts(t *testing.T) {
	t.Parallel()
	web := logintest.Start(t, toolservertest.New)
	testscript.Run(t, testscript.Params{Dir: "testdata/script", RequireExplicitExec: true, RequireUniqueNames: true, Setup: func(env *testscript.Env) error {
		env.Setenv("MCP_URL", web.URL)
		env.Setenv("MODELS_URL", serveModels(t))
		state := filepath.Join(env.WorkDir, "state")
		env.Setenv("XDG_STATE_HOME", state)
		env.Setenv(shared.IdleVariable, processtest.Idle)
		env.Defer(func() { processtest.EndServer(state) })
		if err := os.WriteFile(filepath.Join(env.WorkDir, "a.gif"), pixel, 0o600); err != nil {
			return err
		}
		return likeTheTests(env)
	}})
}

// pixel is a GIF image of one pixel.
var pixel = []byte("GIF89a\x01\x00\x01\x00\x80\x00\x00\x00\x00\x00\xff\xff\xff,\x00\x00\x00\x00\x01\x00\x01\x00\x00\x02\x02D\x01\x00;")

// serveModels serves models whose names are the finish_reasons of their replies, one after the
// other, as in "error,stop". It returns the server's base URL.
func serveModels(t *testing.T) string {
	t.Helper()
	var asked sync.Map
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var request struct{ Model string }
		if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		reasons := strings.Split(request.Model, ",")
		count, _ := asked.LoadOrStore(request.Model, new(atomic.Int64))
		n := int(count.(*atomic.Int64).Add(1)) //nolint:errcheck // it panics
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = fmt.Fprintf(w, "data: {\"choices\":[{\"delta\":{\"content\":\"Half a sen\"},\"finish_reason\":%q}]}\n\ndata: [DONE]\n\n",
			reasons[min(n, len(reasons))-1])
	}))
	t.Cleanup(server.Close)
	return server.URL + "/v1"
}

// likeTheTests gives commands that were built with the race detector the options that the tests
// have.
func likeTheTests(env *testscript.Env) error {
	env.Setenv("GORACE", os.Getenv("GORACE"))
	return nil
}

// The steps of a budget replace the default bound of a turn, and no bound that was given.
func TestTurnFlags_StepsOfABudget(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		steps  int
		budget string
		want   int
	}{{64, "steps=200", 200}, {64, "usd=5", 64}, {64, "", 64}, {5, "steps=200", 5}, {64, "steps=10", 64}} {
		f := turnFlags{Prompt: "go", boundFlags: boundFlags{MaxSteps: test.steps, Budget: test.budget}, workspaceFlags: workspaceFlags{WholeHome: true}}
		_, err := f.check("s", nil)
		require.NoError(t, err)
		require.Equal(t, test.want, f.MaxSteps, test)
	}
}

// Each session is listed once, right below its parent if that is listed.
func TestEachBelow_KeepsEachSession(t *testing.T) {
	t.Parallel()
	list := []report.Session{
		{SessionID: "child", Parent: "a"},
		{SessionID: "b"},
		{SessionID: "a"},
		{SessionID: "grandchild", Parent: "child"},
		{SessionID: "stray", Parent: "removed"},
		{SessionID: "other", Parent: "a"},
	}
	var got []string
	eachBelow(list, func(s *report.Session, depth int) { got = append(got, fmt.Sprint(depth, " ", s.SessionID)) })
	require.Equal(t, []string{"0 b", "0 a", "1 child", "2 grandchild", "1 other", "0 stray"}, got)
}

// The policies of serve bind scheduled calls, and what needs a person does not start.
func TestJudgeScheduled(t *testing.T) {
	t.Parallel()
	call := protocol.Call{
		ID: "c", SessionID: protocol.NewSessionID(), Tool: "bash", Payload: protocol.CommandRun{Command: "rm x"}, Delivery: protocol.Rollback,
		Resources: []protocol.Use{{Key: protocol.SandboxKey("s"), Access: protocol.Exclusive}},
	}
	for text, says := range map[string]string{
		"tools: {deny: [bash]}":                            "The tool bash is not allowed",
		"commands: {deny: [rm]}":                           `The command "rm x" is not allowed`,
		"paths: {write: [src]}":                            "bash may change everything",
		"approval: {tools: [bash]}":                        "nobody could be asked (no person can approve a scheduled call)",
		"approval: {commands: [rm]}":                       "no person can approve",
		"commands: {allow: [rm]}":                          "",
		"{min_level: full, at_most_once: {tools: [bash]}}": "",
	} {
		rules, err := policy.Parse("rules", []byte(text))
		require.NoError(t, err)
		judged := call
		if err := judgeScheduled([]policy.Policy{rules}, nil, nil, slog.New(slog.DiscardHandler))(t.Context(), &judged); says != "" {
			require.ErrorContains(t, err, says)
			continue
		}
		require.NoError(t, err)
		if rules.MinLevel != "" {
			require.Equal(t, "full at_most_once", judged.MinLevel+" "+string(judged.Delivery))
		}
	}
	judged := call
	require.NoError(t, judgeScheduled(nil, nil, loop.NewLedger(nil), slog.New(slog.DiscardHandler))(t.Context(), &judged))
	require.Equal(t, call, judged, "without a policy")

	// Hooks see the call as it is sent, and refuse it.
	var seen loop.HookRequest
	refuses := loop.Hook{Event: loop.HookBefore, Run: func(_ context.Context, r loop.HookRequest) (loop.HookAnswer, error) {
		seen = r
		return loop.HookAnswer{Decision: policy.Denied, Reason: "not at night"}, nil
	}}
	err := judgeScheduled(nil, []loop.Hook{refuses}, loop.NewLedger(nil), slog.New(slog.DiscardHandler))(t.Context(), &judged)
	require.ErrorContains(t, err, "A hook refused the call: not at night")
	require.Equal(t, "schedule bash c", seen.Interface+" "+seen.Tool+" "+string(seen.CallID))
	require.Contains(t, string(seen.Input), `"command":"rm x"`)

	// The calls of a schedule count, each once.
	judge := judgeScheduled([]policy.Policy{{MaxCallsOf: map[string]int{"bash": 2}}}, nil, loop.NewLedger(nil), slog.New(slog.DiscardHandler))
	for _, id := range []protocol.CallID{"1", "2", "2", "3", "1"} {
		judged := call
		judged.ID = id
		if err := judge(t.Context(), &judged); id == "3" {
			require.ErrorContains(t, err, "used up its 2 calls of bash")
		} else {
			require.NoError(t, err, id)
		}
	}
}

// commandLine is the grammar with all commands and flags.
func commandLine(t *testing.T) *kong.Node {
	t.Helper()
	parser, err := kong.New(&grammar{}, kong.Name("coordinator"), kong.Vars{"version": ""})
	require.NoError(t, err)
	return parser.Model.Node
}

// TestDocs_EveryCommandHasARow of the table of commands, and those below session, lane and template
// are named on the page.
func TestDocs_EveryCommandHasARow(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/cli.md")
	require.NoError(t, err)
	_, after, _ := strings.Cut(string(page), "\n## Commands\n")
	table, _, _ := strings.Cut(after, "\n## ")
	for _, command := range commandLine(t).Leaves(true) {
		words := strings.Fields(command.FullPath())[1:]
		require.Regexp(t, "(?m)^\\| .*`(coordinator )?"+words[0]+"[ `].* \\|", table, "the table of commands lacks %s", command.FullPath())
		if len(words) > 1 {
			require.Regexp(t, "`(coordinator )?("+words[0]+" )?"+words[1]+"[ `]", string(page), "docs/cli.md lacks %s", command.FullPath())
		}
	}
}

// inDocuments is a command line in a document, with its flags.
var inDocuments = regexp.MustCompile("(?m)(?:^|[ `/(])coordinator ([a-z][^`\n#]*)")

// TestDocs_FlagsAreThere: what a document shows of a command is what the command takes.
func TestDocs_FlagsAreThere(t *testing.T) {
	t.Parallel()
	all := map[string]map[string]bool{}
	for _, command := range commandLine(t).Leaves(true) {
		flags := map[string]bool{}
		for _, group := range command.AllFlags(true) {
			for _, flag := range group {
				flags[flag.Name] = true
			}
		}
		all[strings.TrimPrefix(command.FullPath(), "coordinator ")] = flags
	}
	var pages []string
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md", "deploy/*/*.md", "examples/*.md", "examples/*/*.md"} {
		found, err := filepath.Glob("../../" + pattern)
		require.NoError(t, err)
		pages = append(pages, found...)
	}
	checked := 0
	for _, path := range pages {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		for _, match := range inDocuments.FindAllStringSubmatch(strings.ReplaceAll(string(text), "\\\n", " "), -1) {
			words := strings.Fields(match[1])
			flags := all[words[0]]
			if flags == nil && len(words) > 1 {
				flags = all[words[0]+" "+words[1]]
			}
			for _, flag := range regexp.MustCompile(` --([a-z][a-z-]*)`).FindAllStringSubmatch(match[1], -1) {
				if flags == nil {
					continue // of several commands at once
				}
				require.True(t, flags[flag[1]], "%s: coordinator %s: there is no --%s", path, match[1], flag[1])
				checked++
			}
		}
	}
	require.Greater(t, checked, 50)
}

// TestHelp_FitsOnAScreen.
func TestHelp_FitsOnAScreen(t *testing.T) {
	t.Parallel()
	const screen = 60
	node := commandLine(t)
	for _, command := range append(node.Leaves(true), node.Children...) {
		words := strings.Fields(command.FullPath())[1:]
		stdout, err := os.Create(filepath.Join(t.TempDir(), "stdout"))
		require.NoError(t, err)
		code := run(cli.Program{Name: "coordinator", Args: append(words, "--help"), Stdout: stdout, Stderr: stdout, Examples: examples(), Getenv: os.Getenv})
		require.NoError(t, stdout.Close())
		require.Zero(t, code)
		text, err := os.ReadFile(stdout.Name())
		require.NoError(t, err)
		require.LessOrEqual(t, strings.Count(string(text), "\n"), screen, "%s", text)
		require.Contains(t, string(text), command.FullPath()+" --help-all\n")
	}
	for name := range examples() {
		require.NotNil(t, commandNamed(node, strings.Fields(name)), "examples of %q, which is no command", name)
	}
}

// commandNamed finds a command; nil for none.
func commandNamed(node *kong.Node, words []string) *kong.Node {
	for _, word := range words {
		i := slices.IndexFunc(node.Children, func(child *kong.Node) bool { return child.Name == word })
		if i < 0 {
			return nil
		}
		node = node.Children[i]
	}
	return node
}
