package webhook_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/sandbox/egress"
	"github.com/toolfleet/toolfleet/internal/session"
	"github.com/toolfleet/toolfleet/internal/session/webhook"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 2 * time.Minute

// rig is a fleet with webhooks.
type rig struct {
	servers *natsiotest.Fleet
	fleet   *fleet.Fleet
	store   *webhook.Store
}

func newRig(t *testing.T) *rig {
	t.Helper()
	servers := natsiotest.New(t, natsio.Topology{})
	r := &rig{servers: servers}
	r.fleet = r.connect(t, servers.Connect())
	var err error
	r.store, err = webhook.Open(t.Context(), r.fleet)
	require.NoError(t, err)
	return r
}

// connect is the fleet as another process has it.
func (r *rig) connect(t *testing.T, nc *nats.Conn) *fleet.Fleet {
	t.Helper()
	f := &fleet.Fleet{Name: r.servers.Name, NC: nc, Logger: slog.New(slog.DiscardHandler)}
	require.NoError(t, f.Open(t.Context(), true))
	t.Cleanup(f.Close)
	return f
}

// append appends events to a session.
func (r *rig) append(t *testing.T, id protocol.SessionID, events ...loop.Event) {
	t.Helper()
	last, err := r.fleet.Journal.Last(t.Context(), id)
	require.NoError(t, err)
	for i := range events {
		events[i].SessionID, events[i].Time = id, time.Now().UTC()
	}
	_, err = r.fleet.Journal.Append(t.Context(), id, last, events...)
	require.NoError(t, err)
}

// begin begins a session of a tenant, with an open turn.
func (r *rig) begin(t *testing.T, id protocol.SessionID, tenant protocol.Tenant) {
	t.Helper()
	r.append(t, id, loop.Event{Type: loop.EventSessionStarted, StartFields: loop.StartFields{Tenant: tenant}}, loop.Event{Type: loop.EventTurnStarted, Turn: 1})
}

func ended(turn int, text string) loop.Event {
	return loop.Event{Type: loop.EventTurnEnded, Turn: turn, Text: text, Status: string(loop.OutcomeAnswered)}
}

// result stores the result of a call.
func (r *rig) result(t *testing.T, result protocol.Result) {
	t.Helper()
	body, err := wire.EncodeResult(&result)
	require.NoError(t, err)
	_, err = r.fleet.JS.Publish(t.Context(), wire.ResultSubject(r.fleet.Name, result.SessionID, result.CallID), body)
	require.NoError(t, err)
}

// delivery is what a receiver got.
type delivery struct {
	ID   string
	Type webhook.EventType `json:"type"`
	Data struct {
		Tenant    protocol.Tenant    `json:"tenant"`
		SessionID protocol.SessionID `json:"session_id"`
		CallID    protocol.CallID    `json:"call_id"`
		Turn      int                `json:"turn"`
		Text      string             `json:"text"`
		Tool      string             `json:"tool"`
		Arguments string             `json:"arguments"`
		Reason    string             `json:"reason"`
		Truncated bool               `json:"truncated"`
		Value     json.RawMessage    `json:"value"`
	} `json:"data"`
}

// receiver is an HTTP server that checks signatures.
type receiver struct {
	*httptest.Server

	mu     sync.Mutex
	secret string
	got    []delivery // those that were answered with 2xx
	tries  map[string]int
	faults []string
}

// receive starts a receiver; answer says what it answers to the n-th try of an event, nil 204.
func receive(t *testing.T, answer func(w http.ResponseWriter, r *http.Request, d delivery, try int)) *receiver {
	t.Helper()
	v := &receiver{tries: map[string]int{}}
	v.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var d delivery
		if err == nil {
			err = json.Unmarshal(body, &d)
		}
		d.ID = r.Header.Get("webhook-id")
		v.mu.Lock()
		if signed, bad := standardwebhooks.NewWebhook(v.secret); err == nil && bad == nil {
			err = signed.Verify(body, r.Header)
		}
		if err != nil || r.Header.Get("Content-Type") != "application/json" {
			v.faults = append(v.faults, fmt.Sprint(err, r.Header))
		}
		v.tries[d.ID]++
		try := v.tries[d.ID]
		v.mu.Unlock()
		status := &statusWriter{ResponseWriter: w, status: http.StatusOK}
		if answer != nil {
			answer(status, r, d, try)
		}
		v.mu.Lock()
		defer v.mu.Unlock()
		if status.status < 300 {
			v.got = append(v.got, d)
		}
	}))
	t.Cleanup(func() {
		v.CloseClientConnections()
		v.Close()
		require.Empty(t, v.faults)
	})
	return v
}

