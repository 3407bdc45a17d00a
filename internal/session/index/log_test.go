package index

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// sent is a call of a handler that no turn makes, and stored its result.
func sent(session, id string, tenant protocol.Tenant, input string) *protocol.Call {
	return &protocol.Call{
		ID: protocol.CallID(id), SessionID: protocol.SessionID(session), Pool: "default", Tenant: tenant, Delivery: protocol.Idempotent,
		Resources: []protocol.Use{{Key: "account/one", Access: protocol.Exclusive}},
		Payload:   protocol.CommandRun{Command: input, Env: map[string]string{"TOKEN": "hunter2"}},
	}
}

func (r *rig) settle(t *testing.T, c *protocol.Call, result protocol.Result) {
	t.Helper()
	result.CallID, result.SessionID = c.ID, c.SessionID
	if result.FinishedAt.IsZero() {
		result.FinishedAt = begun().Add(time.Hour)
	}
	r.store(t, &result, wire.AboutOf(c, result.FinishedAt.Add(-time.Minute)), r.proof(t, c))
}

// proof is what the sender of a call puts into its message.
func (r *rig) proof(t *testing.T, c *protocol.Call) string {
	t.Helper()
	key, err := secret(t.Context())
	require.NoError(t, err)
	return wire.Proof(key, r.Name, protocol.CallRef{SessionID: c.SessionID, ID: c.ID}, c.Tenant, c.By)
}

// store stores a result as a worker does.
func (r *rig) store(t *testing.T, result *protocol.Result, about wire.About, proof string) {
	t.Helper()
	body, err := wire.EncodeResult(result)
	require.NoError(t, err)
	_, err = r.JS.PublishMsg(t.Context(), &nats.Msg{
		Subject: wire.ResultSubject(r.Name, result.SessionID, result.CallID), Data: body,
		Header: nats.Header{wire.HeaderAbout: []string{about.Header()}, wire.HeaderProof: []string{proof}},
	})
	require.NoError(t, err)
}

// printed is a result of a command.
func printed(output string) protocol.Result {
	r := protocol.Result{Status: protocol.StatusOK, WorkerID: "w1", Attempt: 2, Level: "full", Checkpoint: 7, QueueMS: 1500, RunMS: 250}
	r.Waits = protocol.Waits{SlotMS: 1000, LaneMS: 400}
	v := protocol.CommandRunResult{}
	v.Stdout = protocol.Bytes(output)
	r.Value = v
	return r
}

func (r *rig) calls(t *testing.T, q Calls) report.CallLog {
	t.Helper()
	page, err := r.index.Calls(t.Context(), q)
	require.NoError(t, err)
	return page
}

// ids are those of a page.
func ids(page report.CallLog) []string {
	all := []string{}
	for i := range page.Calls {
		all = append(all, string(page.Calls[i].CallID))
	}
	return all
}

// A call has one row, with what the journal and the stored result say, whichever is read first.
func TestCalls_TakeFieldsOfJournalAndResult(t *testing.T) {
	t.Parallel()
	turn := called(2, "c1", "bash", `{"command": "make"}`, "what the model read\n[exit code 2]")
	call := sent("s", "c1", "acme", "make")
	call.Turn, call.Step, call.Tool, call.By = 2, 1, "bash", "token:ann"
	before := []loop.Event{
		started(judge.Owner{Tenant: "acme", By: "token:ann"}), asked(2, "build"),
		{Type: loop.EventModelReply, Turn: 2, Step: 1, Time: begun().Add(2*time.Minute + 3*time.Second)},
		{Type: loop.EventApprovalAsked, Turn: 2, Step: 1, Time: begun().Add(3 * time.Minute), CallFields: turn[0].CallFields},
		{Type: loop.EventPolicyDecision, Turn: 2, Step: 1, Time: begun().Add(4 * time.Minute), CallFields: turn[0].CallFields, Status: "approved"},
		turn[0],
	}
	want := report.LoggedCall{
		SessionID: "s", CallID: "c1", Turn: 2, Step: 1, Tool: "bash", Attempt: 2, Input: `{"command": "make"}`, Output: "what the model read\n[exit code 2]",
		Lane: "default/account/one", Resources: call.Resources, Tenant: "acme", Owner: "token:ann",
		AcceptedAt: begun().Add(59 * time.Minute), StartedAt: begun().Add(time.Hour - 250*time.Millisecond), FinishedAt: begun().Add(time.Hour),
		Status: protocol.StatusOK, Exit: "exit code 2", WorkerID: "w1", Level: "full", Checkpoint: 7, RunMS: 250,
		Waits: report.CallWaits{QueueMS: 1500, Waits: protocol.Waits{SlotMS: 1000, LaneMS: 400}, ModelMS: 3000, PersonMS: 60000},
	}
	turn[0].Lane, turn[1].Exit = want.Lane, want.Exit
	before[len(before)-1] = turn[0]
	for name, order := range map[string]func(t *testing.T, r *rig){
		"journal first": func(t *testing.T, r *rig) {
			t.Helper()
			r.append(t, "s", append(before, turn[1])...)
			require.NoError(t, r.index.Update(t.Context()))
			r.settle(t, call, printed("what it printed"))
		},
		"result first": func(t *testing.T, r *rig) {
			t.Helper()
			r.settle(t, call, printed("what it printed"))
			require.NoError(t, r.index.Update(t.Context()))
			r.append(t, "s", append(before, turn[1])...)
		},
		"result between": func(t *testing.T, r *rig) {
			t.Helper()
			r.append(t, "s", before...)
			r.settle(t, call, printed("what it printed"))
			require.NoError(t, r.index.Update(t.Context()))
			require.Equal(t, "what it printed", r.calls(t, Calls{}).Calls[0].Output, "until the journal has what the model read")
			r.append(t, "s", turn[1])
		},
		"at once": func(t *testing.T, r *rig) {
			t.Helper()
			r.append(t, "s", append(before, turn[1])...)
			r.settle(t, call, printed("what it printed"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, Options{})
			order(t, r)
			page := r.calls(t, Calls{})
			require.Equal(t, []report.LoggedCall{want}, page.Calls)
			require.Equal(t, []string{"s"}, r.sessions(t, `"what the model read"`))
			require.Empty(t, r.sessions(t, `"what it printed"`))
			require.Equal(t, 1, r.count(t, r.index, "SELECT count(*) FROM entry WHERE role IN ('result', 'output', 'later')"))
		})
	}
}

