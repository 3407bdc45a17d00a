package schedule_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/session/schedule"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/signing"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func open(t *testing.T) (*schedule.Store, jetstream.JetStream) {
	t.Helper()
	nc := natsiotest.New(t, natsio.Topology{}).Connect()
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(time.Minute))
	require.NoError(t, err)
	store, err := schedule.Open(t.Context(), js, "tf")
	require.NoError(t, err)
	return store, js
}

func turn(session protocol.SessionID) protocol.Call {
	return protocol.Call{
		ID: wire.RandomCallID(), SessionID: session, Tool: "turn_run", Pool: protocol.SessionPool,
		Resources: []protocol.Use{{Key: protocol.ResourceKey("session/" + string(session)), Access: protocol.Exclusive}},
		Delivery:  protocol.Idempotent, IssuedAt: time.Now().UTC(), Payload: wire.TurnRun{Prompt: "hello"},
	}
}

// command is a call of workers.
func command() protocol.Call {
	session := protocol.NewSessionID()
	return protocol.Call{
		ID: wire.RandomCallID(), SessionID: session, Tool: "bash", Pool: protocol.DefaultPool, Tenant: "acme",
		Resources: []protocol.Use{{Key: protocol.SandboxKey(string(session)), Access: protocol.Exclusive}},
		Delivery:  protocol.AtMostOnce, RunTimeout: 1000, IssuedAt: time.Now().UTC(), Payload: protocol.CommandRun{Command: "date"},
	}
}

func mustAdd(t *testing.T, store *schedule.Store, s schedule.Schedule) *schedule.Schedule {
	t.Helper()
	added, err := store.Add(t.Context(), s)
	require.NoError(t, err)
	return added
}

func TestAdd_BadSchedules(t *testing.T) {
	t.Parallel()
	store, _ := open(t)
	for text, s := range map[string]schedule.Schedule{
		`name "a b"`:                         {Name: "a b", Cron: "@daily"},
		`name ""`:                            {Cron: "@daily"},
		`cron "60 * * * *"`:                  {Name: "a", Cron: "60 * * * *"},
		`cron ""`:                            {Name: "a"},
		`cron "* * * *"`:                     {Name: "a", Cron: "* * * *"},
		`cron "@every 10ms"`:                 {Name: "a", Cron: "@every 10ms"},
		`cron "TZ=UTC 0 7 * * *"`:            {Name: "a", Cron: "TZ=UTC 0 7 * * *"},
		"there is no such day":               {Name: "a", Cron: "0 0 31 2 *"},
		`time zone "Europe/Atlantis"`:        {Name: "a", Cron: "@daily", TimeZone: "Europe/Atlantis"},
		`time zone "Local"`:                  {Name: "a", Cron: "@daily", TimeZone: "Local"},
		`cron: 408 bytes: must be at most`:   {Name: "a", Cron: strings.Repeat("1,", 200) + "1 * * * *"[1:]},
		`missed "maybe": must be once, skip`: {Name: "a", Cron: "@daily", Missed: "maybe"},
	} {
		s.Call = turn(protocol.NewSessionID())
		_, err := store.Add(t.Context(), s)
		require.ErrorIs(t, err, schedule.ErrInvalid, text)
		require.ErrorContains(t, err, text)
	}
	disguised := turn(protocol.NewSessionID())
	disguised.Payload = protocol.CommandRun{Command: "id"}
	apart, late := turn(protocol.NewSessionID()), command()
	apart.Pool, late.Deadline = protocol.DefaultPool, time.Now().Add(time.Hour)
	for text, s := range map[string]schedule.Schedule{
		"starts turns of sessions or calls of workers": {Call: disguised, KeepSession: true},
		"turns of sessions or calls":                   {Call: apart},
		"calls of workers":                             {Call: command()}, // of a new session each time
		"a trigger turns":                              {Call: command(), KeepSession: true, Trigger: schedule.Trigger{Once: time.Now()}},
		"must have no not_before, deadline and after":  {Call: late, KeepSession: true},
	} {
		s.Name, s.Cron = "a", "@daily"
		_, err := store.Add(t.Context(), s)
		require.ErrorIs(t, err, schedule.ErrInvalid, text)
		require.ErrorContains(t, err, text)
	}
	all, err := store.List(t.Context())
	require.NoError(t, err)
	require.Empty(t, all)
}

