package terminal

import (
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestSummary(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ tool, written, want string }{
		"a command":                {"bash", `{"command":"go test ./..."}`, "go test ./..."},
		"a command elsewhere":      {"bash", `{"command":"ls","cwd":"sub"}`, "ls (in sub)"},
		"a command where it is":    {"bash", `{"command":"ls","cwd":"."}`, "ls"},
		"a command of three lines": {"bash", `{"command":"\n\ncd a\r\nls\npwd\n"}`, "cd a (+2 lines)"},
		"a program":                {"run_code", `{"code":"import sys\nprint(1)","language":"python"}`, "python: import sys (+1 line)"},
		"a program in the default": {"run_code", `{"code":"print(1)"}`, "print(1)"},
		"a file":                   {"read", `{"path":"a.go"}`, "a.go"},
		"lines of a file":          {"read", `{"path":"a.go","offset":10,"limit":5}`, "a.go, lines 10-14"},
		"a file from a line on":    {"read", `{"path":"a.go","offset":10}`, "a.go, from line 10"},
		"the head of a file":       {"read", `{"path":"a.go","limit":1}`, "a.go, 1 line"},
		"offset of another type":   {"read", `{"path":"a.go","offset":"x"}`, "a.go"},
		"a file to write":          {"write", `{"path":"a.go","content":"a\nb\n"}`, "a.go (2 lines)"},
		"an empty file to write":   {"write", `{"path":"a.go","content":""}`, "a.go (0 lines)"},
		"an edit":                  {"edit", `{"path":"a.go","old":"x","new":"y"}`, "a.go"},
		"a question":               {"exists", `{"path":"a.go"}`, "a.go"},
		"a directory":              {"list", `{"path":"sub"}`, "sub"},
		"the workspace":            {"list", `{}`, "."},
		"a search":                 {"grep", `{"pattern":"a\\d"}`, `"a\d" in .`},
		"a search in some files":   {"grep", `{"pattern":"a","path":"sub","glob":"*.go"}`, `"a" in sub (*.go)`},
		"another tool":             {"weather", "{ \"city\":\n \"Ulm\" }", `{"city":"Ulm"}`},
		"another without argument": {"weather", `{}`, ""},
		"an argument of bad type":  {"bash", `{"command": ["ls", "-l"]}`, `{"command":["ls","-l"]}`},
		"a null":                   {"read", `{"path":null}`, `{"path":null}`},
		"a missing argument":       {"bash", `{"cwd":"a"}`, `{"cwd":"a"}`},
		"a program with arguments": {"bash", `{"cmd":"ls","args":["-l","a b"]}`, "ls -l 'a b'"},
		"another's command":        {"run_shell_command", `{"cmd":"ls"}`, "ls"},
		"several edits":            {"multi_edit", `{"path":"a.go","edits":[{"old":"x","new":"y"},{"old":"a","new":"b"}]}`, "a.go (2 edits)"},
		"a place of a document":    {"json_write", `{"path":"a.json","query":"/x","content":1}`, "a.json at /x"},
		"no JSON":                  {"bash", ` {"command": `, `{"command":`},
		"no object":                {"bash", `"ls"`, `"ls"`},
		"null":                     {"bash", `null`, `null`},
		"nothing":                  {"bash", ``, ``},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, c.want, summary(c.tool, c.written))
		})
	}
}

func TestFit(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		in    string
		limit int
		want  string
	}{
		"short enough":           {"abc", 3, "abc"},
		"too long":               {"abcd", 3, "ab…"},
		"one column":             {"abcd", 1, "…"},
		"wide letters":           {"漢字漢字", 8, "漢字漢字"},
		"wide letters cut":       {"漢字漢字", 7, "漢字漢…"},
		"no half letter":         {"漢字漢字", 4, "漢…"},
		"accents go with theirs": {"e\u0301e\u0301e\u0301", 2, "e\u0301…"},
		"a joined emoji is cut":  {"👩\u200d💻x", 4, "👩\u200d…"},
		"tab":                    {"a\tb", 9, "a   b"},
		"line feed":              {"a\nb", 9, "a␊b"},
		"escape":                 {"\x1b[31mred", 20, "␛[31mred"},
		"every other control":    {"\x00\a\b\r\x7f", 9, "␀␇␈␍␡"},
		"C1":                     {"a\u009b31m", 20, "a<U+009B>31m"},
		"raw bytes":              {"a\x9b\xff", 20, "a��"},
		"direction":              {"\u202eabc\u2066", 30, "<U+202E>abc<U+2066>"},
		"line separators":        {"\u2028\u2029", 30, "<U+2028><U+2029>"},
		"a form is not split":    {"abc\u202e", 9, "abc…"},
		"nothing":                {"", 5, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, c.want, fit(c.in, c.limit))
		})
	}
	require.Less(t, len(fit("e"+strings.Repeat("\u0301", 1_000_000), 40)), 1000, "marks upon marks")
	rapid.Check(t, func(rt *rapid.T) {
		limit := rapid.IntRange(1, 30).Draw(rt, "limit")
		got := fit(rapid.String().Draw(rt, "s"), limit)
		require.LessOrEqual(rt, columns(got), limit)
		require.True(rt, utf8.ValidString(got))
	})
}

