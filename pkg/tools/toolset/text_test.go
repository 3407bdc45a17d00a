package toolset_test

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/modeltext/render"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// text renders a result with a tool of the core toolset.
func text(t *testing.T, toolName string, result protocol.Result) string {
	t.Helper()
	tool, ok := coreTable(t).Lookup(toolName)
	require.True(t, ok)
	out := tool.Text(&result)
	require.True(t, utf8.ValidString(out))
	require.LessOrEqual(t, utf8.RuneCountInString(out), prose.MaxText)
	return out
}

func ok(value protocol.Value) protocol.Result {
	return protocol.Result{Status: protocol.StatusOK, Value: value}
}

func execution(stdout, stderr string, exit int) protocol.Execution {
	return protocol.Execution{
		ExitCode: exit, Reason: "exited", Stdout: protocol.Bytes(stdout), Stderr: protocol.Bytes(stderr),
		StdoutBytes: int64(len(stdout)), StderrBytes: int64(len(stderr)),
	}
}

func TestText_Commands(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		execution protocol.Execution
		want      string
	}{
		"output as it is":         {execution("a\n  b\n", "", 0), "a\n  b\n"},
		"no output":               {execution("", "", 0), "[no output; exit code 0]"},
		"no output, failed":       {execution("", "", 3), "[exit code 3]"},
		"output and exit code":    {execution("a\n", "", 1), "a\n[exit code 1]"},
		"output without its end":  {execution("a", "", 1), "a\n[exit code 1]"},
		"stderr only":             {execution("", "bad\n", 0), "[stderr]\nbad\n"},
		"both":                    {execution("a", "bad", 2), "a\n[stderr]\nbad\n[exit code 2]"},
		"a signal":                {protocol.Execution{ExitCode: -1, Signal: "SIGSEGV", Reason: "signaled"}, "[ended by signal SIGSEGV]"},
		"out of memory":           {protocol.Execution{ExitCode: -1, Signal: "SIGKILL", Reason: "oom"}, "[killed: it ran out of memory]\n[ended by signal SIGKILL]"},
		"a note":                  {protocol.Execution{Reason: "exited", Notes: []string{"It was slow."}}, "[It was slow.]"},
		"too much disk":           {protocol.Execution{Reason: "disk_limit"}, "[ended: it used up its disk]"},
		"a lost sandbox":          {protocol.Execution{Reason: "sandbox_lost"}, "[lost: its sandbox ended]"},
		"binary output":           {execution("a\x00b\xffc\x7f", "", 0), "a\uFFFDb\uFFFDc\uFFFD"},
		"colours and titles":      {execution("\x1b[1;31mred\x1b[0m \x1b]0;title\x07x\x1b(y", "", 0), "red x\uFFFD(y"},
		"progress":                {execution("1%\r2%\tdone\n", "", 0), "1%\r2%\tdone\n"},
		"C1 controls of terminal": {execution("a\u009b31mb", "", 0), "a\uFFFD31mb"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, test.want, text(t, "bash", ok(protocol.CommandRunResult{Execution: test.execution})))
			require.Equal(t, test.want, text(t, "run_code", ok(protocol.CodeRunResult{Execution: test.execution})))
		})
	}
}

func TestText_LongOutputKeepsHeadAndTail(t *testing.T) {
	t.Parallel()
	for name, unit := range map[string]string{"ascii": "z", "two bytes": "é", "four bytes": "😀"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			long := "START" + strings.Repeat(unit, 100_000) + "END"
			out := text(t, "bash", ok(protocol.CommandRunResult{Execution: execution(long, "warning", 1)}))
			require.True(t, strings.HasPrefix(out, "START"+unit))
			require.Contains(t, out, unit+"END\n[stderr]\nwarning\n[exit code 1]")
			require.Greater(t, utf8.RuneCountInString(out), 40_000, "short stderr leaves its share to stdout")
			var left int
			_, mark, found := strings.Cut(out, "\n[... ")
			require.True(t, found)
			_, err := fmt.Sscanf(mark, "%d characters left out ...]", &left)
			require.NoError(t, err)
			require.Equal(t, 100_000, strings.Count(out, unit)+left)
		})
	}
}

func TestText_TwoLongStreamsShareTheRoom(t *testing.T) {
	t.Parallel()
	out := text(t, "bash", ok(protocol.CommandRunResult{Execution: execution(strings.Repeat("o", 60_000), strings.Repeat("e", 60_000), 0)}))
	require.Equal(t, 2, strings.Count(out, "characters left out"))
	require.Greater(t, strings.Count(out, "o"), 20_000)
	require.Greater(t, strings.Count(out, "e"), 20_000)
}

