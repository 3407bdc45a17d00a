package limits_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane/limits"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func TestRule_Rates(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	store, err := limits.Open(t.Context(), f.JS, "tf")
	require.NoError(t, err)
	for text, want := range map[string]struct {
		stored string
		limits.Bucket
	}{
		"5/s": {"5/s", limits.Bucket{Rate: 5, Burst: 1}}, "60/min": {"60/min", limits.Bucket{Rate: 1, Burst: 1}}, "60/m": {"60/min", limits.Bucket{Rate: 1, Burst: 1}},
		"3600/hour": {"3600/h", limits.Bucket{Rate: 1, Burst: 1}}, "1000/second": {"1000/s", limits.Bucket{Rate: 1000, Burst: 100}},
	} {
		require.NoError(t, store.Replace(t.Context(), []limits.Rule{{Lane: "a/b", Rate: text}}))
		rules, err := store.Rules(t.Context())
		require.NoError(t, err)
		require.Equal(t, []limits.Rule{{Lane: "a/b", Rate: want.stored}}, rules.List())
		require.Equal(t, want.Bucket, limits.RateOf(rules.Of("a/b")), text)
		require.Equal(t, max(int(10*want.Rate), 1), limits.RateOf(&limits.Rule{Tenant: "acme", Rate: text}).Burst)
	}
	for _, text := range []string{"5", "/s", "5/", "5/day", "0/s", "-1/min", "1.5/s", "99999999999999999999/s", "200000/s", "5/s/s", " 5/s"} {
		err := limits.Rule{Lane: "a/b", Rate: text}.Validate()
		require.ErrorIs(t, err, limits.ErrInvalid, text)
		require.ErrorContains(t, err, "rate ", text)
	}
}

// Each error names the field, its value and what is allowed.
func TestRule_BadInputIsNamed(t *testing.T) {
	t.Parallel()
	fine := limits.Rule{Lane: "account/*", Concurrent: 5, Rate: "60/min", Burst: 10}
	require.NoError(t, fine.Validate())
	for want, change := range map[string]func(*limits.Rule){
		`concurrent -1: must be 1 to 1000000`:                                 func(r *limits.Rule) { r.Concurrent = -1 },
		`concurrent 1000001: must be 1 to 1000000`:                            func(r *limits.Rule) { r.Concurrent = 1_000_001 },
		`burst -1: must be 1 to 1000000`:                                      func(r *limits.Rule) { r.Burst = -1 },
		`tokens 60/min: only lanes of models have them, such as model/openai`: func(r *limits.Rule) { r.Tokens = r.Rate },
		`burst 10: needs a rate`:                                              func(r *limits.Rule) { r.Rate = "" },
		`account/*: needs concurrent, rate or waiting`:                        func(r *limits.Rule) { *r = limits.Rule{Lane: r.Lane} },
		`rate 200000/s: must be more than 0 and at most 100000/s`:             func(r *limits.Rule) { r.Rate = "200000/s" },
		`lane "": 1 segments`:                                                 func(r *limits.Rule) { r.Lane = "" },
		`lane "account": 1 segments`:                                          func(r *limits.Rule) { r.Lane = "account" },
		`lane "account/a/b": 3 segments`:                                      func(r *limits.Rule) { r.Lane = "account/a/b" },
		`lane "account/*x": * must be the end of a segment`:                   func(r *limits.Rule) { r.Lane = "account/*x" },
		`lane "account/": matches no lane`:                                    func(r *limits.Rule) { r.Lane = "account/" },
		`lane "../x": matches no lane`:                                        func(r *limits.Rule) { r.Lane = "../x" },
		`waiting -1: must be 1 to 10000000`:                                   func(r *limits.Rule) { r.Waiting = -1 },
		`weight 1001: must be 1 to 1000`:                                      func(r *limits.Rule) { r.Weight = 1001 },
		`sessions -1: must be 1 to 1000000`:                                   func(r *limits.Rule) { r.Sessions = -1 },
		`stored -1: must be 1 MiB to 1024 TiB`:                                func(r *limits.Rule) { r.Stored = -1 },
		`stored 4611686018427387904: must be 1 MiB to 1024 TiB`:               func(r *limits.Rule) { r.Stored = 1 << 62 },
		`a rule is about one of lane, tenant and pool`:                        func(r *limits.Rule) { r.Tenant = "acme" },
		`weight, sessions and stored are of tenants`:                          func(r *limits.Rule) { r.Weight = 3 },
		`invalid name: tenant "A"`:                                            func(r *limits.Rule) { r.Lane, r.Tenant = "", "A" },
		`pool default: needs waiting, and takes nothing else`:                 func(r *limits.Rule) { r.Lane, r.Pool = "", "default" },
	} {
		r := fine
		change(&r)
		err := r.Validate()
		require.ErrorIs(t, err, limits.ErrInvalid, want)
		require.ErrorContains(t, err, want)
	}
}

