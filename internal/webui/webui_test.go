package webui_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/net/html"

	"github.com/toolfleet/toolfleet/internal/access"
	"github.com/toolfleet/toolfleet/internal/httpapi"
	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/webui"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/fleet/fleettest"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/toolset"
	"github.com/toolfleet/toolfleet/pkg/worker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const operator, reader = "token-of-the-operator", "token-of-a-reader"

// site is the pages of a fleet in this process, and a browser without scripts.
type site struct {
	*httptest.Server

	t       *testing.T
	client  *fleet.Client
	handler *webui.Handler
	table   *tools.Table
}

// note is a tool that must not run twice.
func note() tools.Tool {
	return tools.Tool{
		Definition: tools.Definition{Name: "note", Description: "Note.", Schema: []byte(`{"type":"object"}`)},
		Plan: func(tools.Scope, json.RawMessage) (tools.Plan, *protocol.Error) {
			return tools.Plan{Payload: protocol.CommandRun{Command: "echo noted"}, Delivery: protocol.AtMostOnce}, nil
		},
	}
}

func start(t *testing.T) *site {
	t.Helper()
	client := fleettest.Start(t, worker.Handle("hold", func(ctx context.Context, _ *worker.Call, _ map[string]any) (string, error) {
		<-ctx.Done()
		return "", context.Cause(ctx)
	}))
	table, err := tools.NewTable(append(toolset.Core(), note())...)
	require.NoError(t, err)
	handler := webui.New(webui.Options{Fleet: "tf", Base: "/ui", Options: httpapi.Options{
		Client: client, Version: "test", Table: func() *tools.Table { return table }, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
		Access: access.NewTokens(access.OwnToken(operator), access.Token{Principal: judge.Principal{Known: judge.ByToken, Name: "ann", Role: judge.RoleRead, Tenant: "acme"}, Digest: access.DigestOf(reader)}),
	}})
	s := &site{httptest.NewServer(handler), t, client, handler, table}
	t.Cleanup(handler.Close)
	t.Cleanup(s.Close)
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	s.Client().Jar = jar
	return s
}

// get asks for a page, and follows to where it leads.
func (s *site) get(path string) (status int, body string, at string) {
	s.t.Helper()
	request, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, s.URL+"/ui"+path, nil)
	require.NoError(s.t, err)
	return s.do(request)
}

// post sends a form.
func (s *site) post(path string, form ...string) (status int, body string, at string) {
	s.t.Helper()
	values := url.Values{}
	for i := 0; i+1 < len(form); i += 2 {
		values.Add(form[i], form[i+1])
	}
	request, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, s.URL+"/ui"+path, strings.NewReader(values.Encode()))
	require.NoError(s.t, err)
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return s.do(request)
}

func (s *site) do(request *http.Request) (int, string, string) {
	s.t.Helper()
	answer, err := s.Client().Do(request)
	require.NoError(s.t, err)
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	require.NoError(s.t, err)
	return answer.StatusCode, string(body), strings.TrimPrefix(answer.Request.URL.Path, "/ui")
}

func (s *site) signIn(token string) {
	s.t.Helper()
	status, _, at := s.post("/sign-in", "token", token)
	require.Equal(s.t, 200, status)
	require.Equal(s.t, "/sessions", at)
}

// key is the key of forms, as a page has it.
func (s *site) key() string {
	s.t.Helper()
	_, body, _ := s.get("/sessions")
	_, after, has := strings.Cut(body, `name="key" value="`)
	require.True(s.t, has)
	key, _, _ := strings.Cut(after, `"`)
	return key
}

// run runs a turn of a session by a scripted model.
func (s *site) run(session protocol.SessionID, prompt string, steps ...map[string]any) {
	s.t.Helper()
	file := filepath.Join(s.t.TempDir(), "script.json")
	script, err := json.Marshal(map[string]any{"steps": steps})
	require.NoError(s.t, err)
	require.NoError(s.t, os.WriteFile(file, script, 0o600))
	model, err := fleet.OpenModel("script:" + file)
	require.NoError(s.t, err)
	runner, err := s.client.Runner(model, s.table, nil)
	require.NoError(s.t, err)
	_, err = runner.Run(s.t.Context(), session, loop.Input{Text: prompt})
	require.NoError(s.t, err)
}

// says is a reply of a scripted model, and calls one with a tool call.
func says(text string) map[string]any { return map[string]any{"text": text} }

func calls(tool, arguments string) map[string]any {
	call := map[string]any{"name": tool, "arguments": json.RawMessage(arguments)}
	if !json.Valid([]byte(arguments)) {
		call["arguments"] = map[string]any{"text": arguments}
	}
	return map[string]any{"tool_calls": []any{call}}
}