func TestStore_AddListPauseRemove(t *testing.T) {
	t.Parallel()
	store, _ := open(t)
	session := protocol.NewSessionID()
	added := mustAdd(t, store, schedule.Schedule{Name: "daily", Cron: "0 7 * * *", TimeZone: "Europe/Berlin", Call: turn(session)})
	berlin, err := time.LoadLocation("Europe/Berlin")
	require.NoError(t, err)
	at := time.Date(2026, 3, 28, 12, 0, 0, 0, berlin) // the night before summer time begins
	require.Equal(t, []time.Time{time.Date(2026, 3, 29, 7, 0, 0, 0, berlin), time.Date(2026, 3, 30, 7, 0, 0, 0, berlin)}, added.Next(at, 2))
	_, err = store.Add(t.Context(), schedule.Schedule{Name: "daily", Cron: "@daily", Call: turn(session)})
	require.ErrorIs(t, err, schedule.ErrExists)

	paused, err := store.Pause(t.Context(), "daily", true)
	require.NoError(t, err)
	require.True(t, paused.Paused)
	all, err := store.List(t.Context())
	require.NoError(t, err)
	require.Len(t, all, 1)
	require.Equal(t, paused, all[0])

	require.NoError(t, store.Remove(t.Context(), "daily"))
	for _, name := range []string{"daily", "*", "a b"} {
		require.ErrorIs(t, store.Remove(t.Context(), name), schedule.ErrUnknown)
		_, err = store.Pause(t.Context(), name, true)
		require.ErrorIs(t, err, schedule.ErrUnknown)
	}
}

// TestStore_ListsPages: a page reads the records that it has, and counts what was removed only
// where more than another page comes.
func TestStore_ListsPages(t *testing.T) {
	t.Parallel()
	store, _ := open(t)
	for _, name := range []string{"c", "a", "e", "b", "gone", "d"} {
		mustAdd(t, store, schedule.Schedule{Name: name, Cron: "@daily", Call: turn(protocol.NewSessionID())})
	}
	require.NoError(t, store.Remove(t.Context(), "gone"))
	for after, want := range map[string]string{"": "ab+4", "b": "cd+1", "d": "e+0", "bb": "cd+1", "e": "+0", "z": "+0"} {
		list, leftOut, err := store.Page(t.Context(), after, 2)
		require.NoError(t, err)
		got := ""
		for _, s := range list {
			got += s.Name
		}
		require.Equal(t, want, fmt.Sprintf("%s+%d", got, leftOut), after)
	}
}

// TestNext_ClockChanges: a fixed local time starts once a day, also on a day on which clocks
// change.
func TestNext_ClockChanges(t *testing.T) {
	t.Parallel()
	store, _ := open(t)
	for i, test := range []struct {
		zone, cron, from string
		want             []string
	}{
		{"Europe/Berlin", "30 2 * * *", "2026-10-24T12:00:00Z", []string{"2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"}},
		{"Europe/Berlin", "30 2 * * *", "2026-03-28T12:00:00Z", []string{"2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"}},
		{"Europe/Berlin", "0,30 2,3 * * *", "2026-03-28T12:00:00Z", []string{"2026-03-29T03:00:00+02:00", "2026-03-29T03:30:00+02:00", "2026-03-30T02:00:00+02:00"}},
		{"Europe/Berlin", "15 1-3 * * *", "2026-10-24T12:00:00Z", []string{"2026-10-25T01:15:00+02:00", "2026-10-25T02:15:00+02:00", "2026-10-25T03:15:00+01:00"}},
		{"Europe/Berlin", "30 2 * * *", "2026-10-25T01:10:00Z", []string{"2026-10-26T02:30:00+01:00"}}, // from within the second hour
		{
			"Europe/Berlin", "*/30 * * * *", "2026-10-25T00:15:00Z",
			[]string{"2026-10-25T02:30:00+02:00", "2026-10-25T02:00:00+01:00", "2026-10-25T02:30:00+01:00", "2026-10-25T03:00:00+01:00"},
		},
		{"Europe/Berlin", "@hourly", "2026-03-28T23:30:00Z", []string{"2026-03-29T01:00:00+01:00", "2026-03-29T03:00:00+02:00"}},
		{"Africa/Cairo", "@daily", "2026-04-22T12:00:00Z", []string{"2026-04-23T00:00:00+02:00", "2026-04-24T01:00:00+03:00", "2026-04-25T00:00:00+03:00"}}, // it has no midnight
		{"America/Sao_Paulo", "0 0 * * *", "2018-11-03T12:00:00Z", []string{"2018-11-04T01:00:00-02:00", "2018-11-05T00:00:00-02:00"}},
		{"Australia/Lord_Howe", "45 1 * * *", "2026-04-04T00:00:00Z", []string{"2026-04-05T01:45:00+11:00", "2026-04-06T01:45:00+10:30"}}, // half an hour
		{"America/New_York", "30 1 * * *", "2026-10-31T12:00:00Z", []string{"2026-11-01T01:30:00-04:00", "2026-11-02T01:30:00-05:00"}},
		{"", "30 2 29 2 *", "2026-10-24T12:00:00Z", []string{"2028-02-29T02:30:00Z"}},
	} {
		added := mustAdd(t, store, schedule.Schedule{Name: fmt.Sprint("clock", i), Cron: test.cron, TimeZone: test.zone, Call: turn(protocol.NewSessionID())})
		from, err := time.Parse(time.RFC3339, test.from)
		require.NoError(t, err)
		var got []string
		for _, next := range added.Next(from, len(test.want)) {
			got = append(got, next.Format(time.RFC3339))
		}
		require.Equal(t, test.want, got, "%s in %s", test.cron, test.zone)
	}
}

