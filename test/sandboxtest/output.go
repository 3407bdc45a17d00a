//go:build unix

//nolint:thelper // these are tests
package sandboxtest

import (
	"bytes"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

func testOutput(t *testing.T, s suite) {
	s.run(t, map[string]func(*testing.T, *box){
		"head and tail are kept":                      outputCut,
		"characters are not split":                    outputCharacters,
		"output never ends a command":                 outputNever,
		"a command that writes for ever has its time": outputBomb,
		"live output comes as it is written":          outputLive,
		"live output is all of the output, in order":  outputLiveAll,
		"the last output before the end is not lost":  outputLast,
		"bytes are kept as they are":                  outputBytes,
		"both streams are told in order":              outputOrder,
		"of what is cut the totals are told":          outputTotals,
	})
}

func outputCut(t *testing.T, b *box) {
	cmd := shell("echo first; seq 1 500; echo last")
	cmd.Limits.Output = 1000
	result := b.exec(t, cmd)
	require.Equal(t, sandbox.ReasonExited, result.Reason)
	out := result.Stdout
	require.True(t, out.Truncated)
	require.EqualValues(t, 6+1892+5, out.Total)
	require.True(t, bytes.HasPrefix(out.Data, []byte("first\n1\n2\n")), "%s", out.Data)
	require.True(t, bytes.HasSuffix(out.Data, []byte("\n499\n500\nlast\n")), "%s", out.Data)
	require.Contains(t, string(out.Data), "\n[... 903 bytes left out ...]\n")
	require.Less(t, len(out.Data), 1100)
	require.False(t, result.Stderr.Truncated)
}

func outputCharacters(t *testing.T, b *box) {
	cmd := sandbox.Cmd{Argv: []string{"cat"}, Stdin: []byte(strings.Repeat("é漢😀", 300))}
	for limit := int64(101); limit < 110; limit++ {
		cmd.Limits.Output = 8 * limit
		out := b.exec(t, cmd).Stdout
		require.True(t, out.Truncated)
		require.True(t, utf8.Valid(out.Data), "%q", out.Data)
	}
}

// outputNever has a command go on after far more output than is kept.
func outputNever(t *testing.T, b *box) {
	cmd := shell("seq 1 400000 && seq 1 100000 >&2 && echo made >made; cat made")
	cmd.Limits.Output = 1000
	result := b.exec(t, cmd)
	require.Equal(t, sandbox.ReasonExited, result.Reason)
	require.Zero(t, result.ExitCode)
	require.EqualValues(t, 400_001, result.Stdout.Lines)
	require.True(t, bytes.HasSuffix(result.Stdout.Data, []byte("\n400000\nmade\n")), "%s", result.Stdout.Data)
	require.EqualValues(t, 588_895, result.Stderr.Total)
}

// outputBomb has commands write for ever, and not end when they are asked to: their time is over
// soon after it is.
func outputBomb(t *testing.T, b *box) {
	for _, script := range []string{"exec yes", "yes >&2 & yes", `trap "" TERM PIPE; while :; do echo 0123456789; done`} {
		cmd := shell(script)
		cmd.Limits = sandbox.Limits{Output: 10_000, Wall: time.Second, Grace: 100 * time.Millisecond}
		start := time.Now()
		result := b.exec(t, cmd)
		require.Equal(t, sandbox.ReasonTimeout, result.Reason, script)
		require.Less(t, time.Since(start), patience)
		require.Positive(t, max(result.Stdout.Total, result.Stderr.Total))
		require.Less(t, len(result.Stdout.Data), 10_100)
	}
}

// outputLive has a command that goes on only when its output was seen.
func outputLive(t *testing.T, b *box) {
	b.put(t, "unrelated", "", 0o644)
	cmd := shell("echo ready; while [ ! -e go ]; do sleep 0.01; done; echo done >&2")
	cmd.Limits.Wall = patience
	var seen []string
	cmd.Live = func(stream sandbox.Stream, data []byte) {
		seen = append(seen, string(data))
		if stream == sandbox.Stdout {
			b.put(t, "go", "", 0o644)
		}
	}
	result := b.exec(t, cmd)
	require.Equal(t, sandbox.ReasonExited, result.Reason)
	require.Equal(t, []string{"ready\n", "done\n"}, seen)
}

func outputLiveAll(t *testing.T, b *box) {
	cmd := shell("seq 1 5000 & seq 5001 9999 >&2; wait")
	var (
		live    [3]bytes.Buffer
		running atomic.Int32
	)
	cmd.Live = func(stream sandbox.Stream, data []byte) {
		if running.Add(1) != 1 {
			t.Error("calls of Live overlap")
		}
		live[stream].Write(data)
		running.Add(-1)
	}
	result := b.exec(t, cmd)
	require.Equal(t, result.Stdout.Data, live[sandbox.Stdout].Bytes())
	require.Equal(t, result.Stderr.Data, live[sandbox.Stderr].Bytes())
	require.True(t, bytes.HasSuffix(live[sandbox.Stdout].Bytes(), []byte("\n5000\n")))
}

func outputLast(t *testing.T, b *box) {
	for range 20 {
		result := b.exec(t, shell("seq 1 10000; echo error >&2; exit 1"))
		require.True(t, bytes.HasSuffix(result.Stdout.Data, []byte("\n10000\n")))
		require.EqualValues(t, 48894, result.Stdout.Total)
		require.Equal(t, "error\n", string(result.Stderr.Data))
	}
}

func outputBytes(t *testing.T, b *box) {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	result := b.exec(t, sandbox.Cmd{Argv: []string{"cat"}, Stdin: all})
	require.Equal(t, all, result.Stdout.Data)
}

// outputOrder has a shell write to both streams in turn as fast as it can.
func outputOrder(t *testing.T, b *box) {
	if runtime.GOOS != "linux" {
		t.Skip("the order is about right on this system, and exact on Linux only")
	}
	result := b.exec(t, shell("i=0; while [ $i -lt 200 ]; do echo o$i; echo e$i >&2; i=$((i+1)); done"))
	var want strings.Builder
	for i := range 200 {
		fmt.Fprintf(&want, "o%d\ne%d\n", i, i)
	}
	require.Equal(t, want.String(), string(result.Combined.Data))
	require.Equal(t, 200, bytes.Count(result.Stdout.Data, []byte("o")))
	require.Equal(t, 200, bytes.Count(result.Stderr.Data, []byte("e")))
	require.Equal(t, result.Stdout, b.exec(t, shell("i=0; while [ $i -lt 200 ]; do echo o$i; i=$((i+1)); done")).Combined)
}

func outputTotals(t *testing.T, b *box) {
	cmd := shell("seq 1 500; seq 501 600 >&2; printf 601")
	cmd.Limits.Output = 1000
	result := b.exec(t, cmd)
	require.Equal(t, []any{int64(1895), int64(501), true}, []any{result.Stdout.Total, result.Stdout.Lines, result.Stdout.Truncated})
	require.Equal(t, []any{int64(400), int64(100), false}, []any{result.Stderr.Total, result.Stderr.Lines, result.Stderr.Truncated})
	require.Equal(t, []any{int64(2295), int64(601), true}, []any{result.Combined.Total, result.Combined.Lines, result.Combined.Truncated})
}