// A list is stored whole or not at all, and its error names what is wrong.
func TestReplace_BadInputChangesNothing(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	store, err := limits.Open(t.Context(), f.JS, "tf")
	require.NoError(t, err)
	require.NoError(t, store.Set(t.Context(), limits.Rule{Lane: "account/*", Concurrent: 1}))
	for text, want := range map[string]string{
		`{`:                                   "must be a JSON list, as coordinator limits ls --json prints it",
		`[{"lane":"a/b","concurent":1}]`:      `unknown field "concurent"`,
		`[{"lane":"a/b","rate":"60/week"}]`:   `rate "60/week": must be a whole number per s, min or h`,
		`[{"lane":"a/b","concurrent":-1}]`:    "concurrent -1: must be 1 to 1000000",
		`[{"lane":"a/b","concurrent":1e99}]`:  "cannot unmarshal number 1e99 into Go struct field Rule.concurrent",
		`[{"tenant":"acme","stored":"1GiB"}]`: "Rule.stored",
	} {
		_, err := limits.Parse([]byte(text))
		require.ErrorIs(t, err, limits.ErrInvalid, text)
		require.ErrorContains(t, err, want, text)
	}
	for want, list := range map[string][]limits.Rule{
		"lane a/b: has two rules":                     {{Lane: "a/b", Concurrent: 1}, {Lane: "a/b", Concurrent: 2}},
		"tenant acme: has two rules":                  {{Tenant: "acme", Weight: 1}, {Tenant: "acme", Stored: 1 << 30}},
		`lane "x": 1 segments`:                        {{Lane: "a/b", Concurrent: 1}, {Lane: "x", Concurrent: 2}},
		"1001 rules: must be at most 1000":            make([]limits.Rule, limits.MaxRules+1),
		"tenant acme: needs weight, concurrent, rate": {{Tenant: "acme"}},
	} {
		require.ErrorContains(t, store.Replace(t.Context(), list), want)
	}
	rules, err := store.Rules(t.Context())
	require.NoError(t, err)
	require.Equal(t, []limits.Rule{{Lane: "account/*", Concurrent: 1}}, rules.List())
}

func TestRules_TheMostSpecificOneDecides(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	store, err := limits.Open(t.Context(), f.JS, "tf")
	require.NoError(t, err)
	for i, lane := range []string{"*/*", "account/*", "account/eu-*", "account/eu-1", "acc*/eu-1", "*/eu-1"} {
		require.NoError(t, store.Set(t.Context(), limits.Rule{Lane: lane, Concurrent: i + 1}))
	}
	rules, err := store.Rules(t.Context())
	require.NoError(t, err)
	for lane, want := range map[string]string{
		"account/eu-1": "account/eu-1", "account/eu-2": "account/eu-*", "account/us": "account/*", "accounts/eu-1": "acc*/eu-1",
		"sandbox/eu-1": "*/eu-1", "sandbox/x": "*/*",
	} {
		require.Equal(t, want, rules.Of(protocol.Lane(lane)).Lane, lane)
	}
	require.Nil(t, (*limits.Rules)(nil).Of("account/x"))
	require.NoError(t, store.Set(t.Context(), limits.Rule{Lane: "account/*", Rate: "5/s"}))
	require.NoError(t, store.Remove(t.Context(), limits.Rule{Lane: "*/*"}))
	require.ErrorIs(t, store.Remove(t.Context(), limits.Rule{Lane: "*/*"}), limits.ErrUnknown)
	require.ErrorIs(t, store.Set(t.Context(), limits.Rule{Lane: "x"}), limits.ErrInvalid)
	rules, err = store.Rules(t.Context())
	require.NoError(t, err)
	require.Len(t, rules.List(), 5)
	require.Equal(t, 2, rules.Of("account/us").Concurrent, "it stays")
	require.Nil(t, rules.Of("sandbox/x"))
	require.ErrorContains(t, store.Replace(t.Context(), []limits.Rule{{Lane: "a/b", Concurrent: 1}, {Lane: "a/b", Concurrent: 2}}), "lane a/b: has two rules")
}

