package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/internal/wire/signing"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/test/npmtest"
)

// javaScript is the example of a caller and a worker in another language, with clients of NATS that
// are not ours.
type javaScript struct {
	broker *broker
	dir    string // of the programs, with their packages
	notes  string
	node   string
}

func newJavaScript(t *testing.T) *javaScript {
	t.Helper()
	packages := npmtest.Install(t, "examples/javascript", "NO TEST OF A WORKER IN ANOTHER LANGUAGE")
	node, err := exec.LookPath("node")
	require.NoError(t, err)
	js := &javaScript{broker: newBroker(t), dir: t.TempDir(), notes: t.TempDir(), node: node}
	require.NoError(t, os.CopyFS(filepath.Join(js.dir, "tools"), os.DirFS("../../examples/javascript/tools")))
	programs, err := filepath.Glob("../../examples/javascript/*.mjs")
	require.NoError(t, err)
	for _, program := range programs { // not the packages that somebody may have installed there
		write(t, filepath.Join(js.dir, filepath.Base(program)), content(t, program))
	}
	require.NoError(t, os.Symlink(filepath.Join(packages, "node_modules"), filepath.Join(js.dir, "node_modules")))
	require.NoError(t, natsio.Ensure(t.Context(), js.broker.jetStream(t), natsio.Topology{}))
	return js
}

const javaScriptLease = 2 * time.Second * slowness

// worker starts one with a short lease and returns when it takes calls.
func (js *javaScript) worker(tb testing.TB) *process {
	tb.Helper()
	return js.workerWith(tb, "--lease", fmt.Sprint(javaScriptLease.Seconds()))
}

func (js *javaScript) workerWith(tb testing.TB, flags ...string) *process {
	tb.Helper()
	args := append([]string{filepath.Join(js.dir, "worker.mjs"), "--notes", js.notes}, js.broker.flags...)
	p := start(tb, js.node, launch{args: append(args, flags...)})
	p.waitFor(tb, `takes note_add calls of pool javascript`)
	return p
}

// caller enqueues a call as the example does.
func (js *javaScript) caller(tb testing.TB, args ...string) *process {
	tb.Helper()
	return start(tb, js.node, launch{args: append(append([]string{filepath.Join(js.dir, "call.mjs")}, js.broker.flags...), args...)})
}

// result is what a caller in JavaScript printed.
func (js *javaScript) result(tb testing.TB, p *process) *protocol.Result {
	tb.Helper()
	p.wait(tb)
	result, err := wire.DecodeResult([]byte(p.stdout.String()))
	require.NoError(tb, err, p)
	return result
}

// lines of a notebook, each a call's id and the text.
func (js *javaScript) lines(tb testing.TB, notebook string) []string {
	tb.Helper()
	text, err := os.ReadFile(filepath.Join(js.notes, notebook+".txt"))
	require.NoError(tb, err)
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
}

func note(tb testing.TB, notebook, text string, pause time.Duration) *protocol.Call {
	tb.Helper()
	arguments, err := json.Marshal(map[string]any{"notebook": notebook, "text": text, "pause_ms": pause.Milliseconds()})
	require.NoError(tb, err)
	payload, err := wire.NewUserPayload("note_add", arguments)
	require.NoError(tb, err)
	return &protocol.Call{
		ID: protocol.CallID(uuid.NewString()), SessionID: "notes", Pool: "javascript", Delivery: protocol.Idempotent, IssuedAt: time.Now(),
		Resources: []protocol.Use{{Key: protocol.ResourceKey("notebook/" + notebook), Access: protocol.Exclusive}},
		Payload:   payload,
	}
}

func (js *javaScript) publisher(tb testing.TB) *lane.Publisher {
	tb.Helper()
	publisher, err := lane.NewPublisher(tb.Context(), js.broker.jetStream(tb).Conn(), protocol.DefaultFleet)
	require.NoError(tb, err)
	return publisher
}

// awaitResults waits for the results of calls.
func awaitResults(tb testing.TB, publisher *lane.Publisher, calls ...*protocol.Call) []*protocol.Result {
	tb.Helper()
	found := make([]*protocol.Result, len(calls))
	for i, call := range calls {
		require.Eventually(tb, func() bool {
			result, err := publisher.Result(tb.Context(), call.SessionID, call.ID)
			found[i] = result
			return err == nil && result != nil
		}, patience, 50*time.Millisecond, "call %s", call.ID)
	}
	return found
}

