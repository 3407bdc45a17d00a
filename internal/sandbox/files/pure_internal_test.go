package files

import (
	"fmt"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLiteral: a search looks for a text that every match has, and at no other lines.
func TestLiteral(t *testing.T) {
	t.Parallel()
	for pattern, want := range map[string]string{
		`func F1\b`: "func F1", `a|b`: "", `fn .*Name\(`: "Name(", `x(?:yz)+w?`: "yz", `(abc){2}`: "abc", `(abc)*d`: "d", `(abc){0,2}`: "",
		`(?i)aBc`: "abc", `a(?i)bcd`: "bcd", `(?i)strasse`: "tra", `(?i)KÄX`: "x", `(?i)İzmir`: "zmir",
		`\x{fffd}abc`: "", `^\s*$`: "", `end\r`: "end\r", `αβ.`: "αβ", `(a*)*`: "", `[a]b`: "ab",
	} {
		compiled := regexp.MustCompile(pattern)
		found := literalOf(compiled)
		require.Equal(t, want, found.text, pattern)
		for _, line := range []string{
			"func F1() {}", "fn t Name()", "xyzyz", "abcabc", "d", "ABC", "aBCD", "\xffabc", "", "end\r",
			"αβγ", "aab", "\u017fTra\u017f\u017fe", "\u212aäX", "İZMIR",
		} {
			if compiled.MatchString(line) {
				if found.folded {
					line = string(lowered([]byte(line)))
				}
				require.Contains(t, line, want, pattern)
			}
		}
	}
}

// A notebook whose text does not change stays as it is, to the byte. A new cell is in its text.
func FuzzNotebook(f *testing.F) {
	const cell = `{"cell_type":"code","metadata":{},"source":["a\n","b"],"outputs":[{"text":"1\n"},{"data":{"image/png":"x","text/html":["y"]}},{"ename":"E","evalue":"v"}]}`
	f.Add(`{"nbformat":4,"nbformat_minor":5,"cells":[` + cell + `,{"cell_type":"raw","source":""}]}`)
	f.Add("{\r\n \"cells\": [\r\n  {\"cell_type\": \"markdown\", \"source\": \"\\n\"}\r\n ],\r\n \"nbformat\": 4\r\n}")
	f.Add(`{"nbformat":4,"cells":[]}`)
	f.Add(`{"nbformat":4,"Cells":[` + cell + `]}`)
	f.Add(`{"nbformat":4,"cells":[{"cell_type":"code","source":"%% cell 1 [code]"}]}`)
	f.Fuzz(func(t *testing.T, content string) {
		notebook, ok := parseNotebook([]byte(content))
		if !ok {
			return
		}
		same, err := notebook.With(notebook.Text())
		require.NoError(t, err)
		require.Equal(t, content, string(same))
		longer, err := notebook.With(append(notebook.Text(), "%% cell [markdown]\nnew\n"...))
		require.NoError(t, err)
		again, ok := parseNotebook(longer)
		require.True(t, ok, "%s", longer)
		require.Equal(t, string(notebook.Text())+fmt.Sprintf("%%%% cell %d [markdown]\nnew\n", notebook.Cells()+1), string(again.Text()))
	})
}
