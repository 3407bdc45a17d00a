//nolint:thelper // these are tests
package worker_test

import (
	_ "embed" // this test also runs where its directory is not
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

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
