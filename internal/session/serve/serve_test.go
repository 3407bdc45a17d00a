package serve_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/toolfleet/toolfleet/internal/calls"
	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/model/scripted"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/sandbox/process"
	"github.com/toolfleet/toolfleet/internal/session/journal"
	"github.com/toolfleet/toolfleet/internal/session/schedule"
	"github.com/toolfleet/toolfleet/internal/session/serve"
	"github.com/toolfleet/toolfleet/internal/telemetry"
	"github.com/toolfleet/toolfleet/internal/telemetry/genaiconv"
	"github.com/toolfleet/toolfleet/internal/telemetry/telemetrytest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/internal/wire/signing"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/internal/worker/sandboxes"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools/manifest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = time.Minute

// counted is a model that knows how often it was asked.
type counted struct {
	loop.Model

	asked atomic.Int64
}

func (c *counted) Reply(ctx context.Context, req loop.Request, delta func(loop.Delta)) (loop.Reply, error) {
	c.asked.Add(1)
	return c.Model.Reply(ctx, req, delta)
}

// rig is a fleet with a worker; servers are added by the test.
type rig struct {
	*natsiotest.Fleet

	t          *testing.T
	dispatcher *calls.Dispatcher
	model      *counted
	data       string // of the worker
}

// newRig takes the steps of the model's script.
func newRig(t *testing.T, steps string) *rig {
	t.Helper()
	script, err := scripted.Parse("script", []byte(`{"steps":[`+steps+`]}`))
	require.NoError(t, err)
	r := &rig{Fleet: natsiotest.New(t, natsio.Topology{}), t: t, model: &counted{Model: script}, data: t.TempDir()}
	r.dispatcher = r.newDispatcher(r.NC, patience)
	driver := process.New(nil)
	w, err := worker.New(t.Context(), r.Connect(), worker.Options{
		Options:  lane.Options{AckWait: patience, Logger: r.Logger},
		Settings: sandboxes.Settings{Driver: driver, Caps: isolation.Caps{Driver: driver.Name()}}, Data: r.data,
	})
	require.NoError(t, err)
	r.run(w.Run)
	return r
}

// newDispatcher waits for as long as told for the results of calls that it cancels.
func (r *rig) newDispatcher(nc *nats.Conn, cancelWait time.Duration) *calls.Dispatcher {
	r.t.Helper()
	d, err := calls.New(r.t.Context(), nc, r.Name, &calls.Options{
		LookAfter: 100 * time.Millisecond, CancelWait: cancelWait, Logger: r.Logger,
	})
	require.NoError(r.t, err)
	return d
}

// run runs something that drains, until the test ends or stop is called.
func (r *rig) run(run func(ctx, drain context.Context) error) (stop func(drain time.Duration)) {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	drain, abort := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx, drain) }()
	var once sync.Once
	stop = func(wait time.Duration) {
		once.Do(func() {
			cancel()
			timer := time.AfterFunc(wait, abort)
			if err := <-done; err != nil {
				r.t.Errorf("run: %v", err)
			}
			timer.Stop()
			abort()
		})
	}
	r.t.Cleanup(func() { stop(patience) })
	return stop
}

// server makes a server whose everything goes through one connection.
func (r *rig) server(nc *nats.Conn, name string, change func(*serve.Options)) *serve.Server {
	r.t.Helper()
	j, err := journal.Open(r.t.Context(), nc, r.Name)
	require.NoError(r.t, err)
	o := serve.Options{
		Fleet: r.Name, Holder: serve.Holder{ID: protocol.WorkerID(name), Slots: 4, AckWait: patience}, Dispatcher: r.newDispatcher(nc, patience), Journal: j,
		Served: serve.Served{Models: map[string]loop.Model{"script": r.model}, Default: "script"}, Logger: r.Logger,
	}
	if change != nil {
		change(&o)
	}
	s, err := serve.New(r.t.Context(), nc, o)
	require.NoError(r.t, err)
	return s
}

// serve runs a server as a coordinator does.
func (r *rig) serve(nc *nats.Conn, name string, change func(*serve.Options)) (stop func(drain time.Duration)) {
	r.t.Helper()
	return r.run(r.server(nc, name, change).Run)
}

// submit has a call executed, from any goroutine.
func (r *rig) submit(ctx context.Context, call protocol.Call) *protocol.Result {
	result, err := r.dispatcher.Call(ctx, &call)
	if err != nil {
		r.t.Errorf("submit: %v", err)
	}
	return result
}

func (r *rig) turn(turn wire.TurnRun) *protocol.Result {
	return r.submit(r.t.Context(), serve.NewCall(protocol.NewSessionID(), turn, 0))
}

func (r *rig) file(session protocol.SessionID, name string) string {
	return filepath.Join(r.data, "sandboxes", string(session), "workspace", name)
}

func awaitFile(t *testing.T, path string) {
	t.Helper()
	require.Eventually(t, func() bool {
		content, err := os.ReadFile(path)
		return err == nil && len(content) > 0
	}, patience, time.Millisecond, path)
}

func bash(command string) string {
	arguments, err := json.Marshal(map[string]string{"command": command})
	if err != nil {
		panic(err)
	}
	return fmt.Sprintf(`{"text":"Running.","tool_calls":[{"id":"c1","name":"bash","arguments":%s}]}`, arguments)
}

const answer = `{"text":"All done.","usage":{"input_tokens":5,"output_tokens":2}}`

func requireFault(t *testing.T, r *protocol.Result, status protocol.Status, code protocol.Code) {
	t.Helper()
	require.NotNil(t, r)
	require.NotNil(t, r.Error, "status %s", r.Status)
	require.Equal(t, code, r.Error.Code, r.Error.Message)
	require.Equal(t, status, r.Status, r.Error.Message)
}

