package httpapi_test

import (
	"bufio"
	"encoding/json"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/access"
	"github.com/toolfleet/toolfleet/internal/httpapi"
)

// tokensOf are those of the tests: of two tenants, of each role, an expired one, and the owner's.
const tokensOf = `
ann run ann-0123456789abcdef acme
bob operate bob-0123456789abcdef acme
reader read reader-0123456789abcdef acme
eve operate eve-0123456789abcdef other
late operate late-0123456789abcdef acme expires=2020-01-01T00:00:00Z
`

// as is the header of a client.
func as(name string) []string {
	return []string{"Authorization", "Bearer " + name + "-0123456789abcdef"}
}

// withTokens lets the clients in.
func withTokens(t *testing.T) func(*httpapi.Options) {
	t.Helper()
	tokens, err := access.ReadTokens(strings.NewReader(tokensOf))
	require.NoError(t, err)
	tokens = append(tokens, access.OwnToken("owner-0123456789abcdef"))
	return func(o *httpapi.Options) { o.Access = access.NewTokens(tokens...) }
}

// What another tenant gets of an operation.
const (
	hidden   = "hidden"   // it finds nothing
	listed   = "listed"   // it gets a list without what is not its own
	shared   = "shared"   // all tenants see the same
	operator = "operator" // only the fleet's operator may
)

