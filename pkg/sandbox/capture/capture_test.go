package capture_test

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
	"github.com/toolfleet/toolfleet/pkg/sandbox/capture"
)

func TestOutput_KeepsHeadAndTail(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		limit int64
		in    string
		want  string
	}{
		"nothing":                      {10, "", ""},
		"less than the limit":          {10, "012345678", "012345678"},
		"the limit":                    {10, "0123456789", "0123456789"},
		"one more":                     {10, "0123456789a", "01234\n[... 1 bytes left out ...]\n6789a"},
		"an odd limit":                 {5, "0123456789", "012\n[... 5 bytes left out ...]\n89"},
		"a limit of one":               {1, "0123", "0\n[... 3 bytes left out ...]\n"},
		"a character at both cuts":     {10, "abcdé12345é6789", "abcd\n[... 9 bytes left out ...]\n6789"},
		"not text":                     {4, "\xff\xff\xff\x80\x80\x80\x80\x80", "\xff\xff\n[... 6 bytes left out ...]\n"},
		"a tail that is not text":      {8, "\x80\x80\x80\x80\x80\x80\x80\x80\x80", "\x80\x80\x80\x80\n[... 1 bytes left out ...]\n\x80\x80\x80\x80"},
		"a tail of a character's rest": {6, "abcdef😀", "abc\n[... 7 bytes left out ...]\n"},
	} {
		out := capture.New(test.limit, nil)
		_, _ = out.Writer(sandbox.Stdout).Write([]byte(test.in)) // over the limit or not
		got := out.Captured(sandbox.Stdout)
		require.Equal(t, test.want, string(got.Data), name)
		require.EqualValues(t, len(test.in), got.Total, name)
		require.Equal(t, len(test.in) > int(test.limit), got.Truncated, name)
		require.Zero(t, out.Captured(sandbox.Stderr).Total)
	}
}

// A model that keeps everything says what has to be captured, however it is written.
func TestOutput_IsTheSameHoweverItIsWritten(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.Int64Range(1, 64).Draw(t, "limit")
		chunks := rapid.SliceOf(rapid.StringOfN(rapid.RuneFrom([]rune("aé漢😀")), 0, 40, -1)).Draw(t, "chunks")
		var live bytes.Buffer
		out := capture.New(limit, func(stream sandbox.Stream, data []byte) {
			require.Equal(t, sandbox.Stderr, stream)
			live.Write(data)
		})
		total := 0
		for _, chunk := range chunks {
			total += len(chunk)
			n, err := out.Writer(sandbox.Stderr).Write([]byte(chunk))
			require.Equal(t, len(chunk), n)
			require.Equal(t, total > capture.Factor*int(limit), err != nil)
		}
		whole := strings.Join(chunks, "")
		got := out.Captured(sandbox.Stderr)
		require.Equal(t, whole, live.String())
		require.EqualValues(t, total, got.Total)
		if total <= int(limit) {
			require.False(t, got.Truncated)
			require.Equal(t, whole, string(got.Data))
			return
		}
		require.True(t, got.Truncated)
		require.Equal(t, whole[:min(total, capture.Factor*int(limit))], string(got.Whole))
		head, tail, missing := split(t, string(got.Data))
		require.True(t, strings.HasPrefix(whole, head))
		require.True(t, strings.HasSuffix(whole, tail))
		require.Equal(t, total, len(head)+len(tail)+missing)
		require.LessOrEqual(t, len(head)+len(tail), int(limit))
		require.Greater(t, len(head)+len(tail), int(limit)-2*utf8.UTFMax)
		require.True(t, utf8.ValidString(head) && utf8.ValidString(tail))
	})
}

func split(t *rapid.T, data string) (head, tail string, missing int) {
	head, rest, ok := strings.Cut(data, "\n[... ")
	require.True(t, ok)
	_, err := fmt.Sscanf(rest, "%d bytes left out", &missing)
	require.NoError(t, err)
	_, tail, ok = strings.Cut(rest, "...]\n")
	require.True(t, ok)
	return head, tail, missing
}

func TestOutput_DefaultLimit(t *testing.T) {
	t.Parallel()
	out := capture.New(0, nil)
	n, err := out.Writer(sandbox.Stdout).Write(make([]byte, capture.Factor*sandbox.DefaultOutput))
	require.NoError(t, err)
	require.Equal(t, capture.Factor*sandbox.DefaultOutput, n)
	_, err = out.Writer(sandbox.Stdout).Write([]byte{0})
	require.ErrorIs(t, err, capture.ErrLimit)
}

func TestOutput_CombinedIsBothStreamsInOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.Int64Range(1, 30).Draw(t, "limit")
		out, alone := capture.New(limit, nil), capture.New(limit, nil)
		for _, text := range rapid.SliceOf(rapid.StringMatching("[12][a-z]{0,12}")).Draw(t, "writes") {
			stream := sandbox.Stream(text[0] - '0')
			_, _ = out.Writer(stream).Write([]byte(text[1:]))
			_, _ = alone.Writer(sandbox.Stdout).Write([]byte(text[1:]))
		}
		want, got := alone.Captured(sandbox.Stdout), out.Combined()
		require.True(t, bytes.HasPrefix(got.Whole, want.Whole), "%s %s", want.Whole, got.Whole)
		want.Whole, got.Whole = nil, nil
		require.Equal(t, want, got)
	})
}

func TestOutput_EndlessKeepsNothing(t *testing.T) {
	t.Parallel()
	var live int
	out := capture.For(&sandbox.Cmd{Endless: true, Live: func(_ sandbox.Stream, data []byte) { live += len(data) }}, sandbox.Limits{Output: 10})
	for range 100 {
		n, err := out.Writer(sandbox.Stdout).Write(make([]byte, 1000))
		require.NoError(t, err)
		require.Equal(t, 1000, n)
	}
	require.Equal(t, 100_000, live)
	require.Equal(t, sandbox.Captured{}, out.Captured(sandbox.Stdout))
	require.Equal(t, sandbox.Captured{}, out.Combined())
}

func TestOutput_CombinedIsKeptWhole(t *testing.T) {
	t.Parallel()
	out := capture.New(10, nil)
	var want strings.Builder
	for i := range 8 {
		stream := sandbox.Stdout + sandbox.Stream(i%2)
		text := strings.Repeat(strconv.Itoa(i), 10)
		want.WriteString(text)
		_, err := out.Writer(stream).Write([]byte(text))
		require.NoError(t, err)
	}
	require.Equal(t, want.String(), string(out.Combined().Whole))
	require.EqualValues(t, 80, out.Combined().Total)
	require.Equal(t, strings.Repeat("0", 10)+strings.Repeat("2", 10), string(out.Captured(sandbox.Stdout).Whole[:20]))
}
