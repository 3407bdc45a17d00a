package httpapi

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/toolfleet/toolfleet/internal/access"
	"github.com/toolfleet/toolfleet/internal/system/moment"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// CallRequest is a call to send: of a tool, or of a handler of a Go worker.
type CallRequest struct {
	Tool      string          `json:"tool,omitempty" example:"bash" doc:"Name of a tool. One of tool and handler is required."`
	Arguments json.RawMessage `json:"arguments,omitempty" doc:"Arguments of the tool: a JSON object. Default: {}."`
	Handler   protocol.Kind   `json:"handler,omitempty" doc:"Kind of a handler of Go workers, which runs instead of a tool."`
	Input     json.RawMessage `json:"input,omitempty" doc:"What the handler gets: any JSON value."`

	Session   protocol.SessionID `json:"session_id,omitempty" doc:"Session that owns the call and its result. Default: that of the sandbox, else one for all such calls of the tenant to this server."`
	Sandbox   string             `json:"sandbox,omitempty" doc:"Sandbox in which the call runs. Default: that of the session."`
	Resources []protocol.Use     `json:"resources,omitempty" maxItems:"64" doc:"What the call uses. Calls whose resources conflict run one after another. Default: what the tool declares."`
	Pool      protocol.Pool      `json:"pool,omitempty" doc:"Pool of workers."`
	MinLevel  string             `json:"min_level,omitempty" enum:"none,paths,full,kernel" doc:"Minimum sandbox level."`

	Delivery       protocol.Delivery  `json:"delivery,omitempty" enum:"rollback,idempotent,at_most_once" doc:"What may happen after a lost worker."`
	Retry          *protocol.Retry    `json:"retry,omitempty" doc:"When a failed call starts again; needs the delivery idempotent."`
	TimeoutMS      int64              `json:"timeout_ms,omitempty" minimum:"0" maximum:"31622400000" doc:"Bound of one attempt."`
	QueueTimeoutMS int64              `json:"queue_timeout_ms,omitempty" minimum:"0" maximum:"31622400000" doc:"Bound of the time from acceptance to the first start."`
	NotBefore      time.Time          `json:"not_before,omitzero" doc:"Time before which the call does not start."`
	Deadline       time.Time          `json:"deadline,omitzero" doc:"Time at which the call ends at the latest."`
	After          []protocol.CallRef `json:"after,omitempty" maxItems:"64" doc:"Calls that must have ended with status ok before."`
	Tenant         protocol.Tenant    `json:"tenant,omitempty" doc:"Tenant. Default: that of the token."`
	Priority       protocol.Priority  `json:"priority,omitempty" enum:"interactive,normal,batch" doc:"Order among the calls of the tenant."`
}

// call is what the client sends.
func (a *api) call(ctx context.Context, r *CallRequest, id protocol.CallID) (fleet.Call, error) {
	if r.TimeoutMS < 0 || r.QueueTimeoutMS < 0 {
		return fleet.Call{}, ofRequest(http.StatusUnprocessableEntity, "timeout_ms, queue_timeout_ms: must be 0 or more")
	}
	call := fleet.Call{
		Tool: r.Tool, Arguments: string(r.Arguments), Handler: r.Handler, Session: r.Session, Sandbox: r.Sandbox, Resources: r.Resources, Pool: r.Pool, MinLevel: r.MinLevel,
		ID: id, Delivery: r.Delivery, Retry: r.Retry, Timeout: milliseconds(r.TimeoutMS), QueueTimeout: milliseconds(r.QueueTimeoutMS),
		NotBefore: r.NotBefore, Deadline: r.Deadline, After: r.After, Tenant: r.Tenant, Priority: r.Priority,
	}
	if r.Input != nil {
		call.Args = r.Input
	}
	call, err := a.Prepared(ctx, call)
	if err != nil {
		return call, problem(err)
	}
	return call, nil
}