type statusWriter struct {
	http.ResponseWriter

	status int
}

func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// list is what has arrived.
func (v *receiver) list() []delivery {
	v.mu.Lock()
	defer v.mu.Unlock()
	return append([]delivery{}, v.got...)
}

// await waits until so many deliveries have arrived.
func (v *receiver) await(t *testing.T, n int) []delivery {
	t.Helper()
	require.Eventually(t, func() bool { return len(v.list()) >= n }, patience, 5*time.Millisecond, "%d deliveries", n)
	return v.list()
}

// add adds a webhook for the receiver.
func (r *rig) add(ctx context.Context, t *testing.T, v *receiver, h webhook.Hook) *webhook.Hook {
	t.Helper()
	h.URL = v.URL + "/hook"
	added, err := r.store.Add(ctx, h)
	require.NoError(t, err)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.secret = added.Secret
	return added
}

// sender runs a sender until the test or its end function ends.
func (r *rig) sender(t *testing.T, f *fleet.Fleet, change func(*webhook.Options)) (end func()) {
	t.Helper()
	allow, err := egress.ParseAllow("127.0.0.1:*")
	require.NoError(t, err)
	fast := []time.Duration{10 * time.Millisecond, 20 * time.Millisecond, 40 * time.Millisecond}
	o := webhook.Options{Fleet: f, Allow: allow, Plain: true, Version: "test", Logger: slog.New(slog.DiscardHandler), BackOff: fast, AckWait: time.Second}
	if change != nil {
		change(&o)
	}
	s, err := webhook.NewSender(t.Context(), o)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { s.Run(ctx) })
	end = func() { cancel(); running.Wait() }
	t.Cleanup(end)
	return end
}

// listed is a webhook as the operator's list has it.
func (r *rig) listed(t *testing.T, id string) webhook.Listed {
	t.Helper()
	list, err := r.store.List(t.Context())
	require.NoError(t, err)
	for _, l := range list {
		if l.ID == id {
			return l
		}
	}
	require.Fail(t, "not listed")
	return webhook.Listed{}
}

func tenant(name protocol.Tenant, role judge.Role) judge.Principal {
	return judge.Principal{Known: judge.ByToken, Name: "ann", Role: role, Tenant: name}
}

