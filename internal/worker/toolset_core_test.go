//nolint:thelper // these are tests
package worker_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/modeltext/render"
	"github.com/toolfleet/toolfleet/internal/sandbox/drivers"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/toolset"
)

func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

func coreFiles(t *testing.T, execute executor) {
	s := newSession(t, execute, "core")
	s.is(fmt.Sprintf("Created a/b.txt (8 bytes, SHA-256 %s).", digest("one\ntwo\n")), "write", args{"path": "a/b.txt", "content": "one\ntwo\n"})
	s.is("     1\tone\n     2\ttwo\n[lines 1-2 of 2]", "read", args{"path": "a/b.txt"})
	s.is("     2\ttwo\n[lines 2-2 of 2]", "read", args{"path": "./a//b.txt", "offset": 2})
	s.is("     1\tone\n[lines 1-1 of 2; read on with offset=2]", "read", args{"path": "/workspace/a/b.txt", "limit": "1"})
	s.is("[there are no such lines: a/b.txt has 2 lines]", "read", args{"path": "a/b.txt", "offset": 3})
	s.is("b.txt (8 bytes)\n", "list", args{"path": "a"})
	s.is("yes: a/b.txt is a file of 8 bytes", "exists", args{"path": "a/b.txt"})
	s.is("yes: a is a directory", "exists", args{"path": "a"})
	s.is("no: there is nothing at b", "exists", args{"path": "b"})
	s.sh("chmod 750 a/b.txt")
	s.has("write", args{"path": "a/b.txt", "content": "x", "expect_sha256": digest("one\ntwo\n")}, "Replaced the content of a/b.txt (1 byte")
	require.Equal(t, "750\n", s.sh("stat -c %a a/b.txt 2>/dev/null || stat -f %Lp a/b.txt"), "the mode stays")
	text := s.fails(codes.FileChanged, "write", args{"path": "a/b.txt", "content": "y", "expect_sha256": digest("one\ntwo\n")})
	require.Contains(t, text, digest("x"))
	require.Equal(t, "x", s.content("a/b.txt"))
	s.has("write", args{"path": "empty", "content": ""}, "(0 bytes, ")
	s.is("[empty is empty]", "read", args{"path": "empty"})
	s.has("write", args{"path": "crlf", "content": "one\r\ntwo"}, "(8 bytes, ")
	require.Equal(t, "one\r\ntwo", s.content("crlf"), "line ends, and the missing last one, stay")
	s.sh(`printf 'a\0b' >binary; printf '\211PNG\r\n\032\n....' >logo.png; printf 'gr\374n\n' >latin1; mkfifo fifo`)
	s.has("read", args{"path": "binary"}, "binary file of 3 bytes")
	s.is("     1\tgrün\n[lines 1-1 of 1; encoding ISO-8859-1]", "read", args{"path": "latin1"})
	image := s.call("read", args{"path": "logo.png"})
	mediaType, data, ok := render.Image(image.result)
	require.True(t, ok, image.text)
	require.Equal(t, "image/png", mediaType)
	require.Len(t, data, 12)
	s.fails(protocol.CodeNotFound, "read", args{"path": "a/c.txt"})
	s.fails(codes.IsDirectory, "read", args{"path": "a"})
	s.fails(codes.NotRegular, "read", args{"path": "fifo"})
	s.fails(codes.NotDirectory, "list", args{"path": "empty"})
	s.fails(codes.NotDirectory, "write", args{"path": "empty/x", "content": ""})
}

func coreEdits(t *testing.T, execute executor) {
	s := newSession(t, execute, "core")
	s.ok("write", args{"path": "f", "content": "one\ntwo\ntwo\nthree\n"})
	s.has("edit", args{"path": "f", "old": "one", "new": "1"}, "Edited f: 1 replacement (16 bytes", "-one\n+1\n")
	text := s.fails(codes.EditNotUnique, "edit", args{"path": "f", "old": "two", "new": "2"})
	require.Contains(t, text, "occurs 2 times")
	require.Contains(t, text, "at lines 2, 3")
	s.has("edit", args{"path": "f", "old": "two", "new": "2", "replace_all": true}, "2 replacements")
	text = s.fails(codes.EditNotFound, "edit", args{"path": "f", "old": "thrée", "new": "3"})
	require.Contains(t, text, "line 4:\nthree")
	s.fails(protocol.CodeNotFound, "edit", args{"path": "none", "old": "a", "new": "b"})
	s.fails(protocol.CodeInvalidArguments, "edit", args{"path": "f", "old": "a"})
	require.Equal(t, "1\n2\n2\nthree\n", s.content("f"))

	s.has("multi_edit", args{"path": "f", "edits": []args{{"old": "1", "new": "I"}, {"old": "I\n2", "new": "I\nII"}}}, "2 replacements")
	text = s.fails(codes.EditNotFound, "multi_edit", args{"path": "f", "edits": []args{{"old": "I\nII", "new": "x"}, {"old": "no", "new": "y"}}})
	require.Contains(t, text, "edit 2 of 2")
	require.Equal(t, "I\nII\n2\nthree\n", s.content("f"))
	s.has("multi_edit", args{"path": "f", "best_effort": true, "edits": []args{{"old": "no", "new": "y"}, {"old": "three", "new": "III"}}},
		"1 of 2 edits were made", "not made: edit 1 of 2", "+III")
	require.Equal(t, "I\nII\n2\nIII\n", s.content("f"))
}

