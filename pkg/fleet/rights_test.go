package fleet_test

import (
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// probe stands in subjects for ids, as in the rights of package natsio.
const probe = "rights"

// streams are those of a fleet, with the ones of buckets.
func streams() []string {
	f := fleetName
	names := []string{
		wire.CallsStream(f), wire.ClaimsStream(f), wire.ResultsStream(f), wire.SessionsStream(f), wire.WorkspacesStream(f), wire.ChannelsStream(f),
		"KV_" + wire.PlacesBucket(f), "KV_" + wire.SchedulesBucket(f), "KV_" + wire.LimitsBucket(f), "KV_" + wire.WebhooksBucket(f),
	}
	for _, bucket := range objects() {
		names = append(names, natsio.ObjectStream(bucket))
	}
	return names
}

func objects() []string {
	return []string{wire.BlobsBucket(fleetName), wire.KeptBucket(fleetName), wire.BodiesBucket(fleetName)}
}

// eachSubject is every subject of a fleet on which something is published, and each request that
// JetStream takes.
func eachSubject() []string {
	f := fleetName
	all := []string{
		"_INBOX." + probe, "_INBOX_fleet." + probe, "_INBOX_fleet_default." + probe, "$JS.API.INFO", "$JS.API.STREAM.NAMES", "$JS.API.STREAM.LIST",
		"$JS.API.ACCOUNT.PURGE.DEFAULT", "$JS.API.META.LEADER.STEPDOWN", "$JS.API.SERVER.REMOVE", "$JS.FC." + probe, "$SYS.REQ.USER.INFO", "elsewhere",
		wire.EventSubject(f, probe), wire.ResultSubject(f, probe, probe), wire.DoneSubject(f, probe, probe), wire.OutputSubject(f, probe, probe),
		wire.LiveSubject(f, probe, probe), wire.ApprovalSubject(f, probe, probe), wire.WorkspaceSubject(f, probe), wire.MessageSubject(f, "t.c", probe, probe),
		"tf.sent.t.c." + probe + "." + probe, wire.LimitsSubject(f), "$KV." + wire.PlacesBucket(f) + "." + wire.BodiesKey,
		"$KV." + wire.PlacesBucket(f) + ".secret", wire.TokensSubject(f), wire.BrowsersSubject(f),
		"$KV." + wire.SchedulesBucket(f) + "." + probe, "$KV." + wire.WebhooksBucket(f) + "." + probe,
	}
	for _, pool := range []protocol.Pool{protocol.DefaultPool, protocol.SessionPool, "other"} {
		all = append(all,
			wire.CallSubject(f, pool, probe, probe), wire.CancelSubject(f, pool, probe, probe), wire.PauseSubject(f, pool, probe), wire.LaterSubject(f, pool, probe, probe),
			wire.ReadySubject(f, pool, probe), wire.TicketSubject(f, pool, probe, wire.Flow{Tenant: probe, Priority: probe}), wire.ClaimSubject(f, pool, probe),
			wire.HeartbeatSubject(f, pool, probe), "tf.beat."+string(pool)+"."+probe, "tf.stored."+string(pool)+"."+probe+"."+probe, wire.WhoSubject(f, pool),
			wire.AskAllSubject(f, pool), wire.AskSubject(f, pool, probe), wire.QuestionSubject(f, pool, probe, probe), wire.AnswerSubject(f, pool, probe, probe))
	}
	for _, bucket := range objects() {
		all = append(all, "$O."+bucket+".C."+probe, "$O."+bucket+".M."+probe)
	}
	for _, stream := range streams() {
		for _, request := range []string{
			"CREATE", "UPDATE", "INFO", "DELETE", "PURGE", "MSG.GET", "MSG.DELETE", "SNAPSHOT", "RESTORE", "LEADER.STEPDOWN", "PEER.REMOVE",
		} {
			all = append(all, "$JS.API.STREAM."+request+"."+stream)
		}
		all = append(all, "$JS.API.DIRECT.GET."+stream, "$JS.API.DIRECT.GET."+stream+"."+probe, "$JS.API.CONSUMER.NAMES."+stream, "$JS.API.CONSUMER.LIST."+stream)
		for _, consumer := range []string{wire.ReadyConsumer(protocol.DefaultPool), wire.CareConsumer(protocol.DefaultPool), wire.ReadyConsumer("other"), probe} {
			for _, request := range []string{
				"CREATE", "DURABLE.CREATE", "DELETE", "INFO", "MSG.NEXT", "PAUSE", "RESET", "UNPIN", "LEADER.STEPDOWN",
			} {
				all = append(all, "$JS.API.CONSUMER."+request+"."+stream+"."+consumer)
			}
			all = append(all, "$JS.ACK."+stream+"."+consumer+"."+probe)
		}
	}
	return all
}

// restricted is a user with less rights than all, and what it may publish.
type restricted struct {
	name string
	nc   *nats.Conn
	js   jetstream.JetStream // of the owner of the account that has its streams
	may  []string
	pool protocol.Pool // of a worker; "" answers nothing
	// has is what it has others publish on although it may not.
	has []string
}

// workerRights are what the user of a pool's workers may publish; NATS checks each, so all are
// needed.
func workerRights(pool protocol.Pool) []string {
	may := natsio.PoolRights(fleetName, pool).Publish
	for _, stream := range streams() {
		may = append(may, "$JS.API.STREAM.INFO."+stream) // which tells sizes and settings
	}
	for _, bucket := range objects() {
		stream := natsio.ObjectStream(bucket)
		may = append(may, "$O."+bucket+".M."+probe, "$JS.API.STREAM.MSG.GET."+stream, "$JS.API.DIRECT.GET."+stream+"."+probe)
	}
	f := fleetName
	return append(may, wire.CancelSubject(f, pool, probe, probe), wire.PauseSubject(f, pool, probe), wire.LaterSubject(f, pool, probe, probe),
		"$JS.API.DIRECT.GET.KV_"+wire.LimitsBucket(f)+"."+probe)
}

// readerRights are what a user that only reads may publish.
func readerRights() (may []string) {
	for _, stream := range streams() {
		if may = append(may, "$JS.API.STREAM.INFO."+stream); stream == "KV_"+wire.PlacesBucket(fleetName) || stream == "KV_"+wire.WebhooksBucket(fleetName) { // they have secrets
			continue
		}
		may = append(may, "$JS.API.STREAM.MSG.GET."+stream, "$JS.API.DIRECT.GET."+stream, "$JS.API.DIRECT.GET."+stream+"."+probe)
	}
	for _, consumer := range []string{wire.ReadyConsumer(protocol.DefaultPool), wire.CareConsumer(protocol.DefaultPool), wire.ReadyConsumer("other"), probe} {
		may = append(may, "$JS.API.CONSUMER.INFO."+wire.CallsStream(fleetName)+"."+consumer)
	}
	for _, pool := range []protocol.Pool{protocol.DefaultPool, protocol.SessionPool, "other"} {
		may = append(may, wire.WhoSubject(fleetName, pool), wire.AskAllSubject(fleetName, pool), wire.AskSubject(fleetName, pool, probe))
	}
	return may
}

// TestDeploy_ReadersListAndChangeNothing: whoever only reads lists all that a fleet has.
func TestDeploy_ReadersListAndChangeNothing(t *testing.T) {
	t.Parallel()
	p := deployed(t, accountsFile)
	makePool(t, p)
	owner := mustConnect(t, p.options(nil))
	t.Cleanup(func() { require.NoError(t, owner.Close()) })
	log := &logged{}
	options := p.options(slog.New(slog.NewTextHandler(log, nil)))
	options.URL, options.Pools, options.Existing = p.reader, map[protocol.Pool]fleet.Server{protocol.DefaultPool: {URL: p.poolReader}}, true
	reader := mustConnect(t, options)
	t.Cleanup(func() { require.NoError(t, reader.Close()) })

	lists := map[string]func(c *fleet.Client) (int, error){
		"approvals": func(c *fleet.Client) (int, error) {
			l, err := c.Sessions("").Approvals(t.Context())
			return len(l), err
		},
		"limits":    func(c *fleet.Client) (int, error) { l, err := c.Limits().List(t.Context()); return len(l), err },
		"schedules": func(c *fleet.Client) (int, error) { l, err := c.Schedules().List(t.Context()); return len(l), err },
		"templates": func(c *fleet.Client) (int, error) { l, err := c.Templates().List(t.Context()); return len(l), err },
		"sessions": func(c *fleet.Client) (int, error) {
			l, _, err := c.Sessions("").List(t.Context(), 0)
			return len(l), err
		},
		"lanes": func(c *fleet.Client) (int, error) {
			l, err := c.Lanes("").List(t.Context(), 0)
			return len(l.Lanes), err
		},
	}
	for what, list := range lists {
		n, err := list(reader)
		require.NoError(t, err, what)
		require.Zero(t, n, what)
	}
	limit, schedule := fleet.Limit{Lane: "account/*", Concurrent: 2}, fleet.Schedule{Name: "nightly", Cron: "0 3 * * *"}
	call := fleet.Call{Handler: "hello", Session: "nightly"}
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), []byte("text"), 0o600))
	changes := map[string]func(c *fleet.Client) error{
		"limits":    func(c *fleet.Client) error { return c.Limits().Set(t.Context(), limit) },
		"schedules": func(c *fleet.Client) error { _, err := c.Schedules().AddCall(t.Context(), schedule, call); return err },
		"templates": func(c *fleet.Client) error { return c.Templates().Create(t.Context(), "start", dir, fleet.Copy{}) },
		"sessions": func(c *fleet.Client) error {
			_, err := c.Sessions("").Remove(t.Context(), victim, true)
			return err
		},
	}
	for what, change := range changes {
		if lists[what] != nil && what != "sessions" {
			require.NoError(t, change(owner), what)
			n, err := lists[what](reader)
			require.NoError(t, err, what)
			require.Equal(t, 1, n, what)
		}
	}
	_, err := reader.Limits().Use(t.Context(), fleet.Limit{Tenant: "acme", Concurrent: 1, Stored: 1 << 30, Rate: "1/s"})
	require.NoError(t, err)
	require.NotContains(t, log.String(), "violation", "a list asks for what it may read")
	for what, change := range changes {
		require.ErrorIs(t, change(reader), fleet.ErrRights, what)
	}
	_, err = reader.Submit(t.Context(), fleet.Call{Handler: "hello", Session: "unsent"})
	require.ErrorIs(t, err, fleet.ErrRights, "instead of waiting for an answer that never comes")
	require.ErrorContains(t, err, "it may not publish on tf.ready.default.rights, publish on tf.call.default.rights.rights")
}

