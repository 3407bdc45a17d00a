package dialog_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker/dialog"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	session = protocol.SessionID("s")
	lane    = protocol.Lane("account/acme")
	grace   = time.Second
)

var errLost = errors.New("lost")

func newSet() *dialog.Set[string] {
	return dialog.New[string](func(cause error) time.Duration {
		if errors.Is(cause, errLost) {
			return 0
		}
		return grace
	}, slog.New(slog.DiscardHandler))
}

// adder yields the sum of its inputs, and is done when it gets a 0. "slow" as the input
// makes it wait for the end of the step, "stuck" for that of the dialog.
func adder(ctx context.Context, talk *dialog.Talk[string], arguments json.RawMessage) (json.RawMessage, error) {
	sum, _ := strconv.Atoi(string(arguments))
	for {
		input, err := talk.Yield(json.RawMessage(strconv.Itoa(sum)))
		switch {
		case err != nil:
			return json.RawMessage(`"bye ` + talk.Call() + `"`), nil //nolint:nilerr // the end is no failure
		case string(input) == `"slow"`:
			<-talk.Step().Done()
		case string(input) == `"stuck"`:
			<-ctx.Done()
			return nil, ctx.Err()
		case string(input) == `"fail"`:
			return nil, errors.New("no such sum")
		case string(input) == `"panic"`:
			panic("oh")
		}
		n, _ := strconv.Atoi(string(input))
		if n == 0 && string(input) == "0" {
			return json.RawMessage(strconv.Itoa(sum)), nil
		}
		sum += n
	}
}

func opening(id protocol.CallID) dialog.Opening[string] {
	return dialog.Opening[string]{ID: id, Session: session, Lane: lane, Kind: "adder", Call: string(id), Arguments: json.RawMessage("1")}
}

func mustOpen(t *testing.T, s *dialog.Set[string], tool dialog.Tool[string], id protocol.CallID) {
	t.Helper()
	if tool.Run == nil {
		tool.Run = adder
	}
	state, err := s.Open(t.Context(), tool, opening(id))
	require.NoError(t, err)
	require.Equal(t, "1", string(state.Output))
	require.Empty(t, state.Ending)
	require.Positive(t, state.Idle)
}

func next(t *testing.T, s *dialog.Set[string], id protocol.CallID, input string) (wire.DialogState, error) {
	t.Helper()
	return s.Continue(t.Context(), id, session, lane, "then", json.RawMessage(input))
}

func requireGone(t *testing.T, s *dialog.Set[string], id protocol.CallID, ending wire.DialogEnding) {
	t.Helper()
	state, err := next(t, s, id, "1")
	var fault *protocol.Error
	require.ErrorAs(t, err, &fault)
	require.Equal(t, protocol.CodeStateLost, fault.Code)
	require.Equal(t, wire.StateLost(ending).Message, fault.Message)
	require.Equal(t, ending, state.Ending)
}

func TestDialog_AnswersCallAfterCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSet()
		mustOpen(t, s, dialog.Tool[string]{}, "a")
		require.True(t, s.HasRunning(lane))
		require.False(t, s.HasRunning("account/other"))
		for i, want := range []string{"3", "5", "7"} {
			state, err := next(t, s, "a", "2")
			require.NoError(t, err, i)
			require.Equal(t, want, string(state.Output))
		}
		state, err := next(t, s, "a", "0")
		require.NoError(t, err)
		require.Equal(t, wire.DialogState{Dialog: "a", Output: json.RawMessage("7"), Ending: wire.DialogDone}, state)
		require.False(t, s.HasRunning(lane))
		requireGone(t, s, "a", wire.DialogDone)
	})
}

func TestDialog_EndsInEveryWay(t *testing.T) {
	t.Parallel()
	for ending, end := range map[wire.DialogEnding]func(t *testing.T, s *dialog.Set[string]){
		wire.DialogEnded: func(t *testing.T, s *dialog.Set[string]) {
			t.Helper()
			state, err := s.End(t.Context(), "a", session, lane)
			require.NoError(t, err)
			require.JSONEq(t, `"bye a"`, string(state.Output))
			again, err := s.End(t.Context(), "a", session, lane)
			require.NoError(t, err)
			require.Equal(t, wire.DialogState{Dialog: "a", Ending: wire.DialogEnded}, again)
		},
		wire.DialogIdle: func(t *testing.T, _ *dialog.Set[string]) { t.Helper(); time.Sleep(dialog.DefaultIdle + 1) },
		wire.DialogExpired: func(t *testing.T, s *dialog.Set[string]) {
			t.Helper()
			for range 2 * dialog.DefaultLife / dialog.DefaultIdle {
				_, err := next(t, s, "a", "1")
				require.NoError(t, err)
				time.Sleep(dialog.DefaultIdle / 2)
			}
		},
		wire.DialogFailed: func(t *testing.T, s *dialog.Set[string]) {
			t.Helper()
			state, err := next(t, s, "a", `"fail"`)
			require.EqualError(t, err, "no such sum")
			require.Equal(t, wire.DialogFailed, state.Ending)
		},
		wire.DialogLost: func(t *testing.T, s *dialog.Set[string]) {
			t.Helper()
			s.Release("account/other")
			require.True(t, s.HasRunning(lane))
			s.Release(lane)
		},
		wire.DialogInterrupted: func(t *testing.T, s *dialog.Set[string]) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			_, err := s.Continue(ctx, "a", session, lane, "then", json.RawMessage(`"stuck"`))
			require.Error(t, err)
		},
	} {
		t.Run(string(ending), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newSet()
				mustOpen(t, s, dialog.Tool[string]{}, "a")
				end(t, s)
				synctest.Wait()
				require.False(t, s.HasRunning(lane))
				requireGone(t, s, "a", ending)
			})
		})
	}
}

