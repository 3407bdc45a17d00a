package model_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/model"
	"github.com/toolfleet/toolfleet/internal/model/endpoint"
	"github.com/toolfleet/toolfleet/pkg/loop"
)

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