func TestDuration(t *testing.T) {
	t.Parallel()
	for want, d := range map[string]time.Duration{
		"0.0 ms":      -time.Second,
		"0.3 ms":      340 * time.Microsecond,
		"9.4 ms":      9400 * time.Microsecond,
		"312 ms":      312 * time.Millisecond,
		"1.0 s":       999_600 * time.Microsecond,
		"59.9 s":      59_900 * time.Millisecond,
		"1 min 0 s":   59_960 * time.Millisecond,
		"2 min 5 s":   125 * time.Second,
		"1 h 0 min":   59*time.Minute + 59_600*time.Millisecond,
		"26 h 30 min": 26*time.Hour + 30*time.Minute,
	} {
		require.Equal(t, want, duration(d))
	}
	bad := []float64{math.NaN(), math.Inf(1), math.Inf(-1), -1, 1e300}
	for i := range bad {
		require.Empty(t, millis(&bad[i]))
	}
	require.Empty(t, millis(nil))
}

func TestCount(t *testing.T) {
	t.Parallel()
	for want, n := range map[string]int64{
		"0": 0, "999": 999, "1,000": 1000, "12,345,678": 12345678, "-999": -999, "-1,000": -1000,
	} {
		require.Equal(t, want, count(n))
	}
}

func TestExcerpt(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		in   string
		want []string
	}{
		"nothing":       {"", nil},
		"empty lines":   {"\n\r\n\n", nil},
		"all of it":     {"\na\r\nb\n\nc\n", []string{"a", "b", "", "c"}},
		"head and tail": {"1\n2\n3\n4\n5\n6", []string{"1", "2", "… 3 more lines …", "6"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, c.want, excerpt(c.in, 4))
		})
	}
}

func TestChangesOf(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		diff string
		want []change
	}{
		"nothing": {"", nil},
		"prose":   {"what a change\n+1\n", nil},
		"an edit": {
			"--- a/x.go\n+++ b/x.go\n@@ -1,3 +1,4 @@\n a\n-b\n+c\n+d\n e\n",
			[]change{{path: "x.go", added: 2, removed: 1}},
		},
		"lines that look like headers": {
			"--- a/x.sql\n+++ b/x.sql\n@@ -1,2 +1,2 @@\n--- a comment\n+++ b/evil\n x\n",
			[]change{{path: "x.sql", added: 1, removed: 1}},
		},
		"a new file": {
			"--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+a\n\\ No newline at end of file\n",
			[]change{{path: "x", added: 1, created: true}},
		},
		"a deleted file with times": {
			"--- a/x\t2026-01-01\n+++ /dev/null\t2026-01-01\n@@ -1 +0,0 @@\n-a\n",
			[]change{{path: "x", removed: 1, gone: true}},
		},
		"two files": {
			"--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n--- a/y\n+++ b/y\n@@ -1 +1 @@\n-a\n+b\n",
			[]change{{path: "x", added: 1, removed: 1}, {path: "y", added: 1, removed: 1}},
		},
		"a diff that was cut": {
			"--- a/x\n+++ b/x\n@@ -1,9 +1,9 @@\n-a\n+b\n[... 99 bytes of the diff left out ...]\n",
			[]change{{path: "x", added: 1, removed: 1, partial: true}},
		},
		"a diff that was cut between hunks": {
			"--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n[... 99 bytes of the diff left out ...]\n",
			[]change{{path: "x", added: 1, removed: 1, partial: true}},
		},
		"a diff that ends": {
			"--- a/x\n+++ b/x\n@@ -1,9 +1,9 @@\n-a\n",
			[]change{{path: "x", removed: 1, partial: true}},
		},
		"broken headers": {
			"--- a/x\n+++ b/x\n@@ x\n@@ -1,x +1,y @@\n+a\n",
			[]change{{path: "x"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, c.want, changesOf(c.diff))
		})
	}
}