// A call that no turn makes has no journal: the log has it from its result, and keeps it when the
// result has left its stream. Values of environments are not stored.
func TestCalls_KeepResultsThatExpire(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	r.settle(t, sent("shared", "c1", "acme", "echo xyzzy"), printed("plugh"))
	failed := printed("")
	failed.Status, failed.Error, failed.Value = protocol.StatusTimeout, protocol.Errorf(protocol.CodeRunTimeout, "too slow"), nil
	r.settle(t, sent("shared", "c2", "", "sleep 9"), failed)
	require.NoError(t, r.index.Update(t.Context()))
	stream, err := r.JS.Stream(t.Context(), wire.ResultsStream(r.Name))
	require.NoError(t, err)
	require.NoError(t, stream.Purge(t.Context()))
	page := r.calls(t, Calls{})
	require.Equal(t, []string{"c2", "c1"}, ids(page))
	require.JSONEq(t, `{"command": "echo xyzzy", "env": {"TOKEN": "***"}}`, page.Calls[1].Input)
	require.Equal(t, "plugh", page.Calls[1].Output)
	require.Equal(t, protocol.Tenant("acme"), page.Calls[1].Tenant)
	require.Equal(t, "command_run", page.Calls[1].Tool)
	require.Equal(t, &protocol.Error{Code: protocol.CodeRunTimeout, Message: "too slow"}, page.Calls[0].Error)
	require.Equal(t, judge.DefaultTenant, page.Calls[0].Tenant)
	require.Equal(t, []string{"c1"}, ids(r.calls(t, Calls{CallQuery: report.CallQuery{Text: "plugh"}})))
	require.Empty(t, r.sessions(t, "plugh"), "no session's journal has it")
	require.Equal(t, []string{"c1"}, ids(r.calls(t, Calls{Reach: "acme"})))
	require.NoError(t, r.index.Forget(t.Context(), "shared"))
	require.Empty(t, r.calls(t, Calls{}).Calls)
}

