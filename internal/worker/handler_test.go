package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
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

func script(text string) protocol.ToolRun {
	return protocol.ToolRun{Argv: []string{"sh", "-c", text}, Arguments: json.RawMessage(`{"n":1}`)}
}

func output(want string) func(*testing.T, *protocol.Result) {
	return func(t *testing.T, r *protocol.Result) {
		t.Helper()
		v := value[protocol.ToolRunResult](t, r)
		require.Equal(t, want, string(v.Output))
		require.Empty(t, v.Stdout)
	}
}

func says(want string) func(*testing.T, *protocol.Result) {
	return func(t *testing.T, r *protocol.Result) {
		t.Helper()
		require.Contains(t, r.Error.Message, want)
	}
}

func TestToolRun_Results(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o := r.options()
	o.Tools = t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(o.Tools, "count.sh"), []byte("printf '{\"tool\": \"%s\"}' \"$1\"\n"), 0o600))
	r.work(o)
	text := script("cat; echo; echo; echo b")
	text.Text = true
	inFolder := protocol.ToolRun{Argv: []string{"sh", "{tools}/count.sh", "x"}, Arguments: json.RawMessage(`{}`)}
	failed, fault := protocol.StatusFailed, protocol.CodeToolFailed
	r.steps(t, []step{
		{name: "the arguments come in, JSON goes out", payload: script(`printf '\n{"got": '; cat; echo ' }'`), check: output(`{"got":{"n":1}}`)},
		{name: "any JSON value will do", payload: script(`echo '"done"'`), check: output(`"done"`)},
		{name: "nothing is null", payload: script(`true`), check: output(`null`)},
		{name: "text", payload: text, check: output(`"{\"n\":1}\n\nb"`)},
		{name: "a program of the folder", payload: inFolder, check: output(`{"tool":"x"}`)},
		{name: "the folder in the environment", payload: script(`printf '"%s"' "$TOOLFLEET_TOOLS"`), check: output(`"` + o.Tools + `"`)},
		{name: "the workspace is that of the session", payload: script(`echo 1 >kept; echo 2`), check: output(`2`)},
		{name: "and stays", payload: protocol.FilesRead{Path: "kept"}},
		{name: "an exit code", payload: script(`echo '{"half":1}'; echo "no such account" >&2; exit 3`), status: failed, code: fault, check: func(t *testing.T, r *protocol.Result) {
			t.Helper()
			require.Equal(t, "the tool failed (exit code 3): no such account", r.Error.Message)
			v := value[protocol.ToolRunResult](t, r)
			require.Equal(t, 3, v.ExitCode)
			require.Equal(t, `{"half":1}`, string(v.Output))
		}},
		{name: "a long complaint", payload: script(`head -c 9000 /dev/zero | tr '\0' x >&2; echo end >&2; exit 1`), status: failed, code: fault, check: func(t *testing.T, r *protocol.Result) {
			t.Helper()
			require.Less(t, len(r.Error.Message), 2300)
			require.Contains(t, r.Error.Message,
				"xend\n[these are the last 2000 of 9003 characters of what it wrote to stderr; all of it: read with path=\"result:"+string(r.CallID)+"#stderr\"]")
			require.NotNil(t, r.Kept)
		}},
		{name: "a signal", payload: script(`kill -9 $$`), status: failed, code: fault, check: says("SIGKILL")},
		{name: "no JSON", payload: script(`echo hello`), status: failed, code: fault, check: says("must write one JSON value")},
		{name: "two values", payload: script(`echo 1; echo 2`), status: failed, code: fault, check: says("must write one JSON value")},
		{name: "no UTF-8", payload: script(`printf '"\377"'`), status: failed, code: fault, check: says("not UTF-8")},
		{name: "more JSON than a model reads", payload: script(`printf '"'; head -c 200000 /dev/zero | tr '\0' x; printf '"'`), check: func(t *testing.T, r *protocol.Result) {
			t.Helper()
			require.Len(t, value[protocol.ToolRunResult](t, r).Output, 200002)
		}},
		{
			name: "too much of it", payload: script(`printf '"'; head -c 700000 /dev/zero | tr '\0' x; printf '"'`), status: failed,
			code: fault, check: says("wrote 700002 bytes to standard output: what it returns has 524288 bytes at most"),
		},
		{name: "no command", payload: protocol.ToolRun{Arguments: json.RawMessage(`{}`)}, status: protocol.StatusRejected, code: codes.InvalidPayload},
		{
			name:    "no such program",
			payload: protocol.ToolRun{Argv: []string{"no-such-program"}, Arguments: json.RawMessage(`{}`)},
			status:  failed, code: protocol.CodeCommandNotFound,
		},
	})
}

func TestToolRun_NeedsTheFolderThatItNames(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.work(r.options())
	payload := protocol.ToolRun{Argv: []string{"sh", "{tools}/count.sh"}, Arguments: json.RawMessage(`{}`)}
	result := r.do(protocol.NewSessionID(), payload)
	requireFault(t, result, protocol.StatusRejected, codes.InvalidPayload)
	require.Contains(t, result.Error.Message, "start it with --tools DIR")
}

func TestToolRun_OfAnotherResourceHasAnEmptySandboxThatIsRemoved(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o := r.options()
	_, stop := r.work(o)
	for range 2 {
		call := newCall(protocol.NewSessionID(), script(`mkdir -p d && echo 1 >d/left && printf '"'; ls | tr '\n' ' '; printf '"'`))
		call.Resources = []protocol.Use{{Key: "account/acme", Access: protocol.Exclusive}}
		result := r.dispatch(t.Context(), call)
		requireOK(t, result)
		require.Equal(t, `"d "`, string(value[protocol.ToolRunResult](t, result).Output))
	}
	stop()
	left, err := os.ReadDir(filepath.Join(o.Data, "sandboxes"))
	require.NoError(t, err)
	require.Empty(t, left)
}
