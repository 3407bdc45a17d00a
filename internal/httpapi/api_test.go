package httpapi_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/toolfleet/toolfleet/internal/access"
	"github.com/toolfleet/toolfleet/internal/httpapi"
	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/fleet/fleettest"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/policy"
	"github.com/toolfleet/toolfleet/pkg/tools/toolset"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server is an API over a fleet in this process.
type server struct {
	*httptest.Server

	client *fleet.Client
}

func start(t *testing.T, change func(*httpapi.Options)) server {
	t.Helper()
	client := fleettest.Start(t)
	table, err := tools.NewTable(toolset.Core()...)
	require.NoError(t, err)
	o := httpapi.Options{Client: client, Table: func() *tools.Table { return table }, Version: "test"}
	if change != nil {
		change(&o)
	}
	s := server{httptest.NewServer(httpapi.New(o)), client}
	t.Cleanup(s.Close)
	return s
}

// ask sends a request, and decodes the answer.
func (s server) ask(t *testing.T, method, path, body string, into any, headers ...string) int {
	t.Helper()
	status, read := s.send(t, method, path, body, headers...)
	if into != nil {
		require.NoError(t, json.Unmarshal(read, into), "%s", read)
	}
	return status
}

// send sends a request, and reads the answer.
func (s server) send(t *testing.T, method, path, body string, headers ...string) (status int, read []byte) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, s.URL+path, strings.NewReader(body))
	require.NoError(t, err)
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	if strings.HasSuffix(path, "/import") {
		r.Header.Set("Content-Type", "application/x-ndjson")
	}
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	answer, err := s.Client().Do(r)
	require.NoError(t, err)
	defer answer.Body.Close()
	read, err = io.ReadAll(answer.Body)
	require.NoError(t, err)
	t.Logf("%s %s: %d %.300s", method, path, answer.StatusCode, read)
	return answer.StatusCode, read
}

func TestCalls_ACallIsSentAndItsResultRead(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	var state httpapi.CallState
	require.Equal(t, 202, s.ask(t, "POST", "/v1/calls?wait_ms=60000", `{"tool": "bash", "arguments": {"command": "echo hi"}}`, &state, "Idempotency-Key", "mine"))
	require.Equal(t, "ended", state.State)
	require.EqualValues(t, "mine", state.CallID)
	require.Contains(t, state.Result.Text, "hi")
	var again httpapi.CallState
	require.Equal(t, 200, s.ask(t, "GET", "/v1/calls/"+string(state.SessionID)+"/mine", "", &again))
	require.Equal(t, "ended", again.State)
	var problem httpapi.Problem
	require.Equal(t, 404, s.ask(t, "GET", "/v1/calls/s/none", "", &problem))
	require.EqualValues(t, "not_found", problem.Code)
	require.Equal(t, 422, s.ask(t, "POST", "/v1/calls", `{"tool": "bash", "arguments": {"command": "x"}, "nonsense": 1}`, &problem))
	require.Contains(t, problem.Errors[0].Location, "nonsense")
}

// The text of a result is what a model would read, also of a call to which the client gave no id.
func TestCalls_TheTextOfAResultIsThatOfItsTool(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	for _, headers := range [][]string{nil, {"Idempotency-Key", "mine"}} {
		var sent, read httpapi.CallState
		require.Equal(t, 202, s.ask(t, "POST", "/v1/calls?wait_ms=60000", `{"tool": "bash", "arguments": {"command": "echo hi"}, "session_id": "s"}`, &sent, headers...))
		require.Equal(t, 200, s.ask(t, "GET", "/v1/calls/s/"+string(sent.CallID), "", &read))
		require.Equal(t, "hi\n", sent.Result.Text)
		require.Equal(t, sent, read)
	}
}

// A call counts in the quota of its tenant, with a key of the client or without; one that is
// repeated is not refused.
func TestCalls_AQuotaOfATenantRefusesMore(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	require.NoError(t, s.client.Limits().Set(t.Context(), fleet.Limit{Tenant: "acme", Concurrent: 1}))
	body := fmt.Sprintf(`{"tool": "bash", "arguments": {"command": "true"}, "tenant": "acme", "not_before": %q}`, time.Now().Add(time.Hour).Format(time.RFC3339))
	require.Equal(t, 202, s.ask(t, "POST", "/v1/calls", body, nil, "Idempotency-Key", "first"))
	var problem httpapi.Problem
	require.Eventually(t, func() bool { return s.ask(t, "POST", "/v1/calls", body, &problem) == 429 }, 30*time.Second, 100*time.Millisecond)
	require.EqualValues(t, "quota_exceeded", problem.Code)
	require.Contains(t, problem.Detail, " of 1 calls in flight")
	require.Equal(t, 429, s.ask(t, "POST", "/v1/calls", body, nil, "Idempotency-Key", "new"))
	require.Equal(t, 202, s.ask(t, "POST", "/v1/calls", body, nil, "Idempotency-Key", "first"))
}

