package mcpserver

import (
	"context"
	"encoding/json"
	"log/slog"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolfleet/toolfleet/internal/approval"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// elicit puts what a call asks while it runs to the client's person. Where the client cannot do so
// in the middle of a request, as since 2026-07-28, [Options].Ask may know somebody else; without it
// the question is declined.
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
		warn(approval.TakeOn(s.options.At(call.Pool), s.options.Fleet, asked, q.ID))
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
	warn(approval.Reply(ctx, s.options.At(call.Pool), s.options.Fleet, asked, answer))
}