func TestCalls_FiltersAndPages(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	for i := range 30 {
		c := sent([]string{"s0", "s1", "s2"}[i%3], fmt.Sprintf("c%02d", i), []protocol.Tenant{"acme", "initech"}[i%2], fmt.Sprintf("number%d common", i))
		c.Tool = []string{"bash", "read", "write", "grep", "agent"}[i%5]
		c.Resources[0].Key = protocol.ResourceKey(fmt.Sprintf("lane/%d", i%4))
		result := printed(fmt.Sprintf("said%d also common", i))
		result.WorkerID, result.FinishedAt = protocol.WorkerID(fmt.Sprintf("w%d", i%7)), begun().Add(time.Duration(i/2)*time.Minute)
		if i%6 == 0 {
			result.Status, result.Error = protocol.StatusFailed, protocol.Errorf(protocol.CodeToolFailed, "it failed")
		}
		r.settle(t, c, result)
	}
	all := func(test func(i int) bool) (want []string) {
		for i := 29; i >= 0; i-- {
			if test(i) {
				want = append(want, fmt.Sprintf("c%02d", i))
			}
		}
		return want
	}
	for name, test := range map[string]struct {
		query Calls
		want  func(i int) bool
	}{
		"all":        {Calls{}, func(int) bool { return true }},
		"session":    {Calls{CallQuery: report.CallQuery{Session: "s1"}}, func(i int) bool { return i%3 == 1 }},
		"tool":       {Calls{CallQuery: report.CallQuery{Tool: "grep"}}, func(i int) bool { return i%5 == 3 }},
		"status":     {Calls{CallQuery: report.CallQuery{Status: []protocol.Status{protocol.StatusFailed, protocol.StatusTimeout}}}, func(i int) bool { return i%6 == 0 }},
		"ok":         {Calls{CallQuery: report.CallQuery{Status: []protocol.Status{protocol.StatusOK}}}, func(i int) bool { return i%6 != 0 }},
		"lane":       {Calls{CallQuery: report.CallQuery{Lane: "lane/2"}}, func(i int) bool { return i%4 == 2 }},
		"pool":       {Calls{CallQuery: report.CallQuery{Lane: "default/lane/2"}}, func(i int) bool { return i%4 == 2 }},
		"other pool": {Calls{CallQuery: report.CallQuery{Lane: "gpu/lane/2"}}, func(int) bool { return false }},
		"tenant":     {Calls{CallQuery: report.CallQuery{Tenant: "acme"}}, func(i int) bool { return i%2 == 0 }},
		"reach":      {Calls{CallQuery: report.CallQuery{Tenant: "acme"}, Reach: "initech"}, func(int) bool { return false }},
		"worker":     {Calls{CallQuery: report.CallQuery{Worker: "w3"}}, func(i int) bool { return i%7 == 3 }},
		"time": {
			Calls{CallQuery: report.CallQuery{Since: begun().Add(2 * time.Minute), Until: begun().Add(5 * time.Minute)}},
			func(i int) bool { return i/2 >= 2 && i/2 < 5 },
		},
		"call":        {Calls{CallQuery: report.CallQuery{Call: "c11"}}, func(i int) bool { return i == 11 }},
		"word":        {Calls{CallQuery: report.CallQuery{Text: "common"}}, func(int) bool { return true }},
		"input":       {Calls{CallQuery: report.CallQuery{Text: "number7"}}, func(i int) bool { return i == 7 }},
		"several":     {Calls{CallQuery: report.CallQuery{Text: "common", Tenant: "acme", Session: "s0"}}, func(i int) bool { return i%6 == 0 }},
		"not visible": {Calls{May: func(context.Context, judge.Owner) error { return judge.ErrRefused }}, func(int) bool { return false }},
	} {
		want := all(test.want)
		require.Equal(t, append([]string{}, want...), ids(r.calls(t, test.query)), name)
		for _, limit := range []int{1, 7} { // each call is in one page
			var got []string
			q := test.query
			q.Limit = limit
			for {
				page := r.calls(t, q)
				require.LessOrEqual(t, len(page.Calls), limit)
				got = append(got, ids(page)...)
				if q.After = page.Next; q.After == "" {
					break
				}
			}
			require.Equal(t, want, got, "%s, %d in a page", name, limit)
		}
	}
	for name, q := range map[string]report.CallQuery{
		"limit": {Limit: MaxCalls + 1}, "negative": {Limit: -1}, "status": {Status: []protocol.Status{"bad"}}, "cursor": {After: "x y"}, "words": {Text: "!"},
		"time": {Since: begun(), Until: begun()},
	} {
		_, err := r.index.Calls(t.Context(), Calls{CallQuery: q})
		require.ErrorIs(t, err, codes.ErrInvalid, name)
	}
	one, err := r.index.Call(t.Context(), Calls{CallQuery: report.CallQuery{Call: "c11"}})
	require.NoError(t, err)
	require.Equal(t, protocol.SessionID("s2"), one.SessionID)
	_, err = r.index.Call(t.Context(), Calls{CallQuery: report.CallQuery{Call: "c11", Session: "s0"}})
	require.ErrorIs(t, err, codes.ErrNotFound)
	wrong := errors.New("wrong")
	_, err = r.index.Calls(t.Context(), Calls{May: func(context.Context, judge.Owner) error { return wrong }})
	require.ErrorIs(t, err, wrong)
}