// TestNext_LocalTimesOfAYear: every day of a year has its start, and no day two.
func TestNext_LocalTimesOfAYear(t *testing.T) {
	t.Parallel()
	store, _ := open(t)
	for i, zone := range []string{"Europe/Berlin", "America/New_York", "Africa/Cairo", "Australia/Lord_Howe", "Africa/Casablanca", "Asia/Tehran"} {
		for hour := range 4 {
			added := mustAdd(t, store, schedule.Schedule{
				Name: fmt.Sprintf("year%d-%d", i, hour), Cron: fmt.Sprintf("30 %d * * *", hour), TimeZone: zone, Call: turn(protocol.NewSessionID()),
			})
			where, err := time.LoadLocation(zone)
			require.NoError(t, err)
			day := time.Date(2026, 1, 1, 12, 0, 0, 0, where)
			for _, next := range added.Next(day, 365) {
				day = time.Date(day.Year(), day.Month(), day.Day()+1, 12, 0, 0, 0, where)
				require.Equal(t, day.Format(time.DateOnly), next.Format(time.DateOnly), "%s at %d:30", zone, hour)
			}
		}
	}
}

// The calls of a time have the same ids wherever they are made, and other ids for other times.
func TestAt_DerivesIDs(t *testing.T) {
	t.Parallel()
	store, _ := open(t)
	session := protocol.NewSessionID()
	for _, keep := range []bool{false, true} {
		name := map[bool]string{false: "new", true: "kept"}[keep]
		mustAdd(t, store, schedule.Schedule{Name: name, Cron: "@hourly", Call: turn(session), KeepSession: keep})
		one, err := store.Get(t.Context(), name)
		require.NoError(t, err)
		two, err := store.Get(t.Context(), name)
		require.NoError(t, err)
		now := time.Now()
		first, again, later := one.At(now), two.At(now.UTC()), one.At(now.Add(time.Hour))
		require.Equal(t, first, again)
		require.NoError(t, first.Validate())
		require.NotEqual(t, first.ID, later.ID)
		require.Equal(t, keep, first.SessionID == session)
		require.Equal(t, keep, first.SessionID == later.SessionID)
		require.Equal(t, protocol.Lane("session/"+string(first.SessionID)), first.Lane())
	}
}

// The call of a time is the one that was added, but for its id and time.
func TestAt_IsTheCallThatWasAdded(t *testing.T) {
	t.Parallel()
	store, _ := open(t)
	want := command()
	mustAdd(t, store, schedule.Schedule{Name: "a", Cron: "@hourly", Call: want, KeepSession: true})
	stored, err := store.Get(t.Context(), "a")
	require.NoError(t, err)
	now := time.Now().UTC()
	got := stored.At(now)
	require.NotEqual(t, got.ID, stored.At(now.Add(time.Hour)).ID)
	want.ID, want.IssuedAt, want.Again = got.ID, now, true
	want.Digest, err = wire.DigestOf(&want) // tells that no turn has made it
	require.NoError(t, err)
	require.Equal(t, want, got)
}