// TestDeploy_EachUserAndEachSubject: each user of deploy/nats with less rights than all publishes
// on the subjects of its work and on no other one: not itself, not by an answer to its own request,
// and not by a server's answer to any request that it may send.
func TestDeploy_EachUserAndEachSubject(t *testing.T) {
	t.Parallel()
	require.NotContains(t, natsiotest.Accounts(t), "allow_responses:", "a user that answers its own request may publish on any subject")
	h := newHostile(t, accountsFile)
	for _, user := range []restricted{
		{"worker", h.worker, h.poolJS, workerRights(protocol.DefaultPool), protocol.DefaultPool, workerHas(protocol.DefaultPool)},
		{"reader", h.place.connect(t, h.place.reader, nil), h.js, readerRights(), "", []string{"$JS.API.INFO"}},
		{"reader_default", h.place.connect(t, h.place.poolReader, nil), h.poolJS, readerRights(), "", []string{"$JS.API.INFO"}},
	} {
		before, stored := h.state(), h.poolState()
		h.tries(user)
		if user.pool == "" {
			require.Equal(t, stored, h.poolState())
		}
		require.Equal(t, before, h.state())
	}
}

// workerHas is what a worker has others publish on, although it may not.
func workerHas(pool protocol.Pool) []string {
	return []string{
		"$JS.API.INFO",                                                                                                 // which its account imports to have no more of $JS.API
		"tf.beat." + string(pool) + ".rights", "tf.done.rights.rights", "tf.stored." + string(pool) + ".rights.rights", // what it may have stored, as republished
	}
}