// The log of calls comes in pages, with filters, and names what is wrong with them.
func TestCalls_TheLogHasPages(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	for i := range 5 {
		body := fmt.Sprintf(`{"tool": "bash", "arguments": {"command": "echo number%d; exit %d"}, "session_id": "s%d"}`, i, i, i%2)
		require.Equal(t, 202, s.ask(t, "POST", "/v1/calls?wait_ms=60000", body, nil, "Idempotency-Key", fmt.Sprintf("c%d", i)))
	}
	var got []string
	for path := "/v1/calls?tool=bash&limit=2"; ; {
		var page report.CallLog
		require.Equal(t, 200, s.ask(t, "GET", path, "", &page))
		for i := range page.Calls {
			got = append(got, string(page.Calls[i].CallID))
		}
		if page.Next == "" {
			break
		}
		path = "/v1/calls?tool=bash&limit=2&after=" + page.Next
	}
	require.Equal(t, []string{"c4", "c3", "c2", "c1", "c0"}, got)
	var page report.CallLog
	require.Equal(t, 200, s.ask(t, "GET", "/v1/calls?session=s1&text=number3&status=ok,failed", "", &page))
	require.Len(t, page.Calls, 1)
	var call report.LoggedCall
	require.Equal(t, 200, s.ask(t, "GET", "/v1/calls/s1/c3/log", "", &call))
	require.Equal(t, page.Calls[0], call)
	require.Contains(t, call.Output, "number3")
	var rates report.CallRates
	require.Equal(t, 200, s.ask(t, "GET", "/v1/calls/rates?step_ms=3600000&tool=bash", "", &rates))
	require.Equal(t, 5, rates.Buckets[0].Calls)
	for _, bad := range []string{"?status=bad", "?after=x", "?text=!", "/rates?step_ms=1000"} {
		require.Equal(t, 422, s.ask(t, "GET", "/v1/calls"+bad, "", nil), bad)
	}
	require.Equal(t, 404, s.ask(t, "GET", "/v1/calls/s0/c3/log", "", nil))
}

// What no process would run is refused, and not accepted for ever.
func TestSessions_WithoutAModelAndWithoutFiles(t *testing.T) {
	t.Parallel()
	s := start(t, func(o *httpapi.Options) { o.NoTurns = true })
	for _, path := range []string{"/v1/sessions", "/v1/sessions/s/turns"} {
		status, body := s.send(t, "POST", path, `{"prompt": "go"}`)
		require.Equal(t, 422, status, "%s", body)
		require.Contains(t, string(body), "start coordinator http with --model")
	}
	status, body := s.send(t, "POST", "/v1/sessions/s/compact", "")
	require.Equal(t, 422, status, "%s", body)
	status, body = s.send(t, "GET", "/v1/sessions/none/files", "")
	require.Equal(t, 404, status, "%s", body)
	require.Contains(t, string(body), "no files are stored")
	status, body = s.send(t, "POST", "/v1/sessions/none/restore", `{"call_id": "c"}`)
	require.Equal(t, 404, status, "%s", body)
}

