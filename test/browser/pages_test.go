//go:build linux

package browser

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
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

// pages are those of a lively fleet, with a text that each of them shows.
func (s *scene) pages() map[string]string {
	return map[string]string{
		"/sessions": "Write a note", "/sessions?q=semicolon": "semicolon", "/sessions?q=nothingatall": "No passage", "/sessions/note": "Write a note", "/sessions/note/timeline": "bash",
		"/sessions/note/files": "note.txt", "/sessions/note/file?path=note.txt": "three", "/sessions/repair": "publish", "/sessions/repair/timeline": "edit", "/sessions/build": "semicolon",
		"/sessions/review": "reviewed", "/sessions/question": "Which database", "/waits": "git push", "/fleet": "w-1", "/lanes": "account/4711", "/lane?lane=account/4711": "charge",
		"/limits": "globex", "/schedules": "nightly", "/webhooks": "webhook", "/calls": "unittest", "/calls?tool=read": "read", "/calls?text=compiling": "bash", "/calls?lane=nothing/here": "No call matches",
	}
}

// TestPages_AreReadByAll: each page, in each way that one looks at it, has no violation that
// axe-core finds, shows what it is about, is not wider than the window, and does nothing that it
// may not.
func TestPages_AreReadByAll(t *testing.T) {
	s := newScene(t)
	s.lively()
	tb := s.tab(t)
	tb.opens("/waits", "git push")
	for path, text := range s.pages() {
		t.Run(strings.TrimPrefix(path, "/"), func(t *testing.T) {
			tb.t = t
			defer func() { tb.t = s.t }()
			for _, l := range looks {
				tb.looks(l.scheme, l.width, l.height)
				tb.open(path)
				tb.sees(text)
				tb.accessible(l.name)
			}
			tb.harmless()
		})
	}
	tb.looks("light", 1280, 900)
	tb.open("/sessions")
	tb.click("Sign out")
	tb.sees("Token")
	for _, l := range looks {
		tb.looks(l.scheme, l.width, l.height)
		tb.accessible("sign-in, " + l.name)
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