func requireAnswered(t *testing.T, r *protocol.Result) {
	t.Helper()
	require.NotNil(t, r)
	require.Nil(t, r.Error)
	require.Equal(t, protocol.StatusOK, r.Status)
	value, ok := r.Value.(wire.TurnRunResult)
	require.True(t, ok)
	require.Equal(t, wire.TurnRunResult{
		Outcome: "answered", Text: "All done.", Steps: 2, Usage: protocol.Usage{InputTokens: 5, OutputTokens: 2},
	}, value)
}

func TestTurn_IsAnsweredByTheFleet(t *testing.T) {
	t.Parallel()
	r := newRig(t, bash("printf hello | tee greeting")+","+answer)
	r.serve(r.Connect(), "a", nil)
	call := serve.NewCall(protocol.NewSessionID(), wire.TurnRun{Prompt: "greet"}, 0)
	got := r.submit(t.Context(), call)
	requireAnswered(t, got)
	require.Equal(t, protocol.WorkerID("a"), got.WorkerID)
	content, err := os.ReadFile(r.file(call.SessionID, "greeting"))
	require.NoError(t, err)
	require.Equal(t, "hello", string(content))
}

func TestTurn_Failures(t *testing.T) {
	t.Parallel()
	r := newRig(t, bash("true")+","+bash("true"))
	meter := telemetrytest.NewMeter(t)
	stop := r.serve(r.Connect(), "a", func(o *serve.Options) { o.MaxSteps, o.Meter = 5, meter })
	outcome := func(r *protocol.Result) string {
		value, ok := r.Value.(wire.TurnRunResult)
		require.True(t, ok)
		return value.Outcome
	}
	got := r.turn(wire.TurnRun{Prompt: "go on behind the script's end"})
	requireFault(t, got, protocol.StatusFailed, protocol.CodeModelFailed)
	require.Equal(t, "failed", outcome(got))
	got = r.turn(wire.TurnRun{Prompt: "one step only", TurnBounds: wire.TurnBounds{MaxSteps: 1}})
	requireFault(t, got, protocol.StatusFailed, protocol.CodeLimitReached)
	require.Equal(t, "limit_reached", outcome(got))

	for name, test := range map[string]struct {
		turn wire.TurnRun
		says string
	}{
		"unknown toolset": {wire.TurnRun{Prompt: "p", Toolsets: []string{"magic"}}, "magic"},
		"unknown tool in a rule": {
			wire.TurnRun{Prompt: "p", Policies: []json.RawMessage{json.RawMessage(`{"tools":{"deny":["bsh"]}}`)}},
			`tools.deny "bsh": there is no such tool; did you mean "bash"?`,
		},
		"steps below 0": {wire.TurnRun{Prompt: "p", TurnBounds: wire.TurnBounds{MaxSteps: -1}}, "max steps -1"},
	} {
		asked := r.model.asked.Load()
		got := r.turn(test.turn)
		t.Log(name)
		requireFault(t, got, protocol.StatusRejected, codes.InvalidPayload)
		require.Contains(t, got.Error.Message, test.says)
		require.Equal(t, asked, r.model.asked.Load())
	}

	stop(patience)
	const turn, tool = "gen_ai.request.model=script,toolfleet.outcome=", "gen_ai.tool.name=turn_run,toolfleet.pool=session,toolfleet.status="
	require.Equal(t, map[string]int64{
		"error.type=model_failed," + turn + "failed": 1, "error.type=limit_reached," + turn + "limit_reached": 1,
	}, meter.Read(t, genaiconv.MetricAgent), "what was refused was no turn")
	require.Equal(t, map[string]int64{
		"error.type=model_failed," + tool + "failed": 1, "error.type=limit_reached," + tool + "failed": 1,
		"error.type=invalid_payload," + tool + "rejected": 3,
	}, meter.Read(t, telemetry.MetricCallEnded))
	require.Equal(t, map[string]int64{"toolfleet.pool=session": 5}, meter.Read(t, telemetry.MetricQueueTime))
}

// TestTriggers_RemovingOneThatIsNotThere: the model learns that nothing was removed.
func TestTriggers_RemovingOneThatIsNotThere(t *testing.T) {
	t.Parallel()
	r := newRig(t, `{"tool_calls":[{"id":"c1","name":"remove_trigger","arguments":{"trigger":"t-none"}}]},`+answer)
	store, err := schedule.Open(t.Context(), r.JS, r.Name)
	require.NoError(t, err)
	r.serve(r.Connect(), "a", func(o *serve.Options) { o.Schedules = store })
	call := serve.NewCall(protocol.NewSessionID(), wire.TurnRun{Prompt: "go", Toolsets: []string{"triggers"}}, 0)
	requireAnswered(t, r.submit(t.Context(), call))
	for _, e := range r.events(call.SessionID) {
		if e.Type == loop.EventToolResult {
			require.Equal(t, protocol.CodeNotFound, e.Error.Code)
			require.Contains(t, e.Error.Message, `The session has no trigger "t-none": it may have fired, or may have been removed.`)
		}
	}
}