// TestJavaScript_WorkerAsItComes is a worker as its README starts it, with the default lease.
func TestJavaScript_WorkerAsItComes(t *testing.T) {
	t.Parallel()
	js := newJavaScript(t)
	js.workerWith(t)
	publisher := js.publisher(t)
	call := note(t, "demo", "hello", 0)
	require.NoError(t, publisher.Enqueue(t.Context(), lane.Outgoing{Call: call}))
	require.Equal(t, protocol.StatusOK, awaitResults(t, publisher, call)[0].Status)
}

// TestJavaScript_LanesStayInOrder is two workers that follow docs/wire.md and share no code with
// the engine. One is killed.
func TestJavaScript_LanesStayInOrder(t *testing.T) {
	t.Parallel()
	js := newJavaScript(t)
	workers := []*process{js.worker(t), js.worker(t)}
	publisher := js.publisher(t)

	const each = 12
	want := map[string][]string{}
	var calls []*protocol.Call
	for i := range each {
		for _, notebook := range []string{"red", "green", "blue"} {
			call := note(t, notebook, fmt.Sprint(i), 50*time.Millisecond)
			want[notebook] = append(want[notebook], fmt.Sprintf("%s %d", call.ID, i))
			calls = append(calls, call)
			require.NoError(t, publisher.Enqueue(t.Context(), lane.Outgoing{Call: call}))
		}
	}
	awaitResults(t, publisher, calls[:6]...)
	workers[0].kill(t)
	attempts := 0
	for i, result := range awaitResults(t, publisher, calls...) {
		require.Equal(t, protocol.StatusOK, result.Status, "%v", result.Error)
		require.IsType(t, protocol.UnknownValue{}, result.Value)
		output, err := result.Value.(protocol.UnknownValue).Output() //nolint:errcheck // just looked at
		require.NoError(t, err)
		require.JSONEq(t, fmt.Sprintf(`{"notes": %d}`, i/3+1), string(output))
		attempts = max(attempts, result.Attempt)
	}
	for notebook, lines := range want {
		require.Equal(t, lines, js.lines(t, notebook), "each once, in the order in which they were accepted")
	}
	t.Logf("attempts: up to %d", attempts)
	stream, err := js.broker.jetStream(t).Stream(t.Context(), wire.CallsStream(protocol.DefaultFleet))
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		info, err := stream.Info(t.Context())
		return err == nil && info.State.Msgs == 0
	}, patience, 50*time.Millisecond, "nothing is left behind")

	cancelled := note(t, "red", "never", time.Hour)
	require.NoError(t, publisher.Enqueue(t.Context(), lane.Outgoing{Call: cancelled}))
	shown := func() string {
		return execute(t, coordinator, launch{args: append([]string{"lane", "ls", "--pool", "javascript"}, js.broker.flags...)}).stdout
	}
	require.Eventually(t, func() bool { return strings.Contains(shown(), "notebook/red") && strings.Contains(shown(), "held") },
		patience, perProcess, "operators see it")
	require.NoError(t, publisher.Cancel(t.Context(), cancelled))
	require.Equal(t, protocol.StatusCancelled, awaitResults(t, publisher, cancelled)[0].Status)
	require.NotContains(t, js.lines(t, "red"), string(cancelled.ID)+" never")
	require.Len(t, js.lines(t, "red"), each)

	got := execute(t, coordinator, launch{args: append([]string{
		"call", "--tools", filepath.Join(js.dir, "tools"), "note_add", `{"notebook": "red", "text": "from a tool"}`,
	}, js.broker.flags...)})
	require.Equal(t, 0, got.code, got.stderr)
	require.Len(t, js.lines(t, "red"), each+1)
	workers[1].stop(t)
	claims, err := js.broker.jetStream(t).Stream(t.Context(), wire.ClaimsStream(protocol.DefaultFleet))
	require.NoError(t, err)
	info, err := claims.Info(t.Context())
	require.NoError(t, err)
	require.Zero(t, info.State.Msgs, "no claim is left, and no heartbeat: neither of the worker that was killed")
}

