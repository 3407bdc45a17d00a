package model_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/model"
	"github.com/toolfleet/toolfleet/internal/model/endpoint"
	"github.com/toolfleet/toolfleet/pkg/loop"
)

// shared are limits that have the first requests wait.
type shared struct {
	waits     []time.Duration
	err       error
	taken     int64
	corrected int64
}

func (s *shared) SpendModel(_ context.Context, provider string, tokens int64) (time.Duration, error) {
	if len(s.waits) > 0 {
		wait := s.waits[0]
		s.waits = s.waits[1:]
		return wait, nil
	}
	if provider == "script" {
		s.taken += tokens
	}
	return 0, s.err
}

func (s *shared) CorrectModel(_ context.Context, _ string, tokens int64) error {
	s.corrected += tokens
	return nil
}

// A request waits for the limit of its provider, the screen says so, and what it used is settled.
func TestGate_WaitsForTheLimit(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "script.json")
	require.NoError(t, os.WriteFile(file, []byte(`{"steps":[{"text":"a","usage":{"input_tokens":70,"output_tokens":30}},{"text":"b"}]}`), 0o600))
	var gate model.Gate
	m, _, err := model.Opener{Gate: &gate}.Open("script:" + file)
	require.NoError(t, err)
	ask := loop.Request{Messages: []loop.Message{{Role: loop.RoleUser, Text: "12345678"}}}
	synctest.Test(t, func(t *testing.T) {
		limits := &shared{waits: []time.Duration{20 * time.Second, 10 * time.Second}}
		gate.Bind(limits)
		var waits []string
		begun := time.Now()
		reply, err := m.Reply(t.Context(), ask, func(d loop.Delta) {
			if d.Waits != "" {
				waits = append(waits, d.Waits)
			}
		})
		require.NoError(t, err)
		require.Equal(t, 30*time.Second, time.Since(begun))
		require.Equal(t, []string{"the limit of model/script is used up; next request in 20s", "the limit of model/script is used up; next request in 10s"}, waits)
		require.Equal(t, int64(3), limits.taken)
		require.Equal(t, reply.Usage.Total(), limits.taken+limits.corrected)

		stop := errors.New("stopped")
		limits.waits = []time.Duration{time.Hour}
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, stop)
		defer cancel()
		_, err = m.Reply(ctx, ask, func(loop.Delta) {})
		require.ErrorIs(t, err, stop)

		limits.err = errors.New("no server")
		_, err = m.Reply(t.Context(), ask, func(loop.Delta) {})
		require.NoError(t, err, "limits that cannot be asked stop nothing")
	})
}

// failing replies with its name, or fails.
type failing struct {
	name  string
	err   error
	asked int
}

func (f *failing) Reply(context.Context, loop.Request, func(loop.Delta)) (loop.Reply, error) {
	f.asked++
	return loop.Reply{Text: f.name}, f.err
}

func (f *failing) Provider() string { return f.name }

// Another model replies while the provider is down, and the first one again when it is back.
func TestFallback_RepliesWhileTheProviderIsDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		first := &failing{name: "first", err: &endpoint.Error{Type: endpoint.TypeServerError, Message: "Overloaded"}}
		other := &failing{name: "other"}
		m := model.WithFallback(first, "openai:a", other, loop.Fallback{Model: "anthropic:b", Price: &loop.Price{Input: 1}})
		var waits []string
		ask := func() (loop.Reply, error) {
			return m.Reply(t.Context(), hello(), func(d loop.Delta) { waits = append(waits, d.Waits) })
		}
		for range 3 {
			reply, err := ask()
			require.NoError(t, err)
			require.Equal(t, "other", reply.Text)
			require.Equal(t, "anthropic:b", reply.Fallback.Model)
		}
		require.Equal(t, 1, first.asked, "a provider that was down is left alone for a while")
		require.Contains(t, waits[0], "Overloaded; anthropic:b replies instead")
		first.err = nil
		time.Sleep(time.Minute)
		reply, err := ask()
		require.NoError(t, err)
		require.Equal(t, "first", reply.Text)
		require.Nil(t, reply.Fallback)

		first.err, other.err = &endpoint.Error{Type: endpoint.TypeQuotaExceeded, Message: "Nothing left"}, errors.New("down, too")
		_, err = ask()
		require.ErrorIs(t, err, first.err)
		require.ErrorIs(t, err, other.err)
	})
}

// What is not the provider's failure is not the other model's to answer.
func TestFallback_OtherErrorsStay(t *testing.T) {
	t.Parallel()
	for kind := range strings.FieldsSeq("authentication invalid_request content_filter context_length_exceeded not_found") {
		first, other := &failing{name: "first", err: &endpoint.Error{Type: kind}}, &failing{name: "other"}
		m := model.WithFallback(first, "a", other, loop.Fallback{Model: "b"})
		_, err := m.Reply(t.Context(), hello(), func(loop.Delta) {})
		require.Equal(t, first.err, err)
		require.Zero(t, other.asked, kind)
		require.Equal(t, "first", m.(loop.Provider).Provider()) //nolint:errcheck // it panics
	}
}