// operations are requests about what token:ann of tenant acme has made, and what of them tenant
// other, and a token of role read, must get.
var operations = map[string]struct {
	request, body string
	other         string
	changes       bool // role read may not
}{
	"send-call":          {"POST /v1/calls", `{"tool": "bash", "arguments": {"command": "cat f"}, "session_id": "s"}`, hidden, true},
	"send-calls":         {"POST /v1/calls/batch", `{"calls": [{"tool": "bash", "arguments": {"command": "cat f"}, "session_id": "s"}]}`, hidden, true},
	"get-call":           {"GET /v1/calls/s/c", "", hidden, false},
	"cancel-call":        {"POST /v1/calls/s/runs/cancel", "", hidden, true},
	"follow-call":        {"GET /v1/calls/s/c/events", "", hidden, false},
	"list-calls":         {"GET /v1/calls?session=s", "", listed, false},
	"get-call-rates":     {"GET /v1/calls/rates?session=s", "", listed, false},
	"get-logged-call":    {"GET /v1/calls/s/c/log", "", hidden, false},
	"list-tools":         {"GET /v1/tools", "", shared, false},
	"new-session":        {"POST /v1/sessions", `{"prompt": "p", "session_id": "s"}`, hidden, true},
	"send-turn":          {"POST /v1/sessions/s/turns", `{"prompt": "p"}`, hidden, true},
	"list-sessions":      {"GET /v1/sessions", "", listed, false},
	"search-sessions":    {"GET /v1/search?words=secret", "", listed, false},
	"get-session":        {"GET /v1/sessions/s", "", hidden, false},
	"get-turn-trace":     {"GET /v1/sessions/turned/turns/last/trace", "", hidden, false},
	"remove-session":     {"DELETE /v1/sessions/s?force=true", "", hidden, true},
	"list-session-calls": {"GET /v1/sessions/s/calls", "", hidden, false},
	"cancel-session":     {"POST /v1/sessions/s/cancel", "", hidden, true},
	"fork-session":       {"POST /v1/sessions/s/fork", `{"session_id": "f"}`, hidden, true},
	"merge-session":      {"POST /v1/sessions/s/merge", `{"fork": "fork"}`, hidden, true},
	"restore-session":    {"POST /v1/sessions/s/restore", `{"call_id": "c"}`, hidden, true},
	"revert-session":     {"POST /v1/sessions/s/revert", `{"call_id": "c"}`, hidden, true},
	"list-effects":       {"GET /v1/sessions/s/effects", "", hidden, false},
	"export-session":     {"GET /v1/sessions/s/export", "", hidden, false},
	"import-session":     {"POST /v1/sessions/s/import", `{"type":"session_export","version":1}` + "\n" + `{"type":"session_started"}`, hidden, true},
	"list-questions":     {"GET /v1/questions", "", listed, false},
	"approve-call":       {"POST /v1/sessions/s/approve", `{"call_id": "c", "granted": true}`, hidden, true},
	"answer-question":    {"POST /v1/sessions/s/answer", `{"call_id": "c", "action": "accept"}`, hidden, true},
	"resolve-call":       {"POST /v1/sessions/s/resolve", `{"call_id": "c", "happened": true}`, hidden, true},
	"follow-session":     {"GET /v1/sessions/s/events?until_turn_ended=true", "", hidden, false},
	"list-files":         {"GET /v1/sessions/s/files", "", hidden, false},
	"read-file":          {"GET /v1/sessions/s/file?path=f", "", hidden, false},
	"write-file":         {"PUT /v1/sessions/s/file?path=f", "theirs", hidden, true},
	"remove-file":        {"DELETE /v1/sessions/s/file?path=f", "", hidden, true},
	"get-archive":        {"GET /v1/sessions/s/archive", "", hidden, false},
	"unpack-archive":     {"PUT /v1/sessions/s/archive", "no archive", hidden, true},
	"list-changes":       {"GET /v1/sessions/s/changes", "", hidden, false},
	"get-diff":           {"GET /v1/sessions/s/diff", "", hidden, false},
	"compare-sessions":   {"GET /v1/sessions/s/compare?other=s", "", hidden, false},
	"list-workers":       {"GET /v1/workers", "", shared, false},
	"list-pools":         {"GET /v1/pools", "", shared, false},
	"list-lanes":         {"GET /v1/lanes", "", operator, true},
	"get-lane":           {"GET /v1/lane?lane=sandbox/s", "", operator, true},
	"pause-lane":         {"POST /v1/lane/pause?lane=sandbox/s", "", operator, true},
	"resume-lane":        {"POST /v1/lane/resume?lane=sandbox/s", "", operator, true},
	"wake-lane":          {"POST /v1/lane/wake?lane=sandbox/s", "", operator, true},
	"skip-call":          {"POST /v1/lane/skip?lane=sandbox/s&call=runs", "", operator, true},
	"kill-lane":          {"POST /v1/lane/kill?lane=sandbox/s", "", operator, true},
	"compact-session":    {"POST /v1/sessions/s/compact", "", hidden, true},
	"list-limits":        {"GET /v1/limits", "", listed, false},
	"set-limit":          {"PUT /v1/limits", `{"tenant": "acme", "weight": 3}`, operator, true},
	"remove-limit":       {"DELETE /v1/limits?tenant=acme", "", operator, true},
	"list-schedules":     {"GET /v1/schedules", "", listed, false},
	"add-schedule":       {"POST /v1/schedules", `{"name": "mine", "cron": "@daily", "session_id": "s", "turn": {"prompt": "p"}}`, hidden, true},
	"remove-schedule":    {"DELETE /v1/schedules/daily", "", hidden, true},
	"pause-schedule":     {"POST /v1/schedules/daily/pause", "", hidden, true},
	"resume-schedule":    {"POST /v1/schedules/daily/resume", "", hidden, true},
	"list-templates":     {"GET /v1/templates", "", listed, false},
	"add-template":       {"POST /v1/templates", `{"name": "other", "session_id": "s"}`, hidden, true},
	"remove-template":    {"DELETE /v1/templates/anns", "", hidden, true},
	"list-tokens":        {"GET /v1/tokens", "", listed, true},
	"add-token":          {"POST /v1/tokens", `{"name": "mine", "role": "read", "tenant": "acme"}`, operator, true},
	"remove-token":       {"DELETE /v1/tokens/ID", "", hidden, true},
	"list-webhooks":      {"GET /v1/webhooks", "", listed, true},
	"add-webhook":        {"POST /v1/webhooks", `{"url": "https://hooks.example/acme", "tenant": "*"}`, operator, true},
	"remove-webhook":     {"DELETE /v1/webhooks/WEBHOOK", "", hidden, true},
	"list-failed-events": {"GET /v1/webhooks/WEBHOOK/failed", "", hidden, true},
	"resume-webhook":     {"POST /v1/webhooks/WEBHOOK/resume", "", hidden, true},
	"test-webhook":       {"POST /v1/webhooks/WEBHOOK/test", "", hidden, true},
}