func TestRates_CountEachCallOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	for i := range 100 {
		result := printed("")
		result.RunMS, result.QueueMS, result.FinishedAt = float64(i+1), float64(100-i), begun().Add(time.Duration(i%2)*2*time.Minute)
		if i < 4 {
			result.Status, result.Error = protocol.StatusCancelled, protocol.Errorf(protocol.CodeCancelled, "stopped")
		}
		r.settle(t, sent("s", fmt.Sprintf("c%d", i), "", "x"), result)
	}
	rates, err := r.index.Rates(t.Context(), Calls{CallQuery: report.CallQuery{Since: begun(), Until: begun().Add(150 * time.Second)}}, time.Minute)
	require.NoError(t, err)
	require.Len(t, rates.Buckets, 3)
	require.Equal(t, report.CallRate{
		At: begun(), Calls: 50, Failed: 2, RunP50MS: 49, RunP95MS: 95, WaitP50MS: 50, WaitP95MS: 96,
		Waits: report.CallWaits{QueueMS: 2550, Waits: protocol.Waits{SlotMS: 50_000, LaneMS: 20_000}},
	}, rates.Buckets[0])
	require.Equal(t, report.CallRate{At: begun().Add(time.Minute)}, rates.Buckets[1])
	require.Equal(t, 50, rates.Buckets[2].Calls)
	for name, step := range map[string]time.Duration{"short": time.Millisecond, "odd": time.Second + 1, "many": time.Second} {
		_, err := r.index.Rates(t.Context(), Calls{CallQuery: report.CallQuery{Since: begun(), Until: begun().Add(time.Hour)}}, step)
		require.ErrorIs(t, err, codes.ErrInvalid, name)
	}
	_, err = r.index.Rates(t.Context(), Calls{CallQuery: report.CallQuery{Text: "word"}}, 0)
	require.ErrorIs(t, err, codes.ErrInvalid)
}

// Sums of minutes are what the calls say, however these come, change and leave: of each tenant, in
// steps of some minutes, and with the numbers of calls in the log.
func TestRates_SumsOfMinutes(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	r.live(t, 40)
	for i := range 300 {
		result := printed("")
		result.RunMS, result.QueueMS, result.FinishedAt = rand.ExpFloat64()*1000,
			float64(rand.IntN(3))*rand.Float64()*100, begun().Add(time.Duration(rand.IntN(3600))*time.Second)
		if i%9 == 0 {
			result.Status, result.Error = protocol.StatusFailed, protocol.Errorf(protocol.CodeToolFailed, "it failed")
		}
		r.settle(t, sent(fmt.Sprintf("alone%d", i%5), fmt.Sprintf("c%d", i), []protocol.Tenant{"acme", "initech", ""}[i%3], "x"), result)
	}
	require.NoError(t, r.index.Update(t.Context()))
	require.NoError(t, r.index.Forget(t.Context(), "alone3"))
	require.NoError(t, within(t.Context(), r.index.open.Load().write, func(tx *sql.Tx) error {
		w := newWriter(t.Context(), tx)
		w.removeOldest(begun().Add(7 * time.Minute).UnixMilli())
		return w.close()
	}))
	since := begun().Truncate(time.Minute)
	for _, tenant := range []protocol.Tenant{"", "acme", "initech", "default", "other"} {
		for _, step := range []time.Duration{time.Minute, 5 * time.Minute, 90 * time.Minute} {
			q := Calls{CallQuery: report.CallQuery{Since: since, Until: since.Add(180 * time.Minute)}, Reach: tenant}
			require.True(t, q.isCounted(step.Milliseconds()))
			sums, err := r.index.Rates(t.Context(), q, step)
			require.NoError(t, err)
			q.Status = wire.Statuses() // so each call is read
			require.False(t, q.isCounted(step.Milliseconds()))
			each, err := r.index.Rates(t.Context(), q, step)
			require.NoError(t, err)
			require.Len(t, sums.Buckets, len(each.Buckets))
			for i, want := range each.Buckets {
				got := sums.Buckets[i]
				require.Equal(t, []any{want.At, want.Calls, want.Failed}, []any{got.At, got.Calls, got.Failed})
				require.InDelta(t, want.Waits.QueueMS, got.Waits.QueueMS, 0.001*float64(want.Calls)+1e-6)
				require.InDelta(t, want.Waits.ModelMS, got.Waits.ModelMS, 0.001*float64(want.Calls)+1e-6)
				for n, ms := range []float64{want.RunP50MS, want.RunP95MS, want.WaitP50MS, want.WaitP95MS} {
					require.InDelta(t, ms, []float64{got.RunP50MS, got.RunP95MS, got.WaitP50MS, got.WaitP95MS}[n], 0.1*ms+0.001, "%d of %d calls", n, want.Calls)
				}
			}
		}
	}
	require.Zero(t, r.count(t, r.index, "SELECT count(*) FROM call WHERE (finished IS NULL) <> (taken IS NULL)"))
	require.Zero(t, r.count(t, r.index, "SELECT count(*) - count(DISTINCT taken) FROM call WHERE finished IS NOT NULL"))
	require.Zero(t, r.count(t, r.index, "SELECT count(*) FROM rate WHERE calls <= 0"))
	require.Zero(t, r.count(t, r.index, "SELECT count(*) FROM rate_time WHERE calls <= 0"))
}

