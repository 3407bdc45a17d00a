package toolset_test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

func TestRead_TakesHandlesOfEarlierResults(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]wire.ResultRead{
		`{"path":"result:c-1"}`:                                   {CallID: "c-1"},
		`{"path":"result:c-1#stderr"}`:                            {CallID: "c-1", Part: "stderr"},
		`{"path":"result:c-1#output","offset":"40","limit":"20"}`: {CallID: "c-1", Part: "output", Offset: 40, Limit: 20},
		`{"path":"result:c-1#output:40"}`:                         {CallID: "c-1", Part: "output", Offset: 40},
		`{"path":"result:c-1:40","limit":3}`:                      {CallID: "c-1", Offset: 40, Limit: 3},
		`{"path":"result:c-1:40","offset":50}`:                    {CallID: "c-1", Offset: 50},
		`{"path":"result:c-1:40@2001"}`:                           {CallID: "c-1", Offset: 40, Column: 2001},
		`{"path":"result:c-1#text:40@2001","offset":50}`:          {CallID: "c-1", Part: "text", Offset: 50},
	} {
		_, plan, err := coreTable(t).Plan(scope, "read", raw)
		require.Nil(t, err, raw)
		require.Equal(t, want, plan.Payload)
		call, err := plan.Call(scope, tools.Place{Turn: 1, Step: 1}, "", "read", time.Now())
		require.Nil(t, err)
		require.NotEqual(t, protocol.SandboxKey(scope.Sandbox).Lane(), call.Lane(), "it waits for no command")
	}
	for _, path := range []string{
		"result:", "result:c-1#", "result:c-1#all", "result:a/b", "result:c-1#stdout#stderr", "result:c-1:", "result:c-1:x",
		"result:c-1:-1", "result:c-1#all:3", "result:c-1:1@", "result:c-1:@1", "result:c-1:1@-1", "result:c-1:1@x",
	} {
		_, _, err := coreTable(t).Plan(scope, "read", `{"path":"`+path+`"}`)
		if path == "result:c-1#" {
			require.Nil(t, err)
			continue
		}
		require.NotNil(t, err, path)
		require.Equal(t, codes.InvalidPath, err.Code)
	}
	_, plan, err := coreTable(t).Plan(scope, "read", `{"path":"./result:c-1"}`)
	require.Nil(t, err)
	require.Equal(t, protocol.FilesRead{Path: "result:c-1"}, plan.Payload)
}

func TestRead_OfEveryToolsetTakesHandles(t *testing.T) {
	t.Parallel()
	for set, name := range map[string]string{
		"core": "read", "core-shell": "read", "files": "read_file", "openrath": "read_workspace_file", "smithers": "read",
	} {
		tool, plan, err := setTable(t, set).Plan(scope, name, `{"path":"result:c-1#stderr:7"}`)
		require.Nil(t, err, set)
		require.Equal(t, wire.ResultRead{CallID: "c-1", Part: "stderr", Offset: 7}, plan.Payload)
		result := ok(wire.ResultReadResult{CallID: "c-1", Part: "stderr", Content: protocol.Bytes("g\n"), FirstLine: 7, Lines: 1, TotalLines: 7})
		want := "     7\tg\n[lines 7-7 of 7]"
		if set == "openrath" {
			want = `{"data":"     7\tg\n[lines 7-7 of 7]"}`
		}
		require.Equal(t, want, tool.Text(&result), set)
	}
}

func TestText_OutputInTheOrderInWhichItCame(t *testing.T) {
	t.Parallel()
	both := execution("1\n3\n", "2\n4\n", 0)
	both.Combined = protocol.Bytes("1\n2\n3\n4\n")
	require.Equal(t, "1\n2\n3\n4\n", text(t, "bash", ok(protocol.CommandRunResult{Execution: both})))
	both.Combined = nil // an older worker
	require.Equal(t, "1\n3\n[stderr]\n2\n4\n", text(t, "bash", ok(protocol.CommandRunResult{Execution: both})))
}

// keptText is a result of which all of a text is kept.
func keptText(v protocol.Value, lines int) protocol.Result {
	result := ok(v)
	result.CallID, result.Kept = "c-1", &protocol.Kept{Lines: lines}
	return result
}

var readOn = regexp.MustCompile(`all of it: read it from path="result:c-1(?::(\d+))?(?:@(\d+))?" on\]$`)