// TestOperations_RefuseTheWrongToken tries every operation with a token of another tenant, of role
// read, and an expired one. An operation that is missing in the table fails the test.
func TestOperations_RefuseTheWrongToken(t *testing.T) {
	t.Parallel()
	s := start(t, withTokens(t))
	ann := as("ann")
	require.Equal(t, 202, s.ask(t, "POST", "/v1/calls?wait_ms=60000",
		`{"tool": "bash", "arguments": {"command": "echo secret > f"}, "session_id": "s"}`, nil,
		append(ann, "Idempotency-Key", "c")...))
	require.Equal(t, 201, s.ask(t, "POST", "/v1/sessions/s/fork", `{"session_id": "fork"}`, nil, ann...))
	status, _ := s.send(t, "POST", "/v1/sessions/turned/import", `{"type":"session_export","version":1}`+"\n"+
		`{"type":"turn_started","turn":1,"input":"secret","time":"2026-01-02T03:04:05Z"}`+"\n"+`{"type":"turn_ended","turn":1,"time":"2026-01-02T03:04:05Z"}`+"\n", ann...)
	require.Equal(t, 201, status)
	require.Equal(t, 202,
		s.ask(t, "POST", "/v1/calls", `{"tool": "bash", "arguments": {"command": "sleep 600"}, "session_id": "s"}`, nil, append(ann, "Idempotency-Key", "runs")...))
	require.Equal(t, 201, s.ask(t, "POST", "/v1/schedules", `{"name": "daily", "cron": "@daily", "session_id": "s", "turn": {"prompt": "p"}}`, nil, ann...))
	require.Equal(t, 201, s.ask(t, "POST", "/v1/templates", `{"name": "anns", "session_id": "s"}`, nil, ann...))
	require.Equal(t, 204, s.ask(t, "PUT", "/v1/limits", `{"tenant": "acme", "weight": 2}`, nil, as("owner")...))
	var token httpapi.MadeToken
	require.Equal(t, 201, s.ask(t, "POST", "/v1/tokens", `{"name": "ci", "role": "run", "tenant": "acme"}`, &token, as("owner")...))
	var hook httpapi.AddedWebhook
	require.Equal(t, 201, s.ask(t, "POST", "/v1/webhooks", `{"url": "https://hooks.example/acme"}`, &hook, as("bob")...))
	require.Regexp(t, "^whsec_.{44}$", hook.Secret)
	body, err := httpapi.Description("test")
	require.NoError(t, err)
	var described struct {
		Paths map[string]map[string]struct {
			ID string `json:"operationId"` //nolint:tagliatelle // as OpenAPI names it
		}
	}
	require.NoError(t, json.Unmarshal(body, &described))
	tried := 0
	for _, methods := range described.Paths {
		for _, op := range methods {
			require.Contains(t, operations, op.ID, "no test says who may use this operation")
			tried++
		}
	}
	require.Len(t, operations, tried)
	for id, op := range operations {
		method, path, _ := strings.Cut(strings.NewReplacer("ID", token.ID, "WEBHOOK", hook.ID).Replace(op.request), " ")
		ask := func(headers ...string) (int, string) {
			t.Helper()
			status, read := s.send(t, method, path, op.body, headers...)
			return status, string(read)
		}
		status, _ := ask(as("late")...)
		require.Equal(t, http.StatusUnauthorized, status, "%s with an expired token", id)
		status, _ = ask()
		require.Equal(t, http.StatusUnauthorized, status, "%s without a token", id)
		status, text := ask(as("eve")...)
		require.NotContains(t, text, "secret", id)
		switch op.other {
		case hidden:
			if id == "send-calls" {
				require.Contains(t, text, `"code":"not_found"`, id)
				break
			}
			require.Equal(t, http.StatusNotFound, status, "%s of another tenant: %s", id, text)
		case listed:
			require.Equal(t, http.StatusOK, status, id)
			for _, name := range []string{"acme", `"s"`, "daily", "anns"} {
				require.NotContains(t, text, name, id)
			}
		case shared:
			require.Equal(t, http.StatusOK, status, id)
		case operator:
			require.Equal(t, http.StatusForbidden, status, id)
			status, _ = ask(as("bob")...)
			require.Equal(t, http.StatusForbidden, status, "%s by the tenant's operator", id)
		}
		if op.changes && id == "send-calls" {
			_, text = ask(as("reader")...)
			require.Contains(t, text, `"code":"forbidden"`, id)
		} else if op.changes {
			status, text = ask(as("reader")...)
			require.Equal(t, http.StatusForbidden, status, "%s with role read: %s", id, text)
		}
	}
	var call httpapi.CallState
	require.Equal(t, 200, s.ask(t, "GET", "/v1/calls/s/runs", "", &call, ann...))
	require.Equal(t, "accepted", call.State, "no request has ended it")
	for id, op := range operations { // what role read may see
		if method, path, _ := strings.Cut(op.request, " "); !op.changes && id != "follow-session" {
			require.Equal(t, http.StatusOK, s.ask(t, method, path, op.body, nil, as("reader")...), id)
		}
	}
	require.Equal(t, 204, s.ask(t, "POST", "/v1/calls/s/runs/cancel", "", nil, ann...))
}