// tries has a user publish on each subject, and have others publish on it, in every way that there
// is. What it may is what its rights say.
func (h *hostile) tries(user restricted) {
	const batch = 20
	h.t.Helper()
	heard := h.overhear(user)
	refused := h.refusals(user.nc)
	var want []string
	for _, subject := range eachSubject() {
		require.NoError(h.t, user.nc.Publish(subject, []byte(`{}`)))
		if !slices.Contains(user.may, subject) {
			want = append(want, subject)
		}
	}
	slices.Sort(want)
	want = slices.Compact(want)
	require.Equal(h.t, want, refused(), "%s publishes on all others, and needs these", user.name)
	answer := h.answering(user)
	for i, subject := range want {
		h.writeBy(user, subject)
		if i%batch == 0 { // the server answers in order, and no queue of its requests is full
			_, err := user.nc.Request("$JS.API.STREAM.INFO."+wire.CallsStream(fleetName), nil, time.Minute)
			require.NoError(h.t, err)
		}
	}
	answer(want)
	h.settle(user)
	require.Equal(h.t, user.has, heard(), "%s has others publish on them", user.name)
}

// refusals returns what returns the subjects on which the server has refused since what a
// connection published.
func (h *hostile) refusals(nc *nats.Conn) func() []string {
	const last = "elsewhere.last" // no user may
	var all []string
	done := make(chan struct{})
	nc.SetErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { // in the order of what was published
		_, subject, _ := strings.Cut(err.Error(), `Publish to "`)
		subject, _, _ = strings.Cut(subject, `"`)
		switch {
		case !errors.Is(err, nats.ErrPermissionViolation) || subject == "":
			assert.NoError(h.t, err) //nolint:testifylint // in another goroutine
		case subject == last:
			close(done)
		default:
			all = append(all, subject)
		}
	})
	return func() []string {
		require.NoError(h.t, nc.Publish(last, nil))
		require.NoError(h.t, nc.FlushTimeout(time.Minute))
		select {
		case <-done:
		case <-time.After(time.Minute):
			require.FailNow(h.t, "the server refuses nothing")
		}
		nc.SetErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})
		slices.Sort(all)
		return slices.Compact(all)
	}
}

