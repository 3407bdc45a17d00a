package worker_test

import (
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/toolset"
)

// executor has a fleet run one call to its end. It may run side by side with itself.
type executor func(t *testing.T, call protocol.Call) *protocol.Result

// runToolsets makes tool calls as a model does, and holds what a model would read to what the tools
// promise. Everything is done by tool calls: it sees no directory of the host.
func runToolsets(t *testing.T, execute executor) {
	t.Helper()
	runAll(t, execute, map[string]func(*testing.T, executor){
		"core/files":         coreFiles,
		"core/edits":         coreEdits,
		"core/patches":       corePatches,
		"core/finding":       coreFinding,
		"core/json":          coreJSON,
		"core/around":        foundAround,
		"core/notebooks":     notebooks,
		"core/generated":     generatedDirectories,
		"core/commands":      coreCommands,
		"core/paths":         corePaths,
		"core/long texts":    coreLong,
		"core/one step":      coreStep,
		"cut/lists":          cutLists,
		"core/guards":        coreGuards,
		"core/kinds":         hostileKinds,
		"core/names":         hostileNames,
		"core/bytes":         hostileBytes,
		"core/changing":      hostileTimes,
		"core/permissions":   hostilePermissions,
		"openrath":           openRath,
		"openrath/answers":   openRathAnswers,
		"smithers":           smithers,
		"files":              fileTools,
		"the same workspace": sharedWorkspace,
	})
}

// runLargeToolsets tests the toolsets with files, values and directories that are as large as
// anything can be. It takes most of a minute of a processor.
func runLargeToolsets(t *testing.T, execute executor) {
	t.Helper()
	runAll(t, execute, map[string]func(*testing.T, executor){
		"cut/lines":   cutLines,
		"cut/files":   cutFiles,
		"cut/values":  cutValues,
		"core/sizes":  hostileSizes,
		"core/counts": hostileCounts,
	})
}

func runAll(t *testing.T, execute executor, tests map[string]func(*testing.T, executor)) {
	t.Helper()
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, execute)
		})
	}
}

// session is a session whose tools are those of one toolset.
type session struct {
	t       *testing.T
	execute executor
	table   *tools.Table
	scope   tools.Scope
}

func newSession(t *testing.T, execute executor, set string) *session {
	t.Helper()
	id := protocol.NewSessionID()
	s := &session{t: t, execute: execute, scope: tools.Scope{Session: id, Sandbox: string(id)}}
	return s.with(set)
}

// with is the same session with the tools of another toolset.
func (s *session) with(name string) *session {
	s.t.Helper()
	set, err := toolset.Named(name)
	require.NoError(s.t, err)
	other := *s
	other.table, err = tools.NewTable(set...)
	require.NoError(s.t, err)
	return &other
}

// args are the arguments of a tool call.
type args map[string]any

// answer is what a model gets of a tool call.
type answer struct {
	status protocol.Status
	code   protocol.Code
	text   string
	result *protocol.Result // nil when nothing was sent
}

// call makes one tool call.
func (s *session) call(tool string, a args) answer {
	s.t.Helper()
	raw, err := json.Marshal(a)
	require.NoError(s.t, err)
	return s.callRaw(tool, string(raw))
}

// callRaw makes one tool call with arguments as a model wrote them.
func (s *session) callRaw(tool, raw string) answer {
	s.t.Helper()
	found, plan, refusal := s.table.Plan(s.scope, tool, raw)
	if refusal == nil && plan.Inline != nil {
		text, failure := plan.RunInline(s.t.Context())
		require.Nil(s.t, failure)
		return answer{status: protocol.StatusOK, text: found.Returned(text, "", nil)}
	}
	if refusal == nil {
		call, fault := plan.Call(s.scope, tools.Place{}, "c", tool, time.Now().UTC())
		if refusal = fault; fault == nil {
			result := s.execute(s.t, call)
			got := answer{status: result.Status, text: found.Text(result), result: result}
			if result.Error != nil {
				got.code = result.Error.Code
			}
			return got
		}
	}
	return answer{status: protocol.StatusRejected, code: refusal.Code, text: found.Failure(&protocol.Result{Status: protocol.StatusRejected, Error: refusal})}
}

// ok makes a tool call that must succeed, and returns its text.
func (s *session) ok(tool string, a args) string {
	s.t.Helper()
	got := s.call(tool, a)
	require.Equal(s.t, protocol.StatusOK, got.status, "%s %v: %s", tool, a, got.text)
	return got.text
}

// fails makes a tool call that must fail with a code, and returns its text.
func (s *session) fails(code protocol.Code, tool string, a args) string {
	s.t.Helper()
	got := s.call(tool, a)
	require.Equal(s.t, code, got.code, "%s %v: %s", tool, a, got.text)
	require.NotEqual(s.t, protocol.StatusOK, got.status)
	return got.text
}

// is makes a tool call that must succeed with exactly this text.
func (s *session) is(want, tool string, a args) {
	s.t.Helper()
	require.Equal(s.t, want, s.ok(tool, a), "%s %v", tool, a)
}

// has makes a tool call that must succeed with a text that has all of these in it.
func (s *session) has(tool string, a args, want ...string) {
	s.t.Helper()
	text := s.ok(tool, a)
	for _, part := range want {
		require.Contains(s.t, text, part, "%s %v", tool, a)
	}
}

// sh runs a command that prepares or checks something, and returns its output.
func (s *session) sh(command string) string {
	s.t.Helper()
	return s.with("core").ok("bash", args{"command": command})
}

// outOfTime runs a command that says something and does not end, with more and more time until it
// is out of that after it has.
func (s *session) outOfTime(command, said string) answer {
	s.t.Helper()
	const first, most = 0.5, 60 // seconds
	for timeout := first; ; timeout *= 2 {
		got := s.call("bash", args{"command": command, "timeout": timeout})
		require.Equal(s.t, protocol.StatusTimeout, got.status)
		if strings.Contains(got.text, said) {
			return got
		}
		require.Less(s.t, timeout, float64(most), got.text)
	}
}

// content is a file as a command sees it.
func (s *session) content(path string) string {
	s.t.Helper()
	return strings.TrimSuffix(s.sh("cat '"+path+"'; echo ."), ".\n")
}

// step makes several tool calls at once.
func (s *session) step(tool string, calls ...args) []answer {
	s.t.Helper()
	answers := make([]answer, len(calls))
	var wg sync.WaitGroup
	for i, a := range calls {
		wg.Go(func() { answers[i] = s.call(tool, a) })
	}
	wg.Wait()
	return answers
}
