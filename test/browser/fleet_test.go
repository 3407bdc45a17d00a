//go:build linux

package browser

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The files of the session that repairs a project.
const (
	splitFile = `"""Words of a text."""


def split(text):
    """Return the words of text, without what separates them."""
    words, start = [], None
    for at, letter in enumerate(text):
        if letter.isalnum():
            start = at if start is None else start
        elif start is not None:
            words.append(text[start:at])
            start = None
    return words
`
	splitTest = `import unittest

from split import split


class Split(unittest.TestCase):
    def test_separators(self):
        self.assertEqual(split("the, quick. "), ["the", "quick"])

    def test_end(self):
        self.assertEqual(split("the fox"), ["the", "fox"])


if __name__ == "__main__":
    unittest.main()
`
	charge = `name: charge
description: Charge an account.
parameters: {type: object, properties: {account: {type: string}, seconds: {type: integer}}, required: [account]}
command: [python3, "-c", "import json, sys, time; a = json.load(sys.stdin); time.sleep(a.get('seconds', 0)); print(json.dumps({'charged': a['account']}))"]
resources: [{key: "account/{account}"}]
delivery: idempotent
timeout: 30m
`
	deliver = `name: deliver
description: Deliver a parcel.
parameters: {type: object, properties: {parcel: {type: string}}, required: [parcel]}
command: [python3, "-c", "import time; time.sleep(900)"]
resources: [{key: "parcel/{parcel}"}]
delivery: at_most_once
pool: lost
timeout: 30m
`
	repairPrompt = "The tests of this project fail. Find out why, repair it, and show that they pass."
)

// scene is a fleet with everything that a page shows: sessions that run, wait and have ended, lanes
// that are held, a tenant that has reached its limit, and a worker that was lost.
type scene struct {
	*world

	browser context.Context //nolint:containedctx // chromedp's handle of the browser
	models  map[string]string
	tenant  string // a token of role operate of the tenant acme
	called  map[string]string
	tools   string

	receiver *httptest.Server // of webhooks
	received atomic.Int64     // events
	answers  atomic.Int64     // the status that it answers with
}