// TestTurn_ReplyThatNoJournalTakes: the model is not asked for it again and again, the turn ends,
// and the session goes on.
func TestTurn_ReplyThatNoJournalTakes(t *testing.T) {
	t.Parallel()
	r := newRig(t, `{"text":"`+strings.Repeat("x", 9<<20)+`"}`)
	brief, err := scripted.Parse("brief", []byte(`{"steps":[`+answer+`,`+answer+`]}`))
	require.NoError(t, err)
	r.serve(r.Connect(), "a", func(o *serve.Options) { o.Models["brief"] = brief })
	ctx, cancel := context.WithTimeout(t.Context(), 10*patience) // large texts
	defer cancel()
	session := protocol.NewSessionID()
	got := r.submit(ctx, serve.NewCall(session, wire.TurnRun{Prompt: "go"}, 0))
	requireFault(t, got, protocol.StatusFailed, codes.PayloadTooLarge)
	require.Contains(t, got.Error.Message, "max_payload")
	require.EqualValues(t, 1, r.model.asked.Load())
	require.Nil(t, r.submit(ctx, serve.NewCall(session, wire.TurnRun{Prompt: "shorter", Model: "brief"}, 0)).Error)
	require.EqualValues(t, 1, r.model.asked.Load(), "nothing is left open")
	got = r.submit(ctx, serve.NewCall(session, wire.TurnRun{Prompt: strings.Repeat("x", 9<<20), Model: "brief"}, 0))
	requireFault(t, got, protocol.StatusFailed, codes.PayloadTooLarge)
	require.Nil(t, r.submit(ctx, serve.NewCall(session, wire.TurnRun{Prompt: "again", Model: "brief"}, 0)).Error)
}

// TestTurn_AJournalWithoutRoom: the model is not asked again and again for a reply that cannot be
// journaled, and the turn goes on when there is room, under its own policies.
func TestTurn_AJournalWithoutRoom(t *testing.T) {
	t.Parallel()
	r := newRig(t, bash("true")+","+answer)
	r.serve(r.Connect(), "a", nil)
	sessions := func(most int64) {
		stream, err := r.JS.Stream(t.Context(), wire.SessionsStream(r.Name))
		require.NoError(t, err)
		config := stream.CachedInfo().Config
		config.MaxMsgs = most
		_, err = r.JS.UpdateStream(t.Context(), config)
		require.NoError(t, err)
	}
	sessions(1) // for the turn's beginning
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	call := serve.NewCall(protocol.NewSessionID(), wire.TurnRun{
		Prompt: "go", Policies: []json.RawMessage{json.RawMessage(`{"tools":{"deny":["bash"]}}`)},
	}, 0)
	got := r.submit(ctx, call)
	requireFault(t, got, protocol.StatusFailed, protocol.CodeFleetFull)
	require.Contains(t, got.Error.Message, "TF_SESSIONS is at a limit")
	require.EqualValues(t, 1, r.model.asked.Load())
	require.Len(t, r.events(call.SessionID), 2)

	sessions(-1)
	require.NotNil(t, r.submit(t.Context(), serve.NewCall(call.SessionID, wire.TurnRun{Prompt: "and then"}, 0)))
	var outcomes []string
	for _, e := range r.events(call.SessionID) {
		if e.Type == loop.EventTurnEnded || e.Type == loop.EventToolResult {
			outcomes = append(outcomes, e.Status)
		}
	}
	require.Equal(t, []string{"rejected", "answered"}, outcomes[:2], "the turn that was open")
}

func TestTurn_LimitsOfTheServerHold(t *testing.T) {
	t.Parallel()
	usage := strings.Replace(bash("true"), `"text"`, `"usage":{"input_tokens":90,"output_tokens":20},"text"`, 1)
	r := newRig(t, usage+","+usage+","+usage)
	r.serve(r.Connect(), "a", func(o *serve.Options) { o.MaxSteps, o.MaxTokens = 2, 100 })
	for _, turn := range []wire.TurnRun{
		{Prompt: "p"}, {Prompt: "p", TurnBounds: wire.TurnBounds{MaxSteps: 64, MaxTokens: 1e6}}, {Prompt: "p", TurnBounds: wire.TurnBounds{MaxTokens: 50}},
	} {
		got := r.turn(turn)
		requireFault(t, got, protocol.StatusFailed, protocol.CodeLimitReached)
		require.Contains(t, got.Error.Message, "max_tokens")
	}
}

// asked is a model that keeps what it was asked last.
type asked struct {
	loop.Model

	mu       sync.Mutex
	settings loop.Settings
	system   string
}

func (m *asked) Reply(ctx context.Context, req loop.Request, delta func(loop.Delta)) (loop.Reply, error) {
	m.mu.Lock()
	m.settings, m.system = req.Settings, req.Messages[0].Text
	m.mu.Unlock()
	return m.Model.Reply(ctx, req, delta)
}

func TestServer_SettingsOfTheTurnBeforeItsOwn(t *testing.T) {
	t.Parallel()
	r := newRig(t, answer)
	model, cold := &asked{Model: r.model}, 0.0
	r.serve(r.Connect(), "a", func(o *serve.Options) {
		o.Models["script"], o.Settings = model, loop.Settings{Effort: "low", MaxOutput: 100}
	})
	require.Nil(t, r.turn(wire.TurnRun{Prompt: "p", ReplySettings: wire.ReplySettings{Temperature: &cold, Reasoning: "high", MaxOutput: 1000}}).Error)
	require.Equal(t, loop.Settings{Temperature: &cold, Effort: "high", MaxOutput: 100}, model.settings)
	require.Nil(t, r.turn(wire.TurnRun{Prompt: "p"}).Error)
	require.Equal(t, loop.Settings{Effort: "low", MaxOutput: 100}, model.settings)
	got := r.turn(wire.TurnRun{Prompt: "p", ReplySettings: wire.ReplySettings{Reasoning: "hard"}})
	requireFault(t, got, protocol.StatusRejected, codes.InvalidPayload)
}

func TestServer_InstructionsOfTheTurn(t *testing.T) {
	t.Parallel()
	r := newRig(t, answer)
	model := &asked{Model: r.model}
	r.serve(r.Connect(), "a", func(o *serve.Options) { o.Models["script"] = model })
	require.Nil(t, r.turn(wire.TurnRun{
		Prompt: "p", System: "You are careful.", Project: []protocol.InstructionFile{{Name: "AGENTS.md", Text: "Run make check."}},
	}).Error)
	require.Contains(t, model.system, "You are careful.")
	require.Contains(t, model.system, "Run make check.")
}

