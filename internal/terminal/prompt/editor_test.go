package prompt

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func TestEditor_Completes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "sub", "deep"), 0o700))
	for _, name := range []string{"readme.txt", "reader.go", "with space", ".hidden", "sub/only.go", "a\x1bb"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, filepath.FromSlash(name)), nil, 0o600))
	}
	e := &Editor{workspace: dir, commands: []string{"/diff", "/help", "/quit", "/session", "/undo"}}
	for name, c := range map[string]struct{ line, want, shown string }{
		"what they share":         {"look @r", "look @read", ""},
		"several":                 {"look @read", "look @read", "@reader.go  @readme.txt\n"},
		"one":                     {"@readm", "@readme.txt ", ""},
		"a directory":             {"@su", "@sub/", ""},
		"in a directory":          {"@sub/o", "@sub/only.go ", ""},
		"no hidden ones":          {"@", "@", "@reader.go  @readme.txt  @sub/\n"},
		"hidden ones by name":     {"@.h", "@.hidden ", ""},
		"nothing outside":         {"@../", "@../", ""},
		"no such":                 {"@zzz", "@zzz", ""},
		"a word":                  {"read", "read", ""},
		"a command":               {"/un", "/undo ", ""},
		"commands":                {"/", "/", "/diff  /help  /quit  /session  /undo\n"},
		"a command in the middle": {"see /un", "see /un", ""},
	} {
		var shown strings.Builder
		got, at, taken := e.complete(&shown, c.line, len(c.line))
		require.Equal(t, []any{c.want, len(c.want), c.shown, true}, []any{got, at, shown.String(), taken}, name)
	}
	got, at, _ := e.complete(nil, "@readm, please", len("@readm"))
	require.Equal(t, []any{"@readme.txt , please", len("@readme.txt ")}, []any{got, at}, "in the middle")
	require.Empty(t, (&Editor{}).paths("r"), "without a workspace")
}

func TestHistory_IsKept(t *testing.T) {
	t.Parallel()
	h := &history{file: filepath.Join(t.TempDir(), "state", "history")}
	for _, line := range []string{"one", "two", "two", " ", "one"} {
		h.Add(line)
	}
	require.Equal(t, []any{3, "one", "two"}, []any{h.Len(), h.At(0), h.At(1)})
	content, err := os.ReadFile(h.file)
	require.NoError(t, err)
	require.Equal(t, "one\ntwo\none\n", string(content))
	info, err := os.Stat(h.file)
	require.NoError(t, err)
	require.Zero(t, info.Mode().Perm()&0o077, "no other user reads it")
}

// What is typed fast arrives in one piece.
func TestNoted_LaterBehindTypedText(t *testing.T) {
	t.Parallel()
	keys := newKeyboard(nil)
	keys.begin.Do(func() {})
	go func() { keys.typed <- typed{keys: []byte("later\x14now\r")} }()
	n := &lineCarrier{Reader: keys.reader(t.Context(), nil, nil), show: func(string, int) {}}
	read := func() string {
		n.move = lineShows // the line was shown
		piece := make([]byte, 64)
		count, err := n.Read(piece)
		require.NoError(t, err)
		return string(piece[:count])
	}
	require.Equal(t, "later\r", read())
	require.True(t, n.later)
	n.later = false
	require.Equal(t, "now\r", read())
	require.False(t, n.later)
}

// The last events of a turn may come while whoever followed it leaves.
func TestAnswers_NothingIsAskedAfterTheEnd(t *testing.T) {
	t.Parallel()
	asked := 0
	a := &Answers{report: func(string) { asked++ }}
	question := loop.Event{Type: loop.EventApprovalAsked, CallFields: loop.CallFields{Name: "bash"}, Text: "look"}
	a.Observe(t.Context(), question)
	require.Equal(t, 1, asked)
	a.Close()
	a.Observe(t.Context(), question)
	require.Equal(t, 1, asked)
}

// A session asks for one approval at a time; what a running call asks meanwhile stays.
func TestAnswers_AnApprovalReplacesAnApproval(t *testing.T) {
	t.Parallel()
	p := &Prompt{always: map[string]bool{}, asking: make(chan struct{}, 1), wanted: make(chan struct{})}
	p.asking <- struct{}{} // a question is shown
	question, answered := context.WithCancel(t.Context())
	a := &Answers{prompt: p, open: map[protocol.CallID]context.CancelFunc{"question": answered}}
	for _, call := range []protocol.CallID{"one", "two"} {
		a.Observe(t.Context(), loop.Event{Type: loop.EventApprovalAsked, CallFields: loop.CallFields{CallID: call, Name: "bash"}})
	}
	require.NoError(t, question.Err())
	require.Contains(t, a.open, protocol.CallID("two"))
	require.NotContains(t, a.open, protocol.CallID("one"))
	a.Close()
	require.Error(t, question.Err())
}

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
		shown, words := loop.ScopeOf(test.tool, test.shown)
		later, _ := loop.ScopeOf(test.tool, test.later)
		require.Equal(t, test.words, words)
		require.Equal(t, test.covers, shown == later, "%s %s", test.tool, test.later)
	}
	write, _ := loop.ScopeOf("write", `{"path":"a"}`)
	edit, _ := loop.ScopeOf("edit", `{"path":"a"}`)
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
