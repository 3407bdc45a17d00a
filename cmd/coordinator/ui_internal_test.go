package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestOpeners_NoArgumentHasACodeThatOthersCanUse: other users of a machine read the arguments of
// programs. They have the code only where it is of no use to them.
func TestOpeners_NoArgumentHasACodeThatOthersCanUse(t *testing.T) {
	t.Parallel()
	const link = "http://127.0.0.1:7070/ui/open?code=SECRET"
	for _, system := range []string{"linux", "darwin", "windows", "freebsd"} {
		for _, browser := range []string{"", "firefox", "no-such:firefox --new-tab %s"} {
			getenv := func(name string) string {
				return map[string]string{"BROWSER": browser, "DISPLAY": ":0"}[name]
			}
			all := openersOf(system, system == "linux", getenv, link)
			require.NotEmpty(t, all)
			for _, o := range all {
				arguments := strings.Join(o.words, " ")
				if system == "linux" || system == "windows" {
					require.True(t, o.whole)
					require.Contains(t, arguments, link)
					continue
				}
				require.NotContains(t, arguments, "SECRET", system)
				require.Equal(t, o.whole, strings.Contains(o.input, link))
				require.True(t, o.whole || strings.HasSuffix(arguments, "http://127.0.0.1:7070/ui/"), arguments)
			}
		}
	}
	all := openersOf("darwin", false, func(string) string { return "" }, link)
	require.Equal(t, []opener{{[]string{"osascript"}, "open location \"" + link + "\"\n", true}}, all)
}