// newScene starts the fleet. Each test that changes what others look at makes one of its own.
func newScene(t *testing.T, more ...string) *scene {
	t.Helper()
	browser := openBrowser(t)
	tests := "python3 -m unittest -v test_split"
	dir := t.TempDir()
	model := func(name string, steps ...step) string { // beside the coordinator, so that pages show a short name
		file := strings.TrimPrefix(script(t, name, steps...), "script:")
		require.NoError(t, os.Rename(file, filepath.Join(dir, name+".json")))
		return "script:" + name + ".json"
	}
	s := &scene{browser: browser, called: map[string]string{}, models: map[string]string{
		"repair": model("repair",
			step{Text: "I'll run the tests first, to see what fails.", Calls: []use{shell("c1", tests)}, Usage: object{"input_tokens": 1804, "output_tokens": 41}},
			step{
				Text:  "A text that ends inside a word loses that word.",
				Calls: []use{{"c2", "read", object{"path": "split.py"}}, {"c3", "grep", object{"pattern": "split"}}},
				Usage: object{"input_tokens": 2112, "output_tokens": 58},
			},
			step{
				Text: "The loop stores a word when a separator follows it, and nothing follows the last one.", Usage: object{"input_tokens": 2870, "output_tokens": 163},
				Calls: []use{{"c4", "edit", object{
					"path": "split.py", "old": "    return words\n",
					"new": "    if start is not None:  # the text ended inside a word\n        words.append(text[start:])\n    return words\n",
				}}, shell("c5", tests)},
			},
			step{Text: "All tests pass. I publish the change.", Calls: []use{shell("c6", "git push origin main")}, Usage: object{"input_tokens": 3105, "output_tokens": 97}},
			step{
				Text:  "**Repaired**: `split` dropped the last word of a text without a separator at its end.\n\n- `split.py` now stores what is left after the loop\n- all tests pass",
				Usage: object{"input_tokens": 3300, "output_tokens": 80},
			},
			said("There is nothing more to do."), said("There is nothing more to do."),
		),
		"note": model("note", said("I write a note.", shell("n1", "printf 'one\\ntwo\\nthree\\n' > note.txt; seq 1 200")), said("It is **written**."),
			said("Once more.", shell("n2", "echo four >> note.txt; cat note.txt")), said("Done again."), said("And again.")),
		"fails": model("fails",
			said("I build it.", shell("f1", "echo compiling main.c; echo \"main.c:7: error: expected ';' before '}'\" >&2; exit 2")),
			said("The build fails: a semicolon is missing in line 7.")),
		"asks": model("asks",
			said("I need to know one thing.", use{"q1", "ask_user", object{"question": "Which database does the report use?", "choices": []string{"orders", "archive"}}}),
			said("Thank you.")),
		"agents": model("agents", said("Another one reads it.", use{"g1", "agent", object{"agent": "reviewer", "prompt": "Review split.py."}}), said("The review is done.")),
		"twice": model("twice", said("I publish it.", shell("p1", "git push origin main")),
			said("Once more.", shell("p2", "git push origin main")), said("Both are published.")),
		"books": model("books", said("I book a table.", use{"b1", "desk__book", object{}}), said("It is booked."),
			said("A photo.", use{"b2", "desk__photo", object{}}), said("That is the room.")),
		"rooms":  model("rooms", said("A photo.", use{"r1", "desk__photo", object{}}), said("That is the room.")),
		"parcel": model("parcel", said("I send it.", use{"d1", "deliver", object{"parcel": "p-1"}}), said("It may have arrived."), said("Thank you for looking.")),
		"slow":   model("slow", said("It takes a while.", shell("s1", lines(6000))), said("Done.")),
	}}
	s.tools = t.TempDir()
	s.answers.Store(http.StatusNoContent)
	s.receiver = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		s.received.Add(1)
		w.WriteHeader(int(s.answers.Load()))
	}))
	t.Cleanup(s.receiver.Close)
	for name, text := range map[string]string{"charge": charge, "deliver": deliver} {
		require.NoError(t, os.WriteFile(filepath.Join(s.tools, name+".yaml"), []byte(text), 0o600))
	}
	desk, err := os.ReadFile(filepath.Join("testdata", "desk.py"))
	require.NoError(t, err)
	servers, err := json.Marshal(object{
		"mcpServers": object{"desk": object{"command": "python3", "args": []string{"-c", string(desk)}, "toolfleet": object{"workspace": false}}},
	})
	require.NoError(t, err)
	story := make([]string, 0, 200)
	for n := range 200 {
		story = append(story, fmt.Sprintf("word %d ", n))
	}
	s.models["talks"] = model("talks", step{Text: strings.Join(story, "\n\n"), DelayMS: 5, Calls: []use{shell("t1", lines(80))}}, said("That is all."))
	s.models["brief"] = model("brief", said("Yes."))
	s.models["person"] = model("person", said("*Ada*"), said(`{"name": "*Ada*"}`), said(`["*Eve*"]`))
	agents := t.TempDir()
	reviewer := model("reviewer", said("I look.", shell("r1", "echo reviewed")), said("I found no bug."))
	require.NoError(t, os.WriteFile(filepath.Join(agents, "reviewer.md"),
		[]byte("---\nname: reviewer\ndescription: Reads code and names bugs.\nmodel: "+reviewer+"\n---\nYou review code.\n"),
		0o600))
	flags := []string{
		"--tools", s.tools, "--mcp-config", written(t, "mcp.json", string(servers)), "--webhook-host",
		strings.TrimPrefix(s.receiver.URL, "http://"), "--webhook-plain", "--agents", agents, "--policy", "policy.yaml", "--prices",
		written(t, "prices.json", `{"as_of": "2026-11-30", "models": {"`+s.models["repair"]+`": {"input": 2, "output": 8, "window": 200000}}}`),
	}
	for _, name := range []string{"note", "repair", "fails", "asks", "agents", "slow", "talks", "brief", "twice", "books", "rooms", "parcel", "person"} { // the first one is the default
		flags = append(flags, "--model", s.models[name])
	}
	s.world = newWorld(t, dir, append(flags, more...)...)
	s.work("w-1", "--slots", "8", "--tools", s.tools)
	var made struct{ Token string }
	s.ask(http.MethodPost, "/v1/tokens", object{"name": "ann", "role": "operate", "tenant": "acme"}, &made)
	s.tenant = made.Token
	return s
}

// lines is a command that writes some lines, slowly. Its policy knows the program that it starts.
func lines(n int) string {
	return fmt.Sprintf(`python3 -c "import time
for n in range(1, %d):
    print('line', n, flush=True)
    time.sleep(0.1)"`, n+1)
}