// A token that expires ends what it has opened.
func TestTokens_AnExpiredOneEndsItsStreams(t *testing.T) {
	t.Parallel()
	line := "ann run ann-0123456789abcdef acme expires=" + time.Now().Add(4*time.Second).UTC().Format(time.RFC3339)
	tokens, err := access.ReadTokens(strings.NewReader(line))
	require.NoError(t, err)
	s := start(t, func(o *httpapi.Options) { o.Access = access.NewTokens(tokens...) })
	require.Equal(t, 202, s.ask(t, "POST", "/v1/calls?wait_ms=100", `{"tool": "bash", "arguments": {"command": "true"}, "session_id": "s"}`, nil, as("ann")...))
	require.Equal(t, 200, s.ask(t, "GET", "/v1/sessions/s/events", "", nil, as("ann")...), "it ends with the token")
	require.Equal(t, 401, s.ask(t, "GET", "/v1/sessions/s", "", nil, as("ann")...))
}

// A body that is no HTTP is the client's fault, as one that ends too early.
func TestProblems_OfABodyThatCannotBeRead(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	for _, body := range []string{"Transfer-Encoding: chunked\r\n\r\nzz\r\n", "Content-Length: 9\r\n\r\n{"} {
		connection, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", s.Listener.Addr().String())
		require.NoError(t, err)
		_, err = connection.Write([]byte("POST /v1/calls HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" + body))
		require.NoError(t, err)
		require.NoError(t, connection.(*net.TCPConn).CloseWrite()) //nolint:errcheck,forcetypeassert // it is one
		answer, err := http.ReadResponse(bufio.NewReader(connection), nil)
		require.NoError(t, err)
		var problem httpapi.Problem
		require.NoError(t, json.NewDecoder(answer.Body).Decode(&problem))
		require.Equal(t, http.StatusBadRequest, problem.Status)
		require.EqualValues(t, "invalid", problem.Code)
		require.NoError(t, answer.Body.Close())
		require.NoError(t, connection.Close())
	}
}