// A reader that follows the log gets each call once, in the order in which the log took them in:
// also those of workers whose clocks are far behind, and those that came while it looked at others.
func TestCalls_FollowedInTheirOrder(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	add := func(id string, tenant protocol.Tenant, behind time.Duration) {
		result := printed("says " + id)
		result.FinishedAt = time.Now().Add(-behind)
		r.settle(t, sent("s", id, tenant, "x"), result)
	}
	add("before", "acme", 0)
	first := r.calls(t, Calls{})
	require.Equal(t, []string{"before"}, ids(first))
	same := r.calls(t, Calls{CallQuery: report.CallQuery{Position: first.Position}})
	require.Empty(t, same.Calls)
	require.Equal(t, first.Position, same.Position, "nothing is new")
	want := []string{}
	for i := range 12 {
		tenant, id := []protocol.Tenant{"acme", "initech"}[i%2], fmt.Sprintf("c%d", i)
		if add(id, tenant, time.Duration(i%5)*time.Hour); tenant == "acme" {
			want = append(want, id)
		}
	}
	for _, q := range []Calls{
		{Reach: "acme"}, {CallQuery: report.CallQuery{Tenant: "acme", Limit: 1}}, {CallQuery: report.CallQuery{Tenant: "acme", Text: "says", Limit: 4}},
	} {
		var got []string
		for q.Position = first.Position; ; {
			page := r.calls(t, q)
			if got = append(got, ids(page)...); page.Position == q.Position || len(page.Calls) == 0 {
				break
			}
			q.Position = page.Position
		}
		require.Equal(t, want, got)
	}
	last := r.calls(t, Calls{}).Position
	require.NoError(t, r.index.Forget(t.Context(), "s"))
	result := printed("after a removal")
	result.FinishedAt = time.Now()
	r.settle(t, sent("t", "next", "acme", "x"), result)
	require.Equal(t, []string{"next"}, ids(r.calls(t, Calls{CallQuery: report.CallQuery{Position: last}})), "it has a number of its own")

	fresh := r.open(t, t.TempDir(), Options{}) // as a file that was damaged
	page, err := fresh.Calls(t.Context(), Calls{CallQuery: report.CallQuery{Position: last}})
	require.NoError(t, err)
	require.Contains(t, ids(page), "next")
	require.NotContains(t, ids(page), "c1", "it ended long before")
	got, q := []string{}, Calls{CallQuery: report.CallQuery{Position: last, Limit: 1}}
	for range 100 {
		page, err := fresh.Calls(t.Context(), q)
		require.NoError(t, err)
		got = append(got, ids(page)...)
		q.Position = page.Position
	}
	require.Subset(t, []string{"before", "c0", "c5", "c10", "next"}, got, "also from the second page on, none that ended long before")
	require.Contains(t, got, "next")
	for _, from := range []string{"x", "a-b", "a-!-1", first.Position + "-"} {
		_, err := r.index.Calls(t.Context(), Calls{CallQuery: report.CallQuery{Position: from}})
		require.ErrorIs(t, err, codes.ErrInvalid, from)
	}
	_, err = r.index.Calls(t.Context(), Calls{CallQuery: report.CallQuery{Position: last, After: "1-1"}})
	require.ErrorIs(t, err, codes.ErrInvalid)
}

// What a tenant gets of a page says nothing of how many calls the log has of others, and means the
// same to other processes, and after a restart.
func TestCalls_PositionsCountNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	positions := map[string]bool{}
	for i := range 4 {
		r.settle(t, sent("s", fmt.Sprintf("c%d", i), "acme", "says"), printed("says"))
		page := r.calls(t, Calls{Reach: "acme", CallQuery: report.CallQuery{Limit: max(i, 1)}})
		var taken, id int64
		require.NoError(t, r.index.open.Load().read.QueryRowContext(t.Context(), "SELECT last FROM taken").Scan(&taken))
		require.NotContains(t, page.Position, "-"+strconv.FormatInt(taken, 36)+"-")
		positions[page.Position] = true
		if page.Next != "" {
			last := page.Calls[len(page.Calls)-1]
			require.NoError(t, r.index.open.Load().read.QueryRowContext(t.Context(), "SELECT id FROM call WHERE call = ?", string(last.CallID)).Scan(&id))
			require.False(t, strings.HasSuffix(page.Next, "-"+strconv.FormatInt(id, 36)), page.Next)
		}
	}
	require.Len(t, positions, 4)
	first := r.calls(t, Calls{CallQuery: report.CallQuery{Limit: 2}})
	require.Equal(t, []string{"c3", "c2"}, ids(first))
	r.settle(t, sent("s", "c4", "acme", "says"), printed("says"))
	same := r.open(t, r.dir, Options{})
	for name, q := range map[string]report.CallQuery{"the next page": {After: first.Next}, "what came since": {Position: first.Position}} {
		page, err := same.Calls(t.Context(), Calls{CallQuery: q})
		require.NoError(t, err, name)
		want := []string{"c1", "c0"}
		if q.After == "" {
			want = []string{"c4"}
		}
		require.Equal(t, want, ids(page), name)
	}
	other := r.open(t, t.TempDir(), Options{})
	page, err := other.Calls(t.Context(), Calls{CallQuery: report.CallQuery{After: first.Next}})
	require.NoError(t, err)
	require.Subset(t, ids(page), []string{"c1", "c0"}, "a file that was made again continues there by the time")
}

