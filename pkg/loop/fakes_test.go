package loop_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/toolfleet/toolfleet/internal/calls/ports"
	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/modeltext/render"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/loop/looptest"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// script is a model that gives its n-th reply to a conversation with n replies
// in it: the same after a crash as without one.
type script struct {
	replies []loop.Reply
	err     error                     // instead of the reply after the last
	before  func(ctx context.Context) // called before each reply

	mu   sync.Mutex
	seen []loop.Request
}

func (s *script) Reply(ctx context.Context, req loop.Request, delta func(loop.Delta)) (loop.Reply, error) {
	s.mu.Lock()
	s.seen = append(s.seen, req)
	s.mu.Unlock()
	if s.before != nil {
		s.before(ctx)
	}
	if err := ctx.Err(); err != nil {
		return loop.Reply{}, err
	}
	n := 0
	for _, message := range req.Messages {
		if message.Role == loop.RoleAssistant {
			n++
		}
	}
	n = max(n, req.Replies) // a summary may stand for the first ones
	if n >= len(s.replies) {
		if s.err == nil {
			return loop.Reply{}, errors.New("script: no reply left")
		}
		return loop.Reply{}, s.err
	}
	reply := s.replies[n]
	reply.ToolCalls = slices.Clone(reply.ToolCalls)
	for i := range reply.ToolCalls {
		reply.ToolCalls[i].Arguments = strings.ReplaceAll(reply.ToolCalls[i].Arguments, handle, firstHandle(req.Messages))
	}
	if reply.Reasoning != nil {
		delta(loop.Delta{Reasoning: reply.Reasoning.Text})
	}
	for _, piece := range []string{reply.Text[:len(reply.Text)/2], reply.Text[len(reply.Text)/2:]} {
		if piece != "" {
			delta(loop.Delta{Text: piece})
		}
	}
	return reply, nil
}

// firstHandle is the first handle that a conversation names.
func firstHandle(messages []loop.Message) string {
	for _, message := range messages {
		if found := regexp.MustCompile(`h-[0-9a-f]{12}`).FindString(message.Text); found != "" && message.Role == loop.RoleTool {
			return found
		}
	}
	return handle
}

// lastSeen is the conversation of the last request.
func (s *script) lastSeen() []loop.Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.seen) == 0 {
		return nil
	}
	return s.seen[len(s.seen)-1].Messages
}

// fleet is a dispatcher that runs each call id once, whoever dispatches it how often.
type fleet struct {
	// order is the order in which the results of n calls come; nil is as dispatched.
	order func(n int) []int
	// told is called after each result was told.
	told func(call protocol.Call)
	// stall makes Dispatch wait for the end of ctx before the result at this place
	// of the order; 0 does not.
	stall int
	// hold keeps a call from ending until what it returns is closed; nil holds none.
	hold func(call *protocol.Call) <-chan struct{}
	// answer, if set, makes the value of a call, or its error, when it runs.
	answer func(call *protocol.Call) (protocol.Value, *protocol.Error)
	// asks are what a call tells of questions to a person before it runs on; nil asks nothing.
	asks func(call *protocol.Call) []loop.Update
	// takes is how long each call runs; calls of a session run one after the other.
	takes time.Duration
	// searched answers searches in other sessions; nil has no index.
	searched func(query wire.SessionSearchRequest, owner judge.Owner, except protocol.SessionID) (report.Found, error)
	// err is returned before anything is told.
	err error

	mu      sync.Mutex
	sent    int                               // calls that were sent, and not held
	posts   map[string][]ports.ChannelMessage // by channel
	known   map[protocol.CallID]*protocol.Result
	free    time.Time // when all calls so far have run
	ends    map[protocol.CallID]time.Time
	runs    []protocol.Call
	stopped []protocol.CallID
	void    []protocol.CallID
	over    map[protocol.CallID]*protocol.Result // results that were told
}

var errNotStored = errors.New("nothing is stored")

// StoreText implements ports.Fleet.
func (*fleet) StoreText(context.Context, protocol.SessionID, protocol.CallID, string) error {
	return errNotStored
}

// StoreMedia implements ports.Fleet.
func (*fleet) StoreMedia(context.Context, protocol.SessionID, protocol.CallID, []byte) error {
	return errNotStored
}

