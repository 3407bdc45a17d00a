package mcpserver

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/internal/calls"
	"github.com/toolfleet/toolfleet/internal/modeltext/plain"
	"github.com/toolfleet/toolfleet/internal/modeltext/render"
	"github.com/toolfleet/toolfleet/internal/telemetry"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// structured is the typed result of a call, for programs.
type structured struct {
	Status    protocol.Status    `json:"status"`
	Error     *protocol.Error    `json:"error,omitempty"`
	CallID    protocol.CallID    `json:"call_id,omitempty"`
	SessionID protocol.SessionID `json:"session_id"`
	WorkerID  protocol.WorkerID  `json:"worker_id,omitempty"`
	Attempt   int                `json:"attempt,omitempty"`
	Level     string             `json:"level,omitempty"`
	QueueMS   float64            `json:"queue_ms"`
	RunMS     float64            `json:"run_ms"`
	Value     json.RawMessage    `json:"value,omitempty"`
}

// call answers tools/call, in the trace of its client if the request has one (SEP-414).
func (s *Server) call(ctx context.Context, request *mcp.CallToolRequest) (result *mcp.CallToolResult, err error) {
	ctx = telemetry.ExtractMeta(ctx, request.Params.Meta)
	name := ""
	if _, known := s.offer.tools.Load().Lookup(request.Params.Name); known { // one that a model made up stays out of it
		name = request.Params.Name
	}
	ctx, call := telemetry.StartCallTool(ctx, trace.SpanKindServer, name)
	defer func() { call.End(ctx, err, result != nil && result.IsError) }()
	return s.ordered(ctx, request)
}

// ordered sends calls to the fleet in the order in which they came: each waits until those before
// it have been sent.
func (s *Server) ordered(ctx context.Context, request *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	turn := s.order.of(request.Params.Meta)
	defer turn.sent()
	if err := s.mayCall(principal(request), request.Params.Name); err != nil {
		return nil, err
	}
	session := s.session(request)
	arguments := string(request.Params.Arguments)
	if arguments == "" || arguments == "null" { // as some clients say that there are none
		arguments = "{}"
	}
	ask, err := s.question(request, session, arguments, turn.sent)
	if err == nil {
		err = turn.wait(ctx)
	}
	if err != nil {
		return nil, err
	}
	o := s.single(request)
	o.Guard, o.Approve, o.Ask, o.ID = s.options.Guard, ask.approve, ask.user, ask.call
	single := loop.PlanSingle(ctx, s.offer.tools.Load(), session, request.Params.Name, arguments, o)
	if ask.open() {
		return ask.result(), nil
	}
	finish := func(ctx context.Context, outcome *loop.Single) (*mcp.CallToolResult, error) {
		s.journal(ctx, request, session, arguments, outcome)
		if r := outcome.Result; r != nil && s.options.ToolsChanged != nil {
			if called, is := r.Value.(protocol.MCPCallResult); is && called.ToolsChanged {
				s.options.ToolsChanged(session)
			}
		}
		return answer(session, outcome)
	}
	if single.Call == nil {
		return finish(ctx, single)
	}
	single.Call.Tenant = wire.TenantOf(ctx)
	if read, ok := single.Call.Payload.(wire.ResultRead); ok {
		turn.sent() // it may take long
		switch instead, err := s.await(ctx, session, &read); {
		case err != nil:
			return nil, err
		case instead != nil:
			return answer(session, instead)
		}
	}
	p := s.progress(ctx, request)
	defer p.stop()
	stored, once := make(chan struct{}), sync.Once{}
	told := func(u *loop.Update) {
		turn.sent()
		if u.Result == nil && u.Waits == "" { // else it may wait for room
			once.Do(func() { close(stored) })
		}
		p.state(u)
	}
	work := func(ctx context.Context) (*mcp.CallToolResult, error) {
		var asks sync.WaitGroup
		asking, stop := context.WithCancel(ctx)
		observe := func(u loop.Update) {
			if told(&u); u.Question != nil {
				asks.Go(func() { s.elicit(asking, request, single.Call, u.Question) })
			}
		}
		result, err := s.options.Dispatcher.CallWith(ctx, single.Call, calls.CallOptions{Observe: observe, Frames: p.frame})
		stop() // what is asked needs no answer any more
		asks.Wait()
		switch {
		case errors.Is(err, loop.ErrDetached):
			return nil, loop.ErrDetached
		case err != nil:
			s.options.Logger.WarnContext(ctx, "call is not followed", slog.String("call", string(single.Call.ID)), slog.Any("error", err))
			return nil, err
		}
		return finish(ctx, single.Finish(ctx, result))
	}
	if after, tell := s.leave(request); after >= 0 {
		return s.orLater(ctx, single.Call, after, tell, stored, work)
	}
	return work(ctx)
}

