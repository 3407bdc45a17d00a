package supervisor

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
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
		out := newOutput(test.limit, nil)
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
		chunks := rapid.SliceOf(rapid.StringOfN(rapid.RuneFrom([]rune("aé漢😀\n")), 0, 40, -1)).Draw(t, "chunks")
		var live bytes.Buffer
		out := newOutput(limit, func(stream sandbox.Stream, data []byte) {
			require.Equal(t, sandbox.Stderr, stream)
			live.Write(data)
		})
		total := 0
		for _, chunk := range chunks {
			total += len(chunk)
			n, err := out.Writer(sandbox.Stderr).Write([]byte(chunk))
			require.Equal(t, len(chunk), n)
			require.NoError(t, err)
		}
		whole := strings.Join(chunks, "")
		got := out.Captured(sandbox.Stderr)
		require.Equal(t, whole, live.String())
		require.EqualValues(t, total, got.Total)
		require.Len(t, slices.Collect(strings.Lines(whole)), int(got.Lines))
		if total <= int(limit) {
			require.False(t, got.Truncated)
			require.Equal(t, whole, string(got.Data))
			return
		}
		require.True(t, got.Truncated)
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
	out := newOutput(0, nil)
	for range 2 {
		require.False(t, out.Captured(sandbox.Stdout).Truncated)
		_, err := out.Writer(sandbox.Stdout).Write(make([]byte, isolation.DefaultOutput))
		require.NoError(t, err)
	}
	require.True(t, out.Captured(sandbox.Stdout).Truncated)
}

func TestOutput_CombinedIsBothStreamsInOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.Int64Range(1, 30).Draw(t, "limit")
		out, alone := newOutput(limit, nil), newOutput(limit, nil)
		for _, text := range rapid.SliceOf(rapid.StringMatching("[12][a-z]{0,12}")).Draw(t, "writes") {
			stream := sandbox.Stream(text[0] - '0')
			_, _ = out.Writer(stream).Write([]byte(text[1:]))
			_, _ = alone.Writer(sandbox.Stdout).Write([]byte(text[1:]))
		}
		want, got := alone.Captured(sandbox.Stdout), out.Combined()
		require.Equal(t, want, got)
	})
}
