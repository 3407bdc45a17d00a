package webui_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/httpapi"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/loop"
)

// idOfCall is the first call of a page of the log.
func idOfCall(t *testing.T, body string) string {
	t.Helper()
	_, after, has := strings.Cut(body, `class="row" href="/ui/calls/`)
	require.True(t, has, body)
	id, _, _ := strings.Cut(after, `"`)
	return id
}

// TestCalls_AreFound: the log has each call that ended, its filters leave out the others, and a
// page of one has what it did.
func TestCalls_AreFound(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.signIn(operator)
	s.run("work", "go", calls("bash", `{"command": "printf '\\033[31mred\\033[0m'; touch made"}`),
		calls("read", `{"path": "none"}`), calls("bash", `{"command": "exit 3"}`), says("Done."))
	body := s.until("/calls", "exit code 3")
	require.Contains(t, body, `<span class="pill bad">exit code 3</span>`)
	require.Contains(t, body, "failed")
	for query, found := range map[string]bool{
		"session=work": true, "session=other": false, "tool=bash": true, "tool=grep": false, "status=ok": true,
		"status=timeout": false, "status=not_ok": true, "since=1h": true,
		"text=made": true, "text=nowhere": false, "tenant=none": false, "worker=none": false, "tool=&text=&status=": true,
	} {
		status, body, _ := s.get("/calls?" + query)
		require.Equal(t, 200, status, query)
		require.Equal(t, found, strings.Contains(body, `class="row"`), "%s: %s", query, body)
		require.Equal(t, !found, strings.Contains(body, "Drop one of them"), query)
	}
	for _, query := range []string{"since=never", "since=-1h", "status=none", "after=none"} {
		status, _, _ := s.get("/calls?" + query)
		require.Equal(t, 422, status, query)
	}
	_, body, _ = s.get("/calls?tool=read_file&status=not_ok&after=")
	for _, text := range []string{`href="/ui/calls?status=not_ok"`, "tool: read_file", `href="/ui/calls?tool=read_file"`, "status: not ok"} {
		require.Contains(t, body, text)
	}
	_, body, _ = s.get("/calls?tool=bash&text=made")
	status, body, _ := s.get("/calls/" + idOfCall(t, body))
	require.Equal(t, 200, status)
	for _, text := range []string{"touch made", "sandbox level", "lane?lane=sandbox%2Fwork&amp;pool=default", "In its conversation", "Run again"} {
		require.Contains(t, body, text)
	}
	status, _, _ = s.get("/calls/work/none")
	require.Equal(t, 404, status)
}

// TestCalls_HavePages: each page of the log has the calls behind those of the page before.
func TestCalls_HavePages(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.signIn(operator)
	steps := make([]map[string]any, 0, 61)
	for range 60 {
		steps = append(steps, calls("bash", `{"command": "true"}`))
	}
	s.run("work", "go", append(steps, says("Done."))...)
	first := s.until("/calls?session=work", `rel="next"`)
	_, after, _ := strings.Cut(first, `rel="next" href="/ui`)
	next, _, _ := strings.Cut(after, `"`)
	_, second, _ := s.get(strings.ReplaceAll(next, "&amp;", "&"))
	require.Equal(t, 50, strings.Count(first, `class="row"`))
	require.Equal(t, 10, strings.Count(second, `class="row"`))
	require.NotContains(t, second, `rel="next"`)
	require.NotContains(t, second, idOfCall(t, first))
}

// TestCalls_RunAgain: a call is made again as a new one; one that must not start twice only by a
// person who says so.
func TestCalls_RunAgain(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.signIn(operator)
	s.run("work", "go", calls("bash", `{"command": "echo once >>log; cat log"}`), calls("note", `{}`), says("Done."))
	s.until("/calls?tool=bash", "once")
	_, body, _ := s.get("/calls?tool=bash")
	ref := idOfCall(t, body)
	_, body, _ = s.get("/calls/" + ref)
	require.NotContains(t, body, `name="sure"`)
	status, _, at := s.post("/calls/"+ref+"/again", "key", s.key())
	require.Equal(t, 200, status)
	require.NotEqual(t, "/calls/"+ref, at)
	require.Contains(t, s.until(at, "once\nonce"), "ok")

	_, body, _ = s.get("/calls?tool=note")
	ref = idOfCall(t, body)
	_, body, _ = s.get("/calls/" + ref)
	require.Contains(t, body, `name="sure" value="yes" required`)
	require.Contains(t, body, "must not start twice")
	for _, sure := range []string{"", "no"} {
		status, body, _ = s.post("/calls/"+ref+"/again", "key", s.key(), "sure", sure)
		require.Equal(t, 422, status)
		require.Contains(t, body, "may happen twice")
	}
	_, body, _ = s.get("/calls?tool=note")
	require.Equal(t, 1, strings.Count(body, `class="row"`))
	status, _, at = s.post("/calls/"+ref+"/again", "key", s.key(), "sure", "yes")
	require.Equal(t, 200, status)
	s.until(at, "noted")

	s.signIn(reader)
	status, _, _ = s.post("/calls/"+ref+"/again", "key", s.key(), "sure", "yes")
	require.Equal(t, 404, status)
}

// TestCalls_HooksHaveSeenWhatIsShown: behind hooks, the log has no text that no hook has seen: that
// of a call whose session has no journal.
func TestCalls_HooksHaveSeenWhatIsShown(t *testing.T) {
	t.Parallel()
	for _, hooks := range [][]loop.Hook{nil, {{Event: loop.HookAfter}}} {
		s := start(t, func(o *httpapi.Options) { o.Hooks = hooks })
		s.signIn(operator)
		result, err := s.client.Call(t.Context(), fleet.Call{Session: "own", Tool: "bash", Arguments: `{"command": "echo unseen"}`})
		require.NoError(t, err)
		for _, path := range []string{"/calls", "/calls/own/" + string(result.CallID)} {
			status, body, _ := s.get(path)
			require.Equal(t, 200, status)
			require.Equal(t, hooks == nil, strings.Contains(body, "unseen"), path)
		}
	}
}
