//go:build linux

package browser

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func bodyOf(text string) *strings.Reader { return strings.NewReader(text) }

// looks are how a page is looked at: 640 pixels of style sheets are a window of 1280 at 200 %.
var looks = []struct {
	name, scheme  string
	width, height int64
}{
	{"light", "light", 1280, 900}, {"dark", "dark", 1280, 900}, {"narrow", "light", 360, 740}, {"narrow and dark", "dark", 360, 740}, {"at 200 %", "light", 640, 450},
}

// shown is a line of testdata/pages.txt: a page, who opens it, and what it shows.
type shown struct{ who, status, path, text string }

// listed are the pages of testdata/pages.txt.
func listed(t *testing.T) (pages []shown) {
	t.Helper()
	list, err := os.ReadFile(filepath.Join("testdata", "pages.txt"))
	require.NoError(t, err)
	for line := range strings.Lines(string(list)) {
		if columns := strings.Fields(line); len(columns) > 3 && columns[0] != "#" && columns[0] != "part" {
			pages = append(pages, shown{columns[0], columns[1], columns[2], strings.Join(columns[3:], " ")})
		}
	}
	require.NotEmpty(t, pages)
	return pages
}

// at is the address of a page, with the ids of the calls that it names.
func (s *scene) at(path string) string {
	s.t.Helper()
	return named.ReplaceAllStringFunc(path, func(name string) string {
		name = strings.Trim(name, "{}")
		if call := s.called[name]; call != "" {
			return call
		}
		session, tool, is := strings.Cut(name, ".")
		if !is {
			return s.worker(name)
		}
		var log struct {
			Calls []struct {
				CallID string `json:"call_id"`
			}
		}
		s.waits(func() bool {
			s.ask(http.MethodGet, "/v1/calls?"+url.Values{"session": {session}, "tool": {tool}}.Encode(), nil, &log)
			return len(log.Calls) > 0
		}, "the log has a call of "+tool+" in session "+session)
		return log.Calls[len(log.Calls)-1].CallID
	})
}

var named = regexp.MustCompile(`{[^}]+}`)

// TestPages_AreReadByAll: each page, in each way that one looks at it, has no violation that
// axe-core finds, shows what it is about, is not wider than the window, and does nothing that it
// may not.
func TestPages_AreReadByAll(t *testing.T) {
	s := newScene(t)
	s.lively()
	s.outcomes("parcel")
	empty := &scene{world: newWorld(t, t.TempDir(), "--model", script(t, "note", said("Yes."))), browser: s.browser}
	tabs := map[string]*tab{
		"operator": s.tab(t), "empty": empty.tab(t),
		"acme":    newTab(t, s.browser, "http://"+s.http+"/ui"),
		"visitor": newTab(t, s.browser, "http://"+s.http+"/ui"),
	}
	tabs["acme"].signIn(s.tenant)
	tabs["operator"].opens("/waits", "git push")
	for _, page := range listed(t) {
		t.Run(page.who+page.path, func(t *testing.T) {
			tb := tabs[page.who]
			tb.t = t
			defer func() { tb.t = s.t }()
			tb.looks(looks[0].scheme, looks[0].width, looks[0].height)
			tb.opens(s.at(page.path), page.text)
			require.Equal(t, page.status, eval[string](tb, `String(performance.getEntriesByType("navigation")[0].responseStatus)`))
			for _, l := range looks {
				tb.looks(l.scheme, l.width, l.height)
				tb.accessible(l.name)
			}
			tb.harmless("the server responded with a status of")
		})
	}
}

// finding is a violation of a rule of axe-core.
type finding struct {
	ID, Help, Impact string
	Nodes            []struct {
		HTML    string `json:"html"`
		Summary string `json:"failureSummary"` //nolint:tagliatelle // as axe-core names it
	}
}

// accessible requires that axe-core finds no violation, and that nothing is wider than the window.
func (tb *tab) accessible(how string) {
	tb.t.Helper()
	axe, err := os.ReadFile(filepath.Join("node_modules", "axe-core", "axe.min.js"))
	if err != nil {
		unavailable(tb.t, "axe-core is not installed: npm ci in test/browser")
	}
	if !eval[bool](tb, "typeof axe !== 'undefined'") {
		eval[bool](tb, string(axe)+";true")
	}
	found := eval[string](tb, `axe.run(document, { resultTypes: ["violations"] }).then((r) => JSON.stringify(r.violations))`)
	var findings []finding
	require.NoError(tb.t, json.Unmarshal([]byte(found), &findings))
	for _, f := range findings {
		text := ""
		for _, n := range f.Nodes[:min(len(f.Nodes), 4)] {
			text += fmt.Sprintf("\n  %.300s\n    %s", n.HTML, strings.ReplaceAll(n.Summary, "\n", " "))
		}
		tb.t.Errorf("%s, %s: %s (%s): %s%s", tb.at(), how, f.ID, f.Impact, f.Help, text)
	}
	wide := eval[string](tb, `document.documentElement.scrollWidth <= innerWidth ? "" : document.documentElement.scrollWidth + " of " + innerWidth + ": " + [...document.querySelectorAll("body *")].filter((e) => e.getBoundingClientRect().right > innerWidth + 1).slice(0, 4).map((e) => e.outerHTML.slice(0, 160)).join("\n")`)
	if wide != "" {
		tb.t.Errorf("%s, %s: wider than the window: %s", tb.at(), how, wide)
	}
}
