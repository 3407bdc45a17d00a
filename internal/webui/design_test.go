package webui_test

import (
	"fmt"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/httpapi"
	"github.com/toolfleet/toolfleet/internal/webui"
)

// colours are the variables of the style sheet, in light and in dark.
func colours(t *testing.T) (light, dark map[string]string) {
	t.Helper()
	sheet, err := os.ReadFile("assets/page.css")
	require.NoError(t, err)
	roots := strings.SplitN(string(sheet), "@media (prefers-color-scheme: dark)", 2)
	require.Len(t, roots, 2)
	read := func(text string) map[string]string {
		found := map[string]string{}
		_, text, _ = strings.Cut(text, ":root")
		text, _, _ = strings.Cut(text, "}")
		for _, m := range regexp.MustCompile(`--([a-z-]+): (#[0-9a-f]{3,6});`).FindAllStringSubmatch(text, -1) {
			if found[m[1]] = m[2]; len(m[2]) == 4 {
				found[m[1]] = fmt.Sprintf("#%[1]c%[1]c%[2]c%[2]c%[3]c%[3]c", m[2][1], m[2][2], m[2][3])
			}
		}
		return found
	}
	return read(roots[0]), read(roots[1])
}

// contrast is how much two colours differ, as WCAG 2 defines it.
func contrast(t *testing.T, a, b string) float64 {
	t.Helper()
	luminance := func(colour string) float64 {
		sum := 0.0
		for i, weight := range []float64{0.2126, 0.7152, 0.0722} {
			value, err := strconv.ParseUint(colour[1+2*i:3+2*i], 16, 8)
			require.NoError(t, err)
			part := float64(value) / 255
			if part <= 0.04045 {
				part /= 12.92
			} else {
				part = math.Pow((part+0.055)/1.055, 2.4)
			}
			sum += weight * part
		}
		return sum
	}
	x, y := luminance(a), luminance(b)
	return (max(x, y) + 0.05) / (min(x, y) + 0.05)
}

// TestDesign_ColoursAreAsDocumented: each text can be read on what is behind it, and the page of
// rules has the colours of the style sheet.
func TestDesign_ColoursAreAsDocumented(t *testing.T) {
	t.Parallel()
	rules, err := os.ReadFile("../../docs/web-design.md")
	require.NoError(t, err)
	light, dark := colours(t)
	for _, name := range []string{"run", "ok", "wait", "bad", "model"} {
		row := regexp.MustCompile("(?m)^\\| `" + name + "` .*$").FindString(string(rules))
		for _, scheme := range []map[string]string{light, dark} {
			require.Contains(t, row, "`"+scheme[name]+"` | `"+scheme[name+"-bg"]+"`", name)
			for _, behind := range []string{"bg", "panel", name + "-bg"} {
				require.GreaterOrEqual(t, contrast(t, scheme[name], scheme[behind]), 4.5, "%s on %s", name, behind)
			}
			require.GreaterOrEqual(t, contrast(t, scheme["bg"], scheme[name]), 4.5, "text of a button of %s", name)
		}
	}
	for _, scheme := range []map[string]string{light, dark} {
		for _, name := range []string{"text", "soft"} {
			for _, behind := range []string{"bg", "panel"} {
				require.GreaterOrEqual(t, contrast(t, scheme[name], scheme[behind]), 4.5, "%s on %s", name, behind)
			}
		}
	}
}

// TestDesign_KeysAreAsDocumented: the page of rules has the keys of the pages' list, in words.
func TestDesign_KeysAreAsDocumented(t *testing.T) {
	t.Parallel()
	rules, err := os.ReadFile("../../docs/web-design.md")
	require.NoError(t, err)
	frame, err := os.ReadFile("templates/frame/frame.html")
	require.NoError(t, err)
	keys := regexp.MustCompile(`<dt>(.*?)</dt><dd>(.*?)</dd>`).FindAllStringSubmatch(string(frame), -1)
	require.NotEmpty(t, keys)
	code := strings.NewReplacer("<kbd>", "`", "</kbd>", "`")
	for _, k := range keys {
		require.Contains(t, string(rules), "| "+code.Replace(k[1])+" | "+code.Replace(k[2])+" |")
	}
	require.Equal(t, len(keys), strings.Count(string(rules), "\n| `")-5, "the page of rules has no other keys, and five colours")
}

// TestPages_AreInTheList: each route that is served is a page that make browser opens, or a part of
// one, by a line of its list, and each line is of a route.
func TestPages_AreInTheList(t *testing.T) {
	t.Parallel()
	list, err := os.ReadFile(filepath.Join("..", "..", "test", "browser", "testdata", "pages.txt"))
	require.NoError(t, err)
	handler := webui.New(webui.Options{Options: httpapi.Options{Local: struct{ httpapi.Local }{}}})
	defer handler.Close()
	opened := map[string]bool{}
	for line := range strings.Lines(string(list)) {
		columns := strings.Fields(line)
		if len(columns) == 0 || columns[0] == "#" {
			continue
		}
		pattern := "GET " + columns[2]
		if columns[0] != "part" {
			pattern = handler.Matches(columns[2])
		}
		require.True(t, slices.Contains(handler.Served(), pattern) || pattern == "GET /sign-in", "no page is served for: %s", line)
		require.Equal(t, columns[2] == "/nothing", pattern == "GET /", "no page is served for: %s", line)
		opened[pattern] = true
	}
	for _, pattern := range handler.Served() {
		if strings.HasPrefix(pattern, http.MethodGet) {
			require.True(t, opened[pattern], "no line of test/browser/testdata/pages.txt is of %s", pattern)
		}
	}
}