// TestStore_SetKeepsWhatItDoesNotName: two limits set one after the other both hold.
func TestStore_SetKeepsWhatItDoesNotName(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	store, err := limits.Open(t.Context(), f.JS, "tf")
	require.NoError(t, err)
	for _, rule := range []limits.Rule{
		{Tenant: "acme", Concurrent: 5},
		{Tenant: "acme", Weight: 3, Rate: "60/min", Burst: 7},
		{Tenant: "acme", Concurrent: 6, Sessions: 2, Stored: 1 << 30},
		{Lane: "account/*", Waiting: 9},
		{Lane: "account/*", Concurrent: 1},
	} {
		require.NoError(t, store.Set(t.Context(), rule))
	}
	rules, err := store.Rules(t.Context())
	require.NoError(t, err)
	require.ElementsMatch(t, []limits.Rule{
		{Tenant: "acme", Concurrent: 6, Weight: 3, Rate: "60/min", Burst: 7, Sessions: 2, Stored: 1 << 30},
		{Lane: "account/*", Waiting: 9, Concurrent: 1},
	}, rules.List())
	require.ErrorIs(t, store.Set(t.Context(), limits.Rule{Tenant: "acme", Waiting: 1}), limits.ErrInvalid)
}

// Law: a rate holds for all processes together, also if their clocks differ: the difference counts
// once, and not whenever another process spends.
func TestSpending_ClocksThatDiffer(t *testing.T) {
	t.Parallel()
	const rate, burst, ahead = 100, 1, 300 * time.Millisecond
	server := natsiotest.New(t, natsio.Topology{})
	_, err := limits.Open(t.Context(), server.JS, "tf")
	require.NoError(t, err)
	bucket := limits.Bucket{Rate: rate, Burst: burst}
	late := limits.NewSpending(server.JS, "tf", "acme")
	early := limits.NewSpending(server.JS, "tf", "acme")
	began, taken := time.Now(), 0
	for range 300 {
		for _, process := range []struct {
			spending *limits.Spending
			ahead    time.Duration
		}{{late, 0}, {early, ahead}} {
			wait, err := process.spending.Spend(t.Context(), bucket, 1, func() time.Time { return time.Now().Add(process.ahead) })
			require.NoError(t, err)
			if wait == 0 {
				taken++
			}
		}
	}
	require.LessOrEqual(t, float64(taken), burst+rate*(time.Since(began)+ahead).Seconds())
}

// Law: a change of the rules is known within a second, also of the first rule of a fleet.
func TestWatch_KnowsAChangeWithinASecond(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	changed := make(chan struct{}, 16)
	w := limits.NewWatch(f.JS, "tf", slog.New(slog.DiscardHandler), func() { changed <- struct{}{} })
	require.NoError(t, w.Load(t.Context()))
	require.Nil(t, w.Rules())
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { w.Run(ctx) })
	defer running.Wait()
	defer stop()
	store, err := limits.Open(t.Context(), f.JS, "tf")
	require.NoError(t, err)
	for n := range 3 {
		set := time.Now()
		require.NoError(t, store.Set(t.Context(), limits.Rule{Lane: "account/*", Concurrent: n + 1}))
		require.Eventually(t, func() bool { r := w.Rules().Of("account/x"); return r != nil && r.Concurrent == n+1 }, 10*time.Second, time.Millisecond)
		require.Less(t, time.Since(set), time.Second+2*time.Second, "a busy machine may take longer than the second that is promised")
		<-changed
	}
	require.NoError(t, store.Remove(t.Context(), limits.Rule{Lane: "account/*"}))
	require.Eventually(t, func() bool { return w.Rules() == nil }, 10*time.Second, time.Millisecond)
	require.NoError(t, f.JS.DeleteKeyValue(t.Context(), "TF_LIMITS"))
	require.True(t, w.LoadUntil(t.Context()), "a bucket that is gone has no rules")
}
