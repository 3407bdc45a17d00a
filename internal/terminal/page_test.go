//go:build unix

package terminal_test

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/creack/pty"
	"github.com/stretchr/testify/require"
	"golang.org/x/term"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/terminal"
)

// onTerminal returns what reaches a terminal of what is written in pieces.
func onTerminal(t *testing.T, writer func(*os.File) io.Writer, pieces ...string) string {
	t.Helper()
	screen, slave, err := pty.Open()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, screen.Close()) })
	_, err = term.MakeRaw(int(slave.Fd())) // line ends stay as they are
	require.NoError(t, err)
	w := writer(slave)
	for _, piece := range pieces {
		n, err := io.WriteString(w, piece)
		require.NoError(t, err)
		require.Equal(t, len(piece), n)
	}
	_, err = slave.WriteString("END")
	require.NoError(t, err)
	require.NoError(t, slave.Close())
	var got []byte
	for buf := make([]byte, 100); ; {
		n, err := screen.Read(buf)
		got = append(got, buf[:n]...)
		if err != nil {
			break
		}
	}
	return string(got)
}

const nasty = "a\x1b]52;c;cm0=\x07\n\u009b31m\t\u202e\U000E0041é"

func TestWriter_NothingActsOnATerminal(t *testing.T) {
	t.Parallel()
	want := "a␛]52;c;cm0=␇\n<U+009B>31m\t<U+202E><U+E0041>éEND"
	require.Equal(t, want, onTerminal(t, terminal.Writer, nasty))
	var bytes []string
	for i := range len(nasty) {
		bytes = append(bytes, nasty[i:i+1])
	}
	require.Equal(t, want, onTerminal(t, terminal.Writer, bytes...), "byte by byte")
	require.Equal(t, want, prose.Visible(nasty)+"END")
	require.Equal(t, "a\nb␍", prose.Visible("a\r\nb\r"))
}

func TestWriter_FilesAndPipesGetEveryByte(t *testing.T) {
	t.Parallel()
	for _, writer := range []func(*os.File) io.Writer{terminal.Writer, terminal.JSONWriter} {
		path := filepath.Join(t.TempDir(), "out")
		file, err := os.Create(path)
		require.NoError(t, err)
		_, err = io.WriteString(writer(file), nasty)
		require.NoError(t, err)
		require.NoError(t, file.Close())
		got, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, nasty, string(got))
	}
}

func TestJSONWriter_KeepsEveryValue(t *testing.T) {
	t.Parallel()
	body, err := json.Marshal(nasty)
	require.NoError(t, err)
	got := onTerminal(t, terminal.JSONWriter, string(body))
	got = got[:len(got)-len("END")]
	require.NotContains(t, got, "\u009b")
	require.NotContains(t, got, "\u202e")
	var back string
	require.NoError(t, json.Unmarshal([]byte(got), &back))
	require.Equal(t, nasty, back)
}

func TestWrap(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		text        string
		limit, most int
		want        []string
	}{
		{"", 10, 3, nil},
		{"one two three", 20, 3, []string{"one two three"}},
		{"one two three", 7, 3, []string{"one two", "three"}},
		{"one two three", 6, 2, []string{"one", "two t…"}},
		{"abcdefghij", 4, 3, []string{"abcd", "efgh", "ij"}},
		{"日本語日本語", 5, 3, []string{"日本", "語日", "本語"}},
		{"a\x1b[31m\tb\u202ec", 12, 3, []string{"a\u241b[31m", "b<U+202E>c"}},
	} {
		require.Equal(t, test.want, terminal.Wrap(test.text, test.limit, test.most), "%q", test.text)
	}
}
