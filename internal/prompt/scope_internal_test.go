package prompt

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/loop"
)

// What "always" covers is the call that was shown, whatever its arguments are called; for the
// built-in tools that change one file it is that file.
func TestScope_IsWhatWasShown(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		tool, shown, later, words string
		covers                    bool
	}{
		{"bash", `{"command":"ls"}`, `{"command":"ls"}`, "this very call of bash", true},
		{"bash", `{"command":"ls"}`, `{"command":"rm -r ."}`, "this very call of bash", false},
		{"run_shell_command", `{"cmd":"ls"}`, `{"cmd":"rm -r ."}`, "this very call of run_shell_command", false},
		{"deploy", `{"script":"a"}`, `{"script":"b"}`, "this very call of deploy", false},
		{"deploy", `{"path":"a","cmd":"a"}`, `{"path":"a","cmd":"b"}`, "this very call of deploy", false},
		{"deploy", `not JSON`, `{}`, "this very call of deploy", false},
		{"write", `{"path":"a.go","content":"1"}`, `{"path":"a.go","content":"2"}`, `every call of write for "a.go"`, true},
		{"write", `{"path":"a.go","content":"1"}`, `{"path":".git/hooks/pre-commit","content":"1"}`, `every call of write for "a.go"`, false},
		{"write", `{"content":"1"}`, `{"content":"2"}`, "this very call of write", false},
	} {
		shown, words := scopeOf(loop.ApprovalRequest{Tool: test.tool, Arguments: test.shown})
		later, _ := scopeOf(loop.ApprovalRequest{Tool: test.tool, Arguments: test.later})
		require.Equal(t, test.words, words)
		require.Equal(t, test.covers, shown == later, "%s %s", test.tool, test.later)
	}
	write, _ := scopeOf(loop.ApprovalRequest{Tool: "write", Arguments: `{"path":"a"}`})
	edit, _ := scopeOf(loop.ApprovalRequest{Tool: "edit", Arguments: `{"path":"a"}`})
	require.NotEqual(t, write, edit)
}