// Ask implements ports.Fleet: nobody answers.
func (*fleet) Ask(
	ctx context.Context, _ protocol.SessionID, _ protocol.CallID, _ protocol.Question, _ func(protocol.Answer) error, listening func() error,
) (protocol.Answer, error) {
	if err := listening(); err != nil {
		return protocol.Answer{}, err
	}
	<-ctx.Done()
	return protocol.Answer{}, context.Cause(ctx)
}

// GivenUp implements ports.Fleet.
func (*fleet) GivenUp(context.Context, protocol.SessionID, protocol.CallID) (bool, error) {
	return false, nil
}

// Find implements ports.Fleet.
func (f *fleet) Find(_ context.Context, _ protocol.Pool, ref protocol.CallRef) (*protocol.Call, *protocol.Result, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return nil, nil, f.err
	}
	if result := f.over[ref.ID]; result != nil {
		return nil, result, nil
	}
	for _, call := range f.runs {
		if call.ID == ref.ID {
			return &call, nil, nil
		}
	}
	return nil, nil, nil
}

// Void implements ports.Fleet.
func (f *fleet) Void(_ context.Context, _ protocol.Pool, _ protocol.Lane, ref protocol.CallRef) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.void = append(f.void, ref.ID)
	return f.err
}

// dispatch runs calls, and returns when each has its result. One whose ctx was detached returns at
// once.
type dispatch func(ctx context.Context, calls []protocol.Call, observe func(loop.Update)) error

// sentCall is a call that is dispatched.
type sentCall struct {
	call protocol.Call
	left func()      // is called once, when it has ended
	last func() bool // ends the dispatch if all others have ended

	mu     sync.Mutex
	moved  bool
	done   chan struct{}
	result *protocol.Result
	err    error
}

func (h *sentCall) end(result *protocol.Result, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	select {
	case <-h.done:
		return
	default:
	}
	h.result, h.err = result, err
	close(h.done)
	h.left()
}

func (h *sentCall) isMoved() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.moved
}

func (h *sentCall) Done() <-chan struct{} { return h.done }

func (h *sentCall) Result() (*protocol.Result, error) { return h.result, h.err }

// Detach ends the last handle of a dispatch when that has returned: nothing is sent later.
func (h *sentCall) Detach() {
	h.mu.Lock()
	h.moved = true
	h.mu.Unlock()
	select {
	case <-h.done:
		return
	default:
	}
	if !h.last() {
		h.end(nil, loop.ErrDetached)
	}
}

// send is the Send of a dispatcher. A call that is held is left and dispatched once more. told, if
// there is one, gets each call between the report of its result and its end.
func (d dispatch) send(ctx context.Context, calls []protocol.Call, observe func(loop.Update), held []loop.Handle, told func(protocol.Call)) []loop.Handle {
	ctx, leave := context.WithCancelCause(ctx)
	calls = slices.Clone(calls)
	for _, handle := range held {
		h, _ := handle.(*sentCall)
		h.Detach()
		calls = append(calls, h.call)
	}
	var open atomic.Int32
	open.Store(int32(len(calls)))
	handles, byID := make([]loop.Handle, len(calls)), map[protocol.CallID]*sentCall{}
	for i := range calls {
		last := func() bool {
			if open.Load() == 1 {
				leave(loop.ErrDetached)
				return true
			}
			return false
		}
		h := &sentCall{call: calls[i], done: make(chan struct{}), left: func() { open.Add(-1) }, last: last}
		handles[i], byID[calls[i].ID] = h, h
	}
	go func() {
		defer leave(nil)
		err := d(ctx, calls, func(u loop.Update) {
			h := byID[u.CallID]
			if h != nil && h.isMoved() {
				return
			}
			if observe != nil {
				observe(u)
			}
			if u.Result != nil && told != nil {
				told(byID[u.CallID].call)
			}
			if h != nil && u.Result != nil {
				h.end(u.Result, nil)
			}
		})
		for _, h := range byID {
			if h.isMoved() {
				h.end(nil, loop.ErrDetached)
			} else {
				h.end(nil, err)
			}
		}
	}()
	return handles
}

func (f *fleet) Send(ctx context.Context, calls []protocol.Call, observe func(loop.Update), held ...loop.Handle) []loop.Handle {
	f.mu.Lock()
	f.sent += len(calls)
	f.mu.Unlock()
	return dispatch(f.Dispatch).send(ctx, calls, observe, held, f.told)
}

