//go:build linux

package browser

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// hostile are texts that a model or a tool may write, as those of the tests of internal/webui.
var hostile = []string{
	`<script>alert(1)</script>`, `<img src=x onerror=alert(1)>`, `"><svg onload=alert(1)>`, `[x](javascript:alert(1))`, `![x](https://elsewhere.example/p.png)`,
	"\x1b]8;;https://elsewhere.example\x07link\x1b]8;;\x07 \x1b[2J\x1b[31mred", "a\u202egnp.exe", `{{template "page"}}`,
	"</textarea></pre><iframe src=//elsewhere.example>", "a\x07b", `<hx-partial hx-target="body">gone</hx-partial>`,
	`<div hx-get="/ui/sign-out" data-hx-post="/ui/sessions" hx-trigger="load">`,
	`<a href="https://elsewhere.example" ping="https://elsewhere.example">x</a>`,
	`<style>body{display:none}</style><link rel=stylesheet href=//elsewhere.example>`,
	`<form action=//elsewhere.example><button autofocus>x</button></form>`,
	`<meta http-equiv=refresh content="0;url=//elsewhere.example">`, "javascript:alert(1)//",
	"<https://elsewhere.example/>",
}

// TestHostile_TextsDoNothing: what a model, a tool and a person write runs nothing, loads nothing
// and hides nothing, in pages that are loaded and in those that stream.
func TestHostile_TextsDoNothing(t *testing.T) {
	text := strings.Join(hostile, "\n\n")
	evil := script(t, "evil", step{Text: text, DelayMS: 2, Calls: []use{
		shell("c1", "cat <<'END'\n"+text+"\nEND\nsleep 1; head -c 2000000 /dev/zero | tr '\\0' x"),
		{"c2", "write", object{"path": "evil.html", "content": text}},
		{"c3", "bash", object{"command": "exit 1; " + text}},
	}}, said(text+strings.Repeat("x", 1<<20)), said(text))
	s := newScene(t, "--model", evil)
	tb := s.tab(t)
	intact := func(path string) {
		t.Helper()
		tb.until(`!!document.querySelector("header .brand") && getComputedStyle(document.body).display !== "none"`, path+" is whole")
		require.True(t, strings.HasPrefix(tb.at(), "/ui/"), "%s leads to %s", path, tb.at())
		require.Empty(t, eval[[]string](tb, `[...document.querySelectorAll("iframe, object, embed, base, meta[http-equiv], main script, main style, main link, main [onload], main [onerror], main [ping], main [hx-get*='sign-out']")].map((e) => e.outerHTML)`), path)
		tb.harmless("404", "422")
	}
	tb.open("/sessions")
	tb.click("Begin a session")
	tb.fill("What is to be done", text)
	tb.fill("Model", evil)
	tb.clickIn("main", "Begin")
	tb.until(`/\/sessions\/.+/.test(location.pathname)`, "the session is open")
	intact("the session, as it begins")
	session := strings.TrimPrefix(tb.at(), "/ui")
	for range 2 { // the policy asks about both commands: it understands neither
		tb.opens("/waits", "elsewhere.example")
		intact("what waits")
		tb.leaves(func() { tb.clickIn("article.ask", "Approve") })
	}
	tb.open(session)
	tb.until(`[...document.querySelectorAll(".pill")].some((p) => p.innerText.trim() === "answered")`, "the turn is answered")
	intact("the session, as it ends")
	for _, path := range []string{
		session, session + "/timeline", session + "/files", session + "/file?path=evil.html", "/sessions",
		"/sessions?q=alert", "/waits", "/fleet", "/lanes", "/calls",
	} {
		tb.open(path)
		intact(path)
	}
	tb.open(session)
	tb.clickIn("article", "write")
	intact("a call")
}

// TestLive_NothingMoves: while a turn streams, what a reader looks at stays where it is.
func TestLive_NothingMoves(t *testing.T) {
	s := newScene(t)
	s.begin("long", s.models["note"], "Write a note.", nil)
	s.state("long", "answered")
	s.begin("talks", s.models["talks"], "Tell me a long story.", nil)
	tb := s.tab(t)
	tb.open("/sessions/talks")
	tb.sees("word 40")
	tb.until("document.documentElement.scrollHeight > 1.5 * innerHeight", "the page is longer than the window")
	eval[bool](tb, "window.scrollTo({ top: 40, behavior: 'instant' }); window.shifts.length = 0; true")
	first := "document.querySelector('.turn').getBoundingClientRect().top"
	before := eval[float64](tb, first)
	tb.sees("line 60")
	require.InDelta(t, before, eval[float64](tb, first), 1, "a reader who has scrolled up stays there")
	require.Empty(t, eval[[]string](tb, "window.shifts"), "something moves that the reader looks at")
	tb.harmless()
}

// TestAway_ThePageSaysSoAndGoesOn: the coordinator is killed and comes back, and the page that is
// open says so, and continues.
func TestAway_ThePageSaysSoAndGoesOn(t *testing.T) {
	s := newScene(t)
	s.begin("work", s.models["note"], "Write a note.", nil)
	s.state("work", "answered")
	pages := map[string]*tab{}
	for _, path := range []string{"/sessions/work", "/fleet", "/sessions"} {
		pages[path] = s.tab(t)
		pages[path].open(path)
		pages[path].sees("Keys")
	}
	began := time.Now()
	s.coordinator.kill()
	for path, tb := range pages {
		tb.until(`!!document.querySelector("#away") && !document.querySelector("#away").hidden && document.querySelector("#away").innerText.includes("away since")`,
			path+" says that the coordinator is away")
		t.Logf("%s says so after %s", path, time.Since(began))
	}
	s.serve()
	for path, tb := range pages {
		tb.until(`document.querySelector("#away").hidden`, path+" says that it is back")
	}
	tb := pages["/sessions/work"]
	tb.fill("Say more", "Add a line.")
	tb.click("Send")
	tb.sees("Done again.")
	for _, tb := range pages {
		tb.harmless("ERR_", "Failed to load resource", "sse", "fetch")
	}
}