func corePatches(t *testing.T, execute executor) {
	s := newSession(t, execute, "core")
	s.ok("write", args{"path": "f", "content": "1\n2\n3\n4\n5\n6"})
	s.has("edit", args{"path": "f", "patch": "--- a/f\n+++ b/f\n@@ -1,3 +1,3 @@\n 1\n-2\n+two\n 3\n@@ -50,2 +50,2 @@\n 5\n-6\n+six\n"},
		"2 replacements", "hunk 2 was applied at line 6, 45 lines further up", "+six")
	require.Equal(t, "1\ntwo\n3\n4\n5\nsix", s.content("f"))
	text := s.fails(codes.EditNotFound, "edit", args{"path": "f", "patch": "@@ -3,2 +3,2 @@\n 3\n-four\n+4\n"})
	require.Contains(t, text, `the patch has "four"`)
	s.fails(codes.InvalidPatch, "edit", args{"path": "f", "patch": "replace two by 2"})
	s.fails(codes.InvalidPatch, "edit", args{"path": "f", "patch": " "})
	require.Equal(t, "1\ntwo\n3\n4\n5\nsix", s.content("f"))
}

func coreFinding(t *testing.T, execute executor) {
	s := newSession(t, execute, "core")
	s.sh(`mkdir -p src/sub node_modules/m .git && printf 'func A() {}\nfunc B() {}\n' >src/a.go && printf 'func C() {}\n' >src/sub/b.go &&
		printf 'func D() {}\n' >node_modules/m/i.js && printf 'func E() {}\n' >.git/x && printf 'node_modules/\n*.log\n' >.gitignore &&
		printf 'func\0' >bin && echo 'func F' >x.log && ln -s src/a.go link`)
	s.is("src/a.go\nsrc/sub/b.go\n[2 files; 2 left out by .gitignore]", "glob", args{"pattern": "**/*.go"})
	s.has("glob", args{"pattern": "**/*.go", "limit": 1}, "src/a.go\n[1 of 2 files; 2 left out by .gitignore; the others: read on with path=\"result:")
	s.is("x.log\n[1 file]", "glob", args{"pattern": "*.log", "gitignore": false})
	s.has("glob", args{"pattern": "*.py"}, "no files match")
	s.fails(codes.InvalidPattern, "glob", args{"pattern": "a["})
	s.fails(codes.PathEscape, "glob", args{"pattern": "../*"})
	s.is("src/a.go:1:func A() {}\nsrc/a.go:2:func B() {}\nsrc/sub/b.go:1:func C() {}\n[3 matches; 3 files searched, 1 not searched: binary (bin); 2 left out by .gitignore]",
		"grep", args{"pattern": "^func"})
	s.is("src/sub/b.go:1:func C() {}\n[1 match; 1 file searched]", "grep", args{"pattern": "FUNC", "ignore_case": true, "path": "src/sub"})
	s.has("grep", args{"pattern": "func", "glob": "*.go", "limit": 1},
		"src/a.go:1:func A() {}\n[1 of 3 matches; 2 files searched; 2 left out by .gitignore; the others: read on with path=\"result:")
	s.has("grep", args{"pattern": "func", "gitignore": false}, "node_modules/m/i.js:1:func D() {}", "x.log:1:func F")
	text := s.fails(codes.InvalidPattern, "grep", args{"pattern": "x(y"})
	require.Contains(t, text, "missing closing )")
	s.is("./\n.gitignore (20 bytes)\nbin (5 bytes)\nlink (symlink)\nsrc/\n  a.go (24 bytes)\n  sub/ (1 inside)\n[6 entries; 2 left out by .gitignore]",
		"tree", args{"depth": 2})
	s.is("src/sub/\nb.go (12 bytes)\n[1 entry]", "tree", args{"path": "src/sub"})
}

