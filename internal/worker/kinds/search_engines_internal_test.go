package kinds

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// FuzzSearch_BothEngines gives any pattern to a search with ripgrep and to one without: both
// find the same lines, or refuse it in the same words.
func FuzzSearch_BothEngines(f *testing.F) {
	if _, err := exec.LookPath("rg"); err != nil {
		f.Skip("UNSUPPORTED HERE: ripgrep is not installed, so nothing is compared")
	}
	for _, pattern := range []string{
		`func F1\b`, `gr..e$`, `^\s*$`, `[^a-z]{3,}F1`, `(?i)strasse`, `\x{fffd}`, `a|`, `.`, `\r$`, `^\x{feff}`, `(a*)*`, `[[:^alpha:]]+`, `\p{Greek}`, `\z`, `(`, `é`, `(?s)a.b`, `\Qa.b\E`, `x{0}`, `K`,
	} {
		f.Add(pattern, false)
		f.Add(pattern, true)
	}
	s, dir := opened(f)
	lines := []string{
		"func F1() {}", "a.b", "a\rb", "gr\xfc\xdfe", "stra\u00dfe STRASSE", "\u212aelvin k", "\ufeffone", "", "  \t", "\xff\xfe", "end\r", "αβγ", "a\u0301", "x\u2028y", "日本", "\xed\xa0\x80", "\x1b[31m",
	}
	for i := range ripgrepFiles + len(lines) {
		content := lines[i%len(lines)] + "\n" + lines[(i*7+3)%len(lines)]
		if i%5 == 0 {
			content += "\x00\n"
		}
		require.NoError(f, os.WriteFile(filepath.Join(dir, fmt.Sprintf("f%03d", i)), []byte(content), 0o600))
	}
	f.Fuzz(func(t *testing.T, pattern string, ignoreCase bool) {
		p := protocol.FilesSearch{Pattern: pattern, IgnoreCase: ignoreCase}
		want, wantErr := fileOps{sandbox: s}.search(t.Context(), s.FS(), p)
		got, gotErr := fileOps{sandbox: s, ripgrep: true}.search(t.Context(), s.FS(), p)
		require.Equal(t, wantErr, gotErr)
		require.Equal(t, want, got)
	})
}
