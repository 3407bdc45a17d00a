//go:build linux

package browser

import (
	"strings"
	"testing"

	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"
)

// TestActs_OfASession: a person begins, answers and changes sessions by the pages alone.
func TestActs_OfASession(t *testing.T) {
	s := newScene(t)
	tb := s.tab(t)
	begin := func(prompt, model string) {
		t.Helper()
		tb.open("/sessions")
		tb.click("Begin a session")
		tb.fill("What is to be done", prompt)
		tb.fill("Model", s.models[model])
		tb.clickIn("main", "Begin")
		tb.until(`/\/sessions\/.+/.test(location.pathname)`, "the session is open")
		tb.sees(prompt)
	}
	id := func() string {
		path, _, _ := strings.Cut(tb.at(), "?")
		return strings.TrimPrefix(path, "/ui/sessions/")
	}

	t.Run("begin, send, read", func(t *testing.T) {
		tb.t = t
		begin("Write a note.", "note")
		tb.sees("It is written.", "answered")
		tb.fill("Say more", "Add a line.")
		tb.click("Send")
		tb.sees("Add a line.", "four", "Done again.")
		tb.click("Files")
		tb.sees("note.txt")
		tb.click("note.txt")
		tb.sees("three")
		tb.click("Timeline")
		tb.sees("model", "bash")
		tb.harmless()
	})
	t.Run("fork, restore", func(t *testing.T) {
		tb.t = t
		begin("Write another note.", "note")
		tb.sees("It is written.", "answered")
		from := id()
		tb.clickIn("article", "bash printf")
		tb.sees("Arguments")
		tb.clickIn("main", "Fork")
		tb.until(`/\/sessions\/[^/]+$/.test(location.pathname) && !location.pathname.endsWith(`+quoted(from)+`)`, "the fork is open")
		tb.sees("Write another note.")
		require.NotEqual(t, from, id())
		tb.without("It is written.")
		tb.fill("Say more", "Add a line.")
		tb.click("Send")
		tb.sees("Add a line.", "It is written.")
		tb.open("/sessions/" + from)
		tb.clickIn("article", "bash printf")
		tb.clickIn("main", "Restore")
		tb.sees("Restore the workspace?")
		tb.clickIn("main form", "Restore")
		tb.lands("/files", "the files are open")
		tb.sees("note.txt")
		tb.harmless()
	})
	t.Run("approve", func(t *testing.T) {
		tb.t = t
		begin("Repair it.", "repair")
		tb.sees("git push origin main", "approval")
		tb.clickIn("article.ask", "Approve")
		tb.sees("Repaired")
		tb.harmless()
	})
	t.Run("refuse with a note", func(t *testing.T) {
		tb.t = t
		begin("Repair it once more.", "repair")
		tb.sees("git push origin main")
		tb.fillIn("article.ask", "Why, for the model", "not on a Friday")
		tb.clickIn("article.ask", "Refuse")
		tb.sees("not on a Friday", "Repaired")
		tb.harmless()
	})
	t.Run("answer", func(t *testing.T) {
		tb.t = t
		tb.open("/waits") // it shows what comes
		s.begin("asking", s.models["asks"], "Write the report.", object{"toolsets": []string{"core", "ask"}})
		tb.sees("Which database does the report use?", "orders")
		tb.choose("article.ask select", "archive")
		tb.leaves(func() { tb.clickIn("article.ask", "Answer") })
		tb.open("/sessions/asking")
		tb.sees("Thank you.", "archive")
		tb.harmless()
	})
	t.Run("cancel", func(t *testing.T) {
		tb.t = t
		begin("Count.", "slow")
		tb.sees("line 3")
		tb.clickIn("main", "Cancel the turn")
		tb.sees("Cancel the turn?", "bash")
		tb.clickIn("main form", "Cancel the turn")
		tb.sees("interrupted")
		tb.harmless()
	})
	t.Run("merge, compare", func(t *testing.T) {
		tb.t = t
		begin("Write a third note.", "note")
		tb.sees("It is written.", "answered")
		from := id()
		tb.clickIn("main", "Fork")
		tb.until(`!location.pathname.endsWith(`+quoted(from)+`)`, "the fork is open")
		tb.fill("Say more", "Add a line.")
		tb.click("Send")
		tb.sees("Done again.", "answered")
		fork := id()
		tb.clickIn("nav.tabs", "Details")
		tb.fillIn("main", "Session", from)
		tb.clickIn("main", "Compare the files")
		tb.sees("note.txt", "four")
		tb.open("/sessions/" + from + "/details")
		tb.fillIn("main", "Fork", fork)
		tb.clickIn("main", "See what it would change")
		tb.sees("1 file to be written", "note.txt")
		tb.clickIn("main form", "Merge")
		tb.until(`location.pathname.endsWith(`+quoted(from)+`)`, "the session is open")
		tb.clickIn("nav.tabs", "Files")
		tb.clickIn("main", "note.txt")
		tb.sees("four")
		tb.harmless()
	})
	t.Run("remove", func(t *testing.T) {
		tb.t = t
		begin("Write a note that nobody needs.", "note")
		tb.sees("It is written.", "answered")
		tb.clickIn("nav.tabs", "Details")
		tb.clickIn("main", "Remove")
		tb.sees("Nothing brings them back.")
		tb.clickIn("main form", "Remove for good")
		tb.lands("/sessions", "the list is open")
		tb.without("Write a note that nobody needs.")
		tb.harmless()
	})
	tb.t = t
}

