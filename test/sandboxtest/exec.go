//go:build unix

//nolint:thelper // these are tests
package sandboxtest

import (
	"bytes"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

func testExec(t *testing.T, s suite) {
	s.run(t, map[string]func(*testing.T, *box){
		"output and exit code":                  execExit,
		"a signal":                              execSignal,
		"input is what was given, then its end": execInput,
		"no input is an empty input":            execNoInput,
		"input is fed while it runs":            execFed,
		"a command need not read its input":     execUnreadInput,
		"the environment is complete and clean": execEnv,
		"home and temporary files are scratch":  execHome,
		"arguments of every kind":               execArgs,
		"odd file names":                        execNames,
		"file names that are no text":           execNamesWithoutText,
		"usage is measured":                     execUsage,
		"commands run side by side":             execConcurrent,
	})
}

func execExit(t *testing.T, b *box) {
	result := b.exec(t, shell("echo out; echo err >&2; exit 3"))
	require.Equal(t, sandbox.ReasonExited, result.Reason)
	require.Equal(t, 3, result.ExitCode)
	require.Empty(t, result.Signal)
	require.Equal(t, sandbox.Captured{Data: []byte("out\n"), Total: 4, Lines: 1}, result.Stdout)
	require.Equal(t, sandbox.Captured{Data: []byte("err\n"), Total: 4, Lines: 1}, result.Stderr)
}

func execSignal(t *testing.T, b *box) {
	result := b.exec(t, shell("echo before; kill -SEGV $$"))
	require.Equal(t, sandbox.ReasonSignaled, result.Reason)
	require.Equal(t, -1, result.ExitCode)
	require.Equal(t, "SIGSEGV", result.Signal)
	require.Equal(t, "before\n", string(result.Stdout.Data))
}

func execInput(t *testing.T, b *box) {
	input := bytes.Repeat([]byte("0123456789abcde\n"), 6000) // more than a pipe holds
	result := b.exec(t, sandbox.Cmd{Argv: []string{"cat"}, Stdin: input})
	require.Zero(t, result.ExitCode)
	require.Equal(t, input, result.Stdout.Data)
}

func execNoInput(t *testing.T, b *box) {
	require.Equal(t, "0\n", b.sh(t, "wc -c | tr -d ' '"))
}

func execUnreadInput(t *testing.T, b *box) {
	result := b.exec(t, sandbox.Cmd{Argv: []string{"true"}, Stdin: make([]byte, 1<<20)})
	require.Equal(t, sandbox.ReasonExited, result.Reason)
	require.Zero(t, result.ExitCode)
}

func execEnv(t *testing.T, b *box) {
	result := b.exec(t, sandbox.Cmd{
		Argv: []string{"env"},
		Env:  map[string]string{"LANG": "C.UTF-8", "EXTRA": "a b=c"},
	})
	got := map[string]string{}
	for line := range strings.Lines(string(result.Stdout.Data)) {
		name, value, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		require.True(t, ok, line)
		got[name] = value
	}
	require.NotEmpty(t, got["HOME"])
	require.NotEmpty(t, got["TMPDIR"])
	for _, name := range slices.Concat(b.options.Env, []string{"HOME", "TMPDIR"}) {
		delete(got, name)
	}
	require.Equal(t, map[string]string{"PATH": path, "LANG": "C.UTF-8", "EXTRA": "a b=c"}, got)
}

func execHome(t *testing.T, b *box) {
	b.sh(t, `echo h >"$HOME/h" && echo t >"$TMPDIR/t"`)
	require.Equal(t, "h\nt\n", b.sh(t, `cat "$HOME/h" "$TMPDIR/t"`))
	entries, err := os.ReadDir(b.workspace)
	require.NoError(t, err)
	require.Empty(t, entries)
	result := b.exec(t, sandbox.Cmd{Argv: []string{"sh", "-c", "echo $HOME"}, Env: map[string]string{"HOME": "/nowhere"}})
	require.Equal(t, "/nowhere\n", string(result.Stdout.Data))
}

func execArgs(t *testing.T, b *box) {
	args := []string{"", "-n", "--", "a b", "*", "$HOME", "`id`", "'", "\"", "\\", "new\nline", "\x1b[31m", "\xff\xfe", "ü"}
	result := b.exec(t, sandbox.Cmd{Argv: append([]string{"sh", "-c", `printf '<%s>' "$@"`, "sh"}, args...)})
	require.Equal(t, "<"+strings.Join(args, "><")+">", string(result.Stdout.Data))
}

// execNames takes names through a command, a listing and JSON, and back. execNamesWithoutText
// leaves names that no path of a file operation has: they are in the way of nothing.
func execNamesWithoutText(t *testing.T, b *box) {
	b.sh(t, `for name in '\377' 'a\300\200b' '\355\240\200'; do printf needle >"./$(printf "$name")" || exit; done; printf needle >text`)
	if names, err := os.ReadDir(b.workspace); err != nil || len(names) < 4 {
		t.Skipf("UNSUPPORTED: the file system has no such names: %v", err)
	}
	ctx, files := t.Context(), b.FS()
	list, err := files.List(ctx, protocol.FilesList{})
	require.NoError(t, err)
	require.Len(t, list.Entries, 4)
	for _, entry := range list.Entries {
		read, err := files.Read(ctx, protocol.FilesRead{Path: entry.Name})
		if utf8.ValidString(entry.Name) {
			require.NoError(t, err)
			require.Equal(t, "needle", string(read.Content))
			continue
		}
		requireFault(t, err, codes.InvalidPath)
	}
	_, err = files.Tree(ctx, protocol.FilesTree{})
	require.NoError(t, err)
	found, err := files.Glob(ctx, protocol.FilesGlob{Pattern: "*"})
	require.NoError(t, err)
	require.Contains(t, found.Paths, "text")
	matches, err := files.Search(ctx, protocol.FilesSearch{Pattern: "needle"}, 0)
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(matches.Matches), 1)
}