func TestServer_RejectsWhatIsNoTurnOfItsSession(t *testing.T) {
	t.Parallel()
	r := newRig(t, answer)
	r.serve(r.Connect(), "a", nil)
	session := protocol.NewSessionID()
	noTurn := serve.NewCall(session, wire.TurnRun{}, 0)
	noTurn.Payload = wire.Noop{}
	requireFault(t, r.submit(t.Context(), noTurn), protocol.StatusRejected, codes.UnknownPayload)
	elsewhere := serve.NewCall(session, wire.TurnRun{Prompt: "p"}, 0)
	elsewhere.Resources[0].Key = serve.Key(protocol.NewSessionID())
	requireFault(t, r.submit(t.Context(), elsewhere), protocol.StatusRejected, codes.InvalidPayload)
	require.Zero(t, r.model.asked.Load())
}

// events are those of a session's journal.
func (r *rig) events(session protocol.SessionID) []loop.Event {
	r.t.Helper()
	j, err := journal.Open(r.t.Context(), r.NC, r.Name)
	require.NoError(r.t, err)
	history, err := j.Load(r.t.Context(), session)
	require.NoError(r.t, err)
	return history.Events
}

func TestTurn_CancelAndTimeoutEndItsCalls(t *testing.T) {
	t.Parallel()
	r := newRig(t, bash("echo x >started; sleep 300; echo x >late")+","+answer)
	r.serve(r.Connect(), "a", nil)
	for name, test := range map[string]struct {
		timeout time.Duration
		status  protocol.Status
		code    protocol.Code
		outcome loop.Outcome
	}{
		"cancel":  {0, protocol.StatusCancelled, protocol.CodeCancelled, loop.OutcomeInterrupted},
		"timeout": {10 * time.Second, protocol.StatusFailed, protocol.CodeLimitReached, loop.OutcomeLimitReached},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			call := serve.NewCall(protocol.NewSessionID(), wire.TurnRun{Prompt: "p"}, test.timeout)
			done := make(chan *protocol.Result, 1)
			go func() { done <- r.submit(ctx, call) }()
			awaitFile(t, r.file(call.SessionID, "started"))
			if test.timeout == 0 {
				cancel()
			}
			got := <-done
			requireFault(t, got, test.status, test.code)
			value, ok := got.Value.(wire.TurnRunResult)
			require.True(t, ok)
			require.Equal(t, string(test.outcome), value.Outcome)
			require.NoFileExists(t, r.file(call.SessionID, "late"))
			events := r.events(call.SessionID)
			last := events[len(events)-1]
			require.Equal(t, loop.EventTurnEnded, last.Type)
			require.Equal(t, string(test.outcome), last.Status)
			result := events[len(events)-2]
			require.Equal(t, loop.EventToolResult, result.Type)
			require.Equal(t, "cancelled", result.Status)
		})
	}
}

func TestTurn_RedeliveredAfterItsEndRunsNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, bash("echo x >>count")+","+answer)
	server := r.server(r.Connect(), "a", nil)
	call := serve.NewCall(protocol.NewSessionID(), wire.TurnRun{Prompt: "p"}, 0)
	first := server.Execute(t.Context(), &lane.Run{Call: &call, Attempt: 1})
	requireAnswered(t, &first)
	events, asked := r.events(call.SessionID), r.model.asked.Load()
	again := server.Execute(t.Context(), &lane.Run{Call: &call, Attempt: 2})
	requireAnswered(t, &again)
	require.Equal(t, asked, r.model.asked.Load())
	require.Equal(t, events, r.events(call.SessionID))
	content, err := os.ReadFile(r.file(call.SessionID, "count"))
	require.NoError(t, err)
	require.Equal(t, "x\n", string(content))
}

// soonLost is for servers whose leases end in the test.
func soonLost(o *serve.Options) { o.AckWait = natsio.DefaultAckWait }

func TestTurn_GoesOnAtAnotherServer(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"drain", "lost lease"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, bash("echo x >>count; until [ -e go ]; do sleep 0.01; done")+","+answer)
			nc, link := r.ConnectVia()
			stop := r.serve(nc, "a", soonLost)
			call := serve.NewCall(protocol.NewSessionID(), wire.TurnRun{Prompt: "p"}, 0)
			done := make(chan *protocol.Result, 1)
			second := r.attempt(t, call, 2)
			go func() { done <- r.submit(t.Context(), call) }()
			awaitFile(t, r.file(call.SessionID, "count"))
			if name == "drain" {
				stop(0)
			} else {
				link.Cut()
			}
			r.serve(r.Connect(), "b", soonLost)
			select {
			case <-second: // the turn is at the other server, which waits for the call
			case <-time.After(patience):
				require.Fail(t, "no second attempt")
			}
			require.NoError(t, os.WriteFile(r.file(call.SessionID, "go"), nil, 0o600))
			got := <-done
			requireAnswered(t, got)
			require.Equal(t, protocol.WorkerID("b"), got.WorkerID)
			require.Equal(t, 2, got.Attempt)
			content, err := os.ReadFile(r.file(call.SessionID, "count"))
			require.NoError(t, err)
			require.Equal(t, "x\n", string(content), "the call ran once")
			require.EqualValues(t, 2, r.model.asked.Load(), "no reply was asked for twice")
			var results []string
			for _, e := range r.events(call.SessionID) {
				if e.Type == loop.EventToolResult {
					results = append(results, e.Status)
				}
			}
			require.Equal(t, []string{"ok"}, results)
			link.Mend()
		})
	}
}

