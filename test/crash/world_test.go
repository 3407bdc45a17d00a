package crash

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/toolfleet/toolfleet/internal/calls/channel"
	"github.com/toolfleet/toolfleet/internal/lane/limits"
	"github.com/toolfleet/toolfleet/internal/model"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/session/schedule"
	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/policy"
	"github.com/toolfleet/toolfleet/pkg/worker"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// patience bounds what must happen at some time. It passes only while all cases wait.
const patience = 2 * time.Minute

// until waits until ok is true, and fails when the context ends. It looks seldom where it takes
// long.
func until(ctx context.Context, ok func() bool) error {
	for wait := time.Millisecond; !ok(); wait = min(2*wait, time.Second) {
		if !pause.For(ctx, wait) {
			return context.Cause(ctx)
		}
	}
	return nil
}

// requireSoon checks that ok is true at some time.
func requireSoon(tb testing.TB, ok func() bool, format string, args ...any) {
	tb.Helper()
	ctx, cancel := context.WithTimeoutCause(tb.Context(), patience, errors.New("it is not so in time"))
	defer cancel()
	require.NoErrorf(tb, until(ctx, ok), format, args...)
}

// lease is that of coordinators and workers that are lost.
const lease = 3 * time.Second

// world is a fleet whose server and worker never fail, and what its calls did.
type world struct {
	*natsiotest.Fleet

	end

	talk      sync.Once // makes the origin of forks
	table     []tools.Tool
	schedules *schedule.Store

	mu      sync.Mutex
	cases   map[string]string  // names, by session
	started map[string][]start // by label
	running map[string]int     // by label
	notes   map[string]bool
	asked   map[protocol.SessionID][]request
	open    map[string]chan struct{} // gates, by label
}

// end is a process's end of the network.
type end struct {
	nc     *nats.Conn
	client *fleet.Client
}

// start is a start of a call.
type start struct {
	call protocol.CallID
	at   time.Time
	once bool // it must not be started again
}

// effect are the arguments of the tools of the world.
type effect struct {
	// Label names the effect; no two calls of all cases have the same.
	Label string `json:"label"`
	// Held keeps the call from ending until the gate of its label is opened.
	Held bool `json:"held,omitempty"`
}

func newWorld(tb testing.TB) *world {
	tb.Helper()
	return worldOf(tb, natsiotest.New(tb, natsio.Topology{}))
}

// fleets counts the fleets of all cases, so that no two have one name.
var fleets atomic.Int64

// apart is a world on the same server with a fleet of its own, for coordinators that take every
// turn. Its streams go with the test.
func (w *world) apart(tb testing.TB) *world {
	tb.Helper()
	of := w.In(tb)
	of.Name = protocol.Fleet(fmt.Sprintf("c%d", fleets.Add(1)))
	require.NoError(tb, natsio.Ensure(tb.Context(), of.JS, natsio.Topology{Fleet: of.Name, MaxBytes: 1 << 20}))
	tb.Cleanup(func() {
		names := of.JS.StreamNames(context.Background())
		for name := range names.Name() {
			if strings.Contains(name, strings.ToUpper(string(of.Name))+"_") {
				_ = of.JS.DeleteStream(context.Background(), name) // the server ends soon
			}
		}
	})
	return worldOf(tb, of)
}

func worldOf(tb testing.TB, of *natsiotest.Fleet) *world {
	tb.Helper()
	w := &world{
		Fleet: of, cases: map[string]string{}, notes: map[string]bool{}, asked: map[protocol.SessionID][]request{},
		started: map[string][]start{}, running: map[string]int{}, open: map[string]chan struct{}{},
	}
	w.MaxPayload = 128 << 10
	nc, _ := w.ConnectVia()
	w.end = w.connect(tb, nc)
	var err error
	w.schedules, err = schedule.Open(tb.Context(), w.JS, w.Name)
	require.NoError(tb, err)
	_, err = channel.Open(tb.Context(), w.JS, w.Name)
	require.NoError(tb, err)
	_, err = limits.Open(tb.Context(), w.JS, w.Name)
	require.NoError(tb, err)
	_, _, err = natsio.EnsurePool(tb.Context(), w.JS, w.Name, protocol.SessionPool, lease)
	require.NoError(tb, err)
	_, err = w.client.StartWorker(tb.Context(), worker.Options{
		Slots: 256, Driver: "none", Handlers: []worker.Handler{worker.Handle("effect", w.run)},
	})
	require.NoError(tb, err)
	_, err = w.client.StartWorker(tb.Context(), worker.Options{Slots: 256, Driver: "process", Data: tb.TempDir()}) // of files
	require.NoError(tb, err)
	own := []tools.Resource{{Key: "effect/{$session}/{label}"}}
	w.table = []tools.Tool{
		tools.NewRemote[effect]("once", "An effect that must not be repeated.", tools.Remote{Kind: "effect", Resources: own, Delivery: protocol.AtMostOnce}),
		tools.NewRemote[effect]("again", "An effect that may be repeated after a crash.", tools.Remote{Kind: "effect", Resources: own, Delivery: protocol.Idempotent}),
		tools.NewRemote[effect]("job", "An effect in the background.", tools.Remote{Kind: "effect", Resources: own, Delivery: protocol.AtMostOnce, Background: true}),
	}
	return w
}