// TestJavaScript_AtMostOnce loses the worker in the middle of a call that must not start twice.
func TestJavaScript_AtMostOnce(t *testing.T) {
	t.Parallel()
	js := newJavaScript(t)
	first := js.worker(t)
	caller := js.caller(t, "--pool", "javascript", "--delivery", "at_most_once", "notebook/red", "note_add",
		`{"arguments": {"notebook": "red", "text": "never", "pause_ms": 3600000}}`)
	stream, err := js.broker.jetStream(t).Stream(t.Context(), wire.CallsStream(protocol.DefaultFleet))
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		info, err := stream.Info(t.Context())
		return err == nil && info.State.Msgs == 2 // the ready message and the start mark
	}, patience, 50*time.Millisecond)
	first.kill(t)
	js.worker(t)
	result := js.result(t, caller)
	require.Equal(t, protocol.StatusOutcomeUnknown, result.Status)
	require.Equal(t, protocol.CodeOutcomeUnknown, result.Error.Code)
}

// TestJavaScript_LanesPassBetweenLanguages is a lane whose holders, each in another language, are
// lost or stop in the middle of its call.
func TestJavaScript_LanesPassBetweenLanguages(t *testing.T) {
	t.Parallel()
	js := newJavaScript(t)
	first := js.worker(t)
	publisher := js.publisher(t)
	call := note(t, "red", "hello", 3*time.Second)
	require.NoError(t, publisher.Enqueue(t.Context(), lane.Outgoing{Call: call}))
	js.awaitClaim(t, call)
	first.kill(t)

	ours := &untilKilled{attempts: make(chan int, 1)}
	stop := js.holder(t, ours)
	require.Equal(t, 2, <-ours.attempts, "taken over from the worker that was lost")
	js.worker(t)
	stop()
	result := awaitResults(t, publisher, call)[0]
	require.Equal(t, protocol.StatusOK, result.Status, "%v", result.Error)
	require.Equal(t, 3, result.Attempt, "handed over by the one that stops")
	require.Equal(t, []string{string(call.ID) + " hello"}, js.lines(t, "red"))
}

// TestJavaScript_HandsOver is a worker that stops while it holds a lane whose ready message is a
// call that may not start.
func TestJavaScript_HandsOver(t *testing.T) {
	t.Parallel()
	js := newJavaScript(t)
	first := js.worker(t)
	publisher := js.publisher(t)
	call := note(t, "red", "hello", 0)
	mark, err := js.broker.jetStream(t).Publish(t.Context(), wire.PauseSubject(protocol.DefaultFleet, call.Pool, wire.HashLane(call.Lane())), nil)
	require.NoError(t, err)
	require.NoError(t, publisher.Enqueue(t.Context(), lane.Outgoing{Call: call}))
	js.awaitClaim(t, call)
	js.worker(t)
	first.stop(t)
	js.awaitClaim(t, call)
	calls, err := js.broker.jetStream(t).Stream(t.Context(), wire.CallsStream(protocol.DefaultFleet))
	require.NoError(t, err)
	require.NoError(t, calls.DeleteMsg(t.Context(), mark.Sequence))
	result := awaitResults(t, publisher, call)[0]
	require.Equal(t, protocol.StatusOK, result.Status, "%v", result.Error)
	require.Equal(t, 1, result.Attempt, "nobody has started it before")
}

// TestJavaScript_LooksAfterWaitingLanes is a call whose publisher was lost before it made the lane
// ready.
func TestJavaScript_LooksAfterWaitingLanes(t *testing.T) {
	t.Parallel()
	js := newJavaScript(t)
	call := note(t, "red", "hello", 0)
	body, err := wire.EncodeCall(call)
	require.NoError(t, err)
	entry := nats.NewMsg(wire.CallSubject(protocol.DefaultFleet, call.Pool, wire.HashLane(call.Lane()), call.ID))
	entry.Header.Set(wire.HeaderLane, string(call.Lane()))
	entry.Data = body
	_, err = js.broker.jetStream(t).PublishMsg(t.Context(), entry)
	require.NoError(t, err)
	js.worker(t)
	publisher := js.publisher(t)
	require.Equal(t, protocol.StatusOK, awaitResults(t, publisher, call)[0].Status)
}