// attempt is closed when an attempt of a turn has said something.
func (r *rig) attempt(t *testing.T, call protocol.Call, n int) <-chan struct{} {
	t.Helper()
	begun := make(chan struct{})
	var once sync.Once
	watch, err := calls.NewResults(r.NC, r.Name, nil).Watch(t.Context(), call.SessionID, func(*protocol.Result) {}, func(f *wire.Frame) {
		if f.CallID == call.ID && f.Attempt == n {
			once.Do(func() { close(begun) })
		}
	})
	require.NoError(t, err)
	t.Cleanup(watch.Stop)
	return begun
}

func TestTurn_EventsAreFrames(t *testing.T) {
	t.Parallel()
	r := newRig(t, bash("true")+","+answer)
	r.serve(r.Connect(), "a", nil)
	call := serve.NewCall(protocol.NewSessionID(), wire.TurnRun{Prompt: "p"}, 0)
	var mu sync.Mutex
	var events []loop.Event
	var frames, started []wire.Frame
	ended := make(chan struct{})
	watch, err := calls.NewResults(r.NC, r.Name, func(err error) { t.Error(err) }).Watch(t.Context(), call.SessionID,
		func(*protocol.Result) {}, func(f *wire.Frame) {
			mu.Lock()
			defer mu.Unlock()
			if f.CallID != call.ID {
				return // of the command
			}
			if f.Kind == wire.FrameStarted {
				started = append(started, *f)
				return
			}
			var event loop.Event
			if err := json.Unmarshal(f.Data, &event); err != nil {
				t.Error(err)
			}
			events, frames = append(events, event), append(frames, *f)
			if event.Type == loop.EventTurnEnded {
				close(ended)
			}
		})
	require.NoError(t, err)
	defer watch.Stop()
	requireAnswered(t, r.submit(t.Context(), call))
	<-ended
	mu.Lock()
	defer mu.Unlock()
	require.Len(t, started, 1)
	require.EqualValues(t, 1, started[0].Seq, "the turn is told to run before anything else")
	var order []loop.EventType
	for i, event := range events {
		require.Equal(t, uint64(i+2), frames[i].Seq)
		require.Equal(t, wire.FrameEvent, frames[i].Kind)
		require.Equal(t, 1, frames[i].Attempt)
		require.Equal(t, call.SessionID, event.SessionID)
		if event.Type != loop.EventTextDelta && event.Type != loop.EventToolRunning {
			order = append(order, event.Type)
		}
	}
	require.Equal(t, []loop.EventType{
		loop.EventSessionStarted, loop.EventTurnStarted, loop.EventModelReply, loop.EventToolCall, loop.EventToolQueued,
		loop.EventToolResult, loop.EventModelReply, loop.EventTurnEnded,
	}, order)
}