func (f *fleet) Dispatch(ctx context.Context, calls []protocol.Call, observe func(loop.Update)) error {
	if f.err != nil {
		return f.err
	}
	results := f.accept(calls)
	for _, call := range calls {
		if !call.Again || !f.ended(&call) {
			observe(loop.Update{CallID: call.ID, State: loop.StateQueued})
		}
	}
	order := make([]int, len(calls))
	for i := range order {
		order[i] = i
	}
	if f.order != nil {
		order = f.order(len(calls))
	}
	for n, i := range order {
		if f.asks != nil {
			for _, u := range f.asks(&calls[i]) {
				u.CallID, u.State = calls[i].ID, loop.StateRunning
				observe(u)
			}
		}
		if f.stall == n+1 {
			<-ctx.Done()
		}
		ended := calls[i].Again && f.ended(&calls[i]) // nothing but the result is told
		if f.hold != nil {
			select {
			case <-f.hold(&calls[i]):
			case <-ctx.Done():
			}
		}
		if f.takes > 0 {
			select {
			case <-time.After(time.Until(f.endOf(calls[i].ID))):
			case <-ctx.Done():
			}
		}
		cause := context.Cause(ctx) // looked at once: a detached context may end at any moment
		if errors.Is(cause, loop.ErrDetached) {
			return cause
		}
		if !ended {
			observe(loop.Update{CallID: calls[i].ID, State: loop.StateRunning, WorkerID: "w", Attempt: 1})
		}
		if cause != nil {
			results[i] = f.stop(&calls[i])
		}
		f.mu.Lock()
		if f.over == nil {
			f.over = make(map[protocol.CallID]*protocol.Result)
		}
		f.over[calls[i].ID] = results[i]
		f.mu.Unlock()
		observe(loop.Update{CallID: calls[i].ID, State: loop.StateDone, Result: results[i]})
	}
	return nil
}

// ended reports whether a call has a result, also one that was told to nobody.
func (f *fleet) ended(call *protocol.Call) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.hold != nil && f.known[call.ID] != nil && f.takes == 0 {
		select {
		case <-f.hold(call):
			return true
		default:
		}
	}
	return f.over[call.ID] != nil
}

func (f *fleet) accept(calls []protocol.Call) []*protocol.Result {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.known == nil {
		f.known = make(map[protocol.CallID]*protocol.Result)
	}
	results := make([]*protocol.Result, len(calls))
	for i := range calls {
		if _, again := f.known[calls[i].ID]; !again {
			result := wire.NewResult(&calls[i], protocol.StatusOK, nil)
			result.WorkerID, result.Attempt, result.Value = "w", 1, protocol.FilesWriteResult{Diff: "-a\n+b\n"}
			if f.answer != nil {
				if result.Value, result.Error = f.answer(&calls[i]); result.Error != nil {
					result.Status = protocol.StatusRejected
				}
			}
			f.known[calls[i].ID] = &result
			if f.free = f.free.Add(f.takes); f.free.Before(time.Now().Add(f.takes)) {
				f.free = time.Now().Add(f.takes)
			}
			if f.ends == nil {
				f.ends = make(map[protocol.CallID]time.Time)
			}
			f.ends[calls[i].ID] = f.free
			f.runs = append(f.runs, calls[i])
		}
		results[i] = f.known[calls[i].ID]
	}
	return results
}

func (f *fleet) stop(call *protocol.Call) *protocol.Result {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stopped = append(f.stopped, call.ID)
	cancelled := wire.NewResult(call, protocol.StatusCancelled, protocol.Errorf(protocol.CodeCancelled, "stopped"))
	return &cancelled
}

func (f *fleet) endOf(id protocol.CallID) time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ends[id]
}

// times counts the runs of each call.
func (f *fleet) times() map[protocol.CallID]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	times := make(map[protocol.CallID]int)
	for i := range f.runs {
		times[f.runs[i].ID]++
	}
	return times
}

// ran is the places of the calls that ran, sorted: sessions that do the same have ids of their own.
func (f *fleet) ran() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	places := make([]string, len(f.runs))
	for i := range f.runs {
		places[i] = fmt.Sprint(f.runs[i].Turn, "/", f.runs[i].Step, "/", f.runs[i].Index)
	}
	slices.Sort(places)
	return places
}