// TestSender_EachEvent: the events of a tenant, with what they say; none of another tenant, of what
// was before, of a copy, of a sub-agent's turn, or of calls of turns.
func TestSender_EachEvent(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.begin(t, "old", "acme")
	r.append(t, "old", ended(1, "before"))
	v, whole := receive(t, nil), receive(t, nil)
	r.add(judge.With(t.Context(), tenant("acme", judge.RoleOperate)), t, v, webhook.Hook{})
	r.add(t.Context(), t, whole, webhook.Hook{Tenant: judge.EveryTenant, Events: []webhook.EventType{webhook.TurnEnded}})
	r.sender(t, r.fleet, nil)

	r.append(t, "old", loop.Event{Type: loop.EventTurnStarted, Turn: 2}, ended(2, strings.Repeat("long", 50_000)))
	r.begin(t, "other", "other")
	r.append(t, "other", ended(1, "theirs"))
	files, err := session.OpenFiles(t.Context(), r.fleet, "")
	require.NoError(t, err)
	_, err = files.Fork(judge.With(t.Context(), tenant("acme", judge.RoleRun)), r.fleet.Journal, "old", session.At{}, "fork")
	require.NoError(t, err)
	r.append(t, "fork", loop.Event{Type: loop.EventTurnStarted, Turn: 3}, ended(3, "of the fork"))
	r.append(t, "agent",
		loop.Event{Type: loop.EventSessionStarted, StartFields: loop.StartFields{Tenant: "acme", Parent: &loop.Parent{SessionID: "old"}}},
		ended(1, "of the agent"))
	r.append(t, "agent", loop.Event{
		Type: loop.EventApprovalAsked, Text: "rule 1 asks",
		CallFields: loop.CallFields{CallID: "c1", Name: "bash", Arguments: `{"command":"` + strings.Repeat("x", 100_000) + `"}`},
	})
	value, err := wire.NewUserValue("mine", json.RawMessage(`"done"`))
	require.NoError(t, err)
	r.result(t, protocol.Result{SessionID: "old", CallID: wire.RandomCallID(), Status: protocol.StatusOK, Value: value})
	r.result(t, protocol.Result{SessionID: "old", CallID: "named", Digest: "d", Status: protocol.StatusOK, Value: wire.Stored{Blob: "b", Bytes: 1 << 20}})
	r.result(t, protocol.Result{SessionID: "old", CallID: wire.NewCallID("old", "seed", 2, 1, 0), Status: protocol.StatusOK})
	r.result(t, protocol.Result{SessionID: "old", CallID: wire.RandomCallID(), Status: protocol.StatusOK, Value: wire.TurnRunResult{}})
	r.result(t, protocol.Result{SessionID: "other", CallID: wire.RandomCallID(), Status: protocol.StatusOK})
	r.append(t, "old", loop.Event{Type: loop.EventTurnStarted, Turn: 3}, ended(3, "last"))
	r.result(t, protocol.Result{SessionID: "old", CallID: "last", Digest: "d", Status: protocol.StatusCancelled, Error: protocol.Errorf(protocol.CodeCancelled, "stop")})

	got := map[string]delivery{}
	for _, d := range v.await(t, 7) {
		require.EqualValues(t, "acme", d.Data.Tenant)
		got[fmt.Sprintf("%s %s %d%s", d.Type, d.Data.SessionID, d.Data.Turn, d.Data.CallID)] = d
	}
	require.Len(t, got, 7)
	require.True(t, got["turn.ended old 2"].Data.Truncated)
	require.Equal(t, "last", got["turn.ended old 3"].Data.Text)
	require.Equal(t, "of the fork", got["turn.ended fork 3"].Data.Text)
	asked := got["approval.waiting agent 0c1"].Data
	require.Equal(t, "bash", asked.Tool)
	require.Len(t, asked.Arguments, 100_014, "whole")
	require.Equal(t, "rule 1 asks", asked.Reason)
	require.True(t, got["call.ended old 0named"].Data.Truncated)
	require.Contains(t, got, "call.ended old 0last")
	require.Eventually(t, func() bool { return len(whole.list()) == 4 }, patience, 5*time.Millisecond, "turns of every tenant")
}

// TestSender_CallsWithoutAnOwner: what calls in a session return that has no owner is for the
// tenant that has proved to have sent them, and for no other one.
func TestSender_CallsWithoutAnOwner(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	receivers, hooks := map[protocol.Tenant]*receiver{}, map[protocol.Tenant]string{}
	for _, name := range []protocol.Tenant{"acme", judge.DefaultTenant, judge.EveryTenant} {
		receivers[name] = receive(t, nil)
		hooks[name] = r.add(t.Context(), t, receivers[name], webhook.Hook{Tenant: name}).ID
	}
	r.sender(t, r.fleet, nil)
	secret, err := r.fleet.Secret(t.Context())
	require.NoError(t, err)
	send := func(id protocol.CallID, of protocol.Tenant, secret []byte, subject protocol.SessionID) {
		t.Helper()
		body, err := wire.EncodeResult(&protocol.Result{SessionID: "handlers", CallID: id, Digest: "d", Status: protocol.StatusOK})
		require.NoError(t, err)
		msg := nats.NewMsg(wire.ResultSubject(r.fleet.Name, subject, id))
		msg.Data = body
		msg.Header.Set(wire.HeaderAbout, wire.About{Tenant: of, By: "token:ann"}.Header())
		msg.Header.Set(wire.HeaderProof, wire.Proof(secret, r.fleet.Name, protocol.CallRef{SessionID: "handlers", ID: id}, of, "token:ann"))
		_, err = r.fleet.JS.PublishMsg(t.Context(), msg)
		require.NoError(t, err)
	}
	send("mine", "acme", secret, "handlers")
	send("forged", "acme", []byte("another"), "handlers")
	send("elsewhere", "", secret, "others")
	send("last", "", secret, "handlers")
	all := []protocol.CallID{"mine", "forged", "last"}
	for name, want := range map[protocol.Tenant][]protocol.CallID{"acme": all[:1], judge.DefaultTenant: all[2:], judge.EveryTenant: all} {
		receivers[name].await(t, len(want))
		require.Eventually(t, func() bool { return r.listed(t, hooks[name]).Waiting == 0 }, patience, 5*time.Millisecond)
		var got []protocol.CallID
		for _, d := range receivers[name].list() {
			got = append(got, d.Data.CallID)
		}
		require.ElementsMatch(t, want, got, name)
	}
}