func TestDialog_APanicIsItsResult(t *testing.T) {
	t.Parallel()
	s := newSet()
	mustOpen(t, s, dialog.Tool[string]{}, "a")
	_, err := next(t, s, "a", `"panic"`)
	var fault *protocol.Error
	require.ErrorAs(t, err, &fault)
	require.Equal(t, protocol.CodePanic, fault.Code)
	requireGone(t, s, "a", wire.DialogFailed)
}

// A function that answers within the grace keeps its dialog; one that does not loses it.
func TestDialog_AStoppedCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSet()
		mustOpen(t, s, dialog.Tool[string]{}, "a")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		state, err := s.Continue(ctx, "a", session, lane, "then", json.RawMessage(`"slow"`))
		cancel()
		require.NoError(t, err)
		require.Equal(t, "1", string(state.Output))
		require.Empty(t, state.Ending)

		before := time.Now()
		ctx, stop := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Minute, func() { stop(errLost) })
		state, _ = s.Continue(ctx, "a", session, lane, "then", json.RawMessage(`"stuck"`))
		require.Equal(t, time.Minute, time.Since(before), "a lane that is lost leaves no time")
		require.Equal(t, wire.DialogInterrupted, state.Ending)

		ctx, cancel = context.WithCancel(t.Context())
		cancel()
		state, err = s.Open(ctx, dialog.Tool[string]{Run: adder}, opening("b"))
		require.NoError(t, err)
		require.Equal(t, wire.DialogInterrupted, state.Ending, "nobody got the handle")
		require.False(t, s.HasRunning(lane))
	})
}

func TestDialog_LifeEndsInTheMiddleOfACall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSet()
		mustOpen(t, s, dialog.Tool[string]{Life: time.Minute}, "a")
		state, err := next(t, s, "a", `"stuck"`)
		var fault *protocol.Error
		require.ErrorAs(t, err, &fault)
		require.Equal(t, protocol.CodeLimitReached, fault.Code)
		require.Equal(t, wire.DialogExpired, state.Ending)
	})
}

func TestSet_Limits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSet()
		tool := dialog.Tool[string]{Run: adder, Live: 3, PerSession: 2}
		refused := func(o dialog.Opening[string], text string) {
			t.Helper()
			_, err := s.Open(t.Context(), tool, o)
			var fault *protocol.Error
			require.ErrorAs(t, err, &fault)
			require.Equal(t, protocol.CodeLimitReached, fault.Code)
			require.Contains(t, fault.Message, text)
		}
		mustOpen(t, s, tool, "a")
		mustOpen(t, s, tool, "b")
		refused(opening("c"), "this session has 2")
		other := opening("d")
		other.Session = "other"
		_, err := s.Open(t.Context(), tool, other)
		require.NoError(t, err)
		third := opening("e")
		third.Session = "third"
		refused(third, "the worker has 3")
		third.Kind = "another tool"
		_, err = s.Open(t.Context(), tool, third)
		require.NoError(t, err)
		mustOpen(t, s, tool, "a") // an attempt after one that nobody got takes its place
		s.Release(lane)
	})
}

func TestSet_KnowsSessionsAndLanes(t *testing.T) {
	t.Parallel()
	s := newSet()
	mustOpen(t, s, dialog.Tool[string]{}, "a")
	for name, ask := range map[string]func() (wire.DialogState, error){
		"session": func() (wire.DialogState, error) {
			return s.Continue(t.Context(), "a", "other", lane, "x", json.RawMessage("1"))
		},
		"lane": func() (wire.DialogState, error) {
			return s.Continue(t.Context(), "a", session, "account/other", "x", json.RawMessage("1"))
		},
		"nothing": func() (wire.DialogState, error) {
			return s.Continue(t.Context(), "b", session, lane, "x", json.RawMessage("1"))
		},
	} {
		state, err := ask()
		require.Error(t, err, name)
		require.Equal(t, wire.DialogLost, state.Ending, name)
	}
	_, err := s.End(t.Context(), "a", "other", lane)
	require.NoError(t, err)
	require.True(t, s.HasRunning(lane))
	s.Release(lane)
	_, err = s.Continue(t.Context(), "a", "other", lane, "x", nil)
	require.ErrorContains(t, err, "the worker that had its state stopped")
}

// Calls that come at once are answered one after another, each with its own sum, and the
// idle time does not end a dialog below a call.
func TestDialog_CallsAtOnceAreSerial(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSet()
		mustOpen(t, s, dialog.Tool[string]{Idle: time.Second}, "a")
		const calls = 50
		sums := make(chan string, calls)
		for range calls {
			go func() {
				state, err := next(t, s, "a", "1")
				if err != nil {
					sums <- err.Error()
					return
				}
				sums <- string(state.Output)
			}()
		}
		seen := map[string]bool{}
		for range calls {
			seen[<-sums] = true
		}
		require.Len(t, seen, calls)
		require.True(t, seen["51"])
		s.Release(lane)
	})
}