func TestText_OutputThatTheWorkerCutSaysSo(t *testing.T) {
	t.Parallel()
	cut := execution("head … tail", "", 0)
	cut.Truncated, cut.StdoutBytes = true, 5_000_000
	out := text(t, "bash", ok(protocol.CommandRunResult{Execution: cut}))
	require.Equal(t,
		"head … tail\n[output was cut: stdout had 5000000 bytes, stderr 0 bytes; the rest is not stored: write the output to a file and read that, or filter it]",
		out)
}

func TestText_Read(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		value protocol.FilesReadResult
		want  string
	}{
		"a whole file": {
			protocol.FilesReadResult{Path: "a", Content: protocol.Bytes("x\n\ty\n"), FirstLine: 1, Lines: 2, TotalLines: 2},
			"     1\tx\n     2\t\ty\n[lines 1-2 of 2]",
		},
		"without a line feed at the end": {
			protocol.FilesReadResult{Path: "a", Content: protocol.Bytes("x\ny"), FirstLine: 1, Lines: 2, TotalLines: 2},
			"     1\tx\n     2\ty\n[lines 1-2 of 2]",
		},
		"an empty line": {
			protocol.FilesReadResult{Path: "a", Content: protocol.Bytes("\n"), FirstLine: 1, Lines: 1, TotalLines: 1},
			"     1\t\n[lines 1-1 of 1]",
		},
		"some lines in the middle": {
			protocol.FilesReadResult{Path: "a", Content: protocol.Bytes("x\ny\n"), FirstLine: 9, Lines: 2, TotalLines: 2000},
			"     9\tx\n    10\ty\n[lines 9-10 of 2000; read on with offset=11]",
		},
		"cut by the worker": {
			protocol.FilesReadResult{Path: "a", Content: protocol.Bytes("x\n"), FirstLine: 1, Lines: 1, TotalLines: 5, Truncated: true},
			"     1\tx\n[lines 1-1 of 5; read on with offset=2]",
		},
		"carriage returns stay": {
			protocol.FilesReadResult{Path: "a", Content: protocol.Bytes("x\r\ny\r\n"), FirstLine: 1, Lines: 2, TotalLines: 2},
			"     1\tx\r\n     2\ty\r\n[lines 1-2 of 2]",
		},
		"line ends": {
			protocol.FilesReadResult{Path: "a", Content: protocol.Bytes("x\r\ny\r\n"), FirstLine: 1, Lines: 2, TotalLines: 2, LineEnds: "CRLF"},
			"     1\tx\n     2\ty\n[lines 1-2 of 2; line ends are CRLF]",
		},
		"another encoding": {
			protocol.FilesReadResult{
				Path: "a", Content: protocol.Bytes("ü" + strings.Repeat("x", 2500) + "\n"), FirstLine: 1, Lines: 1,
				TotalLines: 1, Encoding: "UTF-16LE", BOM: true, LineEnds: "mixed",
			},
			"     1\tü" + strings.Repeat("x", 1999) +
				" [... and 501 more characters]\n[lines 1-1 of 1; line 1 is cut: for the rest of it use bash, as in `iconv -f UTF-16LE -t UTF-8 a | sed -n 1p | cut -b 2002-2502`; " +

				"encoding UTF-16LE, with a byte order mark, line ends are mixed, CRLF and LF]",
		},
		"an empty file":  {protocol.FilesReadResult{Path: "a"}, "[a is empty]"},
		"beyond the end": {protocol.FilesReadResult{Path: "a", TotalLines: 7, Bytes: 70}, "[there are no such lines: a has 7 lines]"},
		"a binary file": {
			protocol.FilesReadResult{Path: "a b", Content: protocol.Bytes("\x00\xff"), Bytes: 2, Binary: true},
			"[a b is a binary file of 2 bytes: not shown; examine it with bash, such as with `file` or `od -c`]",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, test.want, text(t, "read", ok(test.value)))
		})
	}
}

