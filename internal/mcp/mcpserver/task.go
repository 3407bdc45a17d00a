//nolint:tagliatelle // the names are the protocol's
package mcpserver

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/modeltext/render"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// DefaultPatience is the default of [Options].Patience: clients give up on a silent
// request after a minute.
const DefaultPatience = 50 * time.Second

// statusWorking is the status of a call that continues after its answer.
const statusWorking protocol.Status = "working"

// followedCalls are the calls that are followed here and may outlast their requests.
type followedCalls struct {
	mu    sync.Mutex
	calls map[protocol.CallID]*followed
	left  int // how many of them were left and have ended, about
	all   sync.WaitGroup

	sessions sync.WaitGroup // of the protocol
}

// maxLeft is how many calls that were left and have ended are remembered; with one more, all are
// forgotten. Reading the result of a forgotten one returns its text, without its status.
const maxLeft = 1000

type followed struct {
	pool    protocol.Pool
	session protocol.SessionID
	tool    string
	stop    context.CancelCauseFunc
	left    bool          // its client knows where its result will be
	done    chan struct{} // closed once that is there
}

func (f *followedCalls) add(call *protocol.Call, stop context.CancelCauseFunc) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.calls == nil {
		f.calls = map[protocol.CallID]*followed{}
	}
	f.calls[call.ID] = &followed{pool: call.Pool, session: call.SessionID, tool: call.Tool, stop: stop, done: make(chan struct{})}
}

// leave notes that the client of a call knows where its result will be.
func (f *followedCalls) leave(call protocol.CallID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.calls[call]; c != nil {
		c.left = true
	}
}

// end notes that a call has its result.
func (f *followedCalls) end(call protocol.CallID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.calls[call]
	close(c.done)
	if !c.left {
		delete(f.calls, call)
		return
	}
	if f.left++; f.left > maxLeft {
		maps.DeleteFunc(f.calls, func(_ protocol.CallID, c *followed) bool { return c.ended() })
		f.left = 0
	}
}

func (c *followed) ended() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// of is a call of a session that is followed here, or was left and has ended; nil is any other.
func (f *followedCalls) of(session protocol.SessionID, call protocol.CallID) *followed {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.calls[call]; c != nil && c.session == session {
		return c
	}
	return nil
}

// Close leaves calls that outlast their requests running if the fleet outlasts this server, and
// cancels them otherwise, and ends sessions of the protocol. It is called once no client is served
// any more.
func (s *Server) Close() {
	cause := context.Canceled
	if s.options.Lasting {
		cause = loop.ErrDetached
	}
	s.following.mu.Lock()
	for _, call := range s.following.calls {
		call.stop(cause)
	}
	s.following.mu.Unlock()
	s.following.all.Wait()
	servers := []*mcp.Server{s.server}
	s.offer.mu.Lock()
	if s.offer.reading != nil {
		servers = append(servers, s.offer.reading.server)
	}
	s.offer.mu.Unlock()
	for _, server := range servers {
		for session := range server.Sessions() {
			_ = session.Close() // the client is gone
		}
	}
	s.following.sessions.Wait()
}

// leave returns after which time a call continues without its request, and the answer to its client
// then; less than 0 means never.
func (s *Server) leave(request *mcp.CallToolRequest) (after time.Duration, tell func(context.Context, *protocol.Call) *mcp.CallToolResult) {
	switch {
	case knowsTasks(request.ClientCapabilities()) && s.options.TaskAfter != nil:
		return s.options.TaskAfter(request.Params.Name), becomeTask
	case knowsTasks(request.ClientCapabilities()):
		return DefaultTaskAfter, becomeTask
	case request.Params.GetProgressToken() != nil: // progress shows that the call continues
		return -1, nil
	default:
		return s.patience(), s.continuesAnswer
	}
}

func (s *Server) patience() time.Duration { return cmp.Or(s.options.Patience, DefaultPatience) }

