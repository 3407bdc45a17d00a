package schedule_test

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/calls/channel"
	"github.com/toolfleet/toolfleet/internal/calls/ports"
	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/session/schedule"
	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// trigger is one of a session, as yet without a time.
func trigger(session protocol.SessionID) schedule.Schedule {
	call := wire.RandomCallID()
	return schedule.Schedule{Name: "t-" + string(call), Call: turn(session), KeepSession: true, Trigger: schedule.Trigger{By: call}, Secret: wire.SeedOf("seed", call)}
}

// accepting is the calls that were accepted: each once, however often and by whichever process it
// is sent.
type accepting struct {
	mu    sync.Mutex
	calls map[protocol.CallID]int
	by    map[protocol.SessionID][]protocol.CallID
}

// send fails now and then, also after it has accepted.
func (a *accepting) send(_ context.Context, call *protocol.Call) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if rand.IntN(3) == 0 {
		return errors.New("the server is lost")
	}
	if a.calls[call.ID]++; a.calls[call.ID] == 1 {
		a.by[call.SessionID] = append(a.by[call.SessionID], call.ID)
	}
	if rand.IntN(3) == 0 {
		return errors.New("the answer is lost")
	}
	return nil
}

func (a *accepting) of(session protocol.SessionID) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.by[session])
}

// runners run until the test ends: three at a time, which end and begin again at any moment.
func runners(t *testing.T, store *schedule.Store, channels *channel.Store) *accepting {
	t.Helper()
	a := &accepting{calls: map[protocol.CallID]int{}, by: map[protocol.SessionID][]protocol.CallID{}}
	var running sync.WaitGroup
	ctx, end := context.WithCancel(t.Context())
	for range 3 {
		running.Go(func() {
			for ctx.Err() == nil {
				life, end := context.WithTimeout(ctx, time.Duration(rand.Int64N(int64(2*time.Second))))
				(&schedule.Runner{Store: store, Channels: channels, Send: a.send, Logger: slog.New(slog.DiscardHandler)}).Run(life)
				end()
			}
		})
	}
	t.Cleanup(func() { end(); running.Wait() })
	return a
}

// Each timer starts one call, also when the tool call that set it is run again before or after, and
// is removed.
func TestTrigger_TimersStartOnce(t *testing.T) {
	t.Parallel()
	store, _ := open(t)
	a := runners(t, store, nil)
	for _, delay := range []time.Duration{-time.Second, 10 * time.Millisecond, time.Second} {
		session := protocol.NewSessionID()
		s := trigger(session)
		s.Once = time.Now().Add(delay)
		require.NoError(t, store.AddTrigger(t.Context(), s))
		require.NoError(t, store.AddTrigger(t.Context(), s))
		require.Eventually(t, func() bool { return a.of(session) == 1 }, time.Minute, 10*time.Millisecond)
		require.Eventually(t, func() bool {
			all, err := store.Triggers(t.Context(), session)
			return err == nil && len(all) == 0
		}, time.Minute, 10*time.Millisecond)
		s.Once = time.Now().Add(delay)
		require.NoError(t, store.AddTrigger(t.Context(), s), "a resumed session runs the call again")
		all, err := store.Triggers(t.Context(), session)
		require.NoError(t, err)
		require.Empty(t, all)
		require.Equal(t, 1, a.of(session))
	}
}

