package mcpserver

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolfleet/toolfleet/internal/approval"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// errAsked ends the planning of a call about which the client's person is to be asked first. The
// client makes the same request again with the answer (multi round-trip requests, SEP-2322); for
// older clients the SDK does so itself.
var errAsked = errors.New("the client asks")

// questionID is the name of the one question about a call.
const questionID = "approval"

// question is the question whether a call may be made, or that of the tool ask_user.
type question struct {
	state  string            // what the client carries: the question is about this call and no other
	can    bool              // whether the client can ask
	answer *mcp.ElicitResult // nil before it was asked
	other  func(ctx context.Context, request loop.ApprovalRequest) (protocol.Approval, error)
	wait   func()            // lets later calls continue, before the wait for a person
	asked  *mcp.ElicitParams // what the client is to ask; nil while there is nothing
}

// errState refuses an answer to a question that this server did not put about this call.
var errState = &jsonrpc.Error{
	Code: jsonrpc.CodeInvalidParams, Message: "requestState: is of another call or server; make the call without it, to be asked again",
}

func (s *Server) question(request *mcp.CallToolRequest, session protocol.SessionID, arguments string, wait func()) (*question, error) {
	mac := hmac.New(sha256.New, s.options.Key)
	_ = json.NewEncoder(mac).Encode([]string{string(session), request.Params.Name, arguments}) // it never fails
	q := &question{state: hex.EncodeToString(mac.Sum(nil)), other: s.options.Approve, wait: wait}
	capabilities := request.ClientCapabilities()
	q.can = capabilities != nil && capabilities.Elicitation != nil
	switch given := request.Params.RequestState; {
	case hmac.Equal([]byte(q.state), []byte(given)):
		q.answer, _ = request.Params.InputResponses[questionID].(*mcp.ElicitResult)
	case given != "":
		return nil, errState
	}
	return q, nil
}

// approve is the function of [loop.Options].Approve.
func (q *question) approve(ctx context.Context, request loop.ApprovalRequest) (protocol.Approval, error) {
	switch {
	case q.answer != nil:
		note, _ := q.answer.Content["note"].(string)
		return protocol.Approval{Granted: q.answer.Action == "accept", By: "the client's user", Note: note}, nil
	case q.can:
		q.asked = &mcp.ElicitParams{
			Mode:            "form",
			Message:         fmt.Sprintf("%s\n\n%s %s\n\nMay this call be made?", request.Reason, request.Tool, request.Arguments),
			RequestedSchema: json.RawMessage(`{"type": "object", "properties": {"note": {"type": "string", "title": "Note", "description": "A word to the model."}}}`),
		}
		return protocol.Approval{}, errAsked
	case q.other != nil:
		q.wait()
		return q.other(ctx, request)
	}
	return protocol.Approval{}, errCannotAsk
}

var errCannotAsk = errors.New("the client cannot ask a person")

// ask puts the question of the tool ask_user.
func (q *question) ask(_ context.Context, asked protocol.Question) (protocol.Answer, error) {
	switch {
	case q.answer != nil:
		content, err := json.Marshal(q.answer.Content)
		return protocol.Answer{Question: asked.ID, Action: protocol.Action(q.answer.Action), Content: content, By: "the client's user"}, err
	case q.can:
		q.asked = &mcp.ElicitParams{Mode: "form", Message: asked.Message, RequestedSchema: asked.Schema}
		return protocol.Answer{}, errAsked
	}
	return protocol.Answer{}, errCannotAsk
}

// open reports whether the client is to ask.
func (q *question) open() bool { return q.asked != nil }

// put is the question as an answer to a request.
func (q *question) put() *mcp.CallToolResult {
	return &mcp.CallToolResult{RequestState: q.state, InputRequests: mcp.InputRequestMap{questionID: q.asked}}
}

// elicit passes the question of a running call to the client's person. If the client cannot ask in
// the middle of a request, as since 2026-07-28, [Options].Ask gets the question; without it the
// question is declined.
func (s *Server) elicit(ctx context.Context, request *mcp.CallToolRequest, call *protocol.Call, q *protocol.Question) {
	asked := approval.Asked{Pool: call.Pool, Session: call.SessionID, Call: call.ID}
	warn := func(err error) {
		if err != nil && ctx.Err() == nil {
			s.options.Logger.WarnContext(ctx, "question of a call is not answered", slog.String("call", string(call.ID)), slog.Any("error", err))
		}
	}
	capabilities := request.ClientCapabilities()
	can := capabilities != nil && capabilities.Elicitation != nil && request.ProtocolVersion() < firstStateless
	if can || s.options.Ask != nil {
		warn(approval.TakeOn(s.options.At(call.Pool), s.options.Name, asked, q.ID))
	}
	if !can && s.options.Ask != nil {
		s.options.Ask(call, q)
		return
	}
	answer := protocol.Answer{Question: q.ID, Action: protocol.ActionDecline, By: "the client's user"}
	if can {
		params := &mcp.ElicitParams{Mode: "form", Message: call.Tool + " asks: " + q.Message}
		if params.RequestedSchema = json.RawMessage(`{"type":"object","properties":{}}`); q.Schema != nil {
			params.RequestedSchema = q.Schema
		}
		result, err := request.Session.Elicit(ctx, params)
		if warn(err); err == nil {
			answer.Action = protocol.Action(result.Action)
			answer.Content, _ = json.Marshal(result.Content) // it was JSON
		}
	}
	warn(approval.Reply(ctx, s.options.At(protocol.SessionPool), s.options.At(call.Pool), s.options.Name, asked, answer))
}