// TestText_CutOutputSaysWhereTheRestIs: reading on there misses nothing.
func TestText_CutOutputSaysWhereTheRestIs(t *testing.T) {
	t.Parallel()
	var lines strings.Builder
	for i := range 20_000 {
		fmt.Fprintf(&lines, "%d\n", i+1)
	}
	colours := "\x1b[31m" + strings.Repeat("x", 100_000)
	for name, test := range map[string]struct{ output, line, column string }{
		"lines":           {lines.String(), "4416", "3"},
		"one line":        {strings.Repeat("x", 100_000), "1", "20971"},
		"not as written":  {colours, "", ""},
		"characters":      {strings.Repeat("漢", 100_000), "1", "62911"},
		"a mark in it":    {"a\n[... b\n" + strings.Repeat("x", 100_000), "1", "2"},
		"only one stream": {"a\n" + strings.Repeat("x", 100_000), "2", "20969"},
	} {
		out := text(t, "bash", keptText(protocol.CommandRunResult{Execution: execution(test.output, "", 0)}, 0))
		found := readOn.FindStringSubmatch(out)
		require.NotNil(t, found, "%s: %s", name, out[len(out)-300:])
		require.Equal(t, []string{test.line, test.column}, found[1:], name)
		if name == "lines" {
			require.Contains(t, out, "\n4415\n44\n[... ")
		}
	}
}

func TestText_CutOutputOfWhichNoMoreIsKept(t *testing.T) {
	t.Parallel()
	cut := execution("head", "", 0)
	cut.Truncated = true
	result := ok(protocol.CommandRunResult{Execution: cut})
	result.CallID = "c-1"
	require.Contains(t, text(t, "bash", result), "the rest is not stored: write the output to a file and read that, or filter it]")
	result.Kept = &protocol.Kept{}
	require.Contains(t, text(t, "bash", result), `all of it: read it from path="result:c-1:1@5" on]`)
	cut.StdoutBytes, cut.StdoutLines = 100_000_000, 2
	result.Value, result.Kept.Truncated = protocol.CommandRunResult{Execution: cut}, true
	require.Contains(t, text(t, "bash", result),
		`[output was cut: stdout had 100000000 bytes in 2 lines, stderr 0 bytes; its beginning and its end: read it from path="result:c-1:1@5" on]`)
}

func TestText_KeptResult(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 50_000)
	for name, test := range map[string]struct {
		value wire.ResultReadResult
		want  string
	}{
		"some lines": {
			wire.ResultReadResult{Content: protocol.Bytes("c\nd\n"), FirstLine: 3, LineBytes: 1, Lines: 2, TotalLines: 9},
			"     3\tc\n     4\td\n[lines 3-4 of 9; read on with path=\"result:c-1#stdout:5\"]",
		},
		"the last": {wire.ResultReadResult{Content: protocol.Bytes("d\n"), FirstLine: 9, LineBytes: 1, Lines: 1, TotalLines: 9}, "     9\td\n[lines 9-9 of 9]"},
		"not all kept": {
			wire.ResultReadResult{Content: protocol.Bytes("d\n"), FirstLine: 9, LineBytes: 1, Lines: 1, TotalLines: 9, Truncated: true},
			"     9\td\n[lines 9-9 of 9; the rest is not stored]",
		},
		"none there": {wire.ResultReadResult{TotalLines: 9}, "[there are no such lines: result:c-1#stdout has 9 lines]"},
		"empty":      {wire.ResultReadResult{}, "[result:c-1#stdout is empty]"},
		"an empty line": {
			wire.ResultReadResult{Content: protocol.Bytes("\n"), FirstLine: 1, Lines: 1, TotalLines: 2},
			"     1\t\n[lines 1-1 of 2; read on with path=\"result:c-1#stdout:2\"]",
		},
		"part of a line": {
			wire.ResultReadResult{Content: protocol.Bytes(long), FirstLine: 2, LineBytes: 1e6, Lines: 1, TotalLines: 3},
			"     2\t" + long[:43_992] + "\n[line 2 of 3, bytes 1-43992 of 1000000; read on with path=\"result:c-1#stdout:2@43993\"]",
		},
		"the end of one": {
			wire.ResultReadResult{Content: protocol.Bytes("é\nz\n"), FirstLine: 2, FirstColumn: 9, LineBytes: 10, Lines: 2, TotalLines: 4},
			"     2\té\n     3\tz\n[line 2 of 4, bytes 9-10 of 10, and lines 3-3; read on with path=\"result:c-1#stdout:4\"]",
		},
	} {
		test.value.CallID, test.value.Part = "c-1", wire.PartStdout
		require.Equal(t, test.want, text(t, "read", ok(test.value)), name)
	}
	gone := protocol.Result{Status: protocol.StatusFailed, Error: protocol.Errorf(protocol.CodeNotFound, "no result")}
	require.Contains(t, text(t, "read", gone), "[failed: not_found]")
}

