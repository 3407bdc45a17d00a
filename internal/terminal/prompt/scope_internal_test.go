package prompt

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

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

// An approval that waited for another question is asked again: the person has its whole time from
// when it is shown.
func TestApprove_ThatWaitedIsAskedAgain(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]time.Duration{"until it could be shown": time.Hour, "longer than its time": time.Minute} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				q := &Prompt{always: map[string]bool{}, asking: make(chan struct{}, 1), wanted: make(chan struct{})}
				end, err := q.begin(t.Context())
				require.NoError(t, err)
				time.AfterFunc(2*time.Minute, end)
				ctx, cancel := context.WithTimeout(t.Context(), limit)
				defer cancel()
				_, err = q.Approve(ctx, loop.ApprovalRequest{Tool: "work"})
				require.ErrorIs(t, err, loop.ErrAskAgain)
				time.Sleep(2 * time.Minute)
				synctest.Wait()
				require.Empty(t, q.asking, "the terminal is free")
			})
		})
	}
}

// The editor returns to the terminal at once, often before the question that asked for it is there.
func TestPrompt_AQuestionGetsTheTerminalFromAnEditorThatReturns(t *testing.T) {
	t.Parallel()
	q := &Prompt{asking: make(chan struct{}, 1), wanted: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	var editor sync.WaitGroup
	editor.Go(func() {
		for ctx.Err() == nil {
			end, err := q.begin(ctx)
			if err != nil {
				return
			}
			select {
			case <-q.wanted:
			case <-ctx.Done():
			}
			end()
		}
	})
	for i := range 20_000 {
		limited, cancel := context.WithTimeout(ctx, time.Minute)
		end, err := q.begin(limited)
		require.NoError(t, err, "question %d", i)
		end()
		cancel()
	}
	cancel()
	editor.Wait()
}