// TestJavaScript_MovesCallsAtTheirTime: a call that waits for its time enters its lane then, or
// when it is cancelled.
func TestJavaScript_MovesCallsAtTheirTime(t *testing.T) {
	t.Parallel()
	js := newJavaScript(t)
	js.worker(t)
	publisher := js.publisher(t)
	soon, cancelled := note(t, "red", "soon", 0), note(t, "blue", "never", 0)
	soon.NotBefore, cancelled.NotBefore = soon.IssuedAt.Add(3*time.Second), cancelled.IssuedAt.Add(time.Hour)
	require.NoError(t, publisher.Enqueue(t.Context(), lane.Outgoing{Call: soon}))
	require.NoError(t, publisher.Enqueue(t.Context(), lane.Outgoing{Call: cancelled}))
	require.NoError(t, publisher.Cancel(t.Context(), cancelled))
	results := awaitResults(t, publisher, soon, cancelled)
	require.Equal(t, protocol.StatusOK, results[0].Status, results[0].Error)
	require.GreaterOrEqual(t, time.Since(soon.IssuedAt), 3*time.Second)
	require.Equal(t, protocol.StatusCancelled, results[1].Status)
}

// awaitClaim waits until somebody holds the lane of a call.
func (js *javaScript) awaitClaim(tb testing.TB, call *protocol.Call) {
	tb.Helper()
	claims, err := js.broker.jetStream(tb).Stream(tb.Context(), wire.ClaimsStream(protocol.DefaultFleet))
	require.NoError(tb, err)
	require.Eventually(tb, func() bool {
		_, err := claims.GetLastMsgForSubject(tb.Context(), wire.ClaimSubject(protocol.DefaultFleet, call.Pool, wire.HashLane(call.Lane())))
		return err == nil
	}, patience, 10*time.Millisecond)
}

// holder runs one of ours until stop, which kills what runs and returns when it has handed its
// lanes over.
func (js *javaScript) holder(tb testing.TB, host lane.Host) (stop func()) {
	tb.Helper()
	holder, err := lane.NewHolder(tb.Context(), js.broker.jetStream(tb).Conn(), host, lane.Options{Pool: "javascript", Worker: "ours"})
	require.NoError(tb, err)
	ctx, cancel := context.WithCancel(tb.Context())
	ended := make(chan error, 1)
	go func() { ended <- holder.Run(ctx, ctx) }()
	return func() {
		cancel()
		require.NoError(tb, <-ended)
	}
}

// untilKilled runs calls until they are killed.
type untilKilled struct {
	lane.DefaultHost

	attempts chan int
}

func (u *untilKilled) Execute(ctx context.Context, run *lane.Run) protocol.Result {
	u.attempts <- run.Attempt
	<-ctx.Done()
	return protocol.Result{}
}

func (u *untilKilled) Release(protocol.Lane) {}

// TestJavaScript_Caller is a caller that follows docs/wire.md, and a worker of ours.
func TestJavaScript_Caller(t *testing.T) {
	t.Parallel()
	js := newJavaScript(t)
	startWorkers(t, 1, js.broker.flags)
	var callers []*process
	for i := range 3 { // one lane
		callers = append(callers, js.caller(t, "sandbox/demo", "command_run", fmt.Sprintf(`{"command": "echo %d; echo said >&2"}`, i)))
	}
	for i, caller := range callers {
		result := js.result(t, caller)
		require.Equal(t, protocol.StatusOK, result.Status, "%v", result.Error)
		require.IsType(t, protocol.CommandRunResult{}, result.Value)
		require.Equal(t, fmt.Sprintf("%d\n", i), string(result.Value.(protocol.CommandRunResult).Stdout)) //nolint:errcheck // just looked at
		require.Contains(t, caller.stderr.String(), "said", "live output")
	}
}

