//go:build linux

package browser

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// walker is a person who has just opened the pages, and knows nothing else.
type walker struct {
	*tab

	name    string // of the pictures
	shown   int
	drawing time.Duration
}

// walk answers the question of a heading of docs/walks.md. With -images it is drawn, and the
// document says what was measured.
func (s *scene) walk(heading, name string, clicks int, steps func(w *walker)) {
	s.t.Run(name, func(t *testing.T) {
		w := &walker{tab: s.tab(t), name: name}
		w.looks("light", 1180, 720)
		w.open("/")
		w.sees("Sessions")
		w.clicked = 0
		began := time.Now()
		steps(w)
		took := time.Since(began) - w.drawing
		t.Logf("answered after %d clicks and %s", w.clicked, took.Round(100*time.Millisecond))
		require.LessOrEqual(t, w.clicked, clicks, "clicks")
		require.Less(t, took, time.Minute)
		w.harmless()
		if *images == "" {
			return
		}
		document := filepath.Join(*images, "..", "walks.md")
		text, err := os.ReadFile(document)
		require.NoError(t, err)
		line := regexp.MustCompile(`(?m)^(## ` + regexp.QuoteMeta(heading) + `\n\n)\*.*\*$`)
		require.Regexp(t, line, string(text))
		word := map[bool]string{true: "click", false: "clicks"}[w.clicked == 1]
		text = line.ReplaceAll(text, fmt.Appendf(nil, "${1}*%d %s, %.1f seconds.*", w.clicked, word, took.Seconds()))
		require.NoError(t, os.WriteFile(document, text, 0o644)) //nolint:gosec // as all documents
	})
}

// shows draws the page with a ring around the first thing that has a text: what is clicked next, or
// the answer.
func (w *walker) shows(within, text string) {
	w.t.Helper()
	w.sees(text)
	if *images == "" {
		return
	}
	began := time.Now()
	thing := `[...document.querySelectorAll(` + quoted(within) +
		`)].flatMap((e) => [e, ...e.querySelectorAll("*")]).find((e) => e.innerText?.includes(` + quoted(text) +
		`) && ![...e.children].some((c) => c.innerText?.includes(` + quoted(text) + `)))`
	w.until(`!!(`+thing+`)`, "there is "+text+" in "+within)
	eval[bool](w.tab, `(() => { const e = `+thing+`; if (e.getBoundingClientRect().bottom > innerHeight - 40) e.scrollIntoView({ block: "center", behavior: "instant" });
		const b = e.getBoundingClientRect(), r = document.createElement("div"); r.id = "ring";
		Object.assign(r.style, { position: "fixed", zIndex: 9, left: b.x - 6 + "px", top: b.y - 5 + "px", width: b.width + 12 + "px", height: b.height + 10 + "px", border: "3px solid #b3222a", borderRadius: "10px", boxSizing: "border-box" });
		document.body.append(r); return true; })()`)
	picture, err := chromedp.Run(w.ctx, chromedp.CaptureScreenshot())
	require.NoError(w.t, err)
	eval[bool](w.tab, `document.getElementById("ring").remove(); true`)
	w.shown++
	small := reduced(w.t, picture)
	require.Less(w.t, len(small), maxImage, w.name)
	require.NoError(w.t, os.WriteFile(filepath.Join(*images, fmt.Sprintf("walk-%s-%d.png", w.name, w.shown)), small, 0o644)) //nolint:gosec // as all documents
	w.drawing += time.Since(began)
}

// TestWalks: the pages alone answer six questions, each within a minute. docs/walks.md has them as
// steps.
func TestWalks(t *testing.T) {
	s := newScene(t)
	s.lively()
	s.loses("w-2", "render")

	s.walk("Why does a call wait?", "waits", 3, func(w *walker) {
		w.clickIn("nav.side", "Lanes")
		w.shows("main", "account/4711")
		w.clickIn("main", "account/4711")
		w.sees("held", "waits")
		w.sees(s.called["holds"]) // what it waits for
		w.shows("tr:has(a[href*='"+s.called["second"]+"']) td:nth-child(5)", "limit")
	})
	s.walk("Which worker was lost?", "lost", 2, func(w *walker) {
		w.clickIn("nav.side", "Fleet")
		w.sees("lost", "w-2")
		w.shows("main", "w-2")
	})
	s.walk("What did a failed command print?", "printed", 3, func(w *walker) {
		w.clickIn("nav.side", "Sessions")
		w.shows("main", "Build the program.")
		w.clickIn("main", "Build the program.")
		w.sees("exit code 2")
		w.shows("main", "main.c:7: error: expected ';' before '}'")
	})
	s.walk("Who holds a lane?", "holds", 3, func(w *walker) {
		w.clickIn("nav.side", "Lanes")
		w.clickIn("main", "account/4711")
		w.sees("held by w-1", s.called["holds"])
		w.shows(".facts", "w-1")
	})
	s.ask(http.MethodPost, "/v1/sessions/repair/cancel", object{}, nil)
	s.walk("What did a turn cost?", "cost", 2, func(w *walker) {
		w.clickIn("nav.side", "Sessions")
		w.shows("main", "The tests of this project fail.")
		w.clickIn("main", "The tests of this project fail.")
		w.sees("interrupted")
		w.shows(".turn .note", "$0.02")
	})
	s.walk("Which tenant is throttled?", "throttled", 2, func(w *walker) {
		w.clickIn("nav.side", "Limits")
		w.sees("tenant globex", "1 of 1 turns are in flight")
		w.shows("tr:has(a[href*=globex])", "throttled")
	})
}