// A removed trigger does not come back by a coordinator that was stopped for long, and the id of a
// call comes from the secret alone: a record that is added once more starts the same call.
func TestTrigger_OfAStoppedCoordinator(t *testing.T) {
	t.Parallel()
	store, js := open(t)
	s := trigger(protocol.NewSessionID())
	s.Cron = "@every 1s"
	require.NoError(t, store.AddTrigger(t.Context(), s))
	require.NoError(t, store.Remove(t.Context(), s.Name))
	require.NoError(t, store.AddTrigger(t.Context(), s))
	all, err := store.Triggers(t.Context(), s.Call.SessionID)
	require.NoError(t, err)
	require.Empty(t, all)

	s.Cron, s.Once = "", time.Now()
	first := s.At(s.Once)
	s.Once = s.Once.Add(time.Hour)
	require.Equal(t, first.ID, s.At(s.Once).ID)
	require.NoError(t, first.Validate())
	stream, err := js.Stream(t.Context(), "KV_TF_SCHEDULES")
	require.NoError(t, err)
	require.NoError(t, stream.Purge(t.Context())) // as when the marks are old
	require.NoError(t, store.AddTrigger(t.Context(), s))
	one, err := store.Get(t.Context(), s.Name)
	require.NoError(t, err)
	require.Equal(t, first.ID, one.At(time.Now()).ID)
}

// A coordinator that is cut off while a trigger is removed starts nothing by it, and goes on.
func TestTrigger_RemovedBehindACoordinator(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	opened := func(nc *nats.Conn) *schedule.Store {
		js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(time.Second))
		require.NoError(t, err)
		store, err := schedule.Open(t.Context(), js, "tf")
		require.NoError(t, err)
		return store
	}
	store := opened(f.Connect())
	nc, link := f.ConnectVia()
	started := make(chan protocol.SessionID, 100)
	runner := schedule.Runner{Store: opened(nc), Logger: slog.New(slog.DiscardHandler), Send: func(_ context.Context, call *protocol.Call) error {
		started <- call.SessionID
		return nil
	}}
	var running sync.WaitGroup
	ctx, end := context.WithCancel(t.Context())
	running.Go(func() { runner.Run(ctx) })
	defer running.Wait()
	defer end()
	set := func(after time.Duration) schedule.Schedule {
		s := trigger(protocol.NewSessionID())
		s.Once = time.Now().Add(after)
		require.NoError(t, store.AddTrigger(t.Context(), s))
		return s
	}
	late, now := set(2*time.Second), set(0)
	require.Equal(t, now.Call.SessionID, <-started, "the runner has read both")
	require.Eventually(t, func() bool { // before that it may start the call again, with the same id
		left, err := store.List(t.Context())
		return err == nil && len(left) == 1
	}, time.Minute, time.Millisecond)
	link.Cut()
	require.NoError(t, store.Remove(t.Context(), late.Name))
	pause.For(t.Context(), time.Until(late.Once)+time.Second)
	require.Empty(t, started)
	link.Mend()
	now = set(0)
	require.Equal(t, now.Call.SessionID, <-started)
}

// A watched channel starts one call by a message of another session that was not read.
func TestTrigger_MessagesStartOnce(t *testing.T) {
	t.Parallel()
	store, js := open(t)
	channels, err := channel.Open(t.Context(), js, "tf")
	require.NoError(t, err)
	a := runners(t, store, channels)
	send := func(from protocol.SessionID) uint64 {
		m := ports.ChannelMessage{From: from, Call: wire.RandomCallID(), Text: "hello"}
		require.NoError(t, channels.Send(t.Context(), "default.work", m))
		for after := uint64(0); ; {
			got, err := channels.Next(t.Context(), "default.work", "", after)
			require.NoError(t, err)
			if after = got.Sequence; got.Call == m.Call {
				return after
			}
		}
	}
	watch := func(after uint64) protocol.SessionID {
		s := trigger(protocol.NewSessionID())
		s.Channel, s.After = "default.work", after
		require.NoError(t, store.AddTrigger(t.Context(), s))
		return s.Call.SessionID
	}
	early := watch(0)
	require.Zero(t, a.of(early))
	send(early) // its own
	read := send("other")
	require.Eventually(t, func() bool { return a.of(early) == 1 }, time.Minute, 10*time.Millisecond)
	behind, waits := watch(read-1), watch(read)
	require.Eventually(t, func() bool { return a.of(behind) == 1 }, time.Minute, 10*time.Millisecond, "a message that it has not read")
	require.Zero(t, a.of(waits))
	send("other")
	require.Eventually(t, func() bool { return a.of(waits) == 1 }, time.Minute, 10*time.Millisecond)
	send("other")
	require.Eventually(t, func() bool {
		all, err := store.List(t.Context())
		return err == nil && len(all) == 0
	}, time.Minute, 10*time.Millisecond)
	require.Equal(t, []int{1, 1, 1}, []int{a.of(early), a.of(behind), a.of(waits)})
}