// TestJavaScript_Signs: a caller in JavaScript signs for a worker of ours, and a worker in
// JavaScript checks what ours have signed, alone and in batches.
func TestJavaScript_Signs(t *testing.T) {
	t.Parallel()
	js := newJavaScript(t)
	dir := t.TempDir()
	signer, err := signing.Make(dir)
	require.NoError(t, err)
	stranger, err := signing.Make(t.TempDir())
	require.NoError(t, err)
	key, keys := filepath.Join(dir, signing.PrivateFile), filepath.Join(dir, signing.PublicFile)
	startWorkers(t, 1, append(slices.Clone(js.broker.flags), "--call-keys", keys))
	js.workerWith(t, "--call-keys", keys)

	signed := js.result(t, js.caller(t, "--sign-key", key, "sandbox/demo", "command_run", `{"command": "echo ö"}`))
	require.Equal(t, protocol.StatusOK, signed.Status, "%v", signed.Error)
	unsigned := js.caller(t, "sandbox/demo", "command_run", `{"command": "echo no"}`)
	require.Equal(t, codes.NotSigned, js.result(t, unsigned).Error.Code)
	require.Contains(t, unsigned.stderr.String(), "copy the fleet's calls.key next to the file of --creds, or name it with --sign-key")
	signed = js.result(t, js.caller(t, "--sign-key", key, "--pool", "javascript", "notebook/a", "note_add", `{"arguments": {"notebook": "a", "text": "x"}}`))
	require.Equal(t, protocol.StatusOK, signed.Status, "%v", signed.Error)

	nc := js.broker.jetStream(t).Conn()
	publisher, err := lane.NewPublisher(t.Context(), nc, protocol.DefaultFleet)
	require.NoError(t, err)
	publisher.Signer = signer
	var calls []*protocol.Call
	for i := range 7 { // the paths in such a tree have different lengths
		calls = append(calls, note(t, fmt.Sprintf("b%d", i), "x", 0))
	}
	later := note(t, "later", "x", 0)
	later.NotBefore = later.IssuedAt.Add(2 * time.Second)
	calls = append(calls, later)
	var sending errgroup.Group // at the same time, so that one signature is for several
	for _, call := range calls {
		sending.Go(func() error { return publisher.Enqueue(t.Context(), lane.Outgoing{Call: call}) })
	}
	require.NoError(t, sending.Wait())
	for _, result := range awaitResults(t, publisher, calls...) {
		require.Equal(t, protocol.StatusOK, result.Status, "%v", result.Error)
	}

	for name, forge := range map[string]struct {
		sign func(body []byte) (string, error)
		says string
	}{
		"none":            {func([]byte) (string, error) { return "", nil }, "the call is not signed"},
		"of a stranger":   {func(body []byte) (string, error) { return stranger.Sign("tf", body, time.Now()) }, "none of this worker's"},
		"another content": {func(body []byte) (string, error) { return signer.Sign("tf", append(body, ' '), time.Now()) }, "not that of its content"},
		"another fleet":   {func(body []byte) (string, error) { return signer.Sign("other", body, time.Now()) }, "not that of its content"},
		"a copy": {func(body []byte) (string, error) {
			return signer.Sign("tf", body, time.Now().Add(-signing.Window-time.Minute))
		}, "it is a copy"},
		"another key's root": {func(body []byte) (string, error) {
			value, err := stranger.Sign("tf", body, time.Now())
			return signer.ID() + value[len(signer.ID()):], err
		}, "not that of its key"},
		"no form": {func([]byte) (string, error) { return signer.ID() + " 1 1 0 AAAA", nil }, "has another form"},
	} {
		call := note(t, "forged", name, 0)
		body, err := wire.EncodeCall(call)
		require.NoError(t, err)
		value, err := forge.sign(slices.Clone(body))
		require.NoError(t, err)
		msg := nats.NewMsg(wire.CallSubject(protocol.DefaultFleet, call.Pool, wire.HashLane(call.Lane()), call.ID))
		msg.Data = body
		for header, value := range map[string]string{
			wire.HeaderLane: string(call.Lane()), wire.HeaderCall: string(call.ID), wire.HeaderSession: string(call.SessionID), wire.HeaderSigned: value,
		} {
			msg.Header.Set(header, value)
		}
		_, err = js.broker.jetStream(t).PublishMsg(t.Context(), msg)
		require.NoError(t, err)
		result := awaitResults(t, publisher, call)[0]
		require.Equal(t, protocol.StatusRejected, result.Status, name)
		require.Equal(t, codes.NotSigned, result.Error.Code, name)
		require.Contains(t, result.Error.Message, forge.says, name)
	}
	require.NoFileExists(t, filepath.Join(js.notes, "forged.txt"))
}
