package webui_test

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
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
	"github.com/toolfleet/toolfleet/pkg/tools/policy"
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

func start(t *testing.T, change ...func(*httpapi.Options)) *site {
	t.Helper()
	return startWith(t, fleettest.Start(t, worker.Handle("hold", func(ctx context.Context, _ *worker.Call, _ map[string]any) (string, error) {
		<-ctx.Done()
		return "", context.Cause(ctx)
	})), change...)
}

// startWith is start with the client of a fleet.
func startWith(t *testing.T, client *fleet.Client, change ...func(*httpapi.Options)) *site {
	t.Helper()
	table, err := tools.NewTable(append(toolset.Core(), note())...)
	require.NoError(t, err)
	options := httpapi.Options{
		Client: client, Version: "test", Table: func() *tools.Table { return table }, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
		Access: access.NewTokens(access.OwnToken(operator), access.Token{
			Principal: judge.Principal{Known: judge.ByToken, Name: "ann", Role: judge.RoleRead, Tenant: "acme"}, Digest: access.DigestOf(reader),
		}),
	}
	for _, c := range change {
		c(&options)
	}
	handler := webui.New(webui.Options{Fleet: "tf", Base: "/ui", Options: options})
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
	s.runJudged(session, prompt, nil, steps...)
}

// runJudged runs a turn whose calls are judged.
func (s *site) runJudged(session protocol.SessionID, prompt string, rules loop.Policy, steps ...map[string]any) {
	s.t.Helper()
	file := filepath.Join(s.t.TempDir(), "script.json")
	script, err := json.Marshal(map[string]any{"steps": steps})
	require.NoError(s.t, err)
	require.NoError(s.t, os.WriteFile(file, script, 0o600))
	model, err := fleet.OpenModel("script:" + file)
	require.NoError(s.t, err)
	runner, err := s.client.Runner(model, s.table, &loop.Options{Policy: rules, Approve: s.client.AwaitApproval})
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

// TestSignIn_TheCookieIsNoToken: browsers send the cookie to each server at 127.0.0.1, and what
// these get is no token: not for the API, and not for other servers. It ends when the browser signs
// out, with its copies and the streams that are open, and when its token ends.
func TestSignIn_TheCookieIsNoToken(t *testing.T) {
	t.Parallel()
	tokens := changing{access.NewTokens(access.OwnToken(operator)), &atomic.Bool{}}
	s := start(t, func(o *httpapi.Options) { o.Access = tokens })
	at, err := url.Parse(s.URL + "/ui/")
	require.NoError(t, err)
	cookie := func() *http.Cookie {
		all := s.Client().Jar.Cookies(at)
		require.Len(t, all, 1)
		return all[0]
	}
	answer := func(server string, with func(r *http.Request)) int {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server, http.NoBody)
		require.NoError(t, err)
		with(request)
		client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
		answer, err := client.Do(request)
		require.NoError(t, err)
		client.CloseIdleConnections()
		require.NoError(t, answer.Body.Close())
		return answer.StatusCode
	}
	copied := func(c *http.Cookie) func(*http.Request) { return func(r *http.Request) { r.AddCookie(c) } }
	signing := &http.Client{Jar: s.Client().Jar, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL+"/ui/sign-in", strings.NewReader("token="+operator))
	require.NoError(t, err)
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	form, err := signing.Do(request)
	require.NoError(t, err)
	require.NoError(t, form.Body.Close())
	signing.CloseIdleConnections()
	set := form.Header.Get("Set-Cookie")
	for _, part := range []string{"toolfleet-" + at.Port() + "=", "HttpOnly", "SameSite=Strict"} {
		require.Contains(t, set, part)
	}
	first := cookie()
	decoded, _ := base64.RawURLEncoding.DecodeString(first.Value)
	require.NotContains(t, first.Value+string(decoded), operator)
	require.Equal(t, 200, answer(s.URL+"/ui/sessions", copied(first)))

	api := httptest.NewServer(httpapi.New(httpapi.Options{
		Client: s.client, Table: func() *tools.Table { return s.table }, Access: tokens, Logger: slog.New(slog.DiscardHandler),
	}))
	defer api.Close()
	for _, bearer := range []string{first.Value, string(decoded)} {
		require.Equal(t, 401, answer(api.URL+"/v1/sessions", func(r *http.Request) {
			r.Header.Set("Authorization", "Bearer "+strings.ToValidUTF8(strings.Map(printable, bearer), ""))
		}))
	}
	require.Equal(t, 401, answer(api.URL+"/v1/sessions", copied(first)))
	other := start(t, func(o *httpapi.Options) { o.Access = tokens })
	elsewhere, err := url.Parse(other.URL)
	require.NoError(t, err)
	require.Equal(t, 303,
		answer(other.URL+"/ui/sessions", copied(&http.Cookie{Name: "toolfleet-" + elsewhere.Port(), Value: first.Value})),
		"another server has another key")

	request, err = http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+"/ui/fleet/live", http.NoBody)
	require.NoError(t, err)
	stream, err := s.Client().Do(request)
	require.NoError(t, err)
	defer stream.Body.Close()
	_, _, to := s.post("/sign-out", "key", s.key())
	require.Equal(t, "/sign-in", to)
	require.Equal(t, 303, answer(s.URL+"/ui/sessions", copied(first)), "a copy")
	_, err = io.Copy(io.Discard, stream.Body) // it ends
	require.NoError(t, err)

	s.signIn(operator)
	require.Equal(t, 200, answer(s.URL+"/ui/sessions", copied(cookie())))
	tokens.removed.Store(true)
	require.Equal(t, 303, answer(s.URL+"/ui/sessions", copied(cookie())), "its token is not known any more")
}

