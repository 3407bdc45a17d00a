package acp

import (
	"context"
	"encoding/json"
	"errors"
	"strings"

	acp "github.com/coder/acp-go-sdk"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// prompt begins a turn, which run runs to its end.
func (a *Agent) prompt(ctx context.Context, params json.RawMessage) (run func(context.Context) (any, *acp.RequestError), wrong *acp.RequestError) {
	var request struct {
		ID     *string           `json:"sessionId"` //nolint:tagliatelle // as the protocol has it
		Prompt []json.RawMessage `json:"prompt"`
		Meta   struct {
			AnswerSchema json.RawMessage `json:"toolfleet/answerSchema"` //nolint:tagliatelle // as the protocol has names
		} `json:"_meta"` //nolint:tagliatelle // as the protocol has it
	}
	if wrong = decode(params, &request); wrong != nil {
		return nil, wrong
	}
	s, wrong := a.named(request.ID)
	if wrong != nil {
		return nil, wrong
	}
	input, wrong := inputOf(request.Prompt, s.updates.workspace)
	if wrong != nil {
		return nil, wrong
	}
	input.AnswerSchema = request.Meta.AnswerSchema
	if err := s.Check(input); err != nil {
		return nil, invalid("prompt", "%v", plain(err))
	}
	ctx, cancel := context.WithCancel(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		cancel()
		return nil, invalid("sessionId", "session %s is being closed", s.ID())
	}
	if s.cancel != nil {
		cancel()
		return nil, &acp.RequestError{Code: codeInvalidRequest, Message: "Invalid request: the session has a turn that runs: wait for its end, or cancel it (session/cancel)"}
	}
	ended := make(chan struct{})
	s.cancel, s.ended = cancel, ended
	mode := s.mode
	return func(request context.Context) (any, *acp.RequestError) {
		defer context.AfterFunc(request, cancel)()
		result, err := a.turn(ctx, s, mode, input)
		s.mu.Lock()
		s.cancel, s.ended = nil, nil
		s.mu.Unlock()
		close(ended)
		cancelled := ctx.Err() != nil
		cancel()
		return stopped(s, result, err, cancelled)
	}, nil
}

// turn runs a turn, or a command.
func (a *Agent) turn(ctx context.Context, s *open, mode string, input loop.Input) (loop.TurnResult, error) {
	if err := s.SetMode(mode); err != nil {
		return loop.TurnResult{}, err
	}
	if name, argument, is := s.command(input.Text); is {
		answer, text := s.Command(ctx, name, argument)
		if text == "" {
			s.updates.send(acp.UpdateAgentMessageText(answer))
			return loop.TurnResult{Outcome: loop.OutcomeAnswered}, nil
		}
		input.Text = text
	}
	return s.Run(ctx, input)
}

// command reports whether a text is one of the session's commands.
func (s *open) command(text string) (name, argument string, is bool) {
	name, argument, _ = strings.Cut(text, " ")
	for _, command := range s.Commands() {
		if name == "/"+command.Name {
			return command.Name, strings.TrimSpace(argument), true
		}
	}
	return "", "", false
}

// stopped is the answer to a prompt.
func stopped(s *open, result loop.TurnResult, err error, cancelled bool) (any, *acp.RequestError) {
	reason := acp.StopReasonEndTurn
	switch {
	case cancelled, result.Outcome == loop.OutcomeInterrupted:
		reason = acp.StopReasonCancelled
	case err != nil:
		return nil, internalError(err)
	case result.Outcome == loop.OutcomeFailed:
		if result.Error == nil {
			return nil, internalError(errors.New("the turn failed"))
		}
		return nil, &acp.RequestError{Code: codeInternal, Message: result.Error.Message, Data: map[string]any{"code": result.Error.Code}}
	case result.Outcome == loop.OutcomeLimitReached:
		reason = acp.StopReasonMaxTurnRequests
		if result.Error != nil {
			s.updates.send(acp.UpdateAgentMessageText("\n\n[" + result.Error.Message + "]"))
		}
	}
	response := acp.PromptResponse{StopReason: reason}
	if result.Answer != nil {
		response.Meta = map[string]any{"toolfleet/answer": result.Answer}
	}
	return response, nil
}

// cancelTurn stops the turn that runs.
func (a *Agent) cancelTurn(params json.RawMessage) {
	var request struct {
		ID *string `json:"sessionId"` //nolint:tagliatelle // as the protocol has it
	}
	if decode(params, &request) != nil {
		return
	}
	if s, wrong := a.named(request.ID); wrong == nil {
		s.stop(false)
	}
}

// stop stops the turn that runs; with closing set none can follow. ended is closed when it has
// ended; nil without one.
func (s *open) stop(closing bool) (ended <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = s.closed || closing
	if s.cancel != nil {
		s.cancel()
	}
	return s.ended
}

// The answers to a question about a call.
const (
	optionAllow  = "allow"
	optionAlways = "allow_always"
	optionReject = "reject"
)

// approve asks the person at the client about a call.
func (a *Agent) approve(ctx context.Context, s *open, request loop.ApprovalRequest) (protocol.Approval, error) {
	answer := protocol.Approval{By: a.options.User, Via: "acp"}
	s.mu.Lock()
	answer.Granted = s.allowed[request.Tool]
	s.mu.Unlock()
	if answer.Granted {
		return answer, nil
	}
	options := []acp.PermissionOption{{OptionId: optionAllow, Name: "Allow", Kind: acp.PermissionOptionKindAllowOnce}}
	if s.RemembersApproval() {
		options = append(options, acp.PermissionOption{
			OptionId: optionAlways, Name: "Allow all calls of " + request.Tool + " in this session", Kind: acp.PermissionOptionKindAllowAlways,
		})
	}
	options = append(options, acp.PermissionOption{OptionId: optionReject, Name: "Reject", Kind: acp.PermissionOptionKindRejectOnce})
	about := s.updates.about(request.Tool, request.Arguments)
	call := acp.ToolCallUpdate{
		ToolCallId: idOf(request.CallID), Title: &about.Title, Kind: &about.Kind, Status: new(acp.ToolCallStatusPending),
		Content: about.Content, Locations: about.Locations, RawInput: about.RawInput,
	}
	var response acp.RequestPermissionResponse
	err := a.conn.request(ctx, acp.ClientMethodSessionRequestPermission, acp.RequestPermissionRequest{
		SessionId: acp.SessionId(s.ID()), ToolCall: call, Options: options,
	}, &response)
	if errors.Is(err, errGone) { // the turn is stopped: nothing was refused
		<-ctx.Done()
	}
	switch selected := response.Outcome.Selected; {
	case err != nil:
		return answer, err
	case selected == nil:
		answer.Note = "The question was cancelled."
	case selected.OptionId == optionAlways && s.RemembersApproval():
		s.mu.Lock()
		s.allowed[request.Tool] = true
		s.mu.Unlock()
		answer.Granted = true
	default:
		answer.Granted = selected.OptionId == optionAllow
	}
	return answer, nil
}

// fill asks the person at the client for what a question wants to know.
func (a *Agent) fill(ctx context.Context, s *open, tool string, question *protocol.Question) (protocol.Answer, error) {
	answer := protocol.Answer{Question: question.ID, Action: protocol.ActionCancel, By: a.options.User}
	asks := tool + " asks: "
	if tool == wire.AskUserTool {
		asks = ""
	}
	schema := question.Schema
	if len(schema) == 0 {
		schema = json.RawMessage(`{"type":"object","properties":{}}`)
	}
	var response struct {
		Action  protocol.Action
		Content json.RawMessage
	}
	err := a.conn.request(ctx, methodElicit, map[string]any{"mode": "form", "sessionId": s.ID(), "message": asks + question.Message, "requestedSchema": schema}, &response)
	if err != nil {
		return answer, err
	}
	switch response.Action {
	case protocol.ActionAccept:
		answer.Action, answer.Content = response.Action, response.Content
	case protocol.ActionDecline:
		answer.Action = response.Action
	case protocol.ActionWait, protocol.ActionCancel: // and what later versions have
	}
	return answer, nil
}