func TestSignIn_PagesAreForKnownTokens(t *testing.T) {
	t.Parallel()
	s := start(t)
	for _, path := range []string{"/", "/sessions", "/sessions/x", "/sessions/x/live", "/fleet", "/lanes", "/limits", "/schedules", "/waits", "/nothing"} {
		status, body, at := s.get(path)
		require.Equal(t, 200, status, path)
		require.Equal(t, "/sign-in", at, path)
		require.Contains(t, body, `name="token"`)
	}
	status, body, _ := s.post("/sign-in", "token", "wrong")
	require.Equal(t, 401, status)
	require.Contains(t, body, access.ErrUnknown.Error())
	_, _, at := s.post("/sign-in", "token", operator, "to", "//elsewhere.example/")
	require.Equal(t, "/sessions", at, "an address elsewhere is not followed")
	_, _, at = s.post("/sign-out", "key", "forged")
	require.Equal(t, "/sign-out", at)
	_, _, at = s.post("/sign-out", "key", s.key())
	require.Equal(t, "/sign-in", at)
	_, _, at = s.get("/fleet")
	require.Equal(t, "/sign-in", at, "the browser has no token any more")
}

func TestSignIn_ACodeIsGoodOnce(t *testing.T) {
	t.Parallel()
	s := start(t)
	code := s.handler.Code(operator)
	status, body, _ := s.get("/open?code=" + code[:len(code)-1])
	require.Equal(t, 401, status)
	require.Contains(t, body, `name="token"`)
	_, body, _ = s.get("/open?code=" + code)
	require.Contains(t, body, `content="0; url=/ui/"`, "a page of ours leads on, so that the browser sends the cookie")
	_, _, at := s.get("/")
	require.Equal(t, "/sessions", at)
	status, _, at = s.get("/open?code=" + code)
	require.Equal(t, 401, status)
	require.Equal(t, "/open", at)
}

func TestForms_OfOthersAreRefused(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.signIn(operator)
	for _, key := range []string{"", "forged"} {
		status, body, _ := s.post("/sessions", "key", key, "prompt", "do it")
		require.Equal(t, 403, status)
		require.Contains(t, body, "load the page again")
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL+"/ui/sessions", strings.NewReader("key="+s.key()))
	require.NoError(t, err)
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	request.Header.Set("Sec-Fetch-Site", "cross-site")
	status, _, _ := s.do(request)
	require.Equal(t, 403, status)
}

func TestPages_AreShown(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.signIn(operator)
	for path, text := range map[string]string{
		"/sessions": "There is no session yet", "/waits": "Nothing waits for you", "/fleet": "Needs", "/lanes": "No lane of this pool has calls",
		"/limits": "There is no limit", "/schedules": "There is no schedule", "/webhooks": "There is no webhook", "/calls": "No call has ended yet", "/fleet/plots": "The last hour",
	} {
		if path == "/fleet" {
			text = "Workers"
		}
		status, body, _ := s.get(path)
		require.Equal(t, 200, status, path)
		require.Contains(t, body, text, path)
	}
	s.run("work", "Look around", calls("bash", `{"command": "printf 'one\\ntwo\\n' > a.txt; echo seen"}`), says("It is **done**."))
	_, body, _ := s.get("/sessions")
	require.Contains(t, body, "Look around")
	status, body, _ := s.get("/sessions/work")
	require.Equal(t, 200, status)
	for _, text := range []string{"Look around", "seen", "<strong>done</strong>", "answered"} {
		require.Contains(t, body, text)
	}
	_, body, _ = s.get("/sessions?q=nowhere")
	require.Contains(t, body, "No passage has all of these words")
	for _, path := range []string{"/sessions/work/timeline", "/sessions/work/files"} {
		status, body, _ = s.get(path)
		require.Equal(t, 200, status, "%s: %s", path, body)
	}
	require.Contains(t, body, "a.txt")
	_, body, _ = s.get("/sessions/work/file?path=a.txt")
	require.Contains(t, body, "one\ntwo")
	for _, path := range []string{"/sessions/none", "/sessions/work/calls/none", "/sessions/work/file?path=none", "/lane?lane=none%20x"} {
		status, body, _ = s.get(path)
		require.GreaterOrEqual(t, status, 400, path)
		require.Less(t, status, 500, "%s: %s", path, body)
	}
}

func TestPages_ShowATenantItsOwn(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.run("secret", "Look at the secret", says("It is 4711."))
	s.signIn(reader)
	_, body, _ := s.get("/sessions")
	require.NotContains(t, body, "secret")
	for _, path := range []string{"/sessions/secret", "/sessions/secret/live", "/sessions/secret/timeline", "/sessions/secret/files"} {
		status, body, _ := s.get(path)
		require.Equal(t, 404, status, path)
		require.NotContains(t, body, "4711", path)
	}
	for _, act := range []string{"send", "cancel", "fork", "remove", "restore", "approve"} {
		status, body, _ := s.post("/sessions/secret/"+act, "key", s.key(), "prompt", "x", "call", "c")
		require.GreaterOrEqual(t, status, 400, "%s: %s", act, body)
		require.NotContains(t, body, "4711", act)
	}
	status, _, _ := s.post("/sessions", "key", s.key(), "prompt", "x")
	require.Equal(t, 403, status, "the role read begins no session")
}