// orLater returns the result of work, which follows the call, or after some time the result of
// tell. By then the call is stored, so its client can wait for it.
func (s *Server) orLater(
	ctx context.Context, call *protocol.Call, after time.Duration, tell func(context.Context, *protocol.Call) *mcp.CallToolResult,
	stored <-chan struct{}, work func(context.Context) (*mcp.CallToolResult, error),
) (*mcp.CallToolResult, error) {
	type answered struct {
		result *mcp.CallToolResult
		err    error
	}
	done := make(chan answered, 1)
	working, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	unhook := context.AfterFunc(ctx, func() { stop(context.Cause(ctx)) }) // a client that gives up cancels a call that was not left
	s.following.add(call, stop)
	s.following.all.Go(func() {
		defer stop(nil)
		defer s.following.end(call.ID)
		result, err := work(working)
		done <- answered{result, err}
	})
	late := time.NewTimer(after)
	defer late.Stop()
	select {
	case <-late.C:
	case a := <-done:
		return a.result, a.err
	}
	select {
	case <-stored:
	case a := <-done:
		return a.result, a.err
	}
	if !unhook() { // it is being cancelled
		a := <-done
		return a.result, a.err
	}
	return tell(ctx, call), nil
}

// continuesAnswer is the answer to a call that takes longer than a client waits that knows no
// tasks.
func (s *Server) continuesAnswer(_ context.Context, call *protocol.Call) *mcp.CallToolResult {
	s.following.leave(call.ID)
	return &mcp.CallToolResult{
		Content:           []mcp.Content{&mcp.TextContent{Text: "The call takes long, and continues. " + whereLater(call.ID)}, resultLink(call.ID)},
		StructuredContent: structured{Status: statusWorking, CallID: call.ID, SessionID: call.SessionID},
	}
}

func whereLater(call protocol.CallID) string {
	return "To wait for its result, read the path " + render.Handle(call, "", 0, 0) + " with the tool that reads files."
}

// await waits, as long as the client does, for the result of a call that still runs here, before
// the result is read. A non-nil outcome is the answer instead: that the call still runs, or what
// the call itself would have returned.
func (s *Server) await(ctx context.Context, session protocol.SessionID, read *wire.ResultRead) (*loop.Single, error) {
	call := s.following.of(session, read.CallID)
	if call == nil {
		return nil, nil //nolint:nilnil // the caller checks
	}
	var late <-chan time.Time
	if patience := s.patience(); patience > 0 {
		timer := time.NewTimer(patience)
		defer timer.Stop()
		late = timer.C
	}
	select {
	case <-call.done:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-late:
		return &loop.Single{Status: statusWorking, Text: "The call still runs. " + whereLater(read.CallID)}, nil
	}
	result, err := s.options.Dispatcher.Result(ctx, &protocol.Call{Pool: call.pool, SessionID: session, ID: read.CallID})
	if err != nil || result == nil || read.Part != "" || read.Offset != 0 || read.Column != 0 {
		return nil, err
	}
	tool, _ := s.offer.tools.Load().Lookup(call.tool) // one that there is no more is shown as JSON
	return &loop.Single{Status: result.Status, Text: tool.Text(result), Error: result.Error, Result: result}, nil
}

// tasksExtension is the extension by which a call continues without its request (SEP-2663).
const tasksExtension = "io.modelcontextprotocol/tasks"

const (
	// DefaultTaskAfter is the default of [Options].TaskAfter.
	DefaultTaskAfter = 10 * time.Second
	// taskTTL is how long a task can be asked for; results are kept for longer.
	taskTTL = 24 * time.Hour
	// taskPoll is how often clients should ask.
	taskPoll = time.Second
	// taskMAC is the length of the code that begins the id of a task, in bytes.
	taskMAC = 16
)

// task names a call of the fleet. Its id has all that it takes to find the call, so nothing is
// stored: any server with [Options].Key knows any task, also after a crash. The id is signed for
// the session of the call, and the principal: no client can make one up, not even of a call that it
// knows.
type task struct {
	Call    protocol.CallID      `json:"call"`
	Pool    protocol.Pool        `json:"pool"`
	Key     protocol.ResourceKey `json:"key"`
	Tool    string               `json:"tool"`
	Created time.Time            `json:"created"`

	session protocol.SessionID
	id      string
}

// taskID is the id of a task for the client that asks.
func (s *Server) taskID(t *task, of asker) string {
	fields, _ := json.Marshal(t) // texts and a time always can be
	return base64.RawURLEncoding.EncodeToString(append(s.taskCode(fields, of), fields...))
}