// foundAround: lines around a match are those of grep, in the words of each toolset.
func foundAround(t *testing.T, execute executor) {
	s := newSession(t, execute, "core")
	s.sh(`printf '1\n2 x\n3\n4 x\n5\n6\n7\n8 x' >f; printf 'x\n' >g`)
	s.is("f-1-1\nf:2:2 x\nf-3-3\nf:4:4 x\nf-5-5\n--\nf-7-7\nf:8:8 x\n--\ng:1:x\n[4 matches; 2 files searched]", "grep", args{"pattern": "x", "context": 1})
	s.is("f-2-2 x\nf-3-3\nf:4:4 x\nf-5-5\nf-6-6\n[1 match; 1 file searched]", "grep", args{"pattern": "4 x", "path": "f", "context": 2})
	s.has("grep", args{"pattern": "x", "context": 2, "limit": 1}, "f-1-1\nf:2:2 x\nf-3-3\n[1 of 4 matches;", ":4\"]")
	s.with("smithers").is("7-7\n8:8 x\n", "grep", args{"pattern": "8", "path": "f", "context": 1})
	s.with("files").is("f-7- 7\nf:8: 8 x", "search_files", args{"pattern": "8", "context": 1})
	s.fails(protocol.CodeInvalidArguments, "grep", args{"pattern": "x", "context": 21})
}

// generatedDirectories: packages and caches are left out without a .gitignore, and that is said.
func generatedDirectories(t *testing.T, execute executor) {
	s := newSession(t, execute, "core")
	s.sh(`mkdir -p web/node_modules/m/node_modules/n .venv/lib __pycache__ venv target env && echo hit >a.js && echo hit >web/node_modules/m/i.js &&
		echo hit >web/node_modules/m/node_modules/n/i.js && echo hit >.venv/lib/x && echo hit >__pycache__/y && touch venv/pyvenv.cfg target/CACHEDIR.TAG && echo hit >env/z && echo hit >target/o`)
	const left = "5 directories of packages or caches left out (.venv, __pycache__, target, ...): name one to look into it"
	s.is("a.js:1:hit\nenv/z:1:hit\n[2 matches; 2 files searched; "+left+"]", "grep", args{"pattern": "hit"})
	s.is("a.js\nenv/z\n[2 files; "+left+"]", "glob", args{"pattern": "**"})
	s.is("./\na.js (4 bytes)\nenv/\n  z (4 bytes)\nweb/\n[4 entries; "+left+"]", "tree", args{})
	s.has("grep", args{"pattern": "hit", "gitignore": false}, "[7 matches; ")
	s.has("grep", args{"pattern": "hit", "path": "web/node_modules"}, "web/node_modules/m/i.js:1:hit", "[1 match; ",
		"1 directory of packages or caches left out (web/node_modules/m/node_modules)")
	s.is("web/node_modules/m/i.js\n[1 file; 1 directory of packages or caches left out (web/node_modules/m/node_modules): name one to look into it]",
		"glob", args{"pattern": "web/node_modules/*/*.js"})
	s.with("smithers").is("a.js:1:hit\nenv/z:1:hit\n["+left+"]", "grep", args{"pattern": "hit"})
	s.with("files").is("a.js:1: hit\nenv/z:1: hit\n["+left+"]", "search_files", args{"pattern": "hit"})
	s.with("files").has("search_files", args{"pattern": "hit", "file_pattern": "web/node_modules/m/*.js"}, "web/node_modules/m/i.js:1: hit")
	s.with("files").is("a.js\nenv/z\n["+left+"]", "list_files", args{"pattern": "**"})
}

// Every toolset does what it promises under every driver that works here.
func TestToolsets_UnderEveryDriver(t *testing.T) {
	t.Parallel()
	for _, name := range drivers.Names() {
		if name == drivers.Auto {
			continue // one of the others
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			opened, caps, err := drivers.Open(t.Context(), name, nil)
			if err != nil && os.Getenv("TOOLFLEET_INTEGRATION") != "required" {
				t.Skipf("NOT TESTED: driver %s does not work here: %v", name, err)
			}
			require.NoError(t, err)
			r := newRig(t)
			o := r.options()
			o.Driver, o.Caps = opened, caps
			r.work(o)
			execute := func(t *testing.T, call protocol.Call) *protocol.Result {
				t.Helper()
				return r.dispatch(t.Context(), call)
			}
			runToolsets(t, execute)
			if name == "ns" { // what is large is that for the worker, and for the sandbox that has the most between them
				runLargeToolsets(t, execute)
			}
		})
	}
}

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