func TestText_ReadOnReachesEveryLineOfALongFile(t *testing.T) {
	t.Parallel()
	const total = 9_999
	lines := make([]string, 0, total)
	for i := range total {
		lines = append(lines, fmt.Sprintf("line %d é", i+1))
	}
	var seen []string
	for offset := 1; offset <= total; {
		content := strings.Join(lines[offset-1:], "\n") + "\n"
		out := text(t, "read", ok(protocol.FilesReadResult{
			Path: "a", Content: protocol.Bytes(content), FirstLine: offset, Lines: total - offset + 1, TotalLines: total,
		}))
		body, mark, found := strings.Cut(out, "[lines ")
		require.True(t, found)
		for line := range strings.Lines(body) {
			_, line, _ = strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
			seen = append(seen, line)
		}
		next := total + 1
		if _, on, more := strings.Cut(mark, "offset="); more {
			_, err := fmt.Sscanf(on, "%d]", &next)
			require.NoError(t, err)
		}
		require.Greater(t, next, offset)
		offset = next
	}
	require.Equal(t, lines, seen)
}

func TestText_OneEndlessLineIsCutAndLeftBehind(t *testing.T) {
	t.Parallel()
	out := text(t, "read", ok(protocol.FilesReadResult{
		Path: "a", Content: protocol.Bytes(strings.Repeat("é", 100_000) + "\nx\n"), FirstLine: 1, Lines: 2, TotalLines: 2,
	}))
	require.Contains(t, out, "é [... and 98000 more characters]\n     2\tx\n")
	require.True(t, strings.HasSuffix(out, "\n[lines 1-2 of 2; line 1 is cut: for the rest of it use bash, as in `sed -n 1p a | cut -b 4001-8000`]"))
}