func execNames(t *testing.T, b *box) {
	names := []string{"-rf", "a b", "new\nline", "\x1b[31m", "*", "ü", strings.Repeat("n", 255), "..."}
	for _, name := range names {
		b.exec(t, sandbox.Cmd{Argv: []string{"sh", "-c", `printf x >"./$1"`, "sh", name}})
	}
	list, err := b.FS().List(t.Context(), protocol.FilesList{})
	require.NoError(t, err)
	require.Len(t, list.Entries, len(names))
	for _, entry := range list.Entries {
		wire, err := json.Marshal(entry.Name)
		require.NoError(t, err)
		var name string
		require.NoError(t, json.Unmarshal(wire, &name))
		require.Contains(t, names, name)
		read, err := b.FS().Read(t.Context(), protocol.FilesRead{Path: name})
		require.NoError(t, err)
		require.Equal(t, "x", string(read.Content))
	}
}

func execUsage(t *testing.T, b *box) {
	result := b.exec(t, shell("i=0; while [ $i -lt 30000 ]; do i=$((i+1)); done"))
	require.Positive(t, result.CPU)
	require.Positive(t, result.Wall)
	require.Greater(t, result.MaxRSS, int64(100<<10))
	require.Less(t, result.MaxRSS, int64(1<<30))
}

// execConcurrent has commands that wait for each other, so they have to overlap.
func execConcurrent(t *testing.T, b *box) {
	const n = 6
	var wg sync.WaitGroup
	outputs := make([]string, n)
	for i := range n {
		id := string(rune('a' + i))
		wg.Go(func() {
			result, err := b.Exec(t.Context(), sandbox.Cmd{
				Argv: []string{"sh", "-c", `: >here-$1; while [ $(ls here-* | wc -l) -lt 6 ]; do sleep 0.01; done; echo $1`, "sh", id},
			})
			if err != nil {
				t.Errorf("Exec: %v", err)
			}
			outputs[i] = string(result.Stdout.Data)
		})
	}
	wg.Wait()
	for i, output := range outputs {
		require.Equal(t, string(rune('a'+i))+"\n", output)
	}
}

// execFed talks to a command while it runs, until it has no more input.
func execFed(t *testing.T, b *box) {
	feed, said, ended := make(chan []byte), make(chan string, 3), make(chan sandbox.Result, 1)
	cmd := shell(`while read line; do echo "got $line"; done; echo end`)
	cmd.Feed, cmd.Limits.Wall = feed, patience
	cmd.Live = func(_ sandbox.Stream, data []byte) { said <- string(data) }
	go func() {
		result, err := b.Exec(t.Context(), cmd)
		if err != nil {
			t.Error(err)
		}
		ended <- result
	}()
	for _, line := range []string{"one", "two"} {
		select {
		case feed <- []byte(line + "\n"):
		case <-time.After(patience):
			require.Fail(t, "the command takes no input")
		}
		select {
		case text := <-said:
			require.Equal(t, "got "+line+"\n", text)
		case result := <-ended:
			require.Fail(t, "the command has ended", "%v", result)
		}
	}
	close(feed)
	require.Equal(t, "got one\ngot two\nend\n", string((<-ended).Stdout.Data))
}