func TestText_AnyResultThatIsCutHasAHandle(t *testing.T) {
	t.Parallel()
	result := keptText(wire.TurnRunResult{Text: strings.Repeat("é", 60_000)}, 0)
	out := text(t, "exists", result) // a value that this tool does not know is shown as JSON
	var value map[string]any
	require.NoError(t, json.Unmarshal([]byte(out), &value), "it is JSON even then")
	require.Equal(t, `all of it: read with path="result:c-1#value"`, value["[cut]"])
	require.Contains(t, value["text"], "and 48000 more characters]")
	result.Kept = nil
	require.NotContains(t, text(t, "exists", result), "result:", "nothing is promised that is not kept")
}

// TestText_ListsThatAreCut: how many there are, and where the others are.
func TestText_ListsThatAreCut(t *testing.T) {
	t.Parallel()
	paths := make([]string, 600)
	entries := make([]protocol.DirEntry, 600)
	inTree := make([]protocol.TreeEntry, 600)
	matches := make([]protocol.Match, 600)
	for i := range paths {
		name := fmt.Sprintf("f%03d", i)
		paths[i], entries[i] = name, protocol.DirEntry{Name: name, Type: protocol.TypeDir}
		inTree[i], matches[i] = protocol.TreeEntry{Path: name, Type: protocol.TypeDir}, protocol.Match{Path: name, Line: 1, Text: "x"}
	}
	for tool, test := range map[string]struct {
		value                protocol.Value
		first, all, narrower string
	}{
		"list": {protocol.FilesListResult{Entries: entries, Total: 600}, "f000/\n", "[500 of 600 names; ", "use glob with a pattern, or list a subdirectory]"},
		"glob": {protocol.FilesGlobResult{Paths: paths, Total: 600, Ignored: 3}, "f000\n", "[500 of 600 files; 3 left out by .gitignore; ", "use a narrower pattern or path]"},
		"tree": {
			protocol.FilesTreeResult{Entries: inTree, Total: 600, Ignored: 3},
			"./\nf000/\n",
			"[500 of 600 entries; 3 left out by .gitignore; ", "show a subdirectory, or less depth]",
		},
		"grep": {
			protocol.FilesSearchResult{Matches: matches, Total: 600, Files: 700, Skipped: 1, Ignored: 3},
			"f000:1:x\n", "[500 of 600 matches; 700 files searched, 1 skipped: too large or unreadable; 3 left out by .gitignore; ", "use a narrower pattern, path or glob]",
		},
	} {
		out := text(t, tool, keptText(test.value, 600))
		require.True(t, strings.HasPrefix(out, test.first), out[:40])
		require.True(t, strings.HasSuffix(out, test.all+`the others: read on with path="result:c-1:501"]`), "%s: %s", tool, out[len(out)-200:])
		out = text(t, tool, keptText(test.value, 550))
		require.True(t, strings.HasSuffix(out, test.all+`the first 550 are stored: read on with path="result:c-1:501", or `+test.narrower), "%s: %s", tool, out[len(out)-300:])
		out = text(t, tool, ok(test.value))
		require.True(t, strings.HasSuffix(out, test.all+"the others are not stored: "+test.narrower), "%s: %s", tool, out[len(out)-300:])
	}
}