// watch collects what an observer is told.
type watch struct {
	mu     sync.Mutex
	events []loop.Event
}

func (w *watch) observe(e loop.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, e)
}

func (w *watch) types() []loop.EventType {
	w.mu.Lock()
	defer w.mu.Unlock()
	types := make([]loop.EventType, len(w.events))
	for i := range w.events {
		types[i] = w.events[i].Type
	}
	return types
}

func (w *watch) of(kind loop.EventType) []loop.Event {
	w.mu.Lock()
	defer w.mu.Unlock()
	var events []loop.Event
	for i := range w.events {
		if w.events[i].Type == kind {
			events = append(events, w.events[i])
		}
	}
	return events
}

// table has one tool of each sort: "work" goes to a worker, "greedy" too and takes
// the whole sandbox, "inline" does not go there,
// "wait" is inline and ends with its context, and the others go wrong.
func table(t *testing.T, more ...tools.Tool) *tools.Table {
	t.Helper()
	inline := func(run func(ctx context.Context) (string, *protocol.Error)) func(tools.Scope, json.RawMessage) (tools.Plan, *protocol.Error) {
		return func(tools.Scope, json.RawMessage) (tools.Plan, *protocol.Error) {
			return tools.Plan{Inline: run}, nil
		}
	}
	tool := func(name string, plan func(tools.Scope, json.RawMessage) (tools.Plan, *protocol.Error)) tools.Tool {
		schema := json.RawMessage(`{"type":"object","properties":{"n":{"type":"integer"}},"additionalProperties":false}`)
		return tools.Tool{
			Definition: tools.Definition{Name: name, Description: name, Schema: schema}, Plan: plan,
			Render: func(r *protocol.Result) string { return string(r.Status) + " " + string(r.CallID) },
		}
	}
	made, err := tools.NewTable(append(more,
		tool("work", func(tools.Scope, json.RawMessage) (tools.Plan, *protocol.Error) {
			return tools.Plan{Payload: wire.Noop{}, Resources: []protocol.Use{}}, nil
		}),
		tool("greedy", func(tools.Scope, json.RawMessage) (tools.Plan, *protocol.Error) {
			return tools.Plan{Payload: wire.Noop{}}, nil
		}),
		tool("inline", inline(func(context.Context) (string, *protocol.Error) { return "said", nil })),
		tool("wait", inline(func(ctx context.Context) (string, *protocol.Error) {
			<-ctx.Done()
			return "", protocol.Errorf(protocol.CodeToolFailed, "gave up")
		})),
		tool("inline_fails", inline(func(context.Context) (string, *protocol.Error) {
			return "", protocol.Errorf(protocol.CodeToolFailed, "it did not work")
		})),
		tool("inline_panics", inline(func(context.Context) (string, *protocol.Error) { panic("ouch") })),
		tool("plan_panics", func(tools.Scope, json.RawMessage) (tools.Plan, *protocol.Error) { panic("ouch") }),
		tool("plan_refuses", func(tools.Scope, json.RawMessage) (tools.Plan, *protocol.Error) {
			return tools.Plan{}, protocol.Errorf(codes.PathEscape, "stay inside")
		}),
	)...)
	require.NoError(t, err)
	return made
}

// asks returns a reply that calls the named tools, with ids of their own.
func asks(prefix string, names ...string) loop.Reply {
	reply := loop.Reply{Text: "asking " + prefix, Usage: protocol.Usage{InputTokens: 10, OutputTokens: 1}}
	for i, name := range names {
		reply.ToolCalls = append(reply.ToolCalls, loop.ToolCall{
			ID: prefix + strconv.Itoa(i), Name: name, Arguments: `{"n":` + strconv.Itoa(i) + `}`,
		})
	}
	return reply
}

func says(text string) loop.Reply {
	return loop.Reply{Text: text, Usage: protocol.Usage{InputTokens: 10, OutputTokens: 1}}
}

// rig is a runner with everything around it.
type rig struct {
	session protocol.SessionID
	model   *script
	fleet   *fleet
	journal loop.Journal
	watch   *watch
	opts    loop.Options
	tools   []tools.Tool // beside those of table
}