// answering subscribes a worker to a request that it answers, and returns what has it send itself
// this request with each reply subject, and answer what it gets.
func (h *hostile) answering(user restricted) func(replies []string) {
	h.t.Helper()
	if user.pool == "" {
		return func([]string) {}
	}
	own := wire.AskSubject(fleetName, user.pool, probe)
	subscription, err := user.nc.SubscribeSync(own)
	require.NoError(h.t, err)
	return func(replies []string) {
		for _, subject := range replies {
			require.NoError(h.t, user.nc.PublishRequest(own, subject, nil))
		}
		require.NoError(h.t, user.nc.FlushTimeout(time.Minute))
		for n, _, err := subscription.Pending(); err == nil && n > 0; n, _, err = subscription.Pending() { // servers deliver no request with a reply subject of theirs
			asked, err := subscription.NextMsg(time.Minute)
			require.NoError(h.t, err)
			require.NoError(h.t, asked.Respond([]byte(mine)))
		}
		require.NoError(h.t, subscription.Unsubscribe())
		require.NoError(h.t, user.nc.FlushTimeout(time.Minute))
	}
}

// mine is what a user tries to have published elsewhere.
const mine = "written by a user with few rights"

// writeBy has others publish on a subject on which a user may not.
func (h *hostile) writeBy(user restricted, subject string) {
	h.t.Helper()
	for _, may := range user.may {
		body := []byte(mine)
		if strings.HasPrefix(may, "$JS.API.") {
			body = nil
		}
		if strings.Contains(may, ".GET.TF_") || strings.Contains(may, ".GET.OBJ_") || strings.Contains(may, ".GET.KV_") {
			body = []byte(`{"seq":1}`)
		}
		if strings.Contains(may, ".DELETE.") || strings.Contains(may, ".PURGE.") { // the answer counts
			body = []byte(`{"seq":1000000,"filter":"nothing"}`)
		}
		m := &nats.Msg{Subject: may, Reply: subject, Data: body}
		if !strings.HasPrefix(may, "$JS.") {
			m.Header = nats.Header{"Nats-Trace-Dest": {subject}}
		}
		require.NoError(h.t, user.nc.PublishMsg(m))
	}
}

// settle returns when what a user had others do is done.
func (h *hostile) settle(user restricted) {
	h.t.Helper()
	var requests sync.WaitGroup
	for _, may := range user.may {
		if !strings.HasPrefix(may, "$JS.API.") || strings.Contains(may, "CONSUMER.MSG.NEXT") {
			continue
		}
		if stream, direct := strings.CutPrefix(may, "$JS.API.DIRECT.GET."); direct { // the stream itself answers it
			stream, _, _ = strings.Cut(stream, ".")
			found, err := user.js.Stream(h.t.Context(), stream)
			if errors.Is(err, jetstream.ErrStreamNotFound) || found != nil && !found.CachedInfo().Config.AllowDirect {
				continue
			}
			require.NoError(h.t, err)
		}
		requests.Go(func() {
			_, err := user.nc.Request(may, nil, time.Minute)
			assert.NoError(h.t, err, may)
		})
	}
	requests.Wait()
	require.NoError(h.t, h.owner.FlushTimeout(time.Minute))
	require.NoError(h.t, h.poolOwner.FlushTimeout(time.Minute))
}

// overhear returns what returns the subjects, of those on which a user may not publish, on which
// something was published since in the accounts of owners.
func (h *hostile) overhear(user restricted) func() []string {
	h.t.Helper()
	var mu sync.Mutex
	heard := map[string]bool{}
	for _, owner := range []*nats.Conn{h.owner, h.poolOwner} {
		for _, subject := range eachSubject() {
			if slices.Contains(user.may, subject) {
				continue
			}
			_, err := owner.Subscribe(subject, func(*nats.Msg) { // a message of a consumer has another subject
				mu.Lock()
				defer mu.Unlock()
				heard[subject] = true
			})
			require.NoError(h.t, err)
		}
		require.NoError(h.t, owner.FlushTimeout(time.Minute))
	}
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Sorted(maps.Keys(heard))
	}
}
