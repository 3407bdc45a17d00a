//nolint:thelper // these are tests
package worker_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools/toolset"
)

func openRath(t *testing.T, execute executor) {
	s := newSession(t, execute, toolset.OpenRathName)
	s.has("write_workspace_file", args{"path": "a/b.txt", "content": "hello\n"}, "Created a/b.txt")
	s.is("hello\n", "read_workspace_file", args{"path": "a/b.txt"})
	s.is("aGVsbG8K", "read_workspace_file", args{"path": "a/b.txt", "encoding": nil})
	s.is("b.txt (6 bytes)\n", "list_workspace_files", args{"path": "a"})
	s.is("true", "workspace_path_exists", args{"path": "a"})
	s.is("false", "workspace_path_exists", args{"path": "b"})
	s.is("hello\n[exit code 2]", "run_shell_command", args{"cmd": "cat a/b.txt; exit 2"})
	require.Contains(t, s.fails(protocol.CodeInvalidArguments, "run_shell_command", args{"cmd": "a\nb"}), "multiline commands are rejected")
	require.Contains(t, s.fails(protocol.CodeInvalidArguments, "run_shell_command", args{"cmd": strings.Repeat("x", 2049)}), "command too long")
	s.is("7\n", "run_code", args{"code": "echo 7", "language": "sh", "timeout": 20})
	s.fails(protocol.CodePathEscape, "read_workspace_file", args{"path": "/etc/passwd"})
}

func smithers(t *testing.T, execute executor) {
	s := newSession(t, execute, toolset.SmithersName)
	s.has("write", args{"path": "f.txt", "content": "one\ntwo\nthree\n"}, "Created f.txt")
	s.is("one\ntwo\nthree\n", "read", args{"path": "f.txt"})
	s.has("edit", args{"path": "f.txt", "patch": "--- f.txt\n+++ f.txt\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n"}, "+2")
	s.fails(protocol.CodeEditNotFound, "edit", args{"path": "f.txt", "patch": "@@ -1,2 +1,2 @@\n one\n-two\n+2\n"})
	s.is("f.txt:2:2\n[1 match; 1 file searched]", "grep", args{"pattern": "^2$"})
	s.is("$HOME;* x\n", "bash", args{"cmd": "echo", "args": []string{"$HOME;*", "x"}})
	s.sh("mkdir d")
	require.True(t, strings.HasSuffix(s.ok("bash", args{"cmd": "pwd", "opts": args{"cwd": "d"}}), "/d\n"))
	s.is("[exit code 3]", "bash", args{"cmd": "sh", "args": []string{"-c", "exit 3"}})
	s.fails(protocol.CodeCommandNotFound, "bash", args{"cmd": "no-such-program"})
	s.sh("head -c 200001 /dev/zero | tr '\\0' x >big")
	s.fails(protocol.CodeTooLarge, "read", args{"path": "big"})
	s.fails(protocol.CodeTooLarge, "edit", args{"path": "big", "patch": "@@ -1 +1 @@\n-x\n+y\n"})
	s.fails(protocol.CodeTooLarge, "write", args{"path": "x", "content": strings.Repeat("x", 200_001)})
	s.has("bash", args{"cmd": "cat", "args": []string{"big"}}, "characters left out")
}

func fileTools(t *testing.T, execute executor) {
	s := newSession(t, execute, toolset.FilesName)
	s.has("write_file", args{"path": "src/a.go", "content": "x\nx\n"}, "Created src/a.go")
	s.is("x\nx\n", "read_file", args{"path": "src/a.go"})
	s.has("edit_file", args{"path": "src/a.go", "search": "x", "replace": "y"}, "1 replacement")
	s.is("y\nx\n", "read_file", args{"path": "src/a.go"})
	s.fails(protocol.CodeEditNotFound, "edit_file", args{"path": "src/a.go", "search": "z", "replace": "y"})
	s.ok("write_file", args{"path": "b.txt", "content": "y"})
	s.is("b.txt\nsrc/a.go\n[2 files]", "list_files", args{})
	s.is("src/a.go\n[1 file]", "list_files", args{"pattern": "*.go"})
	s.is("b.txt:1:y\nsrc/a.go:1:y\n[2 matches; 2 files searched]", "search_files", args{"pattern": "y"})
	s.is("b.txt:1:y\n[1 match; 1 file searched]", "search_files", args{"pattern": "y", "file_pattern": "*.txt"})
}

// sharedWorkspace: toolsets are words for the same things: files, keys and order.
func sharedWorkspace(t *testing.T, execute executor) {
	core := newSession(t, execute, toolset.CoreName)
	core.ok("write", args{"path": "f", "content": "core\n"})
	core.with(toolset.FilesName).ok("edit_file", args{"path": "f", "search": "core", "replace": "files"})
	core.with(toolset.SmithersName).ok("edit", args{"path": "f", "patch": "@@ -1 +1,2 @@\n files\n+smithers\n"})
	core.with(toolset.OpenRathName).is("files\nsmithers\n", "read_workspace_file", args{"path": "./f"})
	core.has("read", args{"path": "f"}, "files\n", "smithers\n")
}
