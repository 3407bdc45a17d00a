package schedule_test

import (
	"context"
	"errors"
	"log/slog"
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
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// A coordinator is lost behind any write of a start: before its call is accepted, when that is
// accepted and the answer is lost, and between the start and the record. Another one starts the
// same call, under the same id, and each later time once.
func TestRunner_LostBetweenTwoWrites(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	js, err := jetstream.New(f.NC)
	require.NoError(t, err)
	for _, accepted := range []bool{false, true} {
		for _, answered := range []bool{false, true} {
			store, err := schedule.Open(t.Context(), js, "tf")
			require.NoError(t, err)
			name := "every" + map[bool]string{true: "-accepted"}[accepted] + map[bool]string{true: "-answered"}[answered]
			added, err := store.Add(t.Context(), schedule.Schedule{Name: name, Cron: "@every 1s", Missed: schedule.MissedAll, Call: turn(protocol.NewSessionID())})
			require.NoError(t, err)
			ran := map[protocol.CallID]int{}
			life, lose := context.WithCancel(t.Context())
			var first protocol.CallID
			(&schedule.Runner{Store: store, Logger: slog.New(slog.DiscardHandler), Send: func(_ context.Context, call *protocol.Call) error {
				if first = call.ID; accepted {
					ran[call.ID]++
				}
				lose()
				if answered {
					return nil
				}
				return errors.New("the answer is lost")
			}}).Run(life)

			life, lose = context.WithCancel(t.Context())
			(&schedule.Runner{Store: store, Logger: slog.New(slog.DiscardHandler), Send: func(_ context.Context, call *protocol.Call) error {
				if ran[call.ID]++; len(ran) == 3 {
					lose()
				}
				return nil
			}}).Run(life)
			require.NotZero(t, ran[first], "of the time at which the first one was lost")
			for n, at := range added.Next(added.Created, 3) {
				require.NotZero(t, ran[added.At(at).ID], "time %d", n+1)
			}
			require.NoError(t, store.Remove(t.Context(), name))
		}
	}
}

// A trigger whose session was removed, which a turn has set meanwhile, starts nothing and goes.
func TestRunner_ATriggerOfARemovedSession(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	js, err := jetstream.New(f.NC)
	require.NoError(t, err)
	store, err := schedule.Open(t.Context(), js, "tf")
	require.NoError(t, err)
	var running sync.WaitGroup
	ctx, end := context.WithCancel(t.Context())
	defer running.Wait()
	defer end()
	started := make(chan protocol.SessionID, 10)
	runner := schedule.Runner{
		Store: store, Logger: slog.New(slog.DiscardHandler),
		Send: func(_ context.Context, call *protocol.Call) error {
			started <- call.SessionID
			return nil
		},
		Owner: func(_ context.Context, session protocol.SessionID) (judge.Owner, bool, error) {
			return judge.Owner{}, session != "removed", nil
		},
	}
	running.Go(func() { runner.Run(ctx) })
	gone := trigger("removed")
	gone.Cron = "@every 1s"
	require.NoError(t, store.AddTrigger(t.Context(), gone))
	require.Eventually(t, func() bool {
		_, err := store.Get(t.Context(), gone.Name)
		return errors.Is(err, schedule.ErrUnknown)
	}, time.Minute, time.Millisecond)
	there := trigger("there")
	there.Once = time.Now()
	require.NoError(t, store.AddTrigger(t.Context(), there))
	require.Equal(t, protocol.SessionID("there"), <-started)
	require.Empty(t, started)
}

// Whatever becomes of the first try of a change, it is made, once, and no error is returned.
func TestStore_ChangesAreMadeUntilTheyAreKnown(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	direct, err := jetstream.New(f.NC)
	require.NoError(t, err)
	other, err := schedule.Open(t.Context(), direct, "tf")
	require.NoError(t, err)
	ended := func(name string) bool {
		_, err := other.Get(t.Context(), name)
		return errors.Is(err, schedule.ErrUnknown)
	}
	isPaused := func(name string) bool {
		s, err := other.Get(t.Context(), name)
		return err == nil && s.Paused
	}
	for change, do := range map[string]func(t *testing.T, store *schedule.Store, name string){
		"add": func(t *testing.T, store *schedule.Store, name string) {
			t.Helper()
			s := schedule.Schedule{Name: name, Cron: "@hourly", Call: turn(protocol.NewSessionID())}
			added, err := store.Add(t.Context(), s)
			require.NoError(t, err)
			stored, err := other.Get(t.Context(), name)
			require.NoError(t, err)
			require.Equal(t, added.Secret, stored.Secret)
			_, err = store.Add(t.Context(), s)
			require.ErrorIs(t, err, schedule.ErrExists)
		},
		"trigger": func(t *testing.T, store *schedule.Store, name string) {
			t.Helper()
			s := trigger(protocol.NewSessionID())
			s.Name, s.Once = name, time.Now().Add(time.Hour)
			require.NoError(t, store.AddTrigger(t.Context(), s))
			require.False(t, ended(name))
		},
		"pause": func(t *testing.T, store *schedule.Store, name string) {
			t.Helper()
			_, err := other.Add(t.Context(), schedule.Schedule{Name: name, Cron: "@hourly", Call: turn(protocol.NewSessionID())})
			require.NoError(t, err)
			_, err = store.Pause(t.Context(), name, true)
			require.NoError(t, err)
			require.True(t, isPaused(name))
		},
		"remove": func(t *testing.T, store *schedule.Store, name string) {
			t.Helper()
			_, err := other.Add(t.Context(), schedule.Schedule{Name: name, Cron: "@hourly", Call: turn(protocol.NewSessionID())})
			require.NoError(t, err)
			require.NoError(t, store.Remove(t.Context(), name))
			require.True(t, ended(name))
		},
	} {
		for fault, fate := range map[string]natsiotest.Fate{
			"lost": natsiotest.Lost, "unanswered": natsiotest.Unanswered, "unavailable": natsiotest.Refused, "made": natsiotest.Made,
		} {
			t.Run(change+"/"+fault, func(t *testing.T) {
				t.Parallel()
				nc, link := f.ConnectVia()
				js, err := jetstream.New(nc)
				require.NoError(t, err)
				store, err := schedule.Open(t.Context(), js, "tf")
				require.NoError(t, err)
				name, met := change+"-"+fault, atomic.Bool{}
				link.OnWrite(func(subject string) natsiotest.Fate {
					if strings.HasPrefix(subject, "$KV.") && met.CompareAndSwap(false, true) {
						return fate
					}
					return natsiotest.Passes
				})
				do(t, store, name)
				require.True(t, met.Load())
			})
		}
	}
}