// While a session is copied, its calls are not shown, and hide no others.
func TestCalls_OfACopyHideNoOthers(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	r.settle(t, sent("s", "c0", "acme", "x"), printed("says"))
	first := r.calls(t, Calls{}).Position
	copied := []loop.Event{{Type: loop.EventCopyStarted, CallFields: loop.CallFields{CallID: "fork"}, StartFields: loop.StartFields{Tenant: "acme"}}}
	for i := range 5 {
		copied = append(copied, called(1, fmt.Sprintf("copied%d", i), "bash", "{}", "done")...)
	}
	for i := range copied {
		copied[i].Time = begun().Add(3 * time.Hour)
	}
	r.append(t, "copy", copied...)
	require.NoError(t, r.index.Update(t.Context()))
	want := []string{}
	for i := range 3 {
		id := fmt.Sprintf("c%d", i+1)
		r.settle(t, sent("s", id, "acme", "x"), printed("says"))
		want = append(want, id)
	}
	got, q := []string{}, Calls{CallQuery: report.CallQuery{Position: first, Limit: 2}}
	for range 10 {
		page := r.calls(t, q)
		got, q.Position = append(got, ids(page)...), page.Position
	}
	require.Equal(t, want, got)
	page := r.calls(t, Calls{CallQuery: report.CallQuery{Limit: 2}})
	require.Len(t, page.Calls, 2)
	require.NotEmpty(t, page.Next)
}

// Two results with times that no call has, from a worker that lies, leave the rates of all others
// as they are.
func TestRates_OfALyingWorker(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	for _, id := range []string{"c1", "c2"} {
		lie := printed("x")
		lie.QueueMS, lie.RunMS, lie.Waits = 1e300, 1e308, protocol.Waits{LaneMS: 1e300, SlotMS: -1e300}
		r.settle(t, sent("s", id, "acme", "x"), lie)
	}
	honest := printed("x")
	r.settle(t, sent("s", "c3", "acme", "x"), honest)
	since := begun().Truncate(time.Hour)
	for _, status := range [][]protocol.Status{nil, wire.Statuses()} {
		rates, err := r.index.Rates(t.Context(), Calls{CallQuery: report.CallQuery{Since: since, Until: since.Add(3 * time.Hour), Status: status}}, 3*time.Hour)
		require.NoError(t, err)
		require.Equal(t, 3, rates.Buckets[0].Calls)
		require.InDelta(t, honest.Waits.SlotMS, rates.Buckets[0].Waits.SlotMS, 1)
		_, err = json.Marshal(rates)
		require.NoError(t, err)
	}
}

// A worker may store results, and say of them what it wants. No tenant sees what it has made up: a
// call is of a tenant if its sender has proved it, or a journal has the call.
func TestCalls_ALyingWorkerShowsNothingToOthers(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	r.append(t, "theirs",
		append([]loop.Event{started(judge.Owner{Tenant: "initech", By: "token:eve"}), asked(1, "build")}, called(1, "real", "bash", `{"command": "make"}`, "done")...)...)
	mine := sent("mine", "c1", "acme", "make")
	lie := func(session, call string, tenant protocol.Tenant, by, proof string) {
		result := printed("made up")
		result.SessionID, result.CallID, result.FinishedAt = protocol.SessionID(session), protocol.CallID(call), begun()
		about := wire.AboutOf(mine, begun())
		about.Tenant, about.By = tenant, by
		r.store(t, &result, about, proof)
	}
	proof := r.proof(t, mine)
	lie("mine", "c1", "initech", "", proof)         // it has run the call of another tenant
	lie("mine", "c2", "acme", "", proof)            // the proof of another call
	lie("theirs", "c1", "acme", "", proof)          // of another session, which has a journal
	lie("theirs", "c2", "initech", "token:eve", "") // a call that was never sent
	lie("later", "c3", "initech", "token:eve", "")
	require.NoError(t, r.index.Update(t.Context()))
	r.append(t, "later", started(judge.Owner{Tenant: "initech", By: "token:eve"}), asked(1, "test"))
	for _, reach := range []protocol.Tenant{"initech", "acme", "default"} {
		q := Calls{Reach: reach, May: func(_ context.Context, owner judge.Owner) error {
			if owner.Tenant != reach {
				return judge.ErrRefused
			}
			return nil
		}}
		want := []string{}
		if reach == "initech" {
			want = append(want, "real")
		}
		require.Equal(t, want, ids(r.calls(t, q)), reach)
		if q.Text = "made"; len(r.calls(t, q).Calls) > 0 {
			require.Fail(t, "words were found", reach)
		}
	}
	all := r.calls(t, Calls{}) // the operator of the fleet sees them, without a tenant
	require.Len(t, all.Calls, 6)
	for i := range all.Calls {
		require.Equal(t, all.Calls[i].CallID == "real", all.Calls[i].Tenant != "", all.Calls[i].CallID)
	}
	r.settle(t, sent("mine", "c9", "acme", "make"), printed("true"))
	require.Equal(t, []string{"c9"}, ids(r.calls(t, Calls{Reach: "acme"})))
}