func TestText_Files(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		tool  string
		value protocol.Value
		want  string
	}{
		"a directory": {"list", protocol.FilesListResult{Total: 5, Entries: []protocol.DirEntry{
			{Name: "a b.txt", Type: protocol.TypeFile, Size: 12},
			{Name: "dir", Type: protocol.TypeDir, Size: 4096},
			{Name: "link", Type: protocol.TypeSymlink},
			{Name: "one", Type: protocol.TypeFile, Size: 1},
			{Name: "pipe", Type: protocol.TypeOther},
		}}, "a b.txt (12 bytes)\ndir/\nlink (symlink)\none (1 byte)\npipe (special file)\n"},
		"names that would deceive": {"list", protocol.FilesListResult{Total: 2, Entries: []protocol.DirEntry{
			{Name: "a\nb", Type: protocol.TypeDir}, {Name: "\x1b[2J\xff", Type: protocol.TypeDir},
		}}, "\"a\\nb\"/\n\"\\x1b[2J\\xff\"/\n"},
		"an empty directory": {"list", protocol.FilesListResult{}, "[the directory is empty]"},
		"a cut directory": {
			"list",
			protocol.FilesListResult{Total: 3, Entries: []protocol.DirEntry{{Name: "a", Type: protocol.TypeDir}}},
			"a/\n[1 of 3 names; the others are not stored: use glob with a pattern, or list a subdirectory]",
		},
		"nothing there": {"exists", protocol.FilesExistsResult{Path: "a"}, "no: there is nothing at a"},
		"a file":        {"exists", protocol.FilesExistsResult{Path: "a", Exists: true, Type: protocol.TypeFile, Size: 3}, "yes: a is a file of 3 bytes"},
		"the workspace": {"exists", protocol.FilesExistsResult{Exists: true, Type: protocol.TypeDir}, "yes: . is a directory"},
		"a symlink":     {"exists", protocol.FilesExistsResult{Path: "a", Exists: true, Type: protocol.TypeSymlink}, "yes: a is a symlink"},
		"a socket":      {"exists", protocol.FilesExistsResult{Path: "a", Exists: true, Type: protocol.TypeOther}, "yes: a is a special file"},
		"matches": {"grep", protocol.FilesSearchResult{Files: 9, Matches: []protocol.Match{
			{Path: "a.go", Line: 3, Text: "\tx := 1"}, {Path: "b c.go", Line: 14, Text: "x\xc3\x1b[0m"},
		}}, "a.go:3:\tx := 1\nb c.go:14:x\uFFFD\n[2 matches; 9 files searched]"},
		"one match":         {"grep", protocol.FilesSearchResult{Files: 1, Matches: []protocol.Match{{Path: "a", Line: 1}}}, "a:1:\n[1 match; 1 file searched]"},
		"only binary files": {"grep", protocol.FilesSearchResult{Binary: 2}, "[no matches; 0 files searched, 2 not searched: binary]"},
		"skipped files": {
			"grep",
			protocol.FilesSearchResult{Skipped: 2, SkippedPaths: []string{"big.log", "a\nb"}, Binary: 4, BinaryPaths: []string{"a", "b", "c"}},
			`[no matches; 0 files searched, 2 skipped: too large or unreadable (big.log, "a\nb"), 4 not searched: binary (a, b, c, ...)]`,
		},
		"no matches": {"grep", protocol.FilesSearchResult{Files: 9, Skipped: 2}, "[no matches; 9 files searched, 2 skipped: too large or unreadable]"},
		"more matches": {
			"grep",
			protocol.FilesSearchResult{Files: 1, Total: 2, Stopped: true, Matches: []protocol.Match{{Path: "a", Line: 1, Text: "x", Cut: 7}}},
			"a:1:x [... and 7 more bytes]\n[1 of 2 matches; 1 file searched, and no more because that took too long: use a narrower path or glob; the others are not stored: use a narrower pattern, path or glob]",
		},
		"a new file":      {"write", protocol.FilesWriteResult{Path: "a", Bytes: 5, SHA256: "5a", Created: true, Diff: "+hello"}, "Created a (5 bytes, SHA-256 5a)."},
		"a replaced file": {"write", protocol.FilesWriteResult{Path: "a", Bytes: 1, SHA256: "5a", Diff: "-x\n+y"}, "Replaced the content of a (1 byte, SHA-256 5a)."},
		"an edit": {
			"edit",
			protocol.FilesEditResult{Path: "a", Replacements: 1, Bytes: 5, SHA256: "5a", Diff: "@@ -1 +1 @@\n-x\n+y\n"},
			"Edited a: 1 replacement (5 bytes, SHA-256 5a).\n@@ -1 +1 @@\n-x\n+y\n",
		},
		"an edit without a diff": {
			"edit", protocol.FilesEditResult{Path: "a", Replacements: 2, Bytes: 5, SHA256: "5a"}, "Edited a: 2 replacements (5 bytes, SHA-256 5a).",
		},
		"a patch that was off": {
			"edit",
			protocol.FilesEditResult{Path: "a", Replacements: 3, Bytes: 5, SHA256: "5a", Outcomes: []protocol.EditOutcome{
				{Replacements: 1, Line: 3}, {Replacements: 1, Line: 9, Offset: 2}, {Replacements: 1, Line: 20, Offset: -1},
			}},
			"Edited a: 3 replacements (5 bytes, SHA-256 5a).\n[hunk 2 was applied at line 9, 2 lines further down than its header says]\n" +
				"[hunk 3 was applied at line 20, 1 line further up than its header says]",
		},
		"some of several edits": {
			"multi_edit",
			protocol.FilesEditResult{Path: "a", Replacements: 2, Bytes: 5, SHA256: "5a", Diff: "-x\n+y\n", Outcomes: []protocol.EditOutcome{
				{Replacements: 2, Line: 1}, {Error: protocol.Errorf(codes.EditNotFound, "edit 2 of 2: it is not there")},
			}},
			"Edited a: 1 of 2 edits were made (5 bytes, SHA-256 5a).\n[not made: edit 2 of 2: it is not there]\n-x\n+y\n",
		},
		"files":    {"glob", protocol.FilesGlobResult{Paths: []string{"a.go", "b\nc"}, Total: 2}, "a.go\n\"b\\nc\"\n[2 files]"},
		"no files": {"glob", protocol.FilesGlobResult{}, "[no files match; **/NAME looks at every depth]"},
		"more files": {
			"glob",
			protocol.FilesGlobResult{Paths: []string{"a"}, Total: 9, Skipped: 2},
			"a\n[1 of 9 files; 2 directories could not be read; the others are not stored: use a narrower pattern or path]",
		},
		"a tree": {"tree", protocol.FilesTreeResult{Path: "src", Total: 4, Ignored: 2, Entries: []protocol.TreeEntry{
			{Path: "src/a", Type: protocol.TypeDir},
			{Path: "src/a/b", Type: protocol.TypeDir, Hidden: 3},
			{Path: "src/a/c.go", Type: protocol.TypeFile, Size: 7},
			{Path: "src/d", Type: protocol.TypeSymlink},
		}}, "src/\na/\n  b/ (3 inside)\n  c.go (7 bytes)\nd (symlink)\n[4 entries; 2 left out by .gitignore]"},
		"a cut tree": {
			"tree",
			protocol.FilesTreeResult{Total: 7, Skipped: 1, Entries: []protocol.TreeEntry{{Path: "a", Type: protocol.TypeDir}}},
			"./\na/\n[1 of 7 entries; 1 directories could not be read; the others are not stored: show a subdirectory, or less depth]",
		},
		"a JSON value": {"json_read", protocol.FilesJSONReadResult{Value: protocol.Bytes("{\n  \"b\": 1.50}"), JSONType: "object"}, "{\n  \"b\": 1.50}"},
		"a JSON file that was written": {
			"json_write",
			protocol.FilesJSONWriteResult{FilesWriteResult: protocol.FilesWriteResult{Path: "a", Bytes: 5, SHA256: "5a", Created: true}},
			"Created a (5 bytes, SHA-256 5a).",
		},
		"an image": {
			"read",
			protocol.FilesReadResult{Path: "a.png", Content: protocol.Bytes("\x89PNG"), Bytes: 4, Binary: true, Image: "image/png"},
			"[a.png is an image, image/png of 4 bytes: it is attached if you can see images; otherwise examine it with bash]",
		},
		"a large image": {
			"read",
			protocol.FilesReadResult{Path: "a.png", Content: protocol.Bytes("\x89PNG"), Bytes: 9e6, Binary: true, Image: "image/png", Truncated: true},
			"[a.png is an image, image/png of 9000000 bytes: too large to be shown (at most 4194304 bytes); make a smaller one with bash]",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, test.want, text(t, test.tool, ok(test.value)))
		})
	}
}