// taskCode authenticates the fields of a task.
func (s *Server) taskCode(fields []byte, of asker) []byte {
	mac := hmac.New(sha256.New, s.options.Key)
	_ = json.NewEncoder(mac).Encode([]any{"task", of.who.ID(), of.session, fields}) // it never fails
	return mac.Sum(nil)[:taskMAC]
}

// call is as much of the call as a cancel needs.
func (t *task) call() *protocol.Call {
	return &protocol.Call{ID: t.Call, SessionID: t.session, Pool: t.Pool, Resources: []protocol.Use{{Key: t.Key}}}
}

// errNoTask answers questions about tasks that there are not, or not any more.
var errNoTask = &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "this token and sandbox have no such task, or it has expired"}

// taskOf reads the id of a task of the client that asks.
func (s *Server) taskOf(id string, of asker) (*task, error) {
	raw, err := base64.RawURLEncoding.DecodeString(id)
	if err != nil || len(raw) < taskMAC || !hmac.Equal(raw[:taskMAC], s.taskCode(raw[taskMAC:], of)) {
		return nil, errNoTask
	}
	t := &task{id: id, session: of.session}
	if json.Unmarshal(raw[taskMAC:], t) != nil || time.Since(t.Created) > taskTTL {
		return nil, errNoTask
	}
	return t, nil
}

// taskState is a task as clients get it; all but ResultType is empty when a request was merely
// taken.
type taskState struct {
	mcp.ResultBase

	ResultType     string              `json:"resultType"` // task when it was made, else complete
	TaskID         string              `json:"taskId,omitempty"`
	Status         string              `json:"status,omitempty"`
	StatusMessage  string              `json:"statusMessage,omitempty"`
	CreatedAt      string              `json:"createdAt,omitempty"`
	LastUpdatedAt  string              `json:"lastUpdatedAt,omitempty"`
	TTLMS          int64               `json:"ttlMs,omitempty"`
	PollIntervalMS int64               `json:"pollIntervalMs,omitempty"`
	Result         *mcp.CallToolResult `json:"result,omitempty"`
	Error          *jsonrpc.Error      `json:"error,omitempty"`
}

const complete = "complete"

func (t *task) state(resultType, status string, updated time.Time) *taskState {
	return &taskState{
		ResultType: resultType, TaskID: t.id, Status: status,
		CreatedAt: t.Created.Format(time.RFC3339Nano), LastUpdatedAt: updated.UTC().Format(time.RFC3339Nano),
		TTLMS: taskTTL.Milliseconds(), PollIntervalMS: taskPoll.Milliseconds(),
	}
}

func knowsTasks(c *mcp.ClientCapabilities) bool {
	if c == nil {
		return false
	}
	_, knows := c.Extensions[tasksExtension]
	return knows
}

// becomeTask has [Server.tasks] answer a call with a task.
func becomeTask(ctx context.Context, call *protocol.Call) *mcp.CallToolResult {
	slot, _ := ctx.Value(taskSlot{}).(*task)
	slot.Call, slot.Pool, slot.Key, slot.Tool = call.ID, call.Pool, call.Resources[0].Key, call.Tool
	slot.Created = time.Now().UTC()
	return &mcp.CallToolResult{}
}

// taskSlot is the key of the task in the context of a call, which is set once it is one.
type taskSlot struct{}

// asker is who asks about a task.
type asker struct {
	who     judge.Principal
	session protocol.SessionID
}

func (s *Server) asker(request mcp.Request) asker {
	return asker{who: principal(request), session: s.session(request)}
}

// askerKey is the key of an asker in the context of a question.
type askerKey struct{}