// TestRates_SumEachWait: a wait that the log has is in the sums of a time.
func TestRates_SumEachWait(t *testing.T) {
	t.Parallel()
	var one, sum report.CallWaits
	for _, of := range []reflect.Value{reflect.ValueOf(&one).Elem(), reflect.ValueOf(&one.Waits).Elem()} {
		for i := range of.NumField() {
			if of.Field(i).Kind() == reflect.Float64 {
				of.Field(i).SetFloat(float64(i + 1))
			}
		}
	}
	addWaits(&sum, &one)
	require.Equal(t, one, sum)
}

// What is older than a file may be leaves it, also for processes that name no age.
func TestUpdate_RemovesWhatIsTooOld(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{MaxAge: time.Hour})
	r.settle(t, sent("s", "old", "", "x"), printed(strings.Repeat("old ", 10)))
	now := printed("new")
	now.FinishedAt = time.Now()
	r.settle(t, sent("s", "new", "", "x"), now)
	page := r.calls(t, Calls{})
	require.Equal(t, []string{"new"}, ids(page))
	require.NotNil(t, page.Since)
	r.index = r.open(t, r.dir, Options{})
	empty := printed("")
	r.settle(t, sent("s", "old2", "", ""), empty)
	require.Equal(t, []string{"new"}, ids(r.calls(t, Calls{})))
}

// TestCalls_AClockThatIsAhead: calls of a worker or a coordinator whose clock is ahead are not in
// front of all others for ever, and leave the file when others of their time do.
func TestCalls_AClockThatIsAhead(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	ahead := printed("from tomorrow")
	ahead.FinishedAt = time.Now().Add(24 * time.Hour)
	r.settle(t, sent("s", "c1", "acme", "make"), ahead)
	said := called(1, "c2", "bash", `{"command": "make"}`, "from tomorrow")
	for i := range said {
		said[i].Time = ahead.FinishedAt
	}
	r.append(t, "t", append([]loop.Event{started(judge.Owner{Tenant: "acme"}), asked(1, "build")}, said...)...)
	page := r.calls(t, Calls{CallQuery: report.CallQuery{Until: time.Now().Add(time.Second)}})
	require.ElementsMatch(t, []string{"c1", "c2"}, ids(page))
	usual := printed("now")
	usual.FinishedAt = time.Now()
	r.settle(t, sent("s", "c3", "acme", "make"), usual)
	require.Equal(t, "c3", ids(r.calls(t, Calls{}))[0])
}

// TestTimes_AreBounded: however many calls end in a step, only some of their times are in memory,
// and these are of all of the step.
func TestTimes_AreBounded(t *testing.T) {
	t.Parallel()
	var ran times
	for range 2 { // the second step has nothing of the first one
		for i := range 10*maxTimes + 7 {
			ran.add(float64(i))
		}
		require.LessOrEqual(t, cap(ran.kept), 2*maxTimes)
		p50, p95 := ran.percentiles()
		require.InEpsilon(t, 5*maxTimes, p50, 0.01)
		require.InEpsilon(t, 9.5*maxTimes, p95, 0.01)
	}
	for i := range 100 {
		ran.add(float64(i))
	}
	p50, p95 := ran.percentiles()
	require.Equal(t, []float64{49, 94}, []float64{p50, p95}, "of few, each counts")
}