func newRig(replies ...loop.Reply) *rig {
	r := &rig{
		session: protocol.NewSessionID(), model: &script{replies: replies}, fleet: &fleet{},
		journal: &looptest.Journal{}, watch: &watch{},
	}
	r.opts.Observe = r.watch.observe
	return r
}

func (r *rig) run(ctx context.Context, t *testing.T, input string) (loop.TurnResult, error) {
	t.Helper()
	return r.runInput(ctx, t, loop.Input{Text: input})
}

func (r *rig) runInput(ctx context.Context, t *testing.T, input loop.Input) (loop.TurnResult, error) {
	t.Helper()
	runner := mustNew(t, r.model, r.fleet, r.journal, table(t, r.tools...), &r.opts)
	return runner.Run(ctx, r.session, input)
}

// mustRun runs a turn, which returns no error.
func (r *rig) mustRun(ctx context.Context, t *testing.T, input string) loop.TurnResult {
	t.Helper()
	return r.mustRunInput(ctx, t, loop.Input{Text: input})
}

func (r *rig) mustRunInput(ctx context.Context, t *testing.T, input loop.Input) loop.TurnResult {
	t.Helper()
	result, err := r.runInput(ctx, t, input)
	require.NoError(t, err)
	return result
}

func (r *rig) events(t *testing.T) []loop.Event {
	t.Helper()
	history, err := r.journal.Load(context.Background(), r.session)
	require.NoError(t, err)
	return history.Events
}

// seed is the session's; "" while it has none.
func (r *rig) seed(t *testing.T) string {
	t.Helper()
	for _, e := range r.events(t) {
		if e.Seed != "" {
			return e.Seed
		}
	}
	return ""
}

// callID is the id of the call at a place.
func (r *rig) callID(t *testing.T, turn, step, index int) protocol.CallID {
	t.Helper()
	return wire.NewCallID(r.session, r.seed(t), turn, step, index)
}

// placed are messages with places instead of ids.
func (r *rig) placed(t *testing.T, messages []loop.Message) []loop.Message {
	t.Helper()
	var ids []string
	for _, e := range r.events(t) {
		if e.Type == loop.EventToolCall {
			place := fmt.Sprint("<", e.Turn, "/", e.Step, "/", e.Index, ">")
			ids = append(ids, string(e.CallID), place, render.DialogHandle(e.CallID), "handle of "+place)
		}
	}
	replacer, out := strings.NewReplacer(ids...), slices.Clone(messages)
	for i := range out {
		out[i].Text, out[i].ToolCalls = replacer.Replace(out[i].Text), slices.Clone(out[i].ToolCalls)
		for j := range out[i].ToolCalls {
			out[i].ToolCalls[j].Arguments = replacer.Replace(out[i].ToolCalls[j].Arguments)
		}
	}
	return out
}

// requireProtocol checks what providers demand: behind a reply with tool calls
// stands exactly one tool message per call, in their order, and ids are unique.
func requireProtocol(t require.TestingT, messages []loop.Message) {
	taken := make(map[string]bool)
	for i := 0; i < len(messages); i++ {
		message := messages[i]
		if message.Role != loop.RoleAssistant {
			require.NotEqual(t, loop.RoleTool, message.Role, "message %d answers no call", i)
			continue
		}
		for _, call := range message.ToolCalls {
			i++
			require.Less(t, i, len(messages), "call %s has no answer", call.ID)
			require.Equal(t, loop.RoleTool, messages[i].Role)
			require.Equal(t, call.ID, messages[i].ToolCallID)
			require.Equal(t, call.Name, messages[i].Name)
			require.NotEmpty(t, messages[i].Text)
			require.NotEmpty(t, call.ID)
			require.False(t, taken[call.ID], "id %s twice", call.ID)
			taken[call.ID] = true
		}
	}
}

func mustNew(t *testing.T, model loop.Model, dispatcher loop.Dispatcher, journal loop.Journal, table *tools.Table, opts *loop.Options) *loop.Runner {
	t.Helper()
	runner, err := loop.New(model, dispatcher, journal, table, opts)
	require.NoError(t, err)
	return runner
}

func mustRun(ctx context.Context, t *testing.T, runner *loop.Runner, session protocol.SessionID, input loop.Input) loop.TurnResult {
	t.Helper()
	result, err := runner.Run(ctx, session, input)
	require.NoError(t, err)
	return result
}