// A runner with a key starts what this key has signed, as it was signed. A turn that it has not
// signed starts only for the default tenant, and in a session of that tenant.
func TestSigned_ScheduledCallsStartAsTheyWereSigned(t *testing.T) {
	t.Parallel()
	store, js := open(t)
	key := func() *signing.Signer {
		signer, err := signing.Make(t.TempDir())
		require.NoError(t, err)
		return signer
	}
	ours := key()
	add := func(name string, signer *signing.Signer, call protocol.Call) {
		store.Signer = signer
		mustAdd(t, store, schedule.Schedule{Name: name, Cron: "@every 1s", Missed: schedule.MissedAll, Call: call, KeepSession: true})
	}
	bucket, err := js.KeyValue(t.Context(), wire.SchedulesBucket("tf"))
	require.NoError(t, err)
	forge := func(name, from, to string) {
		add(name, ours, command())
		entry, err := bucket.Get(t.Context(), name)
		require.NoError(t, err)
		forged := strings.Replace(string(entry.Value()), from, to, 1)
		require.NotEqual(t, string(entry.Value()), forged)
		_, err = bucket.PutString(t.Context(), name, forged)
		require.NoError(t, err)
	}
	forge("command", `"command":"date"`, `"command":"id"`)
	forge("cron", "@every 1s", "@every 2s")
	forge("missed", `"missed":"all"`, `"missed":"once"`)
	forge("tenant", "acme", "other")
	forge("level", `"delivery":"at_most_once"`, `"delivery":"idempotent"`)
	entry, err := bucket.Get(t.Context(), "tenant")
	require.NoError(t, err)
	_, err = bucket.PutString(t.Context(), "copy", strings.Replace(string(entry.Value()), `"name":"tenant"`, `"name":"copy"`, 1))
	require.NoError(t, err)
	add("unsigned", nil, command())
	add("theirs", key(), command())
	add("turn", nil, turn(protocol.NewSessionID()))
	of := func(tenant protocol.Tenant, session protocol.SessionID) protocol.Call {
		call := turn(session)
		call.Tenant = tenant
		return call
	}
	add("turn-of-acme", nil, of("acme", "new"))
	add("theirs-of-acme", key(), of("acme", "new"))
	add("turn-in-acme", nil, of("", "acme"))
	add("signed-turn", ours, of("acme", "acme"))
	add("signed", ours, command())
	for _, paused := range []bool{true, false} { // which changes the record
		_, err = store.Pause(t.Context(), "signed", paused)
		require.NoError(t, err)
	}
	store.Signer = ours
	started, ctx := make(chan protocol.Call, 100), t.Context()
	var running sync.WaitGroup
	ctx, end := context.WithCancel(ctx)
	running.Go(func() {
		owner := func(_ context.Context, session protocol.SessionID) (*judge.Owner, bool, error) {
			if session != "acme" {
				return nil, false, nil
			}
			return &judge.Owner{Tenant: "acme"}, true, nil
		}
		(&schedule.Runner{Store: store, Owner: owner, Logger: slog.New(slog.DiscardHandler), Send: func(_ context.Context, call *protocol.Call) error {
			started <- *call
			return nil
		}}).Run(ctx)
	})
	seen, turns := map[protocol.Pool]int{}, map[protocol.Tenant]int{}
	for seen[protocol.DefaultPool] < 3 || turns[""] < 3 || turns["acme"] < 3 {
		call := <-started
		if seen[call.Pool]++; call.Pool == protocol.SessionPool {
			turns[call.Tenant]++
			require.Equal(t, call.Tenant == "acme", call.SessionID == "acme")
		}
		if call.Pool == protocol.DefaultPool {
			require.Equal(t, protocol.CommandRun{Command: "date"}, call.Payload)
		}
	}
	end()
	running.Wait()
	all, err := store.List(t.Context())
	require.NoError(t, err)
	for _, s := range all {
		skipped := s.Name == "turn-in-acme" // each time again, with a line in the log
		require.Equal(t, s.Name == "signed" || s.Name == "signed-turn" || s.Name == "turn" || skipped, !s.Last.IsZero(), s.Name)
	}
}