// TestActs_OfTheFleet: lanes are paused, their calls cancelled, and a call runs again, by the
// pages.
func TestActs_OfTheFleet(t *testing.T) {
	s := newScene(t)
	tb := s.tab(t)
	held := s.call("billing", "charge", object{"account": "4711", "seconds": 900}, nil)
	s.running("default", held)
	s.call("billing", "charge", object{"account": "4711"}, nil)

	t.Run("pause, resume", func(t *testing.T) {
		tb.t = t
		tb.open("/lanes")
		tb.clickIn("main", "account/4711")
		tb.clickIn("main", "Pause")
		tb.clickIn("[popover]", "Pause")
		tb.sees("paused")
		tb.clickIn("main", "Resume")
		tb.clickIn("[popover]", "Resume")
		tb.without("paused")
		tb.harmless()
	})
	t.Run("cancel what runs", func(t *testing.T) {
		tb.t = t
		tb.clickIn("main", "Cancel what runs")
		tb.clickIn("[popover]", "Cancel what runs")
		tb.without(held)
		tb.harmless()
	})
	t.Run("run again", func(t *testing.T) {
		tb.t = t
		s.begin("again", s.models["note"], "Write a note to run again.", nil)
		s.state("again", "answered")
		tb.opens("/calls?session=again", "bash")
		tb.clickIn("main", "bash printf")
		tb.sees("ended")
		done, _, _ := strings.Cut(tb.at(), "?")
		tb.clickIn("main", "Run again")
		tb.clickIn("[popover]", "Run again")
		tb.until(`location.pathname.includes("/calls/") && location.pathname !== `+quoted(done), "the page of the new call is open")
		tb.sees("ended", "note.txt")
		tb.harmless()
	})
	tb.t = t
}

// TestKeys_AreEnough: without a mouse a person signs in, begins a session, approves, reads the
// timeline, finds a lane and asks for the list of keys.
func TestKeys_AreEnough(t *testing.T) {
	s := newScene(t)
	tb := newTab(t, s.browser, "http://"+s.http+"/ui")
	typed := func(text string) {
		for _, r := range text {
			tb.press(string(r))
		}
	}
	tb.open("/")
	tb.sees("Token")
	tb.until(`document.activeElement?.id === "token"`, "the field has the focus")
	typed(s.token)
	tb.press(kb.Enter)
	tb.sees("There is no session yet")

	tb.press(kb.Tab)
	tb.outlined("the link that skips the list of pages")
	tb.press(kb.Enter)
	tb.tabTo("Begin a session")
	tb.press(kb.Enter)
	tb.tabTo("What is to be done")
	typed("Repair it.")
	tb.tabTo("Model, or the default of the coordinator")
	typed(s.models["repair"])
	tb.tabTo("Begin")
	tb.press(kb.Enter)
	tb.sees("git push origin main", "Approve")

	tb.press("g", "w")
	tb.lands("/waits", "g w opens what waits")
	tb.sees("git push origin main")
	tb.press("j")
	tb.outlined("the first call")
	tb.leaves(func() { tb.press("a") })
	tb.press("g", "s")
	tb.lands("/sessions", "g s opens the sessions")
	tb.press("j", kb.Enter)
	tb.sees("Repaired")
	tb.press("t")
	tb.until(`location.pathname.includes("timeline") && document.readyState === "complete"`, "t opens the timeline")

	tb.press("g", "s")
	tb.lands("/sessions", "g s opens the sessions")
	tb.press("j", kb.Enter)
	tb.sees("Repaired")
	tb.press("?")
	tb.sees("these keys")
	tb.press(kb.Escape)
	tb.without("these keys")
	tb.press("g", "l")
	tb.lands("/lanes", "g l opens the lanes")
	tb.press("g", "f")
	tb.lands("/fleet", "g f opens the fleet")
	tb.press("/")
	tb.until(`document.activeElement?.type === "search"`, "/ searches")
	typed("publish")
	tb.press(kb.Enter)
	tb.sees("I publish the change")
	tb.tabTo("Sign out")
	tb.press(kb.Enter)
	tb.sees("Token")
}