// TestTurn_CancelledWhileNobodyHasIt: nothing of it goes on behind the next turn's back, also if
// the coordinator that ends it does not have the tool, as that of an MCP server.
func TestTurn_CancelledWhileNobodyHasIt(t *testing.T) {
	t.Parallel()
	const waits = "echo x >started; until [ -e go ]; do sleep 0.01; done; echo x >late"
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "theirs.yaml"), []byte("name: theirs\ndescription: Waits.\ncommand: [sh, -c, \""+waits+"\"]\n"), 0o600))
	folder, err := manifest.Open(dir)
	require.NoError(t, err)
	for name, first := range map[string]string{
		"its tool is there": bash(waits), "its tool is gone": `{"text":"x","tool_calls":[{"id":"c1","name":"theirs","arguments":{}}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, first+","+bash("echo x >later")+","+answer)
			nc, link := r.ConnectVia()
			r.serve(nc, "a", func(o *serve.Options) { soonLost(o); o.Tools = folder })
			r.dispatcher = r.newDispatcher(r.NC, 5*time.Second)
			call := serve.NewCall(protocol.NewSessionID(), wire.TurnRun{Prompt: "p"}, 0)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan *protocol.Result, 1)
			go func() { done <- r.submit(ctx, call) }()
			awaitFile(t, r.file(call.SessionID, "started"))
			link.Cut()
			cancel()
			require.NotEqual(t, protocol.StatusOK, (<-done).Status)
			r.serve(r.Connect(), "b", soonLost)

			ended := []string{"1 tool_result cancelled", "1 turn_ended interrupted"}
			require.Eventually(t, func() bool { return slices.Equal(ended, r.ends(call.SessionID)) }, patience, 10*time.Millisecond,
				"without the session's next turn")
			ctx, cancel = context.WithTimeout(t.Context(), patience)
			defer cancel()
			got := r.submit(ctx, serve.NewCall(call.SessionID, wire.TurnRun{Prompt: "and then"}, 0))
			link.Mend()
			require.Nil(t, got.Error)
			require.Equal(t, append(ended, "2 tool_result ok", "2 turn_ended answered"), r.ends(call.SessionID))
			require.NoFileExists(t, r.file(call.SessionID, "late"))
		})
	}
}

// TestTurn_SettledAndNotEnded: a coordinator was lost when it had stored the result, and had not
// ended the turn yet.
func TestTurn_SettledAndNotEnded(t *testing.T) {
	t.Parallel()
	r := newRig(t, bash("echo x >started; until [ -e go ]; do sleep 0.01; done; echo x >late")+","+answer)
	nc, link := r.ConnectVia()
	r.serve(nc, "a", soonLost)
	call := serve.NewCall(protocol.NewSessionID(), wire.TurnRun{Prompt: "p"}, 0)
	done := make(chan *protocol.Result, 1)
	go func() { done <- r.submit(t.Context(), call) }()
	awaitFile(t, r.file(call.SessionID, "started"))
	link.Cut()
	result := wire.NewResult(&call, protocol.StatusOutcomeUnknown, protocol.Errorf(protocol.CodeOutcomeUnknown, "its coordinators were lost"))
	body, err := wire.EncodeResult(&result)
	require.NoError(t, err)
	_, err = r.JS.Publish(t.Context(), wire.ResultSubject(r.Name, call.SessionID, call.ID), body)
	require.NoError(t, err)
	requireFault(t, <-done, protocol.StatusOutcomeUnknown, protocol.CodeOutcomeUnknown)

	r.serve(r.Connect(), "b", soonLost)
	require.Eventually(t, func() bool {
		return slices.Equal([]string{"1 tool_result cancelled", "1 turn_ended interrupted"}, r.ends(call.SessionID))
	}, patience, 10*time.Millisecond, "without the session's next turn")
	require.NoFileExists(t, r.file(call.SessionID, "late"))
	link.Mend()
}

// ends are those of a session's tool calls and turns.
func (r *rig) ends(session protocol.SessionID) (ends []string) {
	for _, e := range r.events(session) {
		if e.Type == loop.EventTurnEnded || e.Type == loop.EventToolResult {
			ends = append(ends, fmt.Sprintf("%d %s %s", e.Turn, e.Type, e.Status))
		}
	}
	return ends
}

// meddled is a model while which somebody else extends the session once; then it thinks until it is
// stopped.
type meddled struct {
	again  bool // it replies from then on
	meddle func() error
	times  atomic.Int64
}

func (m *meddled) Reply(ctx context.Context, _ loop.Request, _ func(loop.Delta)) (loop.Reply, error) {
	if m.times.Add(1) == 1 {
		return loop.Reply{Text: "in vain"}, m.meddle()
	}
	if m.again {
		return loop.Reply{Text: "again"}, nil
	}
	<-ctx.Done()
	return loop.Reply{}, ctx.Err()
}

// TestCompact_GoesOnAfterAConflict: another process extends the session while a summary is written,
// as one does that lost it and was stopped. The summary is written again.
func TestCompact_GoesOnAfterAConflict(t *testing.T) {
	t.Parallel()
	r := newRig(t, answer+","+answer+","+answer)
	session := protocol.NewSessionID()
	j, err := journal.Open(t.Context(), r.Connect(), r.Name)
	require.NoError(t, err)
	model := &meddled{meddle: func() error {
		history, err := j.Load(t.Context(), session)
		if err == nil {
			_, err = j.Append(t.Context(), session, history.Last, loop.Event{Type: loop.EventRewound, SessionID: session, Turn: 2, NoteFields: loop.NoteFields{KeptTurn: 2}})
		}
		return err
	}, again: true}
	r.serve(r.Connect(), "a", func(o *serve.Options) { o.Models["meddled"] = model })
	for range 2 {
		require.Nil(t, r.submit(t.Context(), serve.NewCall(session, wire.TurnRun{Prompt: "p"}, 0)).Error)
	}
	result := r.submit(t.Context(), serve.NewCall(session, wire.TurnRun{Model: "meddled", Compact: true}, 0))
	require.Nil(t, result.Error)
	require.EqualValues(t, 2, model.times.Load())
	history, err := j.Load(t.Context(), session)
	require.NoError(t, err)
	require.Equal(t, loop.EventCompacted, history.Events[len(history.Events)-1].Type)
}

// warned calls a function at each warning.
type warned struct {
	slog.Handler

	then func()
}

func (w warned) Enabled(context.Context, slog.Level) bool { return true }

func (w warned) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "turn interrupted, going on" {
		w.then()
	}
	return nil
}

// TestTurn_TimeLimitBetweenTwoTries: a time limit that passes after a failed try ends the turn, and
// no further try is made.
func TestTurn_TimeLimitBetweenTwoTries(t *testing.T) {
	t.Parallel()
	r := newRig(t, answer)
	var tries atomic.Int64
	session := protocol.NewSessionID()
	model := &meddled{meddle: func() error {
		_, err := r.JS.Publish(t.Context(), wire.EventSubject(r.Name, session), []byte(`[{"type":"of another version"}]`))
		return err
	}}
	stop := r.serve(r.Connect(), "a", func(o *serve.Options) {
		o.Models["meddled"], o.Logger = model, slog.New(warned{slog.DiscardHandler, func() { tries.Add(1) }})
	})
	result := r.submit(t.Context(), serve.NewCall(session, wire.TurnRun{Prompt: "p", Model: "meddled"}, 500*time.Millisecond))
	require.NotEqual(t, protocol.StatusOK, result.Status)
	require.Contains(t, result.Error.Message, "time")
	require.LessOrEqual(t, tries.Load(), int64(2))
	stop(time.Minute) // which it does not need
}

// TestTurn_CancelledBetweenTwoTries: it is cancelled, and not what the try before it failed of; the
// next turn finds nothing open.
func TestTurn_CancelledBetweenTwoTries(t *testing.T) {
	t.Parallel()
	r := newRig(t, answer)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	session := protocol.NewSessionID()
	model := &meddled{meddle: func() error {
		_, err := r.JS.Publish(t.Context(), wire.EventSubject(r.Name, session), []byte(`[{"type":"of another version"}]`))
		return err
	}}
	r.serve(r.Connect(), "a", func(o *serve.Options) {
		o.Models["meddled"], o.Logger = model, slog.New(warned{slog.DiscardHandler, cancel})
	})
	got := r.submit(ctx, serve.NewCall(session, wire.TurnRun{Prompt: "p", Model: "meddled"}, 0))
	requireFault(t, got, protocol.StatusCancelled, protocol.CodeCancelled)
	require.Nil(t, r.submit(t.Context(), serve.NewCall(session, wire.TurnRun{Prompt: "and then", Model: "script"}, 0)).Error)
	require.Equal(t, []string{"1 turn_ended interrupted", "2 turn_ended answered"}, r.ends(session))
}

// TestTurn_OfAJournalThatIsGone: a turn whose journal is removed while it runs is not begun once
// more, and nothing of it is journaled.
func TestTurn_OfAJournalThatIsGone(t *testing.T) {
	t.Parallel()
	effects, next := filepath.Join(t.TempDir(), "effects"), filepath.Join(t.TempDir(), "next")
	r := newRig(t, bash("echo ran >> "+effects+"; until test -e "+next+"; do sleep 0.05; done")+","+answer)
	session := protocol.NewSessionID()
	r.serve(r.Connect(), "a", nil)
	done := make(chan *protocol.Result, 1)
	go func() { done <- r.submit(t.Context(), serve.NewCall(session, wire.TurnRun{Prompt: "p"}, 0)) }()
	awaitFile(t, effects)
	stream, err := r.JS.Stream(t.Context(), wire.SessionsStream(r.Name))
	require.NoError(t, err)
	require.NoError(t, stream.Purge(t.Context(), jetstream.WithPurgeSubject(wire.EventSubject(r.Name, session))))
	require.NoError(t, os.WriteFile(next, nil, 0o600))
	requireFault(t, <-done, protocol.StatusFailed, protocol.CodeNotFound)
	content, err := os.ReadFile(effects)
	require.NoError(t, err)
	require.Equal(t, "ran\n", string(content))
	require.Empty(t, r.events(session))
}

// panics is a model that does, when it is shown the result of a tool call.
type panics struct{ loop.Model }

func (m panics) Reply(ctx context.Context, req loop.Request, delta func(loop.Delta)) (loop.Reply, error) {
	if req.Messages[len(req.Messages)-1].Role == loop.RoleTool {
		panic("cannot read that")
	}
	return m.Model.Reply(ctx, req, delta)
}

// TestTurn_ThatCannotGoOnIsEnded: the session's next turn is not that one once more.
func TestTurn_ThatCannotGoOnIsEnded(t *testing.T) {
	t.Parallel()
	r := newRig(t, bash("true")+","+answer)
	r.serve(r.Connect(), "a", func(o *serve.Options) { o.Models["panics"] = panics{r.model} })
	call := serve.NewCall(protocol.NewSessionID(), wire.TurnRun{Prompt: "p", Model: "panics"}, 0)
	requireFault(t, r.submit(t.Context(), call), protocol.StatusFailed, protocol.CodePanic)
	got := r.submit(t.Context(), serve.NewCall(call.SessionID, wire.TurnRun{Prompt: "and then", Model: "panics"}, 0))
	require.Nil(t, got.Error)
	require.Equal(t, []string{"1 tool_result ok", "1 turn_ended interrupted", "2 turn_ended answered"}, r.ends(call.SessionID))
}

// A call that takes long becomes a job after the time of the turn, or else of the coordinator.
func TestTurn_PromotesCallsThatTakeLong(t *testing.T) {
	t.Parallel()
	r := newRig(t, bash("touch begun; until test -e go; do sleep 0.1; done")+","+answer)
	r.serve(r.Connect(), "c-1", func(o *serve.Options) { o.PromoteAfter = time.Hour })
	call := serve.NewCall(protocol.NewSessionID(), wire.TurnRun{Prompt: "wait", TurnBounds: wire.TurnBounds{PromoteAfter: 50}}, 0)
	requireAnswered(t, r.submit(t.Context(), call))
	jobs := 0
	for _, e := range r.events(call.SessionID) {
		if e.Type == loop.EventToolResult && e.Job != "" {
			jobs++
		}
	}
	require.Equal(t, 1, jobs)
	require.Eventually(t, func() bool { // the worker may open the sandbox after the turn has ended
		_, err := os.Stat(r.file(call.SessionID, "begun"))
		return err == nil
	}, 5*time.Minute, 10*time.Millisecond)
	require.NoError(t, os.WriteFile(r.file(call.SessionID, "go"), nil, 0o600)) // the job ends
}

// A coordinator signs what its turns do, so it signs for nobody who could not: turns that it does
// not know the key of run for the default tenant only, and in that tenant's sessions.
func TestTurn_IsOfWhoHasSignedIt(t *testing.T) {
	t.Parallel()
	r := newRig(t, strings.Repeat(answer+",", 9)+answer)
	signer := func() (*signing.Signer, string) {
		dir := t.TempDir()
		s, err := signing.Make(dir)
		require.NoError(t, err)
		return s, filepath.Join(dir, signing.PublicFile)
	}
	own, _ := signer()
	acme, public := signer()
	stranger, _ := signer()
	body, err := os.ReadFile(public)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(public, bytes.Replace(body, []byte("KEY-----\n"), []byte("KEY-----\nTenant: acme\n\n"), 1), 0o600))
	turn, late := wire.TurnRun{Prompt: "go"}, false
	ask := func(key *signing.Signer, tenant protocol.Tenant, session protocol.SessionID) *protocol.Result {
		d, err := calls.New(t.Context(), r.NC, r.Name, &calls.Options{Signer: key, LookAfter: 100 * time.Millisecond, Logger: r.Logger})
		require.NoError(t, err)
		call := serve.NewCall(session, turn, 0)
		call.Tenant = tenant
		if late {
			call.IssuedAt = time.Now()
			call.Deadline = call.IssuedAt.Add(-time.Second) // passed, by any clock
		}
		result, err := d.Call(t.Context(), &call)
		require.NoError(t, err)
		return result
	}
	j, err := journal.Open(t.Context(), r.NC, r.Name)
	require.NoError(t, err)
	refused := func(key *signing.Signer, tenant protocol.Tenant, session protocol.SessionID, says string) {
		t.Helper()
		before, err := j.Load(t.Context(), session)
		require.NoError(t, err)
		result := ask(key, tenant, session)
		requireFault(t, result, protocol.StatusRejected, codes.NotSigned)
		require.Contains(t, result.Error.Message, says)
		after, err := j.Load(t.Context(), session)
		require.NoError(t, err)
		require.Equal(t, before, after, "a refused turn writes nothing into the session")
	}
	runs := func(key *signing.Signer, tenant protocol.Tenant, session protocol.SessionID) {
		t.Helper()
		require.Nil(t, ask(key, tenant, session).Error)
	}
	under := func(file string) (stop func(time.Duration)) {
		keys, err := signing.OpenFor(own, file)
		require.NoError(t, err)
		return r.serve(r.Connect(), "signed-"+string(protocol.NewSessionID()), func(o *serve.Options) { o.Keys = keys })
	}
	stop := under("")
	runs(own, "acme", "acme-1")
	runs(nil, "", "plain")
	runs(stranger, "", "plain")
	refused(nil, "acme", "acme-1", "the call is not signed with a key that this coordinator trusts")
	refused(stranger, "acme", "new", "serve --call-keys")
	refused(nil, "", "acme-1", "use session acme-1: not allowed for the operator of tenant default; it needs a principal of tenant acme")
	stop(patience)

	under(public)
	runs(own, "", "acme-1") // its key is bound to no tenant
	runs(acme, "acme", "acme-1")
	runs(acme, "acme", "acme-2")
	refused(acme, "", "plain", "the call is signed with a key of tenant acme")
	refused(acme, "acme", "plain", "of tenant acme; it needs a principal of tenant default, to which it belongs")
	turn.Toolsets = []string{"unknown"} // in no session
	refused(acme, "acme", "plain", "of tenant acme; it needs a principal of tenant default, to which it belongs")
	turn.Toolsets, late = nil, true
	turns := func() int {
		history, err := j.Load(t.Context(), "plain")
		require.NoError(t, err)
		n, _, err := history.Turns()
		require.NoError(t, err)
		return n
	}
	before := turns()
	requireFault(t, ask(acme, "acme", "plain"), protocol.StatusRejected, protocol.CodeDeadline)
	late = false
	runs(own, "", "plain") // behind what becomes of the one before
	require.Equal(t, before+1, turns(), "one that no coordinator has run writes nothing, either")
	refused(nil, "", "plain", "the call is not signed")
	refused(stranger, "", "plain", "which the worker does not trust")
	history, err := j.Load(t.Context(), "acme-2")
	require.NoError(t, err)
	require.Equal(t, protocol.Tenant("acme"), history.Tenant())
}

// A turn that was made before its session was removed does not begin the session again, whenever
// its call comes: also if no coordinator has seen it before, or if it only is to be recorded as
// refused. One that is made after the removal does.
func TestTurn_MadeBeforeItsSessionWasRemoved(t *testing.T) {
	t.Parallel()
	r := newRig(t, answer)
	r.serve(r.Connect(), "a", nil)
	j, err := journal.Open(t.Context(), r.Connect(), r.Name)
	require.NoError(t, err)
	session := protocol.NewSessionID()
	made := func(turn wire.TurnRun) protocol.Call {
		call := serve.NewCall(session, turn, 0)
		call.MadeAfter = j.Now(t.Context())
		return call
	}
	require.Nil(t, r.submit(t.Context(), made(wire.TurnRun{Prompt: "p"})).Error)
	late, unknown, refused := made(wire.TurnRun{Prompt: "late"}),
		serve.NewCall(session, wire.TurnRun{Prompt: "late"}, 0),
		made(wire.TurnRun{Prompt: "late", Toolsets: []string{"none"}})
	require.NoError(t, j.Mark(t.Context(), session))
	_, err = j.Forget(t.Context(), session, journal.RemovedAge)
	require.NoError(t, err)

	for _, call := range []protocol.Call{late, unknown} {
		got := r.submit(t.Context(), call)
		requireFault(t, got, protocol.StatusFailed, protocol.CodeNotFound)
		require.Contains(t, got.Error.Message, "the session was removed")
	}
	requireFault(t, r.submit(t.Context(), refused), protocol.StatusRejected, codes.InvalidPayload)
	require.Empty(t, r.events(session))

	require.Nil(t, r.submit(t.Context(), made(wire.TurnRun{Prompt: "p"})).Error)
	require.Equal(t, loop.EventSessionStarted, r.events(session)[0].Type)
	late.ID = wire.RandomCallID()
	requireFault(t, r.submit(t.Context(), late), protocol.StatusFailed, protocol.CodeNotFound)
	require.Equal(t, []string{"1 turn_ended answered"}, r.ends(session))
}

// A submitted turn has its answer as JSON, or the error that says why it has none.
func TestTurn_HasAStructuredAnswer(t *testing.T) {
	t.Parallel()
	r := newRig(t, `{"text":"Done."},{"text":"{\"done\": true}"},{"text":"no"},{"text":"no"},{"text":"no"}`)
	r.serve(r.Connect(), "a", nil)
	schema := json.RawMessage(`{"type":"object","required":["done"]}`)
	session := protocol.NewSessionID()
	got := r.submit(t.Context(), serve.NewCall(session, wire.TurnRun{Prompt: "go", AnswerSchema: schema}, 0))
	require.Equal(t, protocol.StatusOK, got.Status)
	value, ok := got.Value.(wire.TurnRunResult)
	require.True(t, ok)
	require.JSONEq(t, `{"done":true}`, string(value.Answer))
	require.Equal(t, 2, value.Steps)
	got = r.submit(t.Context(), serve.NewCall(session, wire.TurnRun{Prompt: "go", AnswerSchema: schema}, 0))
	requireFault(t, got, protocol.StatusFailed, protocol.CodeAnswerInvalid)
	got = r.turn(wire.TurnRun{Prompt: "go", AnswerSchema: json.RawMessage(`{"$ref":"https://example.com"}`)})
	requireFault(t, got, protocol.StatusRejected, codes.InvalidPayload)
	require.Contains(t, got.Error.Message, "a schema may refer to itself only")
}