// TestText_ReadingOnInFiles: what the tools of each toolset say of lines and files that are cut.
func TestText_ReadingOnInFiles(t *testing.T) {
	t.Parallel()
	line := strings.Repeat("x", 60_000)
	many := strings.Repeat("0123456\n", 8000)
	for name, test := range map[string]struct {
		set, tool string
		value     protocol.FilesReadResult
		kept, not string
	}{
		"core, a line": {
			"core", "read",
			protocol.FilesReadResult{Path: "f", Content: protocol.Bytes("é" + line), Bytes: 60_002, FirstLine: 1, Lines: 1, TotalLines: 1},
			`[lines 1-1 of 1; line 1 is cut: read on in it with path="result:c-1:1@2002"]`,
			"[lines 1-1 of 1; line 1 is cut: for the rest of it use bash, as in `sed -n 1p f | cut -b 2002-4001`]",
		},
		"core, lines": {
			"core", "read",
			protocol.FilesReadResult{Path: "f", Content: protocol.Bytes(line + "\nb\n" + line + "\n" + line), FirstLine: 7, Lines: 4, TotalLines: 12},
			`[lines 7-10 of 12; read on with offset=11, or in the file as it was now with path="result:c-1:11"; line 7 and 2 others are cut: read on in it with path="result:c-1:7@2001"]`,
			"[lines 7-10 of 12; read on with offset=11; line 7 and 2 others are cut: for the rest of it use bash, as in `sed -n 7p f | cut -b 2001-4000`]",
		},
		"core, more than a read returns": {
			"core", "read",
			protocol.FilesReadResult{Path: "f", Content: protocol.Bytes(line), LineBytes: 1e7, FirstLine: 1, Lines: 1, TotalLines: 1, Truncated: true},
			"x [... and 9998000 more bytes]\n" + `[lines 1-1 of 1; line 1 is cut: read on in it with path="result:c-1:1@2001"]`,
			"`sed -n 1p f | cut -b 2001-4000`]",
		},
		"smithers, a line": {
			"smithers", "read",
			protocol.FilesReadResult{Path: "f", Content: protocol.Bytes(line), Bytes: 60_000, FirstLine: 1, Lines: 1, TotalLines: 1},
			`[cut here: these are the first 44000 characters of 1 line, 60000 bytes in all; read on with path="result:c-1:1@44001"]`,
			`60000 bytes in all; for the rest use bash, as in {"cmd": "cut", "args": ["-b", "44001-88000", FILE]}]`,
		},
		"smithers, lines": {
			"smithers", "read",
			protocol.FilesReadResult{Path: "f", Content: protocol.Bytes(many), Bytes: 64_000, FirstLine: 1, Lines: 8000, TotalLines: 8000},
			`[cut here: these are the first 5500 of 8000 lines, 64000 bytes in all; read on with path="result:c-1:5501"]`,
			`64000 bytes in all; for the rest use bash, as in {"cmd": "sed", "args": ["-n", "900,1200p", FILE]}]`,
		},
		"openrath, a line": {
			"openrath", "read_workspace_file",
			protocol.FilesReadResult{Path: "f", Content: protocol.Bytes(line), Bytes: 60_000, FirstLine: 1, Lines: 1, TotalLines: 1},
			`x...(truncated)","truncated":"the file has 60000 bytes; read on with path=\"result:c-1:1@12001\""}`,
			`"the file has 60000 bytes; for the rest use run_shell_command, as in ` + "`cut -b 12001-24000 FILE`\"}",
		},
		"openrath, bytes": {
			"openrath", "read_workspace_file",
			protocol.FilesReadResult{Path: "f", Content: protocol.Bytes(line), Bytes: 60_000, FirstLine: 1, Lines: 1, TotalLines: 1, Raw: true},
			`...(truncated)","truncated":"the file has 60000 bytes; read on with path=\"result:c-1:1@12001\""}`,
			`"the file has 60000 bytes; for the rest use run_shell_command, as in ` + "`cut -b 12001-24000 FILE`\"}",
		},
		"files, lines": {
			"files", "read_file",
			protocol.FilesReadResult{Path: "f", Content: protocol.Bytes(many), Bytes: 64_000, FirstLine: 1, Lines: 8000, TotalLines: 8000},
			`read on with path="result:c-1:5501"]`, "find the place with search_files]",
		},
	} {
		tool, found := setTable(t, test.set).Lookup(test.tool)
		require.True(t, found)
		result := keptText(test.value, test.value.TotalLines)
		for range 2 { // the first text leaves no trace in the second
			out := tool.Text(&result)
			require.True(t, strings.HasSuffix(out, test.kept), "%s: %s", name, out[max(0, len(out)-300):])
		}
		result.Kept = nil
		out := tool.Text(&result)
		require.True(t, strings.HasSuffix(out, test.not), "%s: %s", name, out[max(0, len(out)-300):])
	}
}

// TestText_JSONThatIsCutSaysWhereAllOfItIs, whatever kind of value it is.
func TestText_JSONThatIsCutSaysWhereAllOfItIs(t *testing.T) {
	t.Parallel()
	const note = `all of it: read with path=\"result:c-1\"`
	for name, json := range map[string]string{
		"an object": `{"a":"` + strings.Repeat("x", 50_000) + `"}`,
		"an array":  "[" + strings.Repeat("12345,", 20_000) + "1]",
		"a string":  `"` + strings.Repeat("x", 50_000) + `"`,
		"a number":  strings.Repeat("1", 50_000),
	} {
		out := text(t, "json_read", keptText(protocol.FilesJSONReadResult{Value: protocol.Bytes(json)}, 1))
		require.Contains(t, out, note, name)
	}
}