func TestTrigger_BadOnes(t *testing.T) {
	t.Parallel()
	store, _ := open(t)
	for text, change := range map[string]func(*schedule.Schedule){
		"a schedule of one call has a time or a channel, and a session": func(s *schedule.Schedule) { s.Once, s.Channel = time.Now(), "default.work" },
		"and a session":   func(s *schedule.Schedule) { s.Once, s.KeepSession = time.Now(), false },
		`cron ""`:         func(*schedule.Schedule) {},
		`cron "often"`:    func(s *schedule.Schedule) { s.Cron = "often" },
		`time zone "Mars`: func(s *schedule.Schedule) { s.Cron, s.TimeZone = "@daily", "Mars" },
	} {
		s := trigger(protocol.NewSessionID())
		change(&s)
		err := store.AddTrigger(t.Context(), s)
		require.ErrorIs(t, err, schedule.ErrInvalid)
		require.ErrorContains(t, err, text)
	}
}

// A session's triggers are found without reading the fleet's other schedules, by the runner of the
// process, and the list has what was stored a moment ago. Without a runner they are read in one go.
func TestTriggers_CostNothingOfOtherSchedules(t *testing.T) {
	t.Parallel()
	store, js := open(t)
	for range 300 {
		s := trigger(protocol.NewSessionID())
		s.Once = time.Now().Add(time.Hour)
		require.NoError(t, store.AddTrigger(t.Context(), s))
	}
	messages := func() uint64 { s := js.Conn().Stats(); return s.InMsgs + s.OutMsgs }
	before := messages()
	all, err := store.List(t.Context())
	require.NoError(t, err)
	require.Len(t, all, 300)
	require.Less(t, messages()-before, uint64(350))

	ctx, end := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		(&schedule.Runner{Store: store, Send: func(context.Context, *protocol.Call) error { return nil }, Logger: slog.New(slog.DiscardHandler)}).Run(ctx)
	}()
	require.Eventually(t, func() bool { // the runner has read all of them
		before = messages()
		_, err := store.Triggers(t.Context(), "s")
		return err == nil && messages()-before < 10
	}, time.Minute, 10*time.Millisecond)
	for n := range 20 {
		s := trigger("s")
		s.Once = time.Now().Add(time.Hour)
		require.NoError(t, store.AddTrigger(t.Context(), s))
		set, err := store.Triggers(t.Context(), "s")
		require.NoError(t, err)
		require.Len(t, set, n+1, "with the one that was set just now")
	}
	set, err := store.Triggers(t.Context(), "s")
	require.NoError(t, err)
	require.NoError(t, store.Remove(t.Context(), set[0].Name))
	left, err := store.Triggers(t.Context(), "s")
	require.NoError(t, err)
	require.Len(t, left, 19)
	before = messages()
	for range 10 {
		_, err := store.Triggers(t.Context(), "s")
		require.NoError(t, err)
	}
	require.Less(t, messages()-before, uint64(50))
	end()
	<-done
	left, err = store.Triggers(t.Context(), "s")
	require.NoError(t, err)
	require.Len(t, left, 19)
}

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
			added := mustAdd(t, store, schedule.Schedule{Name: name, Cron: "@every 1s", Missed: schedule.MissedAll, Call: turn(protocol.NewSessionID())})
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
		Owner: func(_ context.Context, session protocol.SessionID) (*judge.Owner, bool, error) {
			return nil, session != "removed", nil
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
			added := mustAdd(t, store, s)
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
