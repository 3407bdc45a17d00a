//go:build linux

package browser

import (
	"encoding/json"
	"net/http"
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
		tb.clickIn("nav.tabs", "Files")
		tb.sees("note.txt")
		tb.click("note.txt")
		tb.sees("three")
		tb.clickIn("nav.tabs", "Timeline")
		tb.sees("model", "bash")
		tb.harmless()
	})
	t.Run("answer by a schema", func(t *testing.T) {
		tb.t = t
		tb.open("/sessions")
		tb.click("Begin a session")
		tb.fill("What is to be done", "Who wrote the first program?")
		tb.fill("Model", s.models["person"])
		tb.click("Answer by a JSON Schema")
		tb.fill("Answer schema", `{"type": "object", "required": ["name"]}`)
		tb.accessible("with the field of the schema open")
		tb.clickIn("main", "Begin")
		tb.sees("Your answer is not valid under the schema", `{"name": "*Ada*"}`, "answered")
		tb.fill("Say more", "And the second one?")
		tb.click("Answer by a JSON Schema")
		tb.fill("Answer schema", "{")
		tb.click("Send")
		tb.sees("answer schema: ", "not JSON")
		tb.fill("Answer schema", `{"type": "array"}`)
		tb.click("Send")
		tb.sees("And the second one?", `["*Eve*"]`)
		tb.harmless("422")
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
	t.Run("approve for the session", func(t *testing.T) {
		tb.t = t
		begin("Publish it twice.", "twice")
		tb.sees("git push origin main", "For this session means this very call of bash, with the same arguments")
		tb.clickIn("article.ask", "Approve for this session")
		tb.sees("Both are published.", "answered")
		require.Empty(t, eval[[]string](tb, `[...document.querySelectorAll("article.ask")].map((e) => e.id)`), "the second call like it asks nothing")
		tb.clickIn("nav.tabs", "Calls")
		tb.until(`[...document.querySelectorAll("main tbody tr")].filter((r) => r.innerText.includes("git push") && r.innerText.includes("exit ")).length === 2`,
			"both calls ran")
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
		tb.leaves(func() { tb.clickIn("main form", "Cancel the turn") })
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
	t.Run("merge with a conflict", func(t *testing.T) {
		tb.t = t
		begin("Write a fourth note.", "note")
		tb.sees("It is written.", "answered")
		from := id()
		tb.clickIn("main", "Fork")
		tb.until(`!location.pathname.endsWith(`+quoted(from)+`)`, "the fork is open")
		fork := id()
		s.put(fork, "note.txt", "one\ntwo of the fork\nthree\n")
		s.put(from, "note.txt", "one\ntwo of the session\nthree\n")
		tb.open("/sessions/" + from + "/details")
		tb.fillIn("main", "Fork", fork)
		tb.clickIn("main", "See what it would change")
		tb.sees("Conflicts: 1 file changed on both sides", "note.txt")
		tb.clickIn("main form", "Merge")
		tb.until(`location.pathname.endsWith(`+quoted(from)+`)`, "the session is open")
		tb.clickIn("nav.tabs", "Files")
		tb.clickIn("main", "note.txt")
		tb.sees("two of the session")
		tb.clickIn("nav.tabs", "Files")
		tb.clickIn("main", "note.txt.toolfleet-theirs")
		tb.sees("two of the fork")
		tb.harmless()
	})
	t.Run("restore what a later call changed, export", func(t *testing.T) {
		tb.t = t
		begin("Write a fifth note.", "note")
		tb.sees("It is written.", "answered")
		tb.fill("Say more", "Add a line.")
		tb.click("Send")
		tb.sees("Done again.", "answered")
		session := id()
		tb.clickIn("article", "bash printf")
		tb.clickIn("main", "Restore")
		tb.sees("Restore the workspace?", "-four")
		tb.clickIn("main form", "Restore")
		tb.lands("/files", "the files are open")
		tb.clickIn("main", "note.txt")
		tb.sees("three")
		tb.without("four")
		tb.clickIn("nav.tabs", "Details")
		exported := tb.downloads(func() { tb.clickIn("main", "Export") })
		lines := strings.Split(strings.TrimSpace(exported), "\n")
		require.Greater(t, len(lines), 8)
		for _, line := range lines {
			require.True(t, json.Valid([]byte(line)), "%.100s", line)
		}
		require.Contains(t, exported, "Write a fifth note.")
		require.True(t, strings.HasSuffix(tb.at(), session+"/details"), "the page stays")
		tb.harmless()
	})
	t.Run("sub-agents", func(t *testing.T) {
		tb.t = t
		s.begin("agents", s.models["agents"], "Have the change reviewed.", object{"toolsets": []string{"core", "agents"}})
		tb.open("/sessions/agents?begins")
		tb.sees("The review is done.", "answered", "The session of this sub-agent")
		tb.clickIn("nav.tabs", "Sub-agents")
		tb.sees("Review split.py.", "answered", "started by the call of turn 1, step 1")
		tb.clickIn(".tree", "agent")
		tb.sees("I look.", "reviewed", "I found no bug.", "below session")
		tb.clickIn(".facts", "agents")
		tb.lands("/sessions/agents", "its parent is open")
		tb.harmless()
	})
	t.Run("a form of a tool, an image", func(t *testing.T) {
		tb.t = t
		begin("Book a table.", "books")
		tb.sees("Who comes, and when?")
		tb.fillIn("article form", "Name of the guest", "Ann <b>")
		tb.fillIn("article form", "Seats", "12")
		tb.choose(`article select[name$=":room"]`, "red")
		tb.choose(`article select[name$=":menu"]`, "Soup")
		tb.clickIn("article form", "tea")
		tb.clickIn("article form", "wine")
		tb.clickIn("article form", "Answer")
		tb.sees("It is booked.", `"action": "accept"`, `"name": "Ann <b>"`, `"seats": 12`, `"room": "red"`, `"menu": "m2"`, `"drinks": ["tea", "wine"]`)
		tb.without(`"window"`)
		tb.fill("Say more", "Show me the room.")
		tb.click("Send")
		tb.sees("That is the room.")
		tb.until(`(() => { const i = document.querySelector("article img"); i?.scrollIntoView(); return !!i && i.complete && i.naturalWidth === 160; })()`,
			"the image is drawn")
		tb.clickIn("article", "desk__photo")
		tb.until(`document.querySelector("main img")?.naturalWidth === 160`, "the image is on the page of the call")
		tb.harmless()
	})
	t.Run("decline a form", func(t *testing.T) {
		tb.t = t
		begin("Book another table.", "books")
		tb.sees("Who comes, and when?")
		tb.opens("/waits", "Who comes, and when?")
		tb.leaves(func() { tb.clickIn("article.ask", "Decline") })
		tb.without("Who comes, and when?")
		tb.open("/sessions")
		tb.clickIn("main", "Book another table.")
		tb.sees(`"action": "decline"`)
		tb.harmless()
	})
	t.Run("resolve an unknown outcome", func(t *testing.T) {
		tb.t = t
		s.outcomes("parcel")
		tb.open("/sessions/parcel")
		tb.sees("outcome unknown", "It may have arrived.")
		tb.clickIn(".facts", "deliver")
		tb.sees("The call may have had its effects or not.")
		tb.clickIn("main form", "It happened")
		tb.without("The call may have had its effects or not.")
		tb.clickIn("nav.tabs", "Conversation")
		tb.fill("Say more", "I looked: it is there.")
		tb.click("Send")
		tb.sees("Thank you for looking.")
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
	t.Run("skip a call that waits", func(t *testing.T) {
		tb.t = t
		holds, waits := s.call("billing", "charge", object{"account": "4712", "seconds": 900}, nil), s.call("billing", "charge", object{"account": "4712"}, nil)
		s.running("default", holds)
		tb.opens("/lane?lane=account/4712", waits)
		tb.clickIn("tr:has(a[href*='"+waits+"'])", "Cancel")
		tb.clickIn("[popover]:popover-open", "Cancel")
		tb.without(waits)
		tb.sees(holds)
		tb.opens("/calls?session=billing", "cancelled")
		tb.harmless()
	})
	t.Run("schedules", func(t *testing.T) {
		tb.t = t
		s.ask(http.MethodPost, "/v1/schedules", object{"name": "nightly", "cron": "@daily", "turn": object{"prompt": "Update the dependencies."}}, nil)
		act := func(act string) {
			t.Helper()
			tb.clickIn("main", act)
			tb.leaves(func() { tb.clickIn("[popover]:popover-open", act) })
		}
		tb.opens("/schedules", "Update the dependencies.")
		act("Pause")
		tb.sees("paused")
		act("Resume")
		tb.without("paused")
		act("Remove")
		tb.sees("There is no schedule.")
		tb.harmless()
	})
	t.Run("webhooks", func(t *testing.T) {
		tb.t = t
		act := func(act string) {
			t.Helper()
			tb.clickIn("main", act)
			tb.leaves(func() { tb.clickIn("[popover]:popover-open", act) })
		}
		s.ask(http.MethodPost, "/v1/webhooks", object{"url": s.receiver.URL, "events": []string{"turn.ended"}}, nil)
		tb.opens("/webhooks", s.receiver.URL)
		tb.sees("turn.ended", "nothing delivered yet")
		act("Send a test event")
		s.waits(func() bool { return s.received.Load() > 0 }, "the event arrives")
		s.waits(func() bool { tb.open("/webhooks"); return !strings.Contains(tb.text(), "nothing delivered yet") }, "the page says that one was delivered")
		s.answers.Store(http.StatusGone)
		act("Send a test event")
		s.waits(func() bool { tb.open("/webhooks"); return strings.Contains(tb.text(), "paused") }, "the page says that it is paused")
		tb.sees("410")
		s.answers.Store(http.StatusNoContent)
		act("Resume")
		s.waits(func() bool { tb.open("/webhooks"); return !strings.Contains(tb.text(), "paused") }, "the page says that it continues")
		act("Remove")
		tb.sees("There is no webhook.")
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
	tb.sees("Begin a session")

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
	tb.leaves(func() { tb.press("j", kb.Enter) })
	tb.sees("Repaired")
	tb.press("t")
	tb.until(`location.pathname.includes("timeline") && document.readyState === "complete"`, "t opens the timeline")

	tb.press("g", "s")
	tb.lands("/sessions", "g s opens the sessions")
	tb.leaves(func() { tb.press("j", kb.Enter) })
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