func TestText_LongListingsSayHowManyAreShown(t *testing.T) {
	t.Parallel()
	list := protocol.FilesListResult{Total: 2_000}
	search := protocol.FilesSearchResult{Files: 1, Total: 3_000}
	for i := range 2_000 {
		list.Entries = append(list.Entries, protocol.DirEntry{Name: fmt.Sprintf("%04d-%s", i, strings.Repeat("é", 100)), Type: protocol.TypeDir})
		search.Matches = append(search.Matches, protocol.Match{Path: "a", Line: i + 1, Text: strings.Repeat("é", 100)})
	}
	out := text(t, "list", ok(list))
	require.Contains(t, out, fmt.Sprintf("[%d of 2000 names;", strings.Count(out, "/\n")))
	out = text(t, "grep", ok(search))
	require.Contains(t, out, fmt.Sprintf("[%d of 3000 matches; 1 file searched;", strings.Count(out, "a:")))
}

func TestText_FailuresHaveOneForm(t *testing.T) {
	t.Parallel()
	for _, status := range wire.Statuses()[1:] {
		for _, toolName := range coreTable(t).Names() {
			out := text(t, toolName, protocol.Result{Status: status, Error: protocol.Errorf(protocol.CodeToolFailed, "It broke.")})
			lines := strings.Split(out, "\n")
			require.Len(t, lines, 3, out)
			require.Equal(t, fmt.Sprintf("[%s: tool_failed]", status), lines[0])
			require.Equal(t, "It broke.", lines[1])
			require.True(t, strings.HasPrefix(lines[2], "Next: "))
		}
	}
}

func TestText_FailuresSayWhatToDoNext(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		status protocol.Status
		code   protocol.Code
		says   string
	}{
		"out of time":       {protocol.StatusTimeout, protocol.CodeRunTimeout, "longer"},
		"cancelled":         {protocol.StatusCancelled, protocol.CodeCancelled, "Do not repeat it unless you are asked"},
		"an empty pool":     {protocol.StatusOutcomeUnknown, protocol.CodeNoWorker, "as far as is known, nothing was run"},
		"unknown":           {protocol.StatusOutcomeUnknown, protocol.CodeOutcomeUnknown, "Check what is there before you repeat it"},
		"wrong arguments":   {protocol.StatusRejected, protocol.CodeInvalidArguments, "nothing was run"},
		"an escape":         {protocol.StatusRejected, codes.PathEscape, "as the message says"},
		"too long in queue": {protocol.StatusRejected, protocol.CodeQueueTimeout, "Try once more"},
		"no worker":         {protocol.StatusFailed, protocol.CodeSandboxUnavailable, "Try once more"},
		"gave up":           {protocol.StatusFailed, protocol.CodeAttemptsExhausted, "may remain"},
		"a panic":           {protocol.StatusFailed, protocol.CodePanic, "will not help"},
		"not found":         {protocol.StatusFailed, protocol.CodeNotFound, "Act on the message"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := protocol.Errorf(test.code, "M.")
			require.Contains(t, text(t, "read", protocol.Result{Status: test.status, Error: err}), test.says)
			require.Equal(t, text(t, "read", protocol.Result{Status: test.status, Error: err}), (*tools.Tool)(nil).Failure(&protocol.Result{Status: test.status, Error: err}))
		})
	}
}

