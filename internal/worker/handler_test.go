package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/internal/worker/kinds"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// userCall makes a call of a kind of the user's own, on a resource that is no sandbox.
func userCall(t *testing.T, kind protocol.Kind, arguments string) protocol.Call {
	t.Helper()
	payload, err := wire.NewUserPayload(kind, json.RawMessage(arguments))
	require.NoError(t, err)
	call := newCall(protocol.NewSessionID(), payload)
	call.Resources = []protocol.Use{{Key: "account/acme", Access: protocol.Exclusive}}
	return call
}

func TestHandler_Results(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o := r.options()
	o.Alone = true
	var inside atomic.Int32
	o.Handlers.Calls = map[protocol.Kind]kinds.Handler{
		"echo": func(_ context.Context, h *kinds.Attempt, arguments json.RawMessage) (json.RawMessage, error) {
			if inside.Add(1) > 1 {
				return nil, errors.New("two at a time")
			}
			defer inside.Add(-1)
			h.Output([]byte("working"))
			_, err := h.Sandbox(t.Context())
			return json.RawMessage(`{"echo":` + string(arguments) + `,"sandbox":"` + err.Error() + `"}`), nil
		},
		"fails": func(context.Context, *kinds.Attempt, json.RawMessage) (json.RawMessage, error) {
			return nil, errors.New("no money")
		},
		"typed": func(context.Context, *kinds.Attempt, json.RawMessage) (json.RawMessage, error) {
			return nil, protocol.Errorf(protocol.CodeNotFound, "no account")
		},
		"fault": func(context.Context, *kinds.Attempt, json.RawMessage) (json.RawMessage, error) {
			return nil, protocol.Errorf(protocol.CodePermission, "no")
		},
		"panics": func(context.Context, *kinds.Attempt, json.RawMessage) (json.RawMessage, error) { panic("oh") },
		"no_json": func(context.Context, *kinds.Attempt, json.RawMessage) (json.RawMessage, error) {
			return json.RawMessage(`{`), nil
		},
		"waits": func(ctx context.Context, _ *kinds.Attempt, _ json.RawMessage) (json.RawMessage, error) {
			<-ctx.Done()
			return json.RawMessage(`"late"`), nil
		},
	}
	r.work(o)
	for kind, want := range map[protocol.Kind]struct {
		status protocol.Status
		code   protocol.Code
		text   string
	}{
		"fails":   {protocol.StatusFailed, protocol.CodeToolFailed, "no money"},
		"typed":   {protocol.StatusFailed, protocol.CodeNotFound, "no account"},
		"fault":   {protocol.StatusFailed, protocol.CodePermission, "no"},
		"panics":  {protocol.StatusFailed, protocol.CodePanic, "oh"},
		"no_json": {protocol.StatusFailed, protocol.CodeToolFailed, "no_json"},
		"nobody":  {protocol.StatusRejected, codes.UnknownPayload, "lack the handler"},
		"waits":   {protocol.StatusTimeout, protocol.CodeRunTimeout, "it was not killed"},
	} {
		call := userCall(t, kind, `{}`)
		if kind == "waits" {
			call.RunTimeout = 50
		}
		result := r.dispatch(t.Context(), call)
		requireFault(t, result, want.status, want.code)
		require.Contains(t, result.Error.Message, want.text, kind)
		if kind == "waits" {
			require.NotNil(t, result.Value, "what it returned")
		}
	}

	calls := []protocol.Call{userCall(t, "echo", `{"n":1}`), userCall(t, "echo", `{"n":1}`), userCall(t, "echo", `{"n":1}`)}
	for i := range calls {
		calls[i].SessionID = calls[0].SessionID
	}
	ended := 0
	require.NoError(t, r.dispatcher.Dispatch(t.Context(), calls, func(u loop.Update) {
		if u.State != loop.StateDone {
			return
		}
		ended++
		requireOK(t, u.Result)
		value, ok := u.Result.Value.(protocol.UnknownValue)
		require.True(t, ok)
		output, err := value.Output()
		require.NoError(t, err)
		require.JSONEq(t, `{"echo":{"n":1},"sandbox":"the call has no sandbox: its resource key is not sandbox/<id>"}`, string(output))
	}))
	require.Equal(t, 3, ended)
}

func TestHandler_HasTheSandboxOfItsSession(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o := r.options()
	o.Handlers.Calls = map[protocol.Kind]kinds.Handler{
		"count": func(ctx context.Context, h *kinds.Attempt, _ json.RawMessage) (json.RawMessage, error) {
			box, err := h.Sandbox(ctx)
			if err != nil {
				return nil, err
			}
			ran, err := box.Exec(ctx, sandbox.Cmd{Argv: []string{"sh", "-c", "ls | wc -l"}})
			return json.RawMessage(ran.Stdout.Data), err
		},
	}
	r.work(o)
	session := protocol.NewSessionID()
	requireOK(t, r.do(session, protocol.FilesWrite{Path: "a", Content: []byte("x")}))
	payload, err := wire.NewUserPayload("count", nil)
	require.NoError(t, err)
	result := r.do(session, payload)
	requireOK(t, result)
	value, ok := result.Value.(protocol.UnknownValue)
	require.True(t, ok)
	output, err := value.Output()
	require.NoError(t, err)
	require.Equal(t, "1", string(output))
}

func TestNew_RefusesHandlersOfBuiltInPayloads(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for kind, handler := range map[protocol.Kind]kinds.Handler{
		"files_read": func(context.Context, *kinds.Attempt, json.RawMessage) (json.RawMessage, error) { return nil, nil },
		"nothing":    nil,
	} {
		o := r.options()
		o.Handlers.Calls = map[protocol.Kind]kinds.Handler{kind: handler}
		_, err := worker.New(t.Context(), r.NC, o)
		require.ErrorContains(t, err, "handler", kind)
	}
}

// Law: a handler that asks its context knows that its lease has ended as soon as that is so, and
// not when a timer has fired.
func TestHandler_KnowsTheEndOfItsLease(t *testing.T) {
	t.Parallel()
	r := rigOf(t, natsiotest.Listening(t, natsio.Topology{}))
	o := r.options()
	o.Alone, o.AckWait = true, 2*time.Second
	held, late := make(chan struct{}), make(chan bool, 1)
	o.Handlers.Calls = map[protocol.Kind]kinds.Handler{
		"writes": func(ctx context.Context, h *kinds.Attempt, _ json.RawMessage) (json.RawMessage, error) {
			close(held)
			for {
				end, now := h.Run.LeaseEnd(), time.Now()
				for now.Before(end) {
					now = time.Now()
				}
				if ctx.Err() != nil { // else it was renewed, or the context says so too late
					late <- false
					return nil, ctx.Err()
				}
				if !h.Run.LeaseEnd().After(now) {
					late <- true
					return nil, nil
				}
			}
		},
	}
	cable, stop := r.cabled(o)
	call := userCall(t, "writes", `{}`)
	call.Delivery = protocol.AtMostOnce
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.dispatch(t.Context(), call)
	}()
	<-held
	cable.Sever()
	require.False(t, <-late)
	cable.Mend()
	<-ended
	stop()
}