// A call starts only in a session, and a sandbox, that the owner of its schedule may use, also
// where no policy is. A session of an earlier version, whose owner is not known, is open to all.
func TestRunner_JudgesTheOwnerOfACall(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	js, err := jetstream.New(f.NC)
	require.NoError(t, err)
	store, err := schedule.Open(t.Context(), js, "tf")
	require.NoError(t, err)
	add := func(name string, who judge.Principal, session protocol.SessionID, sandbox string) {
		call := command()
		call.Tenant, call.SessionID, call.Resources = "", session, []protocol.Use{{Key: protocol.SandboxKey(sandbox), Access: protocol.Exclusive}}
		added, err := store.Add(judge.With(t.Context(), who), schedule.Schedule{Name: name, Cron: "@every 1s", Call: call, KeepSession: true})
		require.NoError(t, err)
		require.Equal(t, judge.Owner{Tenant: cmp.Or(added.Call.Tenant, judge.DefaultTenant), By: added.Call.By}, who.Owner(), "it is of who has added it")
	}
	ann := judge.Principal{Known: judge.ByToken, Name: "ann", Tenant: "acme"}
	eve := judge.Principal{Known: judge.ByToken, Name: "eve", Tenant: "other"}
	add("anns", ann, "acme", "acme")
	add("operators", judge.Principal{}, "acme", "acme")
	add("old", eve, "old", "old")
	add("in-session", eve, "acme", "own")
	add("in-sandbox", eve, "own", "acme")
	var logged bytes.Buffer
	ctx, end := context.WithCancel(t.Context())
	started := map[protocol.SessionID]int{}
	var mu sync.Mutex
	runner := &schedule.Runner{
		Store: store, Logger: slog.New(slog.NewTextHandler(&logged, nil)),
		Send: func(_ context.Context, call *protocol.Call) error {
			mu.Lock()
			defer mu.Unlock()
			if started[protocol.SessionID(call.By)+call.SessionID]++; len(started) >= 3 && started["token:eveold"] >= 3 {
				end()
			}
			return nil
		},
		Owner: func(_ context.Context, session protocol.SessionID) (*judge.Owner, bool, error) {
			if session != "acme" {
				return nil, session == "old", nil
			}
			return &judge.Owner{Tenant: "acme", By: "token:ann"}, true, nil
		},
	}
	runner.Run(ctx)
	require.ElementsMatch(t, []protocol.SessionID{"token:annacme", "acme", "token:eveold"}, slices.Collect(maps.Keys(started)))
	for _, name := range []string{"in-session", "in-sandbox"} {
		require.Contains(t, logged.String(), "schedule="+name, "a refused time is skipped")
	}
	require.Contains(t, logged.String(), "use session acme: not allowed for token:eve of tenant other")
}

// A schedule whose pool cannot be reached delays others for a moment only.
func TestRunner_OtherSchedulesStartWhilePoolsAreAway(t *testing.T) {
	t.Parallel()
	store, _ := open(t)
	for _, name := range []string{"a", "b", "c"} {
		mustAdd(t, store, schedule.Schedule{Name: name, Cron: "@every 1s", Call: command(), KeepSession: true})
	}
	mustAdd(t, store, schedule.Schedule{Name: "turn", Cron: "@every 1s", Call: turn(protocol.NewSessionID())})
	started := make(chan protocol.Call, 100)
	var waiting atomic.Int32
	var running sync.WaitGroup
	ctx, end := context.WithCancel(t.Context())
	running.Go(func() {
		(&schedule.Runner{Store: store, Logger: slog.New(slog.DiscardHandler), Send: func(ctx context.Context, call *protocol.Call) error {
			if call.Pool == protocol.DefaultPool {
				waiting.Add(1)
				defer waiting.Add(-1)
				<-ctx.Done()
				return ctx.Err()
			}
			started <- *call
			return nil
		}}).Run(ctx)
	})
	defer running.Wait()
	defer end()
	require.Eventually(t, func() bool { return waiting.Load() == 3 }, time.Minute, 10*time.Millisecond)
	for range 2 { // the second one after the others were tried in vain
		<-started
	}
}

// started notes the calls that runners send, by the time that they are for.
type started struct {
	mu    sync.Mutex
	times map[time.Time]protocol.CallID
}

