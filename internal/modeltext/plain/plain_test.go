package plain_test

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/modeltext/plain"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func TestText(t *testing.T) {
	t.Parallel()
	user, err := wire.NewUserValue("my_kind", json.RawMessage(`"a\nb"`))
	require.NoError(t, err)
	structured, err := wire.NewUserValue("my_kind", json.RawMessage(`{"a":1}`))
	require.NoError(t, err)
	ran := protocol.Execution{Stdout: protocol.Bytes("1\n"), Stderr: protocol.Bytes("2\n"), Combined: protocol.Bytes("2\n1\n")}
	for name, test := range map[string]struct {
		value protocol.Value
		want  string
	}{
		"names": {
			protocol.FilesListResult{Entries: []protocol.DirEntry{{Name: "a", Type: protocol.TypeDir}, {Name: "b\n", Type: protocol.TypeFile, Size: 1}}},
			"a/\n\"b\\n\" (1 byte)\n",
		},
		"a tree": {
			protocol.FilesTreeResult{Path: "x", Entries: []protocol.TreeEntry{{Path: "x/a", Type: protocol.TypeDir, Hidden: 2}, {Path: "x/a/b", Type: protocol.TypeSymlink}}},
			"a/ (2 inside)\n  b (symlink)\n",
		},
		"paths": {protocol.FilesGlobResult{Paths: []string{"a", "b/c"}}, "a\nb/c\n"},
		"matches": {
			protocol.FilesSearchResult{Matches: []protocol.Match{{Path: "a", Line: 7, Text: "x\x1b[1m"}, {Path: "a", Line: 8, Text: "y", Cut: 3}}},
			"a:7:x\na:8:y [... and 3 more bytes]\n",
		},
		"a file":         {protocol.FilesReadResult{Content: protocol.Bytes("x\r\n")}, "x\r\n"},
		"JSON":           {protocol.FilesJSONReadResult{Value: protocol.Bytes("[1, 2]")}, "[1, 2]"},
		"a command":      {protocol.CommandRunResult{Execution: ran}, "2\n1\n"},
		"one stream":     {protocol.CodeRunResult{Execution: protocol.Execution{Stderr: protocol.Bytes("2\n")}}, "2\n"},
		"a tool":         {protocol.ToolRunResult{Output: json.RawMessage(`[1]`), Execution: ran}, "[1]"},
		"a tool, failed": {protocol.ToolRunResult{Execution: ran}, "2\n1\n"},
		"a text":         {user, "a\nb"},
		"a value":        {structured, `{"a":1}`},
		"a dialog":       {wire.DialogOpenResult{DialogState: wire.DialogState{Output: json.RawMessage(`"x"`)}}, "x"},
		"anything else":  {wire.NoopResult{}, `{"type":"noop","version":1}`},
	} {
		got, err := plain.Text(test.value)
		require.NoError(t, err, name)
		require.Equal(t, test.want, string(got), name)
	}
}

func TestFitsFile(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		content string
		fits    bool
	}{
		"nothing":         {"", true},
		"a short file":    {strings.Repeat("0123456789\n", 400), true},
		"a long line":     {strings.Repeat("x", plain.MaxLine+1), false},
		"many short ones": {strings.Repeat("\n", 1000), false},
		"much":            {strings.Repeat("0123456789\n", 2000), false},
	} {
		require.Equal(t, test.fits, plain.FitsFile([]byte(test.content)), name)
	}
}

func TestCutMatch(t *testing.T) {
	t.Parallel()
	short := protocol.Match{Path: "a", Line: 1, Text: strings.Repeat("x", plain.MaxMatch)}
	require.Equal(t, short, plain.CutMatch(short))
	cut := plain.CutMatch(protocol.Match{Text: "x" + strings.Repeat("é", plain.MaxMatch)})
	require.True(t, utf8.ValidString(cut.Text))
	require.Len(t, cut.Text, plain.MaxMatch-1, "half a character would fit")
	require.Equal(t, 1+2*plain.MaxMatch, len(cut.Text)+cut.Cut)
}
