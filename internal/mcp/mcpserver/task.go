//nolint:tagliatelle // the names are the protocol's
package mcpserver

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"log/slog"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

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

// taskParams are those of every question about a task. Answers to what a task asks for are taken
// and ignored: a call asks before it is sent, and so before it is a task.
type taskParams struct {
	mcp.ParamsBase

	TaskID         string          `json:"taskId"`
	InputResponses json.RawMessage `json:"inputResponses,omitempty"`
}

func (s *Server) addTasks() {
	s.server.AddReceivingMiddleware(s.tasks)
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
				err = may(of.who, method, method == "tasks/cancel")
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