func TestText_FailuresKeepPartialOutput(t *testing.T) {
	t.Parallel()
	partial := execution("half\n", "", -1)
	partial.Reason, partial.Signal = "timeout", "SIGKILL"
	out := text(t, "bash", protocol.Result{
		Status: protocol.StatusTimeout, Error: protocol.Errorf(protocol.CodeRunTimeout, "Stopped after 2 s.\n"),
		Value: protocol.CommandRunResult{Execution: partial},
	})
	require.Equal(t, `[timeout: run_timeout]
Stopped after 2 s.
Next: the call was stopped, and what it did until then may remain. Do less in one call or, where the tool has a timeout argument and nothing above speaks against it, name a longer one.
Partial output:
half
[stopped: it ran out of its time]
[ended by signal SIGKILL]`, out)
}

func TestText_LongFailuresStayWithinBounds(t *testing.T) {
	t.Parallel()
	out := text(t, "bash", protocol.Result{
		Status: protocol.StatusFailed, Error: protocol.Errorf(protocol.CodeToolFailed, "%s", strings.Repeat("é", 200_000)+"\xff"),
		Value: protocol.CommandRunResult{Execution: execution(strings.Repeat("é", 200_000)+"END", "", 1)},
	})
	require.Contains(t, out, "Next: ")
	require.Contains(t, out, "éEND\n[exit code 1]\n[output was cut: ")
}

func TestText_OfWhatNobodyExpected(t *testing.T) {
	t.Parallel()
	t.Run("no result", func(t *testing.T) {
		t.Parallel()
		read, _ := coreTable(t).Lookup("read")
		require.Contains(t, read.Text(nil), "[outcome_unknown: internal]")
	})
	t.Run("no tool", func(t *testing.T) {
		t.Parallel()
		var none *tools.Tool
		result := ok(wire.NoopResult{})
		require.JSONEq(t, `{"type":"noop","version":1}`, none.Text(&result))
	})
	t.Run("the value of another tool", func(t *testing.T) {
		t.Parallel()
		require.Contains(t, text(t, "read", ok(protocol.FilesExistsResult{Path: "a"})), `"files_exists"`)
	})
	t.Run("no value", func(t *testing.T) {
		t.Parallel()
		require.Equal(t, "[done; nothing was returned]", text(t, "read", ok(nil)))
	})
	t.Run("a failure without an error", func(t *testing.T) {
		t.Parallel()
		require.Contains(t, text(t, "read", protocol.Result{Status: protocol.StatusFailed}), "[failed: failed]\nNext: ")
	})
	t.Run("a value that cannot be encoded", func(t *testing.T) {
		t.Parallel()
		bad := protocol.CommandRunResult{}
		bad.CPUMS = 1 / zero()
		result := ok(bad)
		require.Contains(t, render.JSON(&result), "cannot be shown")
	})
	t.Run("a render function that panics", func(t *testing.T) {
		t.Parallel()
		bad := tool("bad", `{"type":"object"}`)
		bad.Render = func(*protocol.Result) string { panic("boom") }
		result := ok(wire.NoopResult{})
		require.JSONEq(t, `{"type":"noop","version":1}`, bad.Text(&result))
	})
	t.Run("a render function without bounds", func(t *testing.T) {
		t.Parallel()
		bad := tool("bad", `{"type":"object"}`)
		bad.Render = func(*protocol.Result) string { return strings.Repeat("😀", 60_000) + "\xff" }
		result := ok(wire.NoopResult{})
		out := bad.Text(&result)
		require.True(t, utf8.ValidString(out))
		require.LessOrEqual(t, utf8.RuneCountInString(out), prose.MaxText)
		require.Contains(t, out, "characters left out")
	})
}

func zero() float64 { return 0 }

func TestDiff(t *testing.T) {
	t.Parallel()
	write, edit := ok(protocol.FilesWriteResult{Diff: "w"}), ok(protocol.FilesEditResult{Diff: "e"})
	read, none := ok(protocol.FilesReadResult{}), ok(nil)
	require.Equal(t, "w", render.Diff(&write))
	require.Equal(t, "e", render.Diff(&edit))
	require.Empty(t, render.Diff(&read))
	require.Empty(t, render.Diff(&none))
	require.Empty(t, render.Diff(nil))
}