// tasks answers calls with tasks that became some, and lets only clients that know tasks ask for
// them.
func (s *Server) tasks(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, request mcp.Request) (mcp.Result, error) {
		switch method {
		case "tools/call":
			t := &task{}
			result, err := next(context.WithValue(ctx, taskSlot{}, t), method, request)
			if err != nil || t.Call == "" {
				return result, err
			}
			t.id = s.taskID(t, s.asker(request))
			state := t.state("task", "working", t.Created)
			state.StatusMessage = "The call continues as a task: tasks/get returns its result, also after a crash of this server."
			return state, nil
		case "tasks/get", "tasks/update", "tasks/cancel":
			if knows, ok := request.(interface {
				ClientCapabilities() *mcp.ClientCapabilities
			}); !ok || !knowsTasks(knows.ClientCapabilities()) {
				return nil, errNeedsTasks()
			}
			if extra := request.GetExtra(); extra != nil {
				params, _ := request.GetParams().(*taskParams)
				if name := extra.Header.Get("Mcp-Name"); name != "" && params != nil && name != params.TaskID {
					return nil, &jsonrpc.Error{Code: mcp.CodeHeaderMismatch, Message: "Mcp-Name is not the taskId of the request"}
				}
			}
			return next(context.WithValue(ctx, askerKey{}, s.asker(request)), method, request)
		default:
			return next(ctx, method, request)
		}
	}
}

func errNeedsTasks() error {
	data := `{"requiredCapabilities": {"extensions": {"` + tasksExtension + `": {}}}}`
	return &jsonrpc.Error{Code: mcp.CodeMissingRequiredClientCapabilities, Message: "the client does not know the extension " + tasksExtension, Data: json.RawMessage(data)}
}

// taskParams are the parameters of every request about a task. Answers to what a task asks for are
// taken and ignored: a call asks before it is sent, and so before it is a task.
type taskParams struct {
	mcp.ParamsBase

	TaskID         string          `json:"taskId"`
	InputResponses json.RawMessage `json:"inputResponses,omitempty"`
}

func (s *Server) addTasks() {
	s.server.AddReceivingMiddleware(s.tasks)
	acts := map[string]judge.Act{"tasks/get": judge.See, "tasks/update": judge.See, "tasks/cancel": judge.Cancel}
	for method, answer := range map[string]func(context.Context, *task) (*taskState, error){
		"tasks/get": s.taskGet,
		"tasks/cancel": func(ctx context.Context, t *task) (*taskState, error) {
			return &taskState{ResultType: complete}, s.taskCancel(ctx, t)
		},
		"tasks/update": func(context.Context, *task) (*taskState, error) { return &taskState{ResultType: complete}, nil },
	} {
		handler := func(ctx context.Context, _ *mcp.ServerSession, params *taskParams) (*taskState, error) {
			if params == nil {
				return nil, errNoTask
			}
			of, _ := ctx.Value(askerKey{}).(asker)
			t, err := s.taskOf(params.TaskID, of)
			if err == nil {
				err = may(of.who, acts[method], judge.Call, string(t.Call))
			}
			if err != nil {
				return nil, err
			}
			return answer(ctx, t)
		}
		if err := mcp.AddReceivingCustomMethod(s.server, method, handler); err != nil {
			panic(err) // the SDK has got methods of these names
		}
	}
}

func (s *Server) taskCancel(ctx context.Context, t *task) error {
	result, err := s.options.Dispatcher.Result(ctx, t.call())
	if result != nil {
		return nil
	}
	if err == nil {
		err = s.options.Dispatcher.Cancel(ctx, t.call())
	}
	return err
}

// taskGet returns the state of a call, with its result if it is stored.
func (s *Server) taskGet(ctx context.Context, t *task) (*taskState, error) {
	result, err := s.options.Dispatcher.Result(ctx, t.call())
	if result == nil && err != nil {
		s.options.Logger.WarnContext(ctx, "task is not known", slog.String("call", string(t.Call)), slog.Any("error", err))
		return nil, err
	}
	if result == nil {
		return t.state(complete, "working", time.Now()), nil
	}
	if result.Status == protocol.StatusCancelled {
		return t.state(complete, "cancelled", result.FinishedAt), nil
	}
	if result.Error != nil && (result.Error.Code == protocol.CodePanic || result.Error.Code == protocol.CodeInternal) {
		state := t.state(complete, "failed", result.FinishedAt)
		state.Error = &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: result.Error.Message}
		return state, nil
	}
	state := t.state(complete, "completed", result.FinishedAt)
	tool, _ := s.offer.tools.Load().Lookup(t.Tool) // one that there is no more is shown as JSON
	state.Result, err = answer(t.session, &loop.Single{
		Status: result.Status, Text: tool.Text(result), Error: result.Error, Result: result,
	})
	return state, err
}