// Each time is started under one id by many runners, which fail, end and begin anew at any moment.
func TestRunner_EachTimeOnce(t *testing.T) {
	t.Parallel()
	store, _ := open(t)
	added := mustAdd(t, store, schedule.Schedule{Name: "often", Cron: "@every 1s", Missed: schedule.MissedAll, Call: turn(protocol.NewSessionID())})
	seen := started{times: map[time.Time]protocol.CallID{}}
	send := func(_ context.Context, call *protocol.Call) error {
		seen.mu.Lock()
		defer seen.mu.Unlock()
		if rand.IntN(3) == 0 {
			return errors.New("the server is lost")
		}
		id, again := seen.times[call.IssuedAt]
		if again && id != call.ID {
			t.Errorf("two calls for %s", call.IssuedAt)
		}
		seen.times[call.IssuedAt] = call.ID
		return nil
	}
	var runners sync.WaitGroup
	for range 3 {
		runners.Go(func() {
			for t.Context().Err() == nil {
				life, end := context.WithTimeout(t.Context(), time.Duration(rand.Int64N(int64(3*time.Second))))
				(&schedule.Runner{Store: store, Send: send, Logger: slog.New(slog.DiscardHandler)}).Run(life)
				end()
			}
		})
	}
	t.Cleanup(runners.Wait)
	want := added.Next(added.Created, 8)
	require.Eventually(t, func() bool {
		seen.mu.Lock()
		defer seen.mu.Unlock()
		for _, at := range want {
			if seen.times[at.UTC()] == "" {
				return false
			}
		}
		return true
	}, time.Minute, 50*time.Millisecond)
	seen.mu.Lock()
	defer seen.mu.Unlock()
	for at := range seen.times {
		require.Zero(t, at.Sub(added.Created)%time.Second, "a time that is not of the schedule")
	}
}

// A paused schedule starts nothing, and what passed meanwhile is skipped.
func TestRunner_Pause(t *testing.T) {
	t.Parallel()
	store, _ := open(t)
	mustAdd(t, store, schedule.Schedule{Name: "often", Cron: "@every 1s", Call: turn(protocol.NewSessionID())})
	calls := make(chan protocol.Call, 100)
	var running sync.WaitGroup
	ctx, end := context.WithCancel(t.Context())
	running.Go(func() {
		(&schedule.Runner{Store: store, Logger: slog.New(slog.DiscardHandler), Send: func(_ context.Context, call *protocol.Call) error {
			calls <- *call
			return nil
		}}).Run(ctx)
	})
	defer running.Wait()
	defer end()
	<-calls
	_, err := store.Pause(t.Context(), "often", true)
	require.NoError(t, err)
	require.Eventually(t, func() bool { // what was on its way when it was paused
		s, err := store.Get(t.Context(), "often")
		require.NoError(t, err)
		return time.Since(s.Last) > 2500*time.Millisecond
	}, time.Minute, 10*time.Millisecond)
	for len(calls) > 0 {
		<-calls
	}
	resumed, err := store.Pause(t.Context(), "often", false)
	require.NoError(t, err)
	require.False(t, (<-calls).IssuedAt.Before(resumed.Resumed))
}

// A call of workers that the runner's judge refuses does not start. Turns are not asked about,
// since what they do is judged then.
func TestRunner_CallsAreJudged(t *testing.T) {
	t.Parallel()
	store, _ := open(t)
	for name, call := range map[string]protocol.Call{"call": command(), "turn": turn(protocol.NewSessionID())} {
		mustAdd(t, store, schedule.Schedule{Name: name, Cron: "@every 1s", Call: call, KeepSession: true})
	}
	judged, sent := make(chan protocol.Call, 100), make(chan protocol.Call, 100)
	refuse := func(_ context.Context, call *protocol.Call) error {
		judged <- *call
		return errors.New("no")
	}
	var running sync.WaitGroup
	ctx, end := context.WithCancel(t.Context())
	running.Go(func() {
		(&schedule.Runner{Store: store, Judge: refuse, Logger: slog.New(slog.DiscardHandler), Send: func(_ context.Context, call *protocol.Call) error {
			sent <- *call
			return nil
		}}).Run(ctx)
	})
	for range 3 {
		require.Equal(t, protocol.DefaultPool, (<-judged).Pool)
		require.Equal(t, protocol.SessionPool, (<-sent).Pool)
	}
	end()
	running.Wait()
	for len(sent) > 0 {
		require.Equal(t, protocol.SessionPool, (<-sent).Pool)
	}
}