// Hooks of the server change a call, and what each reader gets of its result.
func TestCalls_HooksDecide(t *testing.T) {
	t.Parallel()
	redacted := "redacted"
	s := start(t, func(o *httpapi.Options) {
		o.Hooks = []loop.Hook{
			{Event: loop.HookBefore, Run: func(_ context.Context, r loop.HookRequest) (loop.HookAnswer, error) {
				if bytes.Contains(r.Input, []byte("rm")) {
					return loop.HookAnswer{Decision: policy.Denied, Reason: "no " + r.Interface}, nil
				}
				return loop.HookAnswer{Input: bytes.ReplaceAll(r.Input, []byte("one"), []byte("secret"))}, nil
			}},
			{Event: loop.HookAfter, Matches: func(tool string) bool { return tool == "bash" }, Run: func(_ context.Context, r loop.HookRequest) (loop.HookAnswer, error) {
				if strings.Contains(r.Result.Content, "secret") {
					time.Sleep(300 * time.Millisecond) // longer than a request waits for the end of the call
					return loop.HookAnswer{Output: &redacted}, nil
				}
				return loop.HookAnswer{}, nil
			}},
		}
	})
	var state httpapi.CallState
	require.Equal(t, 202, s.ask(t, "POST", "/v1/calls?wait_ms=60000", `{"tool": "bash", "arguments": {"command": "echo one"}}`, &state, "Idempotency-Key", "mine"))
	require.Equal(t, "redacted", state.Result.Text)
	for _, path := range []string{"", "/events"} {
		_, body := s.send(t, "GET", "/v1/calls/"+string(state.SessionID)+"/mine"+path, "")
		require.Contains(t, string(body), "redacted")
		if path == "" { // the output of a call is live
			require.NotContains(t, string(body), "c2VjcmV0", "nor the typed value")
			require.NotContains(t, string(body), "secret")
		}
	}
	for _, path := range []string{"/v1/calls", "/v1/calls/" + string(state.SessionID) + "/mine/log"} {
		status, body := s.send(t, "GET", path, "")
		require.Equal(t, 200, status)
		require.Contains(t, string(body), `"call_id":"mine"`)
		require.NotContains(t, string(body), "secret", "the log has what hooks have not seen")
	}
	var log report.CallLog
	require.Equal(t, 200, s.ask(t, "GET", "/v1/calls?text=secret", "", &log))
	require.Empty(t, log.Calls)
	var problem httpapi.Problem
	require.Equal(t, 403, s.ask(t, "POST", "/v1/calls", `{"tool": "bash", "arguments": {"command": "rm x"}}`, &problem))
	require.Contains(t, problem.Detail, "A hook refused the call: no go")
	require.Equal(t, 202, s.ask(t, "POST", "/v1/calls?wait_ms=60000", `{"tool": "bash", "arguments": {"command": "echo two"}}`, &state))
	require.Contains(t, state.Result.Text, "two")
}

// TestCalls_OverHTTPTakeLittleLonger compares calls over HTTP with the same by the Go client, in
// turns: the median is at most a millisecond longer (make http-overhead). On a busy machine the
// bound is wider.
func TestCalls_OverHTTPTakeLittleLonger(t *testing.T) { //nolint:paralleltest // it measures
	pairs, most := 30, 50*time.Millisecond
	if n, err := strconv.Atoi(os.Getenv("PAIRS")); err == nil {
		pairs, most = n, time.Millisecond
	}
	s := start(t, nil)
	table, err := tools.NewTable(toolset.Core()...)
	require.NoError(t, err)
	const arguments = `{"path": "f"}`
	require.Equal(t, 202, s.ask(t, "POST", "/v1/calls?wait_ms=60000", `{"tool": "bash", "arguments": {"command": "echo hi > f"}, "session_id": "s"}`, nil))
	direct := func() {
		ref, err := s.client.Submit(t.Context(), fleet.Call{Tool: "read", Arguments: arguments, Session: "s", Table: table})
		require.NoError(t, err)
		future, err := s.client.Attach(t.Context(), ref)
		require.NoError(t, err)
		result, err := future.Wait(t.Context())
		require.NoError(t, err)
		require.NoError(t, result.Err())
	}
	overHTTP := func() {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL+"/v1/calls?wait_ms=60000",
			strings.NewReader(`{"tool": "read", "arguments": `+arguments+`, "session_id": "s"}`))
		require.NoError(t, err)
		request.Header.Set("Content-Type", "application/json")
		answer, err := s.Client().Do(request)
		require.NoError(t, err)
		text, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		require.NoError(t, answer.Body.Close())
		require.Contains(t, string(text), `"state":"ended"`)
	}
	took := func(call func()) time.Duration {
		begun := time.Now()
		call()
		return time.Since(begun)
	}
	var goes, webs []time.Duration
	for i := range pairs {
		if i%2 == 0 { // each is the first of a pair as often as the other
			goes = append(goes, took(direct))
		}
		webs = append(webs, took(overHTTP))
		if i%2 == 1 {
			goes = append(goes, took(direct))
		}
	}
	slices.Sort(goes)
	slices.Sort(webs)
	t.Logf("medians of %d pairs: %s by the Go client, %s over HTTP", pairs, goes[pairs/2], webs[pairs/2])
	require.LessOrEqual(t, webs[pairs/2]-goes[pairs/2], most)
}

func TestFleet_IsListed(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	var lanes map[string]any
	require.Equal(t, 200, s.ask(t, "GET", "/v1/lanes", "", &lanes))
	require.Contains(t, lanes, "left_out")
	for _, path := range []string{
		"/v1/workers", "/v1/pools", "/v1/lanes", "/v1/limits", "/v1/schedules", "/v1/templates",
		"/v1/sessions", "/v1/questions", "/v1/tools", "/openapi.json",
	} {
		require.Equal(t, 200, s.ask(t, "GET", path, "", nil), path)
	}
}