// hostile are texts that a model or a tool may write.
var hostile = []string{
	`<script>alert(1)</script>`, `<img src=x onerror=alert(1)>`, `"><svg onload=alert(1)>`, `[x](javascript:alert(1))`, `![x](https://elsewhere.example/p.png)`,
	"\x1b]8;;https://elsewhere.example\x07link\x1b]8;;\x07 \x1b[2J\x1b[31mred", "a\u202egnp.exe", `{{template "page"}}`, "</textarea></pre><iframe src=//elsewhere.example>", "a\x00b\x07", `<hx-partial hx-target="body">gone</hx-partial>`,
	`<div hx-get="/sign-out" data-hx-post="/sessions" hx-trigger="load">`,
}

// TestPages_TextsAreTexts: whatever is in a text, a page has only the elements of its template and
// of Markdown, none that loads or sends something.
func TestPages_TextsAreTexts(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.signIn(operator)
	long := strings.Repeat("x", 1<<20)
	text := strings.Join(hostile, "\n\n")
	s.run("hostile", text, calls("bash", asJSON("cat <<'END'\n"+strings.ReplaceAll(text, "\x00", "")+"\nEND\nhead -c 3000000 /dev/zero | tr '\\0' x")), calls("nothing", text), says(text+long))
	_, list, _ := s.get("/sessions")
	pages := map[string]string{"/sessions": list}
	for _, path := range []string{"/sessions/hostile", "/sessions/hostile/timeline", "/sessions/hostile/files", "/sessions?q=" + url.QueryEscape(text), "/sessions/" + url.PathEscape(hostile[0])} {
		_, pages[path], _ = s.get(path)
	}
	pages["live"] = s.first("/sessions/hostile/live")
	for path, body := range pages {
		require.Less(t, len(body), 4<<20, path)
		root, err := html.Parse(strings.NewReader(body))
		require.NoError(t, err)
		for node := range root.Descendants() {
			if node.Type != html.ElementNode {
				require.False(t, strings.ContainsAny(node.Data, "\x1b\u202e\a"), path)
				continue
			}
			require.NotContains(t, []string{"iframe", "object", "embed", "base", "frame"}, node.Data, path)
			for _, a := range node.Attr {
				require.False(t, strings.HasPrefix(a.Key, "on"), "%s: %s %s", path, node.Data, a.Key)
				switch a.Key {
				case "src", "href", "action", "hx-get", "hx-post", "data-hx-post", "hx-sse:connect":
					require.NotContains(t, strings.ToLower(a.Val), "javascript:", path)
					require.NotEqual(t, "/ui/sign-out", strings.TrimPrefix(a.Val, map[bool]string{true: "/ui/sign-out"}[node.Data == "form"]), path)
					if a.Key != "href" {
						require.NotContains(t, a.Val, "elsewhere.example", "%s: %s", path, node.Data)
					}
				}
			}
		}
	}
}

// asJSON are the arguments of a command.
func asJSON(command string) string {
	body, _ := json.Marshal(map[string]string{"command": command}) // texts always can be
	return string(body)
}

// first is the first message of a stream.
func (s *site) first(path string) string {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+"/ui"+path, nil)
	require.NoError(s.t, err)
	answer, err := s.Client().Do(request)
	require.NoError(s.t, err)
	defer answer.Body.Close()
	require.Equal(s.t, "text/event-stream", answer.Header.Get("Content-Type"))
	var out strings.Builder
	lines := bufio.NewReader(answer.Body)
	for {
		line, err := lines.ReadString('\n')
		require.NoError(s.t, err)
		if line == "\n" && out.Len() > 0 {
			return out.String()
		}
		if data, is := strings.CutPrefix(line, "data: "); is {
			out.WriteString(data)
		}
	}
}

// TestLive_ShowsWhatHappens: a page that is open shows the turn that comes, and its end.
func TestLive_ShowsWhatHappens(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.signIn(operator)
	s.run("work", "First", says("One."))
	require.Contains(t, s.first("/sessions/work/live"), "First")
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+"/ui/sessions/work/live", nil)
	require.NoError(t, err)
	answer, err := s.Client().Do(request)
	require.NoError(t, err)
	defer answer.Body.Close()
	s.run("work", "Second", says("One."), calls("bash", `{"command": "echo seen"}`), says("Two."))
	lines := bufio.NewScanner(answer.Body)
	lines.Buffer(nil, 1<<20)
	shown := ""
	for !strings.Contains(shown, "Second") || !strings.Contains(shown, "Two.") || !strings.Contains(shown, "seen") {
		require.True(t, lines.Scan(), "%v", lines.Err())
		shown += lines.Text() + "\n"
	}
	require.Contains(t, shown, `hx-target="#turn-2"`)
}