func printable(r rune) rune {
	if r <= ' ' || r >= 0x7f {
		return -1
	}
	return r
}

// changing are tokens that can be removed.
type changing struct {
	access.Verifier

	removed *atomic.Bool
}

func (c changing) Verify(ctx context.Context, bearer string) (access.Grant, error) {
	if c.removed.Load() {
		return access.Grant{}, access.ErrUnknown
	}
	return c.Verifier.Verify(ctx, bearer)
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

func TestSessions_NeedAModel(t *testing.T) {
	t.Parallel()
	s := start(t, func(o *httpapi.Options) { o.NoTurns = true })
	s.signIn(operator)
	s.run("work", "go", says("Done."))
	for _, path := range []string{"/sessions", "/sessions/work/send"} {
		status, body, _ := s.post(path, "key", s.key(), "prompt", "x")
		require.Equal(t, 422, status)
		require.Contains(t, body, "start coordinator ui or http with --model")
	}
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
		"/limits": "There is no limit", "/schedules": "There is no schedule", "/webhooks": "There is no webhook",
		"/calls": "No call has ended yet", "/fleet/plots": "The last hour",
	} {
		if path == "/fleet" {
			text = "Workers"
		}
		s.until(path, text)
		status, body, _ := s.get(path)
		require.Equal(t, 200, status, path)
		require.Contains(t, body, text, path)
	}
	status, body, _ := s.get("/nowhere")
	require.Equal(t, 404, status)
	require.Contains(t, body, "page /nowhere: ")
	s.run("work", "Look around", calls("bash", `{"command": "printf 'one\\ntwo\\n' > a.txt; echo seen"}`), says("It is **done**."))
	_, body, _ = s.get("/sessions")
	require.Contains(t, body, "Look around")
	status, body, _ = s.get("/sessions/work")
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
	require.Contains(t, body, `tabindex="-1">2</a>two`)
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

// TestBegin_LeadsToTheSession: a page waits for a coordinator that takes the first turn.
func TestBegin_LeadsToTheSession(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.signIn(operator)
	status, body, at := s.post("/sessions", "key", s.key(), "prompt", "one\r\ntwo")
	require.Equal(t, 200, status)
	require.Contains(t, body, "waits for a coordinator")
	id := strings.TrimPrefix(at, "/sessions/")
	require.Contains(t, body, `hx-sse:connect="/ui/sessions/`+id+`/live?begins"`)
	waits, end := s.stream(t.Context(), "/sessions/"+id+"/live?begins") // which is there at once
	defer end()
	s.run(protocol.SessionID(id), "one", says("Done."))
	shown := ""
	for waits.Scan() { // to its end
		shown += waits.Text()
	}
	require.NoError(t, waits.Err())
	require.Contains(t, shown, `hx-get="/ui/sessions/`+id+`?begins"`)
	_, body, at = s.get("/sessions/" + id + "?begins")
	require.Equal(t, "/sessions/"+id, at)
	require.Contains(t, body, "Done.")
	status, _, _ = s.get("/sessions/none")
	require.Equal(t, 404, status)
	require.Contains(t, s.first("/sessions/"+id+"/live?begins"), `hx-get="/ui/sessions/`+id+`?begins"`, "of one that has begun, too")
	for _, path := range []string{"/sessions", "/sessions/" + id + "/send"} {
		status, body, _ = s.post(path, "key", s.key(), "prompt", " \n")
		require.Equal(t, 422, status, path)
		require.Contains(t, body, "prompt: must not be empty", path)
	}
}

// TestApprovals_AreWhole: a page shows what is to run in full and the rule that asks, with its file
// and line, and approves it for the session; who may not approve has no button for it.
func TestApprovals_AreWhole(t *testing.T) {
	t.Parallel()
	s := start(t)
	rules, err := policy.Parse("rules.yaml", []byte("max_calls: 9\napproval:\n  commands: [git push]\n"))
	require.NoError(t, err)
	judged, err := policy.New(rules)
	require.NoError(t, err)
	ended := make(chan struct{})
	push := asJSON("git push origin main --" + strings.Repeat("x", 2000))
	go func() {
		defer close(ended)
		s.runJudged("work", "Push", judged, calls("bash", push), calls("bash", push), says("Done."))
	}()
	s.signIn(reader)
	_, body, _ := s.get("/waits")
	require.NotContains(t, body, "git push", "it is another tenant's")
	s.signIn(operator)
	var call string
	require.Eventually(t, func() bool {
		_, body, _ = s.get("/waits")
		_, after, is := strings.Cut(body, `id="call-`)
		call, _, _ = strings.Cut(after, `"`)
		return is
	}, time.Minute, 50*time.Millisecond)
	require.Contains(t, body, `session <a class="mono" href="/ui/sessions/work">work</a>`, "which session asks")
	_, shown, _ := s.get("/sessions/work")
	for _, page := range []string{body, shown} {
		for _, text := range []string{
			strings.Repeat("x", 2000), "approval.commands", "rules.yaml:3", "Approve for this session", "this very call of bash, with the same arguments",
		} {
			require.Contains(t, page, text)
		}
	}
	status, body, _ := s.post("/sessions/work/approve", "key", s.key(), "call", call, "for", "session")
	require.Equal(t, 200, status, body)
	<-ended
	_, body, _ = s.get("/sessions/work")
	require.Contains(t, body, "Done.", "the second call was not asked about")
	_, body, _ = s.get("/waits?shown=" + call)
	require.Contains(t, body, "#answer-"+call, "a page that is open says that it was answered")
}

// hostile are texts that a model or a tool may write.
var hostile = []string{
	`<script>alert(1)</script>`, `<img src=x onerror=alert(1)>`, `"><svg onload=alert(1)>`, `[x](javascript:alert(1))`, `![x](https://elsewhere.example/p.png)`,
	"\x1b]8;;https://elsewhere.example\x07link\x1b]8;;\x07 \x1b[2J\x1b[31mred", "a\u202egnp.exe", `{{template "page"}}`,
	"</textarea></pre><iframe src=//elsewhere.example>", "a\x00b\x07", `<hx-partial hx-target="body">gone</hx-partial>`,
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
	s.run("hostile", text,
		calls("bash", asJSON("cat <<'END'\n"+strings.ReplaceAll(text, "\x00", "")+"\nEND\nhead -c 3000000 /dev/zero | tr '\\0' x")),
		calls("nothing", text), says(text+long))
	_, list, _ := s.get("/sessions")
	pages := map[string]string{"/sessions": list}
	for _, path := range []string{
		"/sessions/hostile", "/sessions/hostile/timeline", "/sessions/hostile/files",
		"/sessions?q=" + url.QueryEscape(text), "/sessions/" + url.PathEscape(hostile[0]),
	} {
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
					if a.Key != "href" { // Markdown has links, which a person may follow
						require.True(t, strings.HasPrefix(a.Val, "/ui/"), "%s: %s %s", path, node.Data, a.Val)
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
	require.Contains(t, shown, `hx-target="#turns" hx-swap="beforeend"><section id="turn-2"`)
	for facts := ""; !strings.Contains(facts, "turns <b>2</b>") || !strings.Contains(facts, "answered"); { // the state of the session, too
		require.True(t, lines.Scan(), "%v", lines.Err())
		if _, after, is := strings.Cut(lines.Text(), `hx-target="#facts"`); is || facts != "" {
			facts += after + lines.Text()
		}
	}
}

// imported is a session of events, each with what a journal needs.
func (s *site) imported(id protocol.SessionID, events ...loop.Event) {
	s.t.Helper()
	for i := range events {
		events[i].SessionID, events[i].Time = id, time.Now()
		if events[i].Turn == 0 && events[i].Type != loop.EventSessionStarted {
			events[i].Turn = 1
		}
	}
	_, err := s.client.Sessions("").Import(s.t.Context(), events, id)
	require.NoError(s.t, err)
}

// TestImages_AreOfTypesThatHoldNoScript: an image is sent as itself, anything else only as a file.
func TestImages_AreOfTypesThatHoldNoScript(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.signIn(operator)
	svg := []byte(`<svg xmlns="http://www.w3.org/2000/svg" onload="alert(1)"/>`)
	call := loop.CallFields{CallID: "c1", ToolCallID: "t1", Name: "read"}
	s.imported(
		"images", loop.Event{Type: loop.EventSessionStarted},
		loop.Event{Type: loop.EventTurnStarted, StartFields: loop.StartFields{Input: "look", Attachments: []loop.Attachment{
			{Name: "a.svg", Image: loop.Image{MediaType: "image/svg+xml", Data: svg}}, {Name: "b.png", Image: loop.Image{MediaType: "image/png", Data: []byte("\x89PNG")}},
		}}},
		loop.Event{Type: loop.EventModelReply, Step: 1, ReplyFields: loop.ReplyFields{ToolCalls: []loop.ToolCall{{ID: "t1", Name: "read", Arguments: "{}"}}}},
		loop.Event{Type: loop.EventToolCall, Step: 1, CallFields: call},
		loop.Event{
			Type: loop.EventToolResult, Step: 1, CallFields: call, Status: "ok",
			ResultFields: loop.ResultFields{Content: "an image", Image: &loop.Image{MediaType: "image/gif", Data: []byte("GIF89a")}},
		},
		loop.Event{Type: loop.EventModelReply, Step: 2, Text: "seen"},
		loop.Event{Type: loop.EventTurnEnded, Status: "answered", Text: "seen"},
	)
	_, body, _ := s.get("/sessions/images")
	require.Contains(t, body, "/ui/sessions/images/image?call=c1")
	require.Contains(t, body, `<img loading="lazy" src="/ui/sessions/images/image?turn=1&amp;file=1"`)
	require.NotContains(t, body, `<img loading="lazy" src="/ui/sessions/images/image?turn=1&amp;file=0"`)
	for path, kind := range map[string]string{"?call=c1": "image/gif", "?turn=1&file=1": "image/png", "?turn=1&file=0": "application/octet-stream"} {
		header := s.header("/sessions/images/image" + path)
		require.Equal(t, kind, header.Get("Content-Type"), path)
		require.Equal(t, "nosniff", header.Get("X-Content-Type-Options"), path)
		require.Equal(t, kind == "application/octet-stream", strings.HasPrefix(header.Get("Content-Disposition"), "attachment"), path)
		require.Equal(t, "default-src 'none'; sandbox", header.Get("Content-Security-Policy"), path)
	}
	for _, path := range []string{"?call=none", "?turn=1&file=2", "?turn=1&file=-1", "?turn=9&file=0", ""} {
		status, _, _ := s.get("/sessions/images/image" + path)
		require.Equal(t, 404, status, path)
	}
}

// header asks for a page, and returns its header.
func (s *site) header(path string) http.Header {
	s.t.Helper()
	request, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, s.URL+"/ui"+path, nil)
	require.NoError(s.t, err)
	answer, err := s.Client().Do(request)
	require.NoError(s.t, err)
	defer answer.Body.Close()
	require.Equal(s.t, 200, answer.StatusCode, path)
	return answer.Header
}

// TestActs_ThatLoseSomethingAskFirst: each has a page that says what is lost, with the form that
// does it; the page itself changes nothing.
func TestActs_ThatLoseSomethingAskFirst(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.signIn(operator)
	s.run("work", "Write", calls("write", `{"path":"a.txt","content":"one\n"}`), calls("write", `{"path":"a.txt","content":"two\n"}`), says("Done."))
	changes, err := s.client.Sessions("").Changes(t.Context(), "work")
	require.NoError(t, err)
	require.Len(t, changes, 2)
	first := string(changes[0].Calls[0])
	_, _, forked := s.post("/sessions/work/fork", "key", s.key(), "call", first)
	fork := strings.TrimPrefix(forked, "/sessions/")
	for path, texts := range map[string][]string{
		"/sessions/work/confirm/cancel":                    {"Cancel the turn?", "There is nothing to cancel", "Back to the session"},
		"/sessions/work/confirm/remove":                    {"Remove the session?", "Nothing brings them back"},
		"/sessions/work/confirm/restore?call=" + first:     {"-two", "&#43;one"},
		"/sessions/work/confirm/merge?fork=" + fork:        {"0 files to be written"},
		"/sessions/work/confirm/cancel-call?call=" + first: {"Cancel the call?"},
		"/sessions/work/compare?with=" + fork:              {"-two", "&#43;one"},
		"/sessions/work/files?from=" + first:               {"-one", "&#43;two", "What changed between"},
		"/sessions/work/files?at=" + first:                 {"What the call changed", "&#43;one"},
		"/sessions/work/file?path=a.txt&at=" + first:       {`id="L1"`, "one"},
		"/sessions/work/details":                           {"Export", "Merge a fork"},
		"/sessions/work/calls":                             {first},
		"/sessions/work/agents":                            {"has no sub-agents"},
		"/sessions/work/calls/" + first + "/arguments":     {"one"},
	} {
		status, body, _ := s.get(path)
		require.Equal(t, 200, status, path)
		for _, text := range texts {
			require.Contains(t, body, text, path)
		}
	}
	for _, act := range []string{"nothing", "send"} {
		status, _, _ := s.get("/sessions/work/confirm/" + act)
		require.Equal(t, 404, status)
	}
	content, err := s.client.Sessions("").ReadFile(t.Context(), "work", "a.txt", "")
	require.NoError(t, err)
	require.Equal(t, "two\n", string(content))
	status, body, _ := s.post("/sessions/work/restore", "key", s.key(), "call", first)
	require.Equal(t, 200, status, body)
	content, err = s.client.Sessions("").ReadFile(t.Context(), "work", "a.txt", "")
	require.NoError(t, err)
	require.Equal(t, "one\n", string(content))
	require.Equal(t, "application/x-ndjson", s.header("/sessions/work/export").Get("Content-Type"))
	s.run(protocol.SessionID(fork), "Write", says("before"),
		calls("write", `{"path":"a.txt","content":"three\n"}`),
		calls("write", `{"path":"b.txt","content":"new\n"}`), says("Done."))
	s.run("work", "Write", says("before"), says("before"), says("before"), calls("write", `{"path":"a.txt","content":"four\n"}`), says("Done."))
	_, body, _ = s.get("/sessions/work/confirm/merge?fork=" + fork)
	for _, text := range []string{
		"Conflicts: 1 file changed on both sides",
		`<div class="bad"><ul class="paths"><li class="mono">a.txt</li>`, "1 file to be written",
		`<li class="mono">b.txt</li>`,
	} {
		require.Contains(t, body, text)
	}
	status, body, _ = s.post("/sessions/work/merge", "key", s.key(), "fork", fork)
	require.Equal(t, 200, status, body)
	for path, text := range map[string]string{"a.txt": "four\n", "b.txt": "new\n"} {
		content, err = s.client.Sessions("").ReadFile(t.Context(), "work", path, "")
		require.NoError(t, err)
		require.Equal(t, text, string(content), "as the page has said")
	}
}

// TestOutput_WholeOneIsSearched: of what a call has printed, all that is stored is read by pages.
func TestOutput_WholeOneIsSearched(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.signIn(operator)
	s.run("work", "Print", calls("bash", asJSON("seq 200000; echo needle; seq 10")), says("Done."))
	history, err := s.client.Sessions("").Log(t.Context(), "work")
	require.NoError(t, err)
	at := slices.IndexFunc(history.Events, func(e loop.Event) bool { return e.Type == loop.EventToolResult })
	page := "/sessions/work/calls/" + string(history.Events[at].CallID)
	_, body, _ := s.get(page + "/output")
	require.Contains(t, body, "bytes 0 to 65,536 of 1,288,9")
	_, body, _ = s.get(page + "/output?find=NEEDLE")
	require.Contains(t, body, "200,001")
	_, body, _ = s.get(page + "/output?at=1288000")
	require.Contains(t, body, "needle")
	_, body, _ = s.get(page)
	require.Contains(t, body, "Find in the whole output")
	require.Less(t, len(body), 1<<20)
}

// TestFiles_OfASessionInPlaceAreInItsDirectory: no page says that there are none, or how to copy
// some.
func TestFiles_OfASessionInPlaceAreInItsDirectory(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.signIn(operator)
	s.imported(
		"here", loop.Event{Type: loop.EventSessionStarted, StartFields: loop.StartFields{Workspace: "/home/ada/project"}},
		loop.Event{Type: loop.EventTurnStarted, StartFields: loop.StartFields{Input: "Look"}},
		loop.Event{Type: loop.EventModelReply, Step: 1, Text: "yes"}, loop.Event{Type: loop.EventTurnEnded, Status: "answered", Text: "yes"},
	)
	_, body, _ := s.get("/sessions/here/files")
	require.Contains(t, body, "It was started on <code>/home/ada/project</code>")
	require.NotContains(t, body, "session push")
}

// TestSession_LongOnesAreShownByPages: of many items a page has the last ones, and leads to the
// others, each once.
func TestSession_LongOnesAreShownByPages(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.signIn(operator)
	events := []loop.Event{{Type: loop.EventSessionStarted}}
	for turn := 1; turn <= 3; turn++ {
		events = append(events, loop.Event{Type: loop.EventTurnStarted, Turn: turn, StartFields: loop.StartFields{Input: fmt.Sprintf("input %d.", turn)}})
		for i := range 120 {
			events = append(events, loop.Event{Type: loop.EventInputAdded, Turn: turn, StartFields: loop.StartFields{Input: fmt.Sprintf("more %d-%d.", turn, i)}})
		}
		events = append(events, loop.Event{Type: loop.EventModelReply, Turn: turn, Step: 1, Text: "yes"},
			loop.Event{Type: loop.EventTurnEnded, Turn: turn, Status: "answered", Text: "yes"})
	}
	s.imported("long", events...)
	all, path := "", "/sessions/long"
	for range 10 {
		_, body, _ := s.get(path)
		require.Less(t, strings.Count(body, `class="item"`), 152)
		all = body + all
		_, after, earlier := strings.Cut(body, `href="/ui/sessions/long?until=`)
		if !earlier {
			break
		}
		place, _, _ := strings.Cut(after, `"`)
		path = "/sessions/long?until=" + place
	}
	for turn := 1; turn <= 3; turn++ {
		require.Equal(t, 1, strings.Count(all, fmt.Sprintf(`id="said-%d">input %d.<`, turn, turn)))
		for i := range 120 {
			require.Equal(t, 1, strings.Count(all, fmt.Sprintf(">more %d-%d.<", turn, i)), "%d-%d", turn, i)
		}
	}
}