func TestSchedules_OfACallArePausedAndRemoved(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	require.Equal(t, 201, s.ask(t, "POST", "/v1/schedules", `{"name": "daily", "cron": "0 9 * * *", "call": {"tool": "exists", "arguments": {"path": "a"}}}`, nil))
	var list httpapi.ScheduleList
	require.Equal(t, 200, s.ask(t, "POST", "/v1/schedules/daily/pause", "", nil))
	require.Equal(t, 200, s.ask(t, "GET", "/v1/schedules", "", &list))
	require.True(t, list.Schedules[0].Paused)
	require.Equal(t, "exists", list.Schedules[0].Tool)
	require.Equal(t, 204, s.ask(t, "DELETE", "/v1/schedules/daily", "", nil))
}

// The calls of a lane are skipped and killed by the operator.
func TestLanes_CallsAreSkippedAndKilled(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	for _, id := range []string{"runs", "waits"} {
		require.Equal(t, 202, s.ask(t, "POST", "/v1/calls", `{"tool": "bash", "arguments": {"command": "sleep 600"}, "session_id": "s"}`, nil, "Idempotency-Key", id))
	}
	const lane = "lane=sandbox/s"
	require.Eventually(t, func() bool {
		var shown struct{ Running []struct{} }
		return s.ask(t, "GET", "/v1/lane?"+lane, "", &shown) == 200 && len(shown.Running) == 1
	}, time.Minute, 20*time.Millisecond)
	var woken httpapi.Woken
	require.Equal(t, 200, s.ask(t, "POST", "/v1/lane/wake?"+lane, "", &woken))
	require.Equal(t, 204, s.ask(t, "POST", "/v1/lane/skip?"+lane+"&call=waits", "", nil))
	var killed httpapi.KilledList
	require.Equal(t, 200, s.ask(t, "POST", "/v1/lane/kill?"+lane, "", &killed))
	require.Len(t, killed.Calls, 1)
	for _, id := range []string{"runs", "waits"} {
		var state httpapi.CallState
		require.Equal(t, 200, s.ask(t, "GET", "/v1/calls/s/"+id+"?wait_ms=60000", "", &state))
		require.EqualValues(t, "cancelled", state.Result.Status, id)
	}
	require.Equal(t, 404, s.ask(t, "POST", "/v1/lane/skip?"+lane+"&call=none", "", nil))
}

func TestEvents_OfACall(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	var state httpapi.CallState
	require.Equal(t, 202, s.ask(t, "POST", "/v1/calls", `{"tool": "bash", "arguments": {"command": "echo a; sleep 0.2; echo b"}}`, &state))
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+"/v1/calls/"+string(state.SessionID)+"/"+string(state.CallID)+"/events", nil)
	require.NoError(t, err)
	answer, err := s.Client().Do(r)
	require.NoError(t, err)
	defer answer.Body.Close()
	lines := bufio.NewScanner(answer.Body)
	lines.Buffer(nil, 1<<20)
	var last string
	for lines.Scan() {
		if text, is := strings.CutPrefix(lines.Text(), "data: "); is {
			last = text
		}
	}
	require.Contains(t, last, `"state":"ended"`)
}

func TestTokens_LetClientsIn(t *testing.T) {
	t.Parallel()
	tokens, err := access.ReadTokens(strings.NewReader("ann run 0123456789abcdef acme\n"))
	require.NoError(t, err)
	s := start(t, func(o *httpapi.Options) { o.Access = access.NewTokens(tokens...) })
	var problem httpapi.Problem
	require.Equal(t, 401, s.ask(t, "GET", "/v1/sessions", "", &problem))
	require.EqualValues(t, "unauthorized", problem.Code)
	bearer := []string{"Authorization", "Bearer 0123456789abcdef"}
	require.Equal(t, 200, s.ask(t, "GET", "/v1/sessions", "", nil, bearer...))
	require.Equal(t, 403, s.ask(t, "PUT", "/v1/limits", `{"tenant": "acme", "weight": 2}`, &problem, bearer...))
	ctx := judge.With(context.Background(), judge.Principal{})
	_, err = s.client.Submit(ctx, fleet.Call{Tool: "bash", Arguments: `{"command": "true"}`, Session: "theirs"})
	require.NoError(t, err)
	require.Contains(t, []int{403, 404}, s.ask(t, "GET", "/v1/sessions/theirs", "", &problem, bearer...))
}
