package toolserver

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/internal/telemetry"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// call calls a tool once.
func (l *live) call(ctx context.Context, p protocol.MCPCall, show *shown) (value *protocol.MCPCallResult, err error) {
	token := strconv.FormatInt(l.tokens.Add(1), 10)
	l.mu.Lock()
	l.shown[token] = show
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.shown, token)
	}()
	ctx, call := telemetry.StartCallTool(ctx, trace.SpanKindClient, p.Tool)
	defer func() { call.End(ctx, err, value != nil && value.IsError) }()
	params := &mcp.CallToolParams{Name: p.Tool, Arguments: p.Arguments, Meta: telemetry.InjectMeta(ctx, nil)}
	params.SetProgressToken(token)
	result, err := l.session.CallTool(ctx, params)
	if err != nil {
		return nil, err
	}
	value = &protocol.MCPCallResult{
		Content: []protocol.MCPContent{}, IsError: result.IsError, ToolsChanged: l.changed.Load(), Notes: show.taken(),
	}
	for _, part := range result.Content {
		value.Content = append(value.Content, contentOf(part))
	}
	value.Structured = structuredOf(result)
	return value, nil
}

// toolOf is a tool as it travels.
func toolOf(t *mcp.Tool) wire.MCPTool {
	tool := wire.MCPTool{Name: t.Name, Description: cmp.Or(t.Description, t.Title), Title: t.Title}
	if a := t.Annotations; a != nil {
		tool.Title = cmp.Or(t.Title, a.Title)
		tool.ReadOnly, tool.Idempotent = a.ReadOnlyHint, a.IdempotentHint
		tool.Additive = a.DestructiveHint != nil && !*a.DestructiveHint
		tool.Closed = a.OpenWorldHint != nil && !*a.OpenWorldHint
	}
	tool.Schema, _ = json.Marshal(t.InputSchema) // it was JSON
	if t.OutputSchema != nil {
		tool.Output, _ = json.Marshal(t.OutputSchema) // likewise
	}
	return tool
}

// contentOf is a part of a result as it travels.
func contentOf(part mcp.Content) protocol.MCPContent {
	switch part := part.(type) {
	case *mcp.TextContent:
		return protocol.MCPContent{Type: "text", Text: part.Text}
	case *mcp.ImageContent:
		return protocol.MCPContent{Type: "image", Data: part.Data, MediaType: part.MIMEType}
	case *mcp.AudioContent:
		return protocol.MCPContent{Type: "audio", Data: part.Data, MediaType: part.MIMEType}
	case *mcp.ResourceLink:
		return protocol.MCPContent{
			Type: "resource_link", URI: part.URI, Name: cmp.Or(part.Title, part.Name), Text: part.Description, MediaType: part.MIMEType,
		}
	case *mcp.EmbeddedResource:
		if part.Resource == nil {
			return protocol.MCPContent{Type: "resource"}
		}
		return protocol.MCPContent{
			Type: "resource", URI: part.Resource.URI, Text: part.Resource.Text, Data: part.Resource.Blob, MediaType: part.Resource.MIMEType,
		}
	default:
		return protocol.MCPContent{Type: "text", Text: fmt.Sprintf("[content that is not known: %T]", part)}
	}
}

// failureOf is what a tool said of its failure.
func failureOf(value *protocol.MCPCallResult) string {
	for _, part := range value.Content {
		if line, _, _ := strings.Cut(strings.TrimSpace(part.Text), "\n"); line != "" {
			const most = 500
			return string([]rune(line)[:min(most, len([]rune(line)))])
		}
	}
	return "the tool failed, and did not say why"
}

// shown has the progress and the logs of a running call, for those who follow it.
type shown struct {
	call   context.Context //nolint:containedctx // that of the call, for what its server asks
	ask    AskFunc         // nil declines questions
	asking sync.Mutex      // held while a person is asked

	mu    sync.Mutex
	to    func(string) // nil after the call
	notes []string
}

func newShown(ctx context.Context, at Surroundings) *shown {
	s := &shown{call: ctx, ask: at.Ask, to: at.Show}
	if s.to == nil {
		s.to = func(string) {}
	}
	return s
}

func (s *shown) show(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.to != nil {
		s.to(text)
	}
}

func (s *shown) note(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notes = append(s.notes, text)
}

func (s *shown) taken() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.notes
}

func (s *shown) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.to = nil
}

// each does something for every call that runs.
func (l *live) each(do func(*shown)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, one := range l.shown {
		do(one)
	}
}

// progressed shows the progress of a call.
func (l *live) progressed(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
	l.mu.Lock()
	one := l.shown[fmt.Sprint(r.Params.ProgressToken)]
	l.mu.Unlock()
	if one == nil {
		return
	}
	text := strconv.FormatFloat(r.Params.Progress, 'g', -1, 64)
	if r.Params.Total > 0 {
		text += "/" + strconv.FormatFloat(r.Params.Total, 'g', -1, 64)
	}
	if r.Params.Message != "" {
		text += " " + r.Params.Message
	}
	one.show("[progress " + text + "]\n")
}

// logged shows what the server logs.
func (l *live) logged(_ context.Context, r *mcp.LoggingMessageRequest) {
	text, isText := r.Params.Data.(string)
	if !isText {
		encoded, _ := json.Marshal(r.Params.Data) // it was JSON
		text = string(encoded)
	}
	l.each(func(one *shown) { one.show(fmt.Sprintf("[%s] %s\n", r.Params.Level, text)) })
}