// TestSender_ManyEvents: two coordinators send, a third one is killed again and again, and the
// receiver refuses a part of what comes. Each event arrives, with one id.
func TestSender_ManyEvents(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	v := receive(t, func(w http.ResponseWriter, _ *http.Request, d delivery, try int) {
		if try == 1 && d.Data.Turn%5 == 0 {
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	h := r.add(t.Context(), t, v, webhook.Hook{})
	const sessions, turns = 10, 40
	for i := range sessions {
		r.begin(t, protocol.SessionID(fmt.Sprint("s", i)), "")
	}
	for range 2 {
		r.sender(t, r.connect(t, r.servers.Connect()), nil)
	}
	for turn := range turns {
		for i := range sessions {
			r.append(t, protocol.SessionID(fmt.Sprint("s", i)), ended(turn+1, "done"))
		}
		if turn%8 == 4 {
			nc, link := r.servers.ConnectVia()
			killed := r.connect(t, nc)
			end := r.sender(t, killed, nil)
			require.Eventually(t, func() bool { return len(v.list()) > turn*sessions/2 }, patience, time.Millisecond)
			link.Cut()
			nc.Close()
			end()
		}
	}
	ids := map[string]string{}
	require.Eventually(t, func() bool {
		for _, d := range v.list() {
			event := fmt.Sprint(d.Data.SessionID, "/", d.Data.Turn)
			if ids[event] == "" {
				ids[event] = d.ID
			}
			require.Equal(t, ids[event], d.ID)
		}
		return len(ids) == sessions*turns
	}, patience, 20*time.Millisecond)
	require.Eventually(t, func() bool { return r.listed(t, h.ID).Waiting == 0 }, patience, 20*time.Millisecond)
	require.Zero(t, r.listed(t, h.ID).Failed)
}

// TestSender_IsKilledAtEachWrite: a sender ends before or behind each of its writes. Another one
// sends what the first has not.
func TestSender_IsKilledAtEachWrite(t *testing.T) {
	t.Parallel()
	for _, fate := range []natsiotest.Fate{natsiotest.Lost, natsiotest.Unanswered} {
		for n := 1; n <= 12; n++ {
			t.Run(fmt.Sprint(fate, "/", n), func(t *testing.T) {
				t.Parallel()
				r := newRig(t)
				v := receive(t, nil)
				h := r.add(t.Context(), t, v, webhook.Hook{})
				r.begin(t, "s", "")
				nc, link := r.servers.ConnectVia()
				killed := r.connect(t, nc)
				var mu sync.Mutex
				writes, dead := 0, make(chan struct{})
				link.OnWrite(func(subject string) natsiotest.Fate {
					mu.Lock()
					defer mu.Unlock()
					write := strings.HasPrefix(subject, "$KV.") || strings.HasPrefix(subject, "$JS.ACK.") ||
						strings.HasPrefix(subject, "$JS.API.STREAM.PURGE.") ||
						strings.HasPrefix(subject, "$JS.API.CONSUMER.CREATE.") ||
						strings.HasPrefix(subject, "$JS.API.CONSUMER.DELETE.")
					if !write {
						if writes >= n {
							return natsiotest.Lost
						}
						return natsiotest.Passes
					}
					writes++
					if writes == n {
						close(dead)
						return fate
					}
					if writes > n {
						return natsiotest.Lost
					}
					return natsiotest.Passes
				})
				end := r.sender(t, killed, nil)
				r.append(t, "s", ended(1, "done"))
				select {
				case <-dead:
				case <-time.After(5 * time.Second): // it has fewer writes
				}
				link.Cut()
				nc.Close()
				end()
				r.sender(t, r.fleet, nil)
				first := v.await(t, 1)[0]
				require.Equal(t, 1, first.Data.Turn)
				require.Eventually(t, func() bool { return r.listed(t, h.ID).Waiting == 0 }, patience, 5*time.Millisecond)
				for _, d := range v.list() {
					require.Equal(t, first.ID, d.ID, "one id")
				}
				r.append(t, "s", ended(2, "done"))
				require.Eventually(t, func() bool { return v.list()[len(v.list())-1].Data.Turn == 2 }, patience, 5*time.Millisecond)
			})
		}
	}
}

// TestSender_CountsAttempts: a delivery whose event cannot be read for a while has all of its
// attempts after that.
func TestSender_CountsAttempts(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	v := receive(t, func(w http.ResponseWriter, _ *http.Request, _ delivery, try int) {
		if try == 1 {
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	h := r.add(t.Context(), t, v, webhook.Hook{})
	r.begin(t, "s", "")
	r.append(t, "s", ended(1, "done"))
	note := r.sender(t, r.fleet, func(o *webhook.Options) { o.Allow = egress.Allow{} })
	require.Eventually(t, func() bool { return r.listed(t, h.ID).Waiting == 1 }, patience, 5*time.Millisecond)
	note()
	nc, link := r.servers.ConnectVia()
	var lost atomic.Bool
	link.OnWrite(func(subject string) natsiotest.Fate {
		if strings.HasSuffix(subject, ".MSG.GET."+wire.SessionsStream(r.fleet.Name)) && !lost.Swap(true) {
			return natsiotest.Lost
		}
		return natsiotest.Passes
	})
	r.sender(t, r.connect(t, nc), func(o *webhook.Options) { o.BackOff, o.AckWait = o.BackOff[:1], time.Minute })
	v.await(t, 1)
	require.True(t, lost.Load())
	require.Zero(t, r.listed(t, h.ID).Failed)
}

// TestSender_BadReceivers: none of them holds up another one.
func TestSender_BadReceivers(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	hanging := make(chan struct{})
	t.Cleanup(func() { close(hanging) })
	elsewhere := receive(t, nil)
	good := receive(t, nil)
	hangs := receive(t, func(_ http.ResponseWriter, r *http.Request, _ delivery, _ int) {
		select {
		case <-hanging:
		case <-r.Context().Done():
		}
	})
	redirects := receive(t, func(w http.ResponseWriter, _ *http.Request, _ delivery, _ int) {
		w.Header().Set("Location", elsewhere.URL)
		w.WriteHeader(http.StatusTemporaryRedirect)
	})
	floods := receive(t, func(w http.ResponseWriter, r *http.Request, _ delivery, _ int) {
		for r.Context().Err() == nil {
			if _, err := w.Write(make([]byte, 64<<10)); err != nil {
				return
			}
		}
	})
	works := false
	var mu sync.Mutex
	gone := receive(t, func(w http.ResponseWriter, _ *http.Request, _ delivery, _ int) {
		mu.Lock()
		defer mu.Unlock()
		if !works {
			w.WriteHeader(http.StatusGone)
		}
	})
	hooks := map[*receiver]*webhook.Hook{}
	for _, v := range []*receiver{hangs, redirects, floods, gone, good} {
		hooks[v] = r.add(t.Context(), t, v, webhook.Hook{Session: "s"})
	}
	r.sender(t, r.fleet, nil)
	r.begin(t, "s", "")
	for turn := range 20 {
		r.append(t, "s", ended(turn+1, "done"))
	}
	good.await(t, 20)
	require.Eventually(t, func() bool { return r.listed(t, hooks[redirects].ID).Failed == 20 }, patience, 10*time.Millisecond)
	l := r.listed(t, hooks[redirects].ID)
	require.Zero(t, l.Waiting)
	require.Contains(t, l.LastError, "307; redirects are not followed")
	require.Empty(t, l.Secret)
	require.Empty(t, elsewhere.list())
	floods.await(t, 20)
	require.Eventually(t, func() bool { return r.listed(t, hooks[gone].ID).Paused != "" }, patience, 10*time.Millisecond)
	r.append(t, "s", ended(21, "while it is paused"))
	good.await(t, 21)
	mu.Lock()
	works = true
	mu.Unlock()
	_, err := r.store.Resume(t.Context(), hooks[gone].ID)
	require.NoError(t, err)
	r.append(t, "s", ended(22, "after that"))
	require.Eventually(t, func() bool {
		got := map[int]bool{}
		for _, d := range gone.list() {
			got[d.Data.Turn] = true
		}
		return got[1] && !got[21] && got[22]
	}, patience, 10*time.Millisecond, "what had been noted, and what comes now")

	failures, err := r.store.Failures(t.Context(), hooks[redirects].ID)
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(failures), 20)
	require.Equal(t, 4, failures[0].Attempts)
	require.Equal(t, webhook.TurnEnded, failures[0].Type)
	before := redirects.tries[failures[0].Event]
	again, err := r.store.Resume(t.Context(), hooks[redirects].ID)
	require.NoError(t, err)
	require.GreaterOrEqual(t, again, 20)
	require.Eventually(t, func() bool {
		redirects.mu.Lock()
		defer redirects.mu.Unlock()
		return redirects.tries[failures[0].Event] > before
	}, patience, 10*time.Millisecond, "it is sent again, with the same id")

	require.NoError(t, r.store.Remove(t.Context(), hooks[hangs].ID))
	_, err = r.store.Failures(t.Context(), hooks[hangs].ID)
	require.ErrorIs(t, err, webhook.ErrUnknown)
}

// fakeNames resolves every name to one address.
type fakeNames struct{ addr netip.Addr }

func (f fakeNames) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	return []netip.Addr{f.addr}, nil
}

// TestSender_ReachesListedHostsOnly: also if a name leads to an address that is not listed.
func TestSender_ReachesListedHostsOnly(t *testing.T) {
	t.Parallel()
	v := receive(t, nil)
	port := v.Listener.Addr().String()[len("127.0.0.1:"):]
	cases := map[string]struct {
		url, allow, address string
		plain               bool
		want                string
	}{
		"not listed": {v.URL, "hooks.example:*", "", true, "is not in --webhook-host"},
		"plain":      {v.URL, "127.0.0.1:*", "", false, "plain HTTP needs --webhook-plain"},
		"rebound": {
			"https://hooks.example:" + port, "hooks.example:*", "127.0.0.1", true, "must not be reached: its address 127.0.0.1 is not on the public Internet",
		},
		"metadata":          {"https://hooks.example", "*.example,hooks.example", "169.254.169.254", true, "its address 169.254.169.254 is not on the public Internet"},
		"private":           {"https://hooks.example", "hooks.example", "10.0.0.7", true, "an operator can allow it with --webhook-host 10.0.0.7:443"},
		"every host":        {"https://hooks.example", "all", "fd00::1", true, "its address fd00::1 is not on the public Internet"},
		"listed, and named": {"https://hooks.example:" + port, "hooks.example:*,127.0.0.1:*", "127.0.0.1", true, "server gave HTTP response to HTTPS client"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			h, err := r.store.Add(t.Context(), webhook.Hook{URL: c.url})
			require.NoError(t, err)
			allow, err := egress.ParseAllow(c.allow)
			require.NoError(t, err)
			r.sender(t, r.fleet, func(o *webhook.Options) {
				o.Allow, o.Plain = allow, c.plain
				if c.address != "" {
					o.Resolver = fakeNames{netip.MustParseAddr(c.address)}
				}
			})
			_, err = r.store.Test(t.Context(), h.ID)
			require.NoError(t, err)
			require.Eventually(t, func() bool { return strings.Contains(r.listed(t, h.ID).LastError, c.want) }, patience, 10*time.Millisecond, "%s", c.want)
			require.Empty(t, v.list())
		})
	}
}

// TestStore_IsOfOneTenant: others neither see nor change a webhook, and a role below operate may
// not.
func TestStore_IsOfOneTenant(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ann := judge.With(t.Context(), tenant("acme", judge.RoleOperate))
	h, err := r.store.Add(ann, webhook.Hook{URL: "https://hooks.example/x"})
	require.NoError(t, err)
	whole, err := r.store.Add(t.Context(), webhook.Hook{URL: "https://hooks.example/y", Tenant: judge.EveryTenant})
	require.NoError(t, err)
	_, err = r.store.Add(ann, webhook.Hook{URL: "https://hooks.example/z", Tenant: judge.EveryTenant})
	require.ErrorIs(t, err, judge.ErrRefused)
	_, err = r.store.Add(ann, webhook.Hook{URL: "https://hooks.example/z", Tenant: "other"})
	require.ErrorIs(t, err, judge.ErrRefused)
	list, err := r.store.List(ann)
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, h.ID, list[0].ID)
	expired := tenant("acme", judge.RoleOperate)
	expired.Expires = time.Now().Add(-time.Second)
	for name, ctx := range map[string]context.Context{
		"another tenant": judge.With(t.Context(), tenant("other", judge.RoleOperate)),
		"role run":       judge.With(t.Context(), tenant("acme", judge.RoleRun)),
		"expired":        judge.With(t.Context(), expired),
	} {
		list, err := r.store.List(ctx)
		require.Empty(t, list, name)
		if name != "another tenant" {
			require.ErrorIs(t, err, judge.ErrRefused, name)
			_, err = r.store.Add(ctx, webhook.Hook{URL: "https://hooks.example/x"})
			require.ErrorIs(t, err, judge.ErrRefused, name)
		}
		for _, id := range []string{h.ID, whole.ID} {
			require.ErrorIs(t, r.store.Remove(ctx, id), judge.ErrRefused, name)
			_, err = r.store.Resume(ctx, id)
			require.ErrorIs(t, err, judge.ErrRefused, name)
			_, err = r.store.Test(ctx, id)
			require.ErrorIs(t, err, judge.ErrRefused, name)
			_, err = r.store.Failures(ctx, id)
			require.ErrorIs(t, err, judge.ErrRefused, name)
		}
	}
	for range 15 {
		_, err = r.store.Add(ann, webhook.Hook{URL: "https://hooks.example/x"})
		require.NoError(t, err)
	}
	_, err = r.store.Add(ann, webhook.Hook{URL: "https://hooks.example/x"})
	require.ErrorContains(t, err, "at most 16")
}

func TestAdd_BadInput(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for url, want := range map[string]string{
		"":                                     "must be https://HOST/PATH",
		"ftp://hooks.example":                  "must be https://HOST/PATH",
		"http://hooks.example":                 "must be https, except to a loopback address",
		"http://localhost:80":                  "must be https, except to a loopback address",
		"https://u:p@hooks.example":            "must have no user",
		"https://hooks.example#x":              "no fragment",
		"https://127.1/":                       "is no address that can be used",
		"https://" + strings.Repeat("x", 2000): "2008 bytes: must be at most 2000",
		"https://a b":                          "invalid character",
	} {
		_, err := r.store.Add(t.Context(), webhook.Hook{URL: url})
		require.ErrorIs(t, err, webhook.ErrInvalid, url)
		require.ErrorContains(t, err, want, url)
	}
	_, err := r.store.Add(t.Context(), webhook.Hook{URL: "https://hooks.example", Events: []webhook.EventType{"webhook.test"}, Session: "a b"})
	require.ErrorContains(t, err, `event "webhook.test": must be one of`)
	require.ErrorIs(t, err, protocol.ErrInvalidName)
}

// A webhook that is not served takes no more than its share of the bucket: those of other tenants
// need the rest.
func TestSender_PausesWhatCrowdsOthersOut(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	bucket, err := r.fleet.JS.KeyValue(t.Context(), wire.WebhooksBucket(r.fleet.Name))
	require.NoError(t, err)
	for i := range 20 {
		_, err := bucket.Put(t.Context(), fmt.Sprintf("failed.other.s.%d.0", i), make([]byte, 900<<10))
		require.NoError(t, err)
	}
	for i := range 400 {
		_, err := bucket.Put(t.Context(), fmt.Sprintf("hook.other%d", i), []byte(`{"url":"https://other.example","tenant":"other"}`))
		require.NoError(t, err)
	}
	h, err := r.store.Add(judge.With(t.Context(), tenant("acme", judge.RoleOperate)), webhook.Hook{URL: "https://not-listed.example/hook"})
	require.NoError(t, err)
	r.begin(t, "s", "acme")
	for turn := range 60 {
		r.append(t, "s", ended(turn+1, "done"))
	}
	r.sender(t, r.fleet, nil)
	turn := 60
	require.Eventually(t, func() bool {
		turn++
		r.append(t, "s", ended(turn, "done"))
		return r.listed(t, h.ID).Paused != ""
	}, patience, 100*time.Millisecond)
	require.Contains(t, r.listed(t, h.ID).Paused, "too many deliveries")
}