// A call that ends before a person has answered has waited for that person until its end.
func TestCalls_EndWhileAPersonIsAsked(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	fields := loop.CallFields{CallID: "c1", Name: "bash"}
	r.append(t, "s", started(judge.Owner{Tenant: "acme"}), asked(1, "go"),
		loop.Event{Type: loop.EventApprovalAsked, Turn: 1, Step: 1, Time: begun().Add(time.Minute), CallFields: fields},
		loop.Event{Type: loop.EventToolResult, Turn: 1, Step: 1, Time: begun().Add(3 * time.Minute), CallFields: fields, Status: string(protocol.StatusCancelled)})
	page := r.calls(t, Calls{})
	require.Len(t, page.Calls, 1)
	require.InDelta(t, 120_000, page.Calls[0].Waits.PersonMS, 0)
}

// The calls of a reply are sent when a person has answered about each of them: all have waited for
// that, also if the turn is stopped meanwhile.
func TestCalls_WaitForThePersonOfAnother(t *testing.T) {
	t.Parallel()
	for _, stopped := range []bool{false, true} {
		r := newRig(t, Options{})
		event := func(kind loop.EventType, minutes int, call string) loop.Event {
			return loop.Event{
				Type: kind, Turn: 1, Step: 1, Time: begun().Add(time.Duration(minutes) * time.Minute),
				CallFields: loop.CallFields{CallID: protocol.CallID(call), Name: "bash"},
			}
		}
		r.append(t, "s", started(judge.Owner{Tenant: "acme"}), asked(1, "go"), event(loop.EventApprovalAsked, 1, "first"), event(loop.EventPolicyDecision, 3, "first"))
		require.NoError(t, r.index.Update(t.Context())) // another process may read on
		r.append(t, "s", event(loop.EventApprovalAsked, 3, "second"))
		if !stopped {
			r.append(t, "s", event(loop.EventPolicyDecision, 7, "second"))
		}
		for _, call := range []string{"none", "first", "second"} {
			r.append(t, "s", event(loop.EventToolCall, 7, call), event(loop.EventToolResult, 8, call))
		}
		next := event(loop.EventToolCall, 9, "next")
		next.Step = 2
		result := next
		result.Type = loop.EventToolResult
		r.append(t, "s", next, result)
		waited := map[protocol.CallID]float64{}
		for _, c := range r.calls(t, Calls{}).Calls {
			waited[c.CallID] = c.Waits.PersonMS
		}
		require.Equal(t, map[protocol.CallID]float64{"none": 360_000, "first": 360_000, "second": 360_000, "next": 0}, waited, "stopped: %v", stopped)
	}
}

// A command that ran and did not succeed is found among what did not end well, also if no session
// has made its call, and by each of the indexes.
func TestCalls_CommandsThatFailAreFound(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	for i, execution := range []protocol.Execution{
		{}, {ExitCode: 3, Reason: "exited"}, {ExitCode: -1, Signal: "SIGKILL", Reason: "signaled"}, {ExitCode: -1, Reason: "running"},
	} {
		result := printed("")
		result.Value = protocol.CommandRunResult{Execution: execution}
		r.settle(t, sent("s", fmt.Sprint("command", i), "acme", "make"), result)
		result.Value = protocol.CodeRunResult{Execution: execution}
		r.settle(t, sent("s", fmt.Sprint("code", i), "acme", "make"), result)
	}
	failed := printed("")
	failed.Status, failed.Value, failed.Error = protocol.StatusFailed, nil, protocol.Errorf(protocol.CodeToolFailed, "no")
	r.settle(t, sent("s", "failed", "acme", "make"), failed)
	exits := []string{"code2", "command2", "code1", "command1"}
	for name, q := range map[string]report.CallQuery{"all": {}, "tenant": {Tenant: "acme"}, "session": {Session: "s"}, "words": {Text: "make"}} {
		q.Status = []protocol.Status{report.CallsExit}
		require.ElementsMatch(t, exits, ids(r.calls(t, Calls{CallQuery: q})), name)
		q.Status = []protocol.Status{report.CallsNotOK}
		require.ElementsMatch(t, append(exits, "failed"), ids(r.calls(t, Calls{CallQuery: q})), name)
		q.Status = []protocol.Status{report.CallsExit, protocol.StatusFailed}
		require.ElementsMatch(t, append(exits, "failed"), ids(r.calls(t, Calls{CallQuery: q})), name)
		q.Status = []protocol.Status{protocol.StatusOK}
		require.Len(t, ids(r.calls(t, Calls{CallQuery: q})), 8, name)
	}
	require.Equal(t, "exit code 3", r.calls(t, Calls{CallQuery: report.CallQuery{Call: "code1"}}).Calls[0].Exit)
	rates, err := r.index.Rates(t.Context(), Calls{CallQuery: report.CallQuery{Since: begun(), Until: begun().Add(2 * time.Hour)}}, 2*time.Hour)
	require.NoError(t, err)
	require.Equal(t, []int{9, 5}, []int{rates.Buckets[0].Calls, rates.Buckets[0].Failed})
}
