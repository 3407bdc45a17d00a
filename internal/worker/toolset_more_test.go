//nolint:thelper // these are tests
package worker_test

import (
	_ "embed" // this test also runs where its directory is not
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func coreJSON(t *testing.T, execute executor) {
	s := newSession(t, execute, "core")
	s.has("json_write", args{"path": "p.json", "content": json.RawMessage(`{"z":1.50,"list":[1],"a":{}}`)}, "Created p.json (")
	require.Equal(t, "{\n  \"z\": 1.50,\n  \"list\": [\n    1\n  ],\n  \"a\": {}\n}\n", s.content("p.json"), "keys and numbers stay as they are written") //nolint:testifylint // the layout is meant
	s.is("1.50", "json_read", args{"path": "p.json", "query": "/z"})
	s.ok("json_write", args{"path": "p.json", "query": "/list/-", "content": "x"})
	s.ok("json_write", args{"path": "p.json", "query": "/a/k", "content": nil})
	require.Equal(t, "{\n  \"z\": 1.50,\n  \"list\": [\n    1,\n    \"x\"\n  ],\n  \"a\": {\n    \"k\": null\n  }\n}\n", s.content("p.json")) //nolint:testifylint // the layout is meant
	text := s.fails(protocol.CodeNotFound, "json_read", args{"path": "p.json", "query": "/none"})
	require.Contains(t, text, `it has "z", "list", "a"`)
	s.ok("write", args{"path": "broken.json", "content": "{\n,}"})
	require.Contains(t, s.fails(codes.InvalidJSON, "json_read", args{"path": "broken.json"}), "at line 2")
	s.fails(codes.InvalidJSON, "json_write", args{"path": "broken.json", "query": "/a", "content": 1})
	s.ok("json_write", args{"path": "p.json", "query": "/a/new/items/-", "content": 1})
	require.JSONEq(t, `{"k":null,"new":{"items":[1]}}`, s.ok("json_read", args{"path": "p.json", "query": "/a"}))
	s.has("json_write", args{"path": "made/q.json", "query": "/x/y", "content": 1}, "Created made/q.json (")
	require.Equal(t, "{\n  \"x\": {\n    \"y\": 1\n  }\n}\n", s.content("made/q.json"), "")               //nolint:testifylint // the layout is meant
	s.fails(protocol.CodeNotFound, "json_write", args{"path": "p.json", "query": "/z/y/x", "content": 1}) // 1.50 has no members

	s.ok("write", args{"path": "long.json", "content": `{"list":[` + strings.Repeat(`"0123456789",`, 9999) + `1],"text":"` + strings.Repeat("é", 50_000) + `"}`})
	text = s.ok("json_read", args{"path": "long.json"})
	var value map[string]any
	require.NoError(t, json.Unmarshal([]byte(text), &value), "what is cut is JSON, too")
	require.Contains(t, value["text"], "more characters]")
	require.Contains(t, text, "of 10000 items]")
	s.is("1", "json_read", args{"path": "long.json", "query": "/list/9999"})
}

// notebooks are read, searched and edited by their cells, by every toolset.
func notebooks(t *testing.T, execute executor) {
	const picture, image = "iVBORw0KGgo", `"image/png": "iVBORw0KGgo"`
	const original = `{
 "cells": [
  {"cell_type": "markdown", "id": "a", "metadata": {}, "source": ["# Title\n", "text"]},
  {
   "cell_type": "code",
   "execution_count": 1,
   "id": "b",
   "metadata": {"x":  1},
   "outputs": [{"output_type": "stream", "name": "stdout", "text": ["1\n"]},
    {"output_type": "display_data", "metadata": {}, "data": {` + image + `, "text/plain": ["<Figure>"]}}],
   "source": "x = 1"
  }
 ],
 "metadata": {}, "nbformat": 4, "nbformat_minor": 5
}
`
	const text = "%% cell 1 [markdown]\n# Title\ntext\n%% cell 2 [code]\nx = 1\n%% output of cell 2\n| 1\n| <Figure>\n| [image/png: left out]\n"
	const about = "[a notebook of 2 cells, without its pictures: edit these lines; %% cell [code] begins a new cell; outputs can only be removed]"
	s := newSession(t, execute, "core")
	s.ok("write", args{"path": "n.ipynb", "content": original})
	s.has("read", args{"path": "n.ipynb"}, "     1\t%% cell 1 [markdown]\n     2\t# Title\n", "[lines 1-9 of 9; a notebook of 2 cells, without its pictures")
	s.with("files").is(text+about, "read_file", args{"path": "n.ipynb"})
	s.with("smithers").is(text+about, "read", args{"path": "n.ipynb"})
	s.with("openrath").has("read_workspace_file", args{"path": "n.ipynb"}, `{"data":"%% cell 1 [markdown]\n# Title\n`)
	s.with("openrath").has("read_workspace_file", args{"path": "n.ipynb", "encoding": nil}, picture)
	s.has("grep", args{"pattern": "x = "}, "n.ipynb:5:x = 1\n[1 match;")
	s.has("grep", args{"pattern": picture}, "[no matches;")

	s.has("edit", args{"path": "n.ipynb", "old": "x = 1", "new": "x = \"<2>\"\ny"}, "+x = \"<2>\"\n+y\n")
	want := strings.Replace(original, `"source": "x = 1"`, `"source": "x = \"<2>\"\ny"`, 1)
	require.Equal(t, want, s.content("n.ipynb"), "nothing else changed")
	s.with("files").ok("edit_file", args{"path": "n.ipynb", "search": "text\n", "replace": "text\nmore\n"})
	want = strings.Replace(want, `["# Title\n", "text"]`, `["# Title\n","text\n","more"]`, 1)
	var a, b any
	require.NoError(t, json.Unmarshal([]byte(want), &a))
	require.NoError(t, json.Unmarshal([]byte(s.content("n.ipynb")), &b))
	require.Equal(t, a, b)
	s.with("smithers").ok("edit", args{"path": "n.ipynb", "patch": "@@ -1,1 +1,3 @@\n+%% cell [code]\n+import os\n %% cell 1 [markdown]\n"})
	s.has("read", args{"path": "n.ipynb"}, "     1\t%% cell 1 [code]\n     2\timport os\n     3\t%% cell 2 [markdown]\n", "a notebook of 3 cells")
	s.has("bash", args{"command": "cat n.ipynb"}, picture, `"metadata": {"x":  1}`)
	s.ok("edit", args{"path": "n.ipynb", "old": "%% output of cell 3\n| 1\n| <Figure>\n| [image/png: left out]\n", "new": ""})
	s.ok("edit", args{"path": "n.ipynb", "old": "%% cell 2 [markdown]\n# Title\ntext\nmore\n", "new": ""})
	s.has("read", args{"path": "n.ipynb"}, "%% cell 1 [code]\n     2\timport os\n     3\t%% cell 2 [code]\n     4\tx = \"<2>\"\n", "a notebook of 2 cells")
	require.NotContains(t, s.content("n.ipynb"), picture)

	for change, why := range map[string]string{
		"%% cell 9 [code]": "there is no cell 9", "%% cell 1 [code]": "is there twice", "%% cell 2 [raw]": "cannot become a raw cell",
	} {
		require.Contains(t, s.fails(protocol.CodeInvalidArguments, "edit", args{"path": "n.ipynb", "old": "%% cell 2 [code]", "new": change}), why)
	}
	require.Contains(t, s.fails(protocol.CodeInvalidArguments, "write", args{"path": "n.ipynb", "content": "%% cell 1 [code]\n1\n"}), "which is written whole as JSON")
	s.is(`"code"`, "json_read", args{"path": "n.ipynb", "query": "/cells/0/cell_type"})
}

func coreCommands(t *testing.T, execute executor) {
	s := newSession(t, execute, "core")
	s.is("one\n[exit code 3]", "bash", args{"command": "mkdir -p sub\necho one\nexit 3"})
	s.is("sub 8080\n", "bash", args{"command": `echo "$(basename "$PWD") $PORT"`, "cwd": "sub", "env": args{"PORT": 8080}})
	s.outOfTime("echo begun; sleep 100", "begun")
	s.is("42\n", "run_code", args{"code": "echo $((6*7))", "language": "sh"})
	s.fails(protocol.CodeNotFound, "bash", args{"command": "true", "cwd": "none"})
	s.fails(codes.PathEscape, "bash", args{"command": "true", "cwd": "../x"})
}

// corePaths: every tool that takes a path refuses one that leads outside, by its text or by a link.
func corePaths(t *testing.T, execute executor) {
	s := newSession(t, execute, "core")
	s.sh("mkdir d && echo in >d/f && ln -s d/f inner && ln -s d dir && ln -s /etc outer && ln -s ../../../../etc/passwd up")
	calls := map[string]args{
		"read": {}, "write": {"content": "x"}, "edit": {"old": "a", "new": "b"}, "multi_edit": {"edits": []args{{"old": "a", "new": "b"}}},
		"json_read": {}, "json_write": {"content": 1}, "list": {}, "tree": {}, "glob": {"pattern": "*"}, "grep": {"pattern": "x"}, "exists": {},
	}
	for tool, a := range calls {
		for _, path := range []string{"../x", "/etc/passwd", "d/../../x", "outer/passwd", "up/x"} {
			if tool == "exists" && path == "up/x" {
				continue // a link that is no directory: nothing is there
			}
			a["path"] = path
			got := s.call(tool, a)
			require.Equal(t, codes.PathEscape, got.code, "%s %s: %s", tool, path, got.text)
			require.Equal(t, protocol.StatusRejected, got.status)
		}
		for path, code := range map[string]protocol.Code{"a\x00b": codes.InvalidPath, strings.Repeat("n", 300): codes.InvalidPath} {
			a["path"] = path
			require.Equal(t, code, s.call(tool, a).code, "%s %.10q", tool, path)
		}
	}
	s.is("     1\tin\n[lines 1-1 of 1]", "read", args{"path": "inner"})
	s.ok("write", args{"path": "dir/f", "content": "new"})
	require.Equal(t, "new", s.content("d/f"), "links inside work")
	s.is("yes: outer is a symlink", "exists", args{"path": "outer"})
	s.sh("ln -s /workspace/d/f absolute && ln -s \"$PWD/d\" here && ln -s /workspace/none lost")
	for _, path := range []string{"absolute", "here/f"} {
		s.ok("edit", args{"path": path, "old": "new", "new": "newer"})
		s.is("     1\tnewer\n[lines 1-1 of 1]", "read", args{"path": path})
		require.Equal(t, "newer", s.content("d/f"))
		s.ok("write", args{"path": path, "content": "new"})
	}
	require.Contains(t, s.fails(protocol.CodeNotFound, "read", args{"path": "lost"}), "it is a symbolic link to what does not exist")
	require.Contains(t, s.fails(codes.PathEscape, "read", args{"path": "outer/passwd"}),
		`goes through the symbolic link "outer" to "/etc", which is outside of the workspace`)
}

// coreLong: what is too long is cut where a character ends, says so, and says how to go on.
func coreLong(t *testing.T, execute executor) {
	s := newSession(t, execute, "core")
	var all strings.Builder
	for i := range 3000 {
		fmt.Fprintf(&all, "%d é😀\n", i+1)
	}
	s.ok("write", args{"path": "f", "content": all.String()})
	var seen strings.Builder
	for offset := 1; offset > 0; {
		text := s.ok("read", args{"path": "f", "offset": offset})
		require.LessOrEqual(t, utf8.RuneCountInString(text), 13_000)
		for line := range strings.Lines(text) {
			if _, line, found := strings.Cut(line, "\t"); found {
				seen.WriteString(line)
			}
		}
		next := 0
		if _, on, more := strings.Cut(text, "read on with offset="); more {
			_, err := fmt.Sscanf(on, "%d", &next)
			require.NoError(t, err)
		}
		offset = next
	}
	require.Equal(t, all.String(), seen.String(), "reading on reaches every line")
	s.ok("write", args{"path": "wide", "content": strings.Repeat("漢", 5000) + "\nend\n"})
	s.has("read", args{"path": "wide"}, "漢 [... and 3000 more characters]\n     2\tend\n", "line 1 is cut: read on in it with path=\"result:", ":1@6001\"]")
	s.has("bash", args{"command": "sed -n 1p wide | cut -b 6001-12000"}, strings.Repeat("漢", 2000))
	s.sh("mkdir many && cd many && seq 600 | sed s/^/f/ | xargs touch")
	s.has("list", args{"path": "many"}, "[500 of 600 names;")
	s.has("glob", args{"pattern": "many/*"}, "[500 of 600 files;")
	s.has("tree", args{"path": "many"}, "[500 of 600 entries; the others:")
	text := s.ok("bash", args{"command": "seq 0 19999 | sed 's/$/ é/'"})
	require.LessOrEqual(t, utf8.RuneCountInString(text), prose.MaxText)
	require.True(t, utf8.ValidString(text))
	require.True(t, strings.HasPrefix(text, "0 é\n1 é\n"))
	require.Contains(t, text, "\n19999 é\n")
	require.Contains(t, text, "characters left out")
}

// coreStep: the calls of one step that change one file all hold, whatever it is called.
func coreStep(t *testing.T, execute executor) {
	s := newSession(t, execute, "core")
	s.ok("write", args{"path": "f.txt", "content": "one\ntwo\nthree\nfour\n"})
	for _, got := range s.step("edit",
		args{"path": "f.txt", "old": "one", "new": "1"}, args{"path": "./f.txt", "old": "two", "new": "2"},
		args{"path": "/workspace/f.txt", "old": "three", "new": "3"}, args{"path": "x/../f.txt", "old": "four", "new": "4"},
	) {
		require.Equal(t, protocol.StatusOK, got.status, got.text)
	}
	require.Equal(t, "1\n2\n3\n4\n", s.content("f.txt"))
	s.ok("json_write", args{"path": "n.json", "content": []int{}})
	appends := make([]args, 8)
	for i := range appends {
		appends[i] = args{"path": []string{"n.json", "./n.json"}[i%2], "query": "/-", "content": i}
	}
	for _, got := range s.step("json_write", appends...) {
		require.Equal(t, protocol.StatusOK, got.status, got.text)
	}
	var numbers []int
	require.NoError(t, json.Unmarshal([]byte(s.ok("json_read", args{"path": "n.json"})), &numbers))
	require.ElementsMatch(t, []int{0, 1, 2, 3, 4, 5, 6, 7}, numbers)
}

func coreGuards(t *testing.T, execute executor) {
	s := newSession(t, execute, "core")
	s.sh("echo one two >f")
	s.scope.Guard = protocol.GuardRead
	text := s.fails(codes.FileNotRead, "write", args{"path": "f", "content": "x"})
	require.Contains(t, text, "Read it")
	s.ok("write", args{"path": "new", "content": "x"})
	s.ok("write", args{"path": "new", "content": "y"})
	s.ok("read", args{"path": "f"})
	s.ok("edit", args{"path": "f", "old": "one", "new": "1"})
	s.ok("edit", args{"path": "f", "old": "two", "new": "2"})
	s.sh("echo changed >f")
	s.fails(codes.FileChanged, "edit", args{"path": "f", "old": "changed", "new": "x"})
	s.ok("read", args{"path": "f"})
	s.ok("edit", args{"path": "f", "old": "changed", "new": "x"})
	require.Equal(t, "x\n", s.content("f"))
}

func openRath(t *testing.T, execute executor) {
	s := newSession(t, execute, "openrath")
	s.is(`{"bytes_written":6}`, "write_workspace_file", args{"path": "a/b.txt", "content": "hello\n"})
	s.is(`{"data":"hello\n"}`, "read_workspace_file", args{"path": "a/b.txt"})
	s.is(`{"data":"hello\n"}`, "read_workspace_file", args{"path": "a/b.txt", "encoding": nil})
	s.is(`{"entries":[{"name":"b.txt","path":"a/b.txt","is_dir":false}]}`, "list_workspace_files", args{"path": "a"})
	s.is(`{"ok":true}`, "workspace_path_exists", args{"path": "a"})
	s.is(`{"ok":false}`, "workspace_path_exists", args{"path": "b"})
	s.has("run_shell_command", args{"cmd": "cat a/b.txt; echo oops >&2; exit 2"}, `{"exit_code":2,"stdout":"hello\n","stderr":"oops\n","elapsed_ms":`)
	require.Contains(t, s.fails(protocol.CodeInvalidArguments, "run_shell_command", args{"cmd": "a\nb"}), "multiline commands are rejected")
	require.Contains(t, s.fails(protocol.CodeInvalidArguments, "run_shell_command", args{"cmd": strings.Repeat("x", 2049)}), "command too long")
	s.is(`{"text":null,"stdout":"7\n","stderr":"","error":null}`, "run_code", args{"code": "echo 7", "language": "sh", "timeout": 20})
	require.Contains(t, s.fails(codes.PathEscape, "read_workspace_file", args{"path": "/etc/passwd"}), `{"ok":false,"error_kind":"path_violation","message":"`)
	require.Contains(t, s.fails(protocol.CodeNotFound, "list_workspace_files", args{"path": "b"}), `"error_kind":"os_error"`)
	s.sh("printf '\\316\\322\\n' >gb.txt; printf '\\202\\240\\n' >sjis.txt")
	s.is(`{"data":"我\n","encoding":"gbk"}`, "read_workspace_file", args{"path": "gb.txt", "encoding": "GBK"})
	s.is(`{"data":"あ\n","encoding":"shift-jis"}`, "read_workspace_file", args{"path": "sjis.txt", "encoding": "shift_jis"})
}

var (
	//go:embed testdata/openrath/calls.json
	openRathCalls []byte
	//go:embed testdata/openrath/answers.json
	openRathTheirs []byte
)

// openRathAnswers makes the calls whose answers by OpenRath 2.0.0 testdata/openrath has (record.py
// makes them), and compares what a program reads of an answer: the values, or the kind of the
// error.
func openRathAnswers(t *testing.T, execute executor) {
	s := newSession(t, execute, "openrath")
	if s.sh("command -v python3 || true") == "[exit code 0, no output]" {
		t.Skip("SKIPPED: the sandbox has no python3, which some of the calls run")
	}
	var recorded struct {
		Setup string
		Calls [][3]string
	}
	theirs := map[string]map[string]any{}
	require.NoError(t, json.Unmarshal(openRathCalls, &recorded))
	require.NoError(t, json.Unmarshal(openRathTheirs, &theirs))
	const misfit = `{"ok":false,"error_kind":"tool_execution_exception"}`
	for name, ours := range map[string]string{ // which differ on purpose
		"command a number": misfit, // and not the text "5"
		"command null":     misfit, // and not the text "None"
		"read a number":    misfit,
		"read bytes":       `{"data":"/wD+AAH/","encoding":"base64"}`, // and no bytes are lost
		"read not UTF-8":   `{"data":"café\n","encoding":"ISO-8859-1"}`,
	} {
		require.Contains(t, theirs, name)
		var want map[string]any
		require.NoError(t, json.Unmarshal([]byte(ours), &want))
		theirs[name] = want
	}
	s.sh(recorded.Setup)
	for _, call := range recorded.Calls {
		text := s.callRaw(call[1], call[2]).text
		var got map[string]any
		require.NoError(t, json.Unmarshal([]byte(text), &got), text)
		for key, value := range theirs[call[0]] {
			assert.Equal(t, value, got[key], "%s: %s\nin %s", call[0], key, text)
		}
		if got["error_kind"] != nil {
			assert.NotEmpty(t, got["message"], call[0])
		} else {
			assert.NotContains(t, theirs[call[0]], "error_kind", "%s: %s", call[0], text)
		}
	}
}

func smithers(t *testing.T, execute executor) {
	s := newSession(t, execute, "smithers")
	s.is("ok", "write", args{"path": "f.txt", "content": "one\ntwo\nthree\n"})
	s.is("one\ntwo\nthree\n", "read", args{"path": "f.txt"})
	s.is("ok", "edit", args{"path": "f.txt", "patch": "--- f.txt\n+++ f.txt\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n"})
	text := s.fails(codes.EditNotFound, "edit", args{"path": "f.txt", "patch": "@@ -1,2 +1,2 @@\n one\n-two\n+2\n"})
	require.True(t, strings.HasPrefix(text, "TOOL_PATCH_FAILED: Failed to apply patch: "), text)
	s.is("f.txt:2:2\n", "grep", args{"pattern": "^2$"})
	s.is("2:2\n", "grep", args{"pattern": "^2$", "path": "f.txt"})
	s.is("", "grep", args{"pattern": "^4$"})
	require.Contains(t, s.fails(codes.InvalidPattern, "grep", args{"pattern": "("}), "TOOL_GREP_FAILED: ")
	s.is("$HOME;* x\n", "bash", args{"cmd": "echo", "args": []string{"$HOME;*", "x"}})
	s.sh("mkdir d; ln -s /etc out")
	require.True(t, strings.HasSuffix(s.ok("bash", args{"cmd": "pwd", "opts": args{"cwd": "d"}}), "/d\n"))
	s.is("TOOL_COMMAND_FAILED: Command failed with exit code 3\nx\n", "bash", args{"cmd": "sh", "args": []string{"-c", "echo x; exit 3"}})
	require.Equal(t, "PROCESS_FAILED: Failed to spawn no-such-program", s.fails(protocol.CodeCommandNotFound, "bash", args{"cmd": "no-such-program"}))
	require.Equal(t, "TOOL_PATH_ESCAPE: Path escapes sandbox root (via symlink)", s.fails(codes.PathEscape, "read", args{"path": "out/passwd"}))
	require.Equal(t, "ENOENT: no such file or directory, open 'none'", s.fails(protocol.CodeNotFound, "read", args{"path": "none"}))
	s.sh("rm out; head -c 200001 /dev/zero | tr '\\0' x >big")
	const large = "TOOL_FILE_TOO_LARGE: File too large (200001 bytes)"
	require.Equal(t, large, s.fails(codes.TooLarge, "read", args{"path": "big"}))
	require.Equal(t, large, s.fails(codes.TooLarge, "edit", args{"path": "big", "patch": "@@ -1 +1 @@\n-x\n+y\n"}))
	s.fails(codes.TooLarge, "write", args{"path": "x", "content": strings.Repeat("x", 200_001)})
	s.has("bash", args{"cmd": "cat", "args": []string{"big"}}, "characters left out")
}

func fileTools(t *testing.T, execute executor) {
	s := newSession(t, execute, "files")
	s.is("Successfully wrote to 'src/a.go'", "write_file", args{"path": "src/a.go", "content": "x\nx\n"})
	s.is("x\nx\n", "read_file", args{"path": "src/a.go"})
	s.is("Successfully edited 'src/a.go'", "edit_file", args{"path": "src/a.go", "search": "x", "replace": "y"})
	s.is("y\nx\n", "read_file", args{"path": "src/a.go"})
	require.Equal(t, "Error: Search string not found in 'src/a.go'",
		s.fails(codes.EditNotFound, "edit_file", args{"path": "src/a.go", "search": "z", "replace": "y"}))
	require.Equal(t, "Error: File not found 'none'", s.fails(protocol.CodeNotFound, "read_file", args{"path": "none"}))
	s.ok("write_file", args{"path": "b.txt", "content": "y"})
	s.ok("write_file", args{"path": ".gitignore", "content": "*.txt\n"})
	s.is(".gitignore\nb.txt", "list_files", args{})
	s.is(".gitignore\nb.txt\nsrc/a.go", "list_files", args{"pattern": "**"})
	s.is("src/a.go", "list_files", args{"pattern": "**/*.go"})
	s.is("No files found", "list_files", args{"pattern": "*.go"})
	s.ok("write_file", args{"path": ".gitignore", "content": ""})
	s.is("b.txt:1: y\nsrc/a.go:1: y", "search_files", args{"pattern": "y"})
	s.is("b.txt:1: y", "search_files", args{"pattern": "y", "file_pattern": "*.txt"})
	s.is("No matches found", "search_files", args{"pattern": "nowhere"})
}

// sharedWorkspace: toolsets are words for the same things: files, keys and order.
func sharedWorkspace(t *testing.T, execute executor) {
	core := newSession(t, execute, "core")
	core.ok("write", args{"path": "f", "content": "core\n"})
	core.with("files").ok("edit_file", args{"path": "f", "search": "core", "replace": "files"})
	core.with("smithers").ok("edit", args{"path": "f", "patch": "@@ -1 +1,2 @@\n files\n+smithers\n"})
	core.with("openrath").is(`{"data":"files\nsmithers\n"}`, "read_workspace_file", args{"path": "./f"})
	core.has("read", args{"path": "f"}, "files\n", "smithers\n")
}