// lively begins all that a page can show.
func (s *scene) lively() {
	s.t.Helper()
	s.ask(http.MethodPut, "/v1/limits", object{"lane": "account/*", "concurrent": 1}, nil)
	s.ask(http.MethodPut, "/v1/limits", object{"tenant": "globex", "concurrent": 20, "sessions": 1}, nil)
	s.put("repair", "split.py", splitFile)
	s.put("repair", "test_split.py", splitTest)
	s.begin("repair", s.models["repair"], repairPrompt, nil)
	s.begin("note", s.models["note"], "Write a note of three lines.", nil)
	s.begin("build", s.models["fails"], "Build the program.", nil)
	s.begin("question", s.models["asks"], "Write the report of this month.", object{"toolsets": []string{"core", "ask"}})
	s.begin("review", s.models["agents"], "Have the change reviewed.", object{"toolsets": []string{"core", "agents"}})
	s.begin("books", s.models["books"], "Book a table.", nil)
	s.begin("rooms", s.models["rooms"], "Show me the room.", nil)
	s.begin("long", s.models["slow"], "Count to six hundred.", nil)
	s.called["holds"] = s.call("billing", "charge", object{"account": "4711", "seconds": 900}, nil)
	s.running("default", s.called["holds"])
	for _, name := range []string{"second", "third"} {
		s.called[name] = s.call("billing", "charge", object{"account": "4711"}, nil)
	}
	s.ask(http.MethodPost, "/v1/schedules", object{"name": "nightly", "cron": "@daily", "turn": object{"prompt": "Update the dependencies."}}, nil)
	for n := 0; ; n++ { // a limit counts within a second
		status, answer := s.send(s.token, http.MethodPost, "/v1/sessions", object{
			"session_id": fmt.Sprintf("globex-%d", n), "model": s.models["slow"], "prompt": "Count for globex.", "tenant": "globex",
		})
		if status == http.StatusTooManyRequests {
			break
		}
		require.Less(s.t, n, 20, "the limit never counts: %s", answer)
		time.Sleep(200 * time.Millisecond)
	}
	s.state("note", "answered")
	s.state("build", "answered")
	s.state("review", "answered")
	s.state("rooms", "answered")
	s.ask(http.MethodPost, "/v1/sessions/note/fork", object{"session_id": "changed"}, nil)
	s.put("changed", "note.txt", "one\ntwo of the fork\nthree\n")
	s.put("note", "note.txt", "one\ntwo of the session\nthree\n")
	s.ask(http.MethodPost, "/v1/webhooks", object{"url": s.receiver.URL, "events": []string{"turn.ended"}}, nil)
}

// loses has a worker that is lost while it runs a call.
func (s *scene) loses(name, session string) {
	s.t.Helper()
	s.work(name, "--pool", "lost")
	s.called[name] = s.command(session, "sleep 900", object{"pool": "lost"})
	s.running("lost", s.called[name])
	s.workers[name].kill()
}

// outcomes makes calls of which it is not known whether they happened: their workers were lost.
func (s *scene) outcomes(session string) {
	s.t.Helper()
	s.work("w-lost", "--pool", "lost", "--tools", s.tools)
	s.begin(session, s.models["parcel"], "Send the parcel.", nil)
	s.waits(func() bool { return len(s.runs("lost")) > 0 }, "the parcel is being delivered")
	s.workers["w-lost"].kill()
	s.work("w-found", "--pool", "lost", "--tools", s.tools)
	s.state(session, "answered")
	s.workers["w-found"].kill()
}

// waits waits until something is so.
func (s *scene) waits(is func() bool, what string) {
	s.t.Helper()
	for began := time.Now(); !is(); time.Sleep(50 * time.Millisecond) {
		require.Less(s.t, time.Since(began), 2*time.Minute, "it never was so: "+what)
	}
}

// worker is the id of a worker that was started with a name.
func (s *scene) worker(name string) (id string) {
	s.t.Helper()
	var got struct {
		Workers []struct {
			WorkerID string `json:"worker_id"`
		}
	}
	s.waits(func() bool {
		s.ask(http.MethodGet, "/v1/workers", nil, &got)
		for _, w := range got.Workers {
			if strings.HasPrefix(w.WorkerID, name+"-") {
				id = w.WorkerID
			}
		}
		return id != ""
	}, "worker "+name+" answers")
	return id
}

// runs are the calls of a pool that run.
func (s *scene) runs(pool string) (calls []string) {
	s.t.Helper()
	var got struct {
		Lanes []struct {
			Running []struct {
				CallID string `json:"call_id"`
			}
		}
	}
	s.ask(http.MethodGet, "/v1/lanes?pool="+pool, nil, &got)
	for _, l := range got.Lanes {
		for _, c := range l.Running {
			calls = append(calls, c.CallID)
		}
	}
	return calls
}

// running waits until a call of a pool runs.
func (s *scene) running(pool, call string) {
	s.t.Helper()
	s.waits(func() bool { return slices.Contains(s.runs(pool), call) }, "call "+call+" runs")
}

// put writes a file into the workspace of a session.
func (s *scene) put(session, path, text string) {
	s.t.Helper()
	request, err := http.NewRequestWithContext(s.t.Context(), http.MethodPut,
		"http://"+s.http+"/v1/sessions/"+session+"/file?"+url.Values{"path": {path}}.Encode(), bodyOf(text))
	require.NoError(s.t, err)
	request.Header.Set("Authorization", "Bearer "+s.token)
	request.Header.Set("Content-Type", "application/octet-stream")
	answer, err := http.DefaultClient.Do(request)
	require.NoError(s.t, err)
	defer answer.Body.Close()
	require.Less(s.t, answer.StatusCode, 300)
}

// tab opens a tab that is signed in as the fleet's operator.
func (s *scene) tab(t *testing.T) *tab {
	t.Helper()
	tb := newTab(t, s.browser, "http://"+s.http+"/ui")
	tb.signIn(s.token)
	return tb
}