// connect makes a client as another process would.
func (w *world) connect(tb testing.TB, nc *nats.Conn) end {
	tb.Helper()
	client, err := fleet.Connect(context.WithoutCancel(tb.Context()), fleet.Options{Conn: nc, Fleet: w.Name, Logger: w.Logger})
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, client.Close()) })
	return end{nc, client}
}

// run is the handler of every effect.
func (w *world) run(ctx context.Context, call *worker.Call, e effect) (string, error) {
	w.mu.Lock()
	w.started[e.Label] = append(w.started[e.Label], start{call.ID(), time.Now(), call.Tool() != "again"})
	w.running[e.Label]++
	gate := w.gate(e.Label)
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.running[e.Label]--
	}()
	if e.Held {
		select {
		case <-gate:
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}
	return "did " + e.Label, nil
}

// gate is the gate of a label. The lock is held.
func (w *world) gate(label string) chan struct{} {
	if w.open[label] == nil {
		w.open[label] = make(chan struct{})
	}
	return w.open[label]
}

// release opens the gate of a label.
func (w *world) release(label string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case <-w.gate(label):
	default:
		close(w.gate(label))
	}
}

// releaseAll opens the gates of a session.
func (w *world) releaseAll(session protocol.SessionID) {
	for label := range w.startsOf(session) {
		w.release(label)
	}
}

// starts are the starts of a label.
func (w *world) starts(label string) []start {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.started[label])
}

// startsOf are the starts of a session, by label.
func (w *world) startsOf(session protocol.SessionID) map[string][]start {
	w.mu.Lock()
	defer w.mu.Unlock()
	of := map[string][]start{}
	for label, starts := range w.started {
		if strings.HasPrefix(label, string(session)+"/") {
			of[label] = slices.Clone(starts)
		}
	}
	return of
}

// note remembers a word of a case, and noted reports whether it was.
func (w *world) note(word string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.notes[word] = true
}

func (w *world) noted(word string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.notes[word]
}

// runs reports whether a call whose label begins so runs.
func (w *world) runs(prefix string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for label, n := range w.running {
		if n > 0 && strings.HasPrefix(label, prefix) {
			return true
		}
	}
	return false
}

// script is a model that gives its n-th reply to a conversation with n replies: the same after a
// crash as without one. Its replies are chosen by the first message of the user.
type script struct {
	replies map[string][]loop.Reply
	stream  bool                                            // tool calls are sent while their reply streams
	before  func(ctx context.Context, prompt string, n int) // each reply; n from 0
}

// Reply implements [loop.Model].
func (s *script) Reply(ctx context.Context, req loop.Request, delta func(loop.Delta)) (loop.Reply, error) {
	prompt, n := "", 0
	for i := range req.Messages {
		if req.Messages[i].Role == loop.RoleUser && prompt == "" {
			prompt = req.Messages[i].Text
		}
		if req.Messages[i].Role == loop.RoleAssistant {
			n++
		}
	}
	n = max(n, req.Replies)
	if s.before != nil {
		s.before(ctx, prompt, n)
	}
	if err := ctx.Err(); err != nil {
		return loop.Reply{}, err
	}
	name, _, _ := strings.Cut(prompt, " ")
	replies := s.replies[name]
	if n >= len(replies) {
		return loop.Reply{}, fmt.Errorf("no reply %d to %q", n, prompt)
	}
	reply := replies[n]
	reply.ToolCalls = slices.Clone(reply.ToolCalls)
	for i := range reply.ToolCalls {
		if !s.stream {
			break
		}
		delta(loop.Delta{Call: &reply.ToolCalls[i], Index: i})
	}
	return reply, nil
}

// says is a reply with text, and calls is one with tool calls.
func says(text string) loop.Reply {
	return loop.Reply{Text: text, Usage: protocol.Usage{InputTokens: 10, OutputTokens: 1}}
}

type call struct{ tool, arguments string }

func calls(list ...call) loop.Reply {
	reply := says("I will.")
	for i, c := range list {
		reply.ToolCalls = append(reply.ToolCalls, loop.ToolCall{ID: fmt.Sprintf("c%d", i), Name: c.tool, Arguments: c.arguments})
	}
	return reply
}

// process is one process that works on the session of a case.
type process struct {
	*world
	end

	t        testing.TB
	begin    func() // writes count from now on
	session  protocol.SessionID
	options  loop.Options
	policies []policy.Policy
	model    *script
	gate     *model.Gate // nil without limits of the model
	provider string      // of the model
	table    []tools.Tool
	result   loop.TurnResult // of the last turn
}

// runner is that of a process which runs the turns itself.
func (p *process) runner() (*loop.Runner, error) {
	table, err := tools.NewTable(p.table...)
	if err != nil {
		return nil, err
	}
	options := p.options
	if len(p.policies) > 0 {
		if options.Policy, err = policy.New(p.policies...); err != nil {
			return nil, err
		}
	}
	return p.client.Runner(model.Opener{Gate: p.gate}.Measure(billed{p.model, p}, p.provider, "script"), table, &options)
}

// turn runs a turn of the session, or resumes it.
func (p *process) turn(ctx context.Context, input loop.Input) (loop.TurnResult, error) {
	runner, err := p.runner()
	if err != nil {
		return loop.TurnResult{}, err
	}
	return runner.Run(ctx, p.session, input)
}

// label is the label of an effect of the session.
func (p *process) label(name string) string { return string(p.session) + "/" + name }

// errKilled ends a process that has lost its connection: it leaves everything as it is.
var errKilled = fmt.Errorf("the process was killed: %w", loop.ErrDetached)
