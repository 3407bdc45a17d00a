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
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/stretchr/testify/require"

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
		if err := judgeScheduled([]policy.Policy{rules}, nil, slog.New(slog.DiscardHandler))(t.Context(), &judged); says != "" {
			require.ErrorContains(t, err, says)
			continue
		}
		require.NoError(t, err)
		if rules.MinLevel != "" {
			require.Equal(t, "full at_most_once", judged.MinLevel+" "+string(judged.Delivery))
		}
	}
	require.Nil(t, judgeScheduled(nil, nil, nil))

	// The calls of a schedule count, each once.
	judge := judgeScheduled([]policy.Policy{{MaxCallsOf: map[string]int{"bash": 2}}}, loop.NewLedger(nil), slog.New(slog.DiscardHandler))
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