// Prepared is a call as this server sends it: with its tools, policy and hooks, in the pool of its
// session.
func (o *Options) Prepared(ctx context.Context, call fleet.Call) (fleet.Call, error) {
	call.Hooks, call.Policy = o.Hooks, o.Policy // without Approve: a request would wait for a person, and no list would show that
	if call.Handler == "" && o.Table != nil {
		call.Table = o.Table()
	}
	if call.Session == "" && call.Sandbox == "" {
		call.Session = o.Session
	}
	if call.Pool == "" {
		call.Pool = o.Pool
		if sandbox := cmp.Or(protocol.SessionID(call.Sandbox), call.Session); sandbox != "" {
			pool, err := o.Local.Use(ctx, sandbox, true, false)
			if err != nil {
				return fleet.Call{}, err
			}
			call.Pool = pool
		}
	}
	if call.MinLevel == "" {
		call.MinLevel = o.MinLevel
	}
	return call, nil
}

func milliseconds(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

// stateEnded is the state of a call that has a result.
const stateEnded = "ended"

// CallState is what is known of a call.
type CallState struct {
	SessionID protocol.SessionID `json:"session_id"`
	CallID    protocol.CallID    `json:"call_id"`
	State     string             `json:"state" enum:"accepted,ended" doc:"accepted: it waits or runs. ended: result is set."`
	Result    *CallResult        `json:"result,omitempty"`
}

// CallResult is how a call ended.
type CallResult struct {
	protocol.Result

	// Value is the typed output, and Text what a model would read.
	Value json.RawMessage `json:"value,omitempty" doc:"Typed output; also of a call that failed, as far as it came."`
	Text  string          `json:"text" doc:"What a model would read."`
}

// resultOf is the result of the client as the API has it: of a tool of the table with the text that
// a model reads.
func (a *api) resultOf(ctx context.Context, r fleet.Result) (*CallResult, error) {
	made, known := &CallResult{Result: r.Result, Text: r.Text}, false
	if a.Table != nil && r.Tool != "" {
		var tool *tools.Tool
		if tool, known = a.Table().Lookup(r.Tool); known {
			made.Text = tool.Text(&r.Result)
		}
	}
	if turn, is := r.Value.(wire.TurnRunResult); is {
		made.Text = turn.Text
	} else {
		if !known && r.Digest == "" { // it may have been judged as a call of any tool, such as the reading of a resource
			made.Tool = ""
		}
		made.Text = loop.ResultByHooks(ctx, a.Hooks, &made.Result, made.Text, "http")
		made.Tool = r.Tool
	}
	if made.Result.Value == nil {
		return made, nil
	}
	value, err := wire.EncodeValue(made.Result.Value)
	made.Value = value
	return made, err
}

// state follows a call for a while, and says what is known of it then.
func (a *api) state(ctx context.Context, ref protocol.CallRef, wait time.Duration) (*CallState, error) {
	future, err := a.Client.Attach(ctx, ref)
	if err != nil {
		return nil, err
	}
	state := &CallState{SessionID: ref.SessionID, CallID: ref.ID, State: "accepted"}
	waiting, cancel := context.WithTimeout(ctx, max(wait, attachWait))
	defer cancel()
	select {
	case <-future.Done():
	case <-waiting.Done():
		return state, nil // it has not ended yet
	case <-access.Draining(ctx):
		return state, nil
	}
	result, err := future.Wait(ctx)
	if err != nil && result.Status == "" {
		return nil, err
	}
	state.State = stateEnded
	state.Result, err = a.resultOf(ctx, result)
	return state, err
}

// attachWait is in which time a stored result arrives.
const attachWait = 200 * time.Millisecond

// Waiting is how long a request waits for an end.
type Waiting struct {
	Wait int64 `query:"wait_ms" minimum:"0" maximum:"60000" doc:"How long the answer waits for the end, in milliseconds."`
}

// CallPath names a call.
type CallPath struct {
	Session protocol.SessionID `path:"session" maxLength:"64" doc:"Session of the call."`
	Call    protocol.CallID    `path:"call" maxLength:"64" doc:"Id of the call."`
}

func (p CallPath) ref() protocol.CallRef { return protocol.CallRef{SessionID: p.Session, ID: p.Call} }

// Keyed has the caller's own id of what a request makes.
type Keyed struct {
	Key string `header:"Idempotency-Key" maxLength:"64" doc:"Your own id of the call, which becomes its call_id: a request that is repeated with it makes no second call while the first one's result is stored."`
}

// calls registers operations on single calls.
func (a *api) calls() {
	const tag = "Calls"
	huma.Register(a.huma, operation(http.MethodPost, "/calls", "send-call", tag, "Send a call", accepted),
		func(ctx context.Context, in *struct {
			Keyed
			Waiting
			Body CallRequest
		},
		) (*answer[*CallState], error) {
			call, err := a.call(ctx, &in.Body, protocol.CallID(in.Key))
			if err != nil {
				return nil, err
			}
			ref, err := a.Client.Submit(ctx, call)
			if err != nil {
				return nil, problem(err)
			}
			if in.Wait == 0 {
				return answered(&CallState{SessionID: ref.SessionID, CallID: ref.ID, State: "accepted"}, nil)
			}
			return answered(a.state(ctx, ref, milliseconds(in.Wait)))
		})
	huma.Register(a.huma, operation(http.MethodPost, "/calls/batch", "send-calls", tag, "Send many calls, in order", accepted),
		func(ctx context.Context, in *struct {
			Body struct {
				Calls []BatchedCall `json:"calls" minItems:"1" maxItems:"1000"`
			}
		},
		) (*answer[CallList], error) {
			list := CallList{Calls: make([]SentCall, len(in.Body.Calls))}
			for i := range in.Body.Calls {
				list.Calls[i] = a.sent(ctx, &in.Body.Calls[i])
			}
			return answered(list, nil)
		})
	huma.Register(a.huma, operation(http.MethodGet, "/calls/{session}/{call}", "get-call", tag, "Get the state of a call, and its result"),
		func(ctx context.Context, in *struct {
			CallPath
			Waiting
		},
		) (*answer[*CallState], error) {
			return answered(a.state(ctx, in.ref(), milliseconds(in.Wait)))
		})
	huma.Register(a.huma, operation(http.MethodPost, "/calls/{session}/{call}/cancel", "cancel-call", tag, "Cancel a call", bounded),
		func(ctx context.Context, in *CallPath) (*struct{}, error) {
			future, err := a.Client.Attach(ctx, in.ref())
			if err == nil {
				err = future.Cancel(ctx)
			}
			return done(err)
		})
	a.callEvents(tag)
	a.callLog(tag)
	huma.Register(a.huma, operation(http.MethodGet, "/tools", "list-tools", tag, "List the tools that calls may name"),
		func(context.Context, *struct{}) (*answer[ToolList], error) {
			list := ToolList{Tools: []ToolInfo{}}
			if a.Table != nil {
				for _, d := range a.Table().Definitions() {
					list.Tools = append(list.Tools, ToolInfo{d.Name, d.Description, d.Schema})
				}
			}
			return answered(list, nil)
		})
}

// CallFilter says which calls of the log are wanted.
type CallFilter struct {
	Session protocol.SessionID `query:"session" maxLength:"64" doc:"Session of the calls."`
	Call    protocol.CallID    `query:"call" maxLength:"64" doc:"Id of the calls, in any session."`
	Tool    string             `query:"tool" maxLength:"300" doc:"Name of the tool."`
	Status  string             `query:"status" maxLength:"100" doc:"Statuses, separated by commas: ok, failed, timeout, cancelled, rejected, outcome_unknown. In addition, exit has the commands that ended with another exit code than 0, and not_ok all calls that did not end well."`
	Lane    string             `query:"lane" maxLength:"600" doc:"Lane, as POOL/LANE or in any pool."`
	Tenant  protocol.Tenant    `query:"tenant" maxLength:"32" doc:"Tenant of the calls."`
	Worker  protocol.WorkerID  `query:"worker" maxLength:"300" doc:"Worker that answered."`
	Since   string             `query:"since" maxLength:"64" doc:"The calls ended at this time or later: a time, or how long ago, such as 15m, 24h or 7d."`
	Until   time.Time          `query:"until" doc:"The calls ended before this time."`
}

func (f *CallFilter) query() (q fleet.CallQuery, err error) {
	q = fleet.CallQuery{Session: f.Session, Call: f.Call, Tool: f.Tool, Lane: f.Lane, Tenant: f.Tenant, Worker: f.Worker, Until: f.Until}
	if q.Since, err = since(f.Since); err != nil {
		return q, err
	}
	for status := range strings.SplitSeq(f.Status, ",") {
		if status != "" {
			q.Status = append(q.Status, protocol.Status(status))
		}
	}
	return q, nil
}

// since is the time that a query begins at; zero without one.
func since(text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	m, err := moment.Parse(text)
	if err != nil {
		return time.Time{}, fmt.Errorf("%w: since %w", fleet.ErrInvalid, err)
	}
	return m.Before(time.Now()), nil
}

// callLog registers operations on the log of calls.
func (a *api) callLog(tag string) {
	huma.Register(a.huma, operation(http.MethodGet, "/calls", "list-calls", tag, "List the calls that ended, the last one first", bounded),
		func(ctx context.Context, in *struct {
			CallFilter
			Text     string `query:"text" maxLength:"500" doc:"Words that must all be in the input, or in the output, as in search-sessions."`
			After    string `query:"after" maxLength:"64" doc:"next of the page before."`
			Position string `query:"position" maxLength:"64" doc:"position of an earlier page: the calls that the log took in since then, the first one first."`
			Limited
		},
		) (*answer[report.CallLog], error) {
			q, err := in.query()
			if err != nil {
				return answered(report.CallLog{}, err)
			}
			q.Text, q.After, q.Position, q.Limit, q.Journaled = in.Text, in.After, in.Position, in.Limit, len(a.Hooks) > 0
			return answered(a.Client.Calls(ctx, q))
		})
	huma.Register(a.huma,
		operation(http.MethodGet, "/calls/rates", "get-call-rates", tag, "Count the calls that ended in each step of a time, and how long they took", bounded),
		func(ctx context.Context, in *struct {
			CallFilter
			Step int64 `query:"step_ms" minimum:"1000" maximum:"31622400000" default:"60000" doc:"Length of a step, in milliseconds. At most 1,000 steps. Default of the time: the last hour."`
		},
		) (*answer[report.CallRates], error) {
			q, err := in.query()
			if err != nil {
				return answered(report.CallRates{}, err)
			}
			return answered(a.Client.CallRates(ctx, q, milliseconds(in.Step)))
		})
	huma.Register(a.huma, operation(http.MethodGet, "/calls/{session}/{call}/log", "get-logged-call", tag, "Get a call of the log, with its input and output", bounded),
		func(ctx context.Context, in *CallPath) (*answer[report.LoggedCall], error) {
			return answered(a.LoggedCall(ctx, in.ref()))
		})
}

// LoggedCall is [fleet.Client.LoggedCall], without texts that the hooks have not seen: those that
// no journal has.
func (o *Options) LoggedCall(ctx context.Context, ref protocol.CallRef) (report.LoggedCall, error) {
	call, err := o.Client.LoggedCall(ctx, ref)
	if err != nil || len(o.Hooks) == 0 {
		return call, err
	}
	page, err := o.Client.Calls(ctx, fleet.CallQuery{Session: call.SessionID, Call: call.CallID, Limit: 1, Whole: true, Journaled: true})
	if err != nil || len(page.Calls) == 0 {
		return report.LoggedCall{}, cmp.Or(err, fleet.ErrNotFound)
	}
	return page.Calls[0], nil
}

// ToolInfo describes a tool.
type ToolInfo struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Parameters  json.RawMessage `json:"parameters" doc:"JSON Schema of the arguments."`
}

// ToolList lists tools.
type ToolList struct {
	Tools []ToolInfo `json:"tools"`
}

// BatchedCall is one of many calls.
type BatchedCall struct {
	CallRequest

	CallID protocol.CallID `json:"call_id,omitempty" maxLength:"64" doc:"Your own id of the call. Default: a new one."`
}

// SentCall says whether one of many calls was sent.
type SentCall struct {
	SessionID protocol.SessionID `json:"session_id,omitempty"`
	CallID    protocol.CallID    `json:"call_id,omitempty"`
	Problem   *Problem           `json:"problem,omitempty" doc:"Why it was not sent; others may have been."`
}

// CallList is the answer to many calls, in their order.
type CallList struct {
	Calls []SentCall `json:"calls"`
}

// sent sends one of many calls.
func (a *api) sent(ctx context.Context, request *BatchedCall) (made SentCall) {
	call, err := a.call(ctx, &request.CallRequest, request.CallID)
	if err == nil {
		var ref protocol.CallRef
		ref, err = a.Client.Submit(ctx, call)
		made.SessionID, made.CallID = ref.SessionID, ref.ID
	}
	if err != nil {
		errors.As(problem(err), &made.Problem)
	}
	return made
}