// single has how calls of a request are judged, which is the same for every method.
func (s *Server) single(request mcp.Request) *loop.SingleOptions {
	return &loop.SingleOptions{
		Hooks: s.options.Hooks, Policy: s.options.Policy, Ledger: s.ledger, MinLevel: s.options.MinLevel,
		Interface: "mcp", By: principal(request).Name, Approve: s.options.Approve,
		Dispatcher: s.options.Dispatcher, Logger: s.options.Logger,
	}
}

// journal stores a call in its session, for later inspection.
func (s *Server) journal(ctx context.Context, request *mcp.CallToolRequest, session protocol.SessionID, arguments string, o *loop.Single) {
	if s.options.Journal == nil {
		return
	}
	client := "an agent"
	if info := request.ClientInfo(); info != nil && info.Name != "" {
		client = info.Name
	}
	if err := s.ledger.Append(context.WithoutCancel(ctx), session, "(called by "+client+")", request.Params.Name, arguments, o); err != nil {
		s.options.Logger.WarnContext(ctx, "call is not journaled", slog.String("session", string(session)), slog.Any("error", err))
	}
}

// answer returns an outcome for a client: the text that a model reads or the tool's own content, an
// image, a link to the whole of a shortened result, and the typed result.
func answer(session protocol.SessionID, o *loop.Single) (*mcp.CallToolResult, error) {
	typed := structured{Status: o.Status, Error: o.Error, SessionID: session}
	answer := &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: o.Text}}, IsError: o.Status != protocol.StatusOK && o.Status != statusWorking}
	if r := o.Result; r != nil {
		typed.CallID, typed.WorkerID, typed.Attempt, typed.Level = r.CallID, r.WorkerID, r.Attempt, r.Level
		typed.QueueMS, typed.RunMS = r.QueueMS, r.RunMS
		own := ownAnswer(r.Value)
		if own != nil && o.Status == protocol.StatusOK {
			answer.Content, answer.IsError = own.Content, own.IsError
		}
		value := r.Value
		called, isServers := value.(protocol.MCPCallResult)
		mediaType, data, image := render.Image(r)
		switch {
		case isServers:
			answer.Content = blocks(o.Text, called)
			called.Content, image = []protocol.MCPContent{}, false
			value = called
		case image && mediaType == render.MediaPDF:
			answer.Content = append(answer.Content, &mcp.EmbeddedResource{
				Resource: &mcp.ResourceContents{URI: resultURI(r.CallID), MIMEType: mediaType, Blob: data},
			})
		case image:
			answer.Content = append(answer.Content, &mcp.ImageContent{MIMEType: mediaType, Data: data})
		}
		if r.Kept != nil {
			answer.Content = append(answer.Content, resultLink(r.CallID))
		}
		if r.Value != nil && !image && own == nil { // which are there already
			var err error
			if typed.Value, err = wire.EncodeValue(value); err != nil {
				return nil, err
			}
		}
	}
	answer.StructuredContent = typed
	return answer, nil
}

// ownAnswer returns the output of a user's own tool that is a result of the protocol already: an
// object whose "content" is a list of text, images, audio and resources. It is nil for every other
// output.
func ownAnswer(value protocol.Value) *mcp.CallToolResult {
	var output json.RawMessage
	switch v := value.(type) {
	case protocol.UnknownValue:
		output, _ = v.Output()
	case protocol.ToolRunResult:
		output = v.Output
	}
	var has struct {
		Content []json.RawMessage `json:"content"`
	}
	if json.Unmarshal(output, &has) != nil || len(has.Content) == 0 {
		return nil
	}
	var answer mcp.CallToolResult
	if json.Unmarshal(output, &answer) != nil {
		return nil
	}
	return &answer
}

// blocks is what a tool of an MCP server returned, block by block. Where the text that a model
// reads is another one, because it was cut or something was added, that stands for all that is
// text. Data larger than an image may be is left out; the text names it.
func blocks(text string, value protocol.MCPCallResult) []mcp.Content {
	whole := text == strings.TrimSuffix(plain.MCP(value), "\n")
	var all []mcp.Content
	if !whole || len(value.Content) == 0 {
		all = append(all, &mcp.TextContent{Text: text})
	}
	for _, part := range value.Content {
		switch {
		case part.Type == "resource_link":
			all = append(all, &mcp.ResourceLink{URI: part.URI, Name: part.Name, Description: part.Text, MIMEType: part.MediaType})
		case len(part.Data) > render.MaxImageBytes, len(part.Data) == 0 && !whole: // which the text names, or has
		case part.Type == "text":
			all = append(all, &mcp.TextContent{Text: part.Text})
		case part.Type == "image":
			all = append(all, &mcp.ImageContent{Data: part.Data, MIMEType: part.MediaType})
		case part.Type == "audio":
			all = append(all, &mcp.AudioContent{Data: part.Data, MIMEType: part.MediaType})
		case part.Type == "resource":
			all = append(all, &mcp.EmbeddedResource{Resource: &mcp.ResourceContents{URI: part.URI, MIMEType: part.MediaType, Text: part.Text, Blob: part.Data}})
		}
	}
	return all
}
