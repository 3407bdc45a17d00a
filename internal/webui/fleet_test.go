package webui_test

import (
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// hold sends a call that uses a resource until it is cancelled.
func (s *site) hold(key protocol.ResourceKey) *fleet.Future {
	return s.client.Go(s.t.Context(), fleet.Call{Handler: "hold", Args: map[string]any{}, Session: "s", Resources: []protocol.Use{{Key: key, Access: protocol.Exclusive}}})
}

// until asks for a page until it has a text.
func (s *site) until(path, text string) string {
	s.t.Helper()
	var body string
	require.Eventually(s.t, func() bool {
		_, body, _ = s.get(path)
		return strings.Contains(body, text)
	}, time.Minute, 50*time.Millisecond, "%s has no %q", path, text)
	s.t.Cleanup(func() {
		if s.t.Failed() {
			_, main, _ := strings.Cut(body, "<main")
			s.t.Logf("%s: %.4000s", path, main)
		}
	})
	return body
}

// TestFleet_SaysWhatWaitsAndWhy: each page leads to what a call waits for, and a person pauses and
// cancels there.
func TestFleet_SaysWhatWaitsAndWhy(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.signIn(operator)
	require.NoError(t, s.client.Limits().Set(t.Context(), fleet.Limit{Lane: "account/*", Concurrent: 1}))
	require.NoError(t, s.client.Limits().Set(t.Context(), fleet.Limit{Tenant: "acme", Concurrent: 5}))
	runs, waits, behind := s.hold("account/one"), s.hold("account/one"), s.hold("account/one")
	body := s.until("/fleet", "account/one")
	require.Contains(t, body, "/ui/lane?lane=account%2Fone&amp;pool=default")
	body = s.until("/lanes", "account/one")
	require.Contains(t, body, "1 to 1 of 1")
	_, body, _ = s.get("/lanes?q=nowhere")
	require.Contains(t, body, "No lane has these words")
	lane := "/lane?" + url.Values{"pool": {"default"}, "lane": {"account/one"}}.Encode()
	body = s.until(lane, "Cancel 1 running call")
	require.Contains(t, body, `waits for <b><a href="/ui/limit?lane=account%2F%2A">limit account/*: concurrent 1</a>`)
	require.Equal(t, 1, strings.Count(body, `<td><a href="/ui/limit?lane=account%2F%2A">limit account/*: concurrent 1</a>`), "the next call")
	require.Equal(t, 1, strings.Count(body, `<td>the calls before it</td>`), "the call behind it")
	_, worker, has := strings.Cut(body, `href="/ui/worker?`)
	require.True(t, has)
	worker, _, _ = strings.Cut(worker, `"`)
	status, body, _ := s.get("/worker?" + html.UnescapeString(worker))
	require.Equal(t, 200, status)
	require.Contains(t, body, "account/one")
	require.Contains(t, s.until("/limits", "lanes account/*"), "tenant acme")
	status, _, _ = s.get("/limit?lane=" + url.QueryEscape("account/*"))
	require.Equal(t, 200, status)
	for _, path := range []string{"/worker?id=none", "/limit?lane=none", "/lane?lane=none/none"} {
		status, body, _ = s.get(path)
		require.Equal(t, 404, status, "%s: %s", path, body)
	}
	require.Contains(t, s.first("/fleet/live"), `hx-target="#tiles"`)
	require.Contains(t, s.first("/lanes/live"), "account/one")
	require.Contains(t, s.first(strings.Replace(lane, "?", "/live?", 1)), "account/one")

	_, _, at := s.post("/lane/pause", "key", s.key(), "pool", "default", "lane", "account/one")
	require.Equal(t, "/lane", at)
	s.until(lane, "Resume")
	_, _, _ = s.post("/lane/kill", "key", s.key(), "pool", "default", "lane", "account/one")
	result, _ := runs.Wait(t.Context())
	require.Equal(t, protocol.StatusCancelled, result.Status)
	require.NoError(t, waits.Cancel(t.Context()))
	require.NoError(t, behind.Cancel(t.Context()))
	_, _, _ = s.post("/lane/resume", "key", s.key(), "pool", "default", "lane", "account/one")
	s.until("/calls?lane=account/one&status=not_ok", "cancelled")
	status, _, _ = s.post("/lane/none", "key", s.key(), "pool", "default", "lane", "account/one")
	require.Equal(t, 422, status)
}

// TestFleet_OthersSeeWhatTheyMay: a token without the right sees that it has none, and changes
// nothing.
func TestFleet_OthersSeeWhatTheyMay(t *testing.T) {
	t.Parallel()
	s := start(t)
	runs := s.hold("account/secret")
	require.NoError(t, s.client.Limits().Set(t.Context(), fleet.Limit{Tenant: "others", Concurrent: 5}))
	require.NoError(t, s.client.Limits().Set(t.Context(), fleet.Limit{Lane: "account/*", Concurrent: 5}))
	s.signIn(reader)
	s.until("/fleet", "You have no right to see lanes")
	require.Contains(t, s.until("/limits", "lanes account/*"), "You have no right to see lanes", "it does not see whether the limit holds calls back")
	for _, path := range []string{"/fleet", "/lanes", "/lane?lane=account/secret", "/lanes/live", "/calls", "/limits", "/webhooks", "/schedules", "/fleet/plots"} {
		status, body, _ := s.get(path)
		require.Contains(t, []int{200, 403}, status, "%s: %s", path, body)
		require.NotContains(t, body, "account/secret</a>", path)
		require.NotContains(t, body, "others", path)
	}
	status, body, _ := s.get("/lanes")
	require.Equal(t, 403, status)
	require.Contains(t, body, "You have no right to this")
	for _, act := range []string{"/lane/pause", "/lane/kill", "/schedules/remove", "/webhooks/remove"} {
		status, body, _ = s.post(act, "key", s.key(), "pool", "default", "lane", "account/secret", "name", "x", "id", "x")
		require.Contains(t, []int{403, 404}, status, "%s: %s", act, body)
	}
	require.NoError(t, runs.Cancel(t.Context()))
	_, _ = runs.Wait(t.Context())
}

// TestFleet_NamesAreTexts: whatever a lane, a filter or an id is called, a page has only the
// elements of its template.
func TestFleet_NamesAreTexts(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.signIn(operator)
	for _, text := range hostile {
		name := strings.NewReplacer("/", "|", "\x00", "").Replace(text)
		_, err := s.client.Submit(t.Context(), fleet.Call{
			Handler: "hold", Args: map[string]any{}, Session: "s", NotBefore: time.Now().Add(time.Hour),
			Resources: []protocol.Use{{Key: protocol.ResourceKey("account/" + name), Access: protocol.Exclusive}},
		})
		require.NoError(t, err, name)
	}
	_, err := s.client.Schedules().AddCall(t.Context(), fleet.Schedule{Name: "hostile", Cron: "@daily"}, fleet.Call{
		Table: s.table, Session: "s", Tool: "bash", Arguments: asJSON(strings.ReplaceAll(strings.Join(hostile, " "), "\x00", "")),
	})
	require.NoError(t, err)
	s.run("hostile", "go",
		calls("bash", asJSON("cat <<'END'\n"+strings.ReplaceAll(strings.Join(hostile, "\n"), "\x00", "")+"\nEND")),
		calls("nothing", hostile[0]), says("Done."))
	s.until("/lanes", "onerror")
	_, list, _ := s.get("/calls")
	_, after, has := strings.Cut(list, `href="/ui/calls/hostile/`)
	require.True(t, has, list)
	id, _, _ := strings.Cut(after, `"`)
	pages := map[string]string{}
	all := strings.Join(hostile, " ")
	for _, path := range []string{"/fleet", "/lanes", "/schedules", "/calls", "/calls/hostile/" + id} {
		_, pages[path], _ = s.get(path)
	}
	for path, names := range map[string][]string{
		"/lanes": {"q", "pool"}, "/lane": {"lane", "pool"}, "/worker": {"id", "pool"},
		"/limit": {"lane", "tenant"}, "/calls": {"text", "tool", "lane", "worker", "session", "tenant"},
	} {
		for _, name := range names {
			for _, text := range append(hostile, all) {
				query := path + "?" + url.Values{name: {text}}.Encode()
				_, pages[query], _ = s.get(query)
			}
		}
	}
	for _, text := range hostile {
		lane := "account/" + strings.NewReplacer("/", "|", "\x00", "").Replace(text)
		query := "/lane?" + url.Values{"lane": {lane}}.Encode()
		_, pages[query], _ = s.get(query)
		_, body, _ := s.get("/calls/" + url.PathEscape(text) + "/" + url.PathEscape(text))
		pages["call "+text] = body
	}
	for _, path := range []string{"/fleet/live", "/lanes/live"} {
		pages[path] = s.first(path)
	}
	for path, body := range pages {
		root, err := html.Parse(strings.NewReader(body))
		require.NoError(t, err)
		for node := range root.Descendants() {
			if node.Type != html.ElementNode {
				require.False(t, strings.ContainsAny(node.Data, "\x1b\u202e\a"), path)
				continue
			}
			require.NotContains(t, []string{"iframe", "object", "embed", "base", "frame", "img", "math"}, node.Data, path)
			for _, a := range node.Attr {
				require.False(t, strings.HasPrefix(a.Key, "on"), "%s: %s %s", path, node.Data, a.Key)
				require.NotEqual(t, "data-hx-post", a.Key, path)
				if a.Key == "href" || a.Key == "action" || strings.HasPrefix(a.Key, "hx-") && strings.Contains(a.Val, "/") {
					require.Regexp(t, `^(/ui/|#)`, a.Val, "%s: %s %s", path, node.Data, a.Key)
				}
			}
			if node.Data == "script" {
				require.NotEmpty(t, node.Attr, path)
			}
		}
	}
}
