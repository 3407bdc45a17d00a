package toolserver

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/telemetry"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// call calls a tool once.
func (l *live) call(ctx context.Context, p protocol.MCPCall, show *callOutput) (value *protocol.MCPCallResult, err error) {
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
	params := &mcp.CallToolParams{Name: p.Tool, Arguments: p.Arguments, Meta: telemetry.InjectMeta(ctx, show.meta())}
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

// Keys of _meta.
const (
	// MetaTool is how a tool is used, in its definition.
	MetaTool = "toolfleet/tool"
	// MetaCall is which call it is, in a request: [Running].
	MetaCall = "toolfleet/call"
)

// meta is what a request says of its call.
func (s *callOutput) meta() map[string]any {
	if s.running == nil {
		return nil
	}
	return map[string]any{MetaCall: s.running}
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
	if rule, has := t.Meta[MetaTool]; has {
		tool.Rule, _ = json.Marshal(rule) // likewise
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
			return prose.Short(line, most)
		}
	}
	return "the tool failed, and did not say why"
}

// callOutput has the progress and the logs of a running call, for those who follow it.
type callOutput struct {
	call      context.Context //nolint:containedctx // the context of the call, for questions of its server
	running   *Running
	askPerson AskFunc    // nil declines questions
	asking    sync.Mutex // held while a person is asked

	mu    sync.Mutex
	to    func(string) // nil after the call
	notes []string
}

func newCallOutput(ctx context.Context, at Surroundings) *callOutput {
	s := &callOutput{call: ctx, running: at.Running, askPerson: at.Ask, to: at.Show}
	if s.to == nil {
		s.to = func(string) {}
	}
	return s
}

func (s *callOutput) send(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.to != nil {
		s.to(text)
	}
}

func (s *callOutput) note(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notes = append(s.notes, text)
}

func (s *callOutput) taken() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.notes
}

func (s *callOutput) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.to = nil
}

// each does something for every call that runs.
func (l *live) each(do func(*callOutput)) {
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
	one.send("[progress " + text + "]\n")
}

// logged shows what the server logs.
func (l *live) logged(_ context.Context, r *mcp.LoggingMessageRequest) {
	text, isText := r.Params.Data.(string)
	if !isText {
		encoded, _ := json.Marshal(r.Params.Data) // it was JSON
		text = string(encoded)
	}
	l.each(func(one *callOutput) { one.send(fmt.Sprintf("[%s] %s\n", r.Params.Level, text)) })
}

// elicited has a person asked what the server wants to know. Where that cannot be, it declines, and
// says why.
func (l *live) elicited(ctx context.Context, r *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
	result, err := l.askPerson(ctx, r.Params)
	if err == nil {
		return result, nil
	}
	note := fmt.Sprintf("the server asked for input (%s); it was declined, because %v", r.Params.Message, err)
	l.each(func(one *callOutput) {
		one.note(note)
		one.send("[" + note + "]\n")
	})
	return &mcp.ElicitResult{Action: string(protocol.ActionDecline)}, nil
}

// askPerson passes a question to those who follow the running call. A server does not say for which
// call it asks, so exactly one must run.
func (l *live) askPerson(ctx context.Context, params *mcp.ElicitParams) (*mcp.ElicitResult, error) {
	var one *callOutput
	l.mu.Lock()
	calls := len(l.shown)
	for _, one = range l.shown { //nolint:revive // any: it counts when it is the only one
	}
	l.mu.Unlock()
	switch {
	case params.Mode != "" && params.Mode != "form":
		return nil, errors.New("only a form can be put to a person")
	case calls != 1:
		return nil, fmt.Errorf("%d of its calls run, and it does not say for which it asks", calls)
	case one.askPerson == nil:
		return nil, errors.New("nobody can be asked")
	}
	schema, resolved, err := form(params.RequestedSchema)
	if err != nil {
		return nil, err
	}
	one.asking.Lock()
	defer one.asking.Unlock()
	asking, cancel := context.WithCancel(one.call)
	defer cancel()
	defer context.AfterFunc(ctx, cancel)() // the server may take its question back
	content := map[string]any{}
	question := protocol.Question{ID: string(wire.RandomCallID()), Message: params.Message, Schema: schema}
	answer, err := one.askPerson(asking, question, //nolint:contextcheck // a question ends with its call, and with ctx, too
		func(answer *protocol.Answer) (err error) {
			content, err = filled(answer.Content, resolved)
			return err
		})
	if err != nil {
		return nil, err
	}
	result := &mcp.ElicitResult{Action: string(answer.Action)}
	if answer.Action == protocol.ActionAccept {
		result.Content = content
	}
	return result, nil
}

// form is a schema as it travels, and as it is checked; both are nil without one.
func form(given any) (schema json.RawMessage, resolved *jsonschema.Resolved, err error) {
	if given == nil {
		return nil, nil, nil
	}
	if schema, err = json.Marshal(given); err != nil {
		return nil, nil, err
	}
	var parsed jsonschema.Schema
	if err = json.Unmarshal(schema, &parsed); err == nil {
		resolved, err = parsed.Resolve(nil)
	}
	return schema, resolved, err
}

// filled is the content of an answer with the defaults of what it lacks.
func filled(given json.RawMessage, schema *jsonschema.Resolved) (map[string]any, error) {
	content := map[string]any{}
	if len(given) > 0 {
		if err := json.Unmarshal(given, &content); err != nil || content == nil {
			return nil, errors.New("the content must be a JSON object")
		}
	}
	if schema == nil {
		return content, nil
	}
	if err := schema.ApplyDefaults(&content); err != nil {
		return nil, fmt.Errorf("the content does not fit what is asked: %w", err)
	}
	if err := schema.Validate(content); err != nil {
		return nil, fmt.Errorf("the content does not fit what is asked: %w", err)
	}
	return content, nil
}

// metaStructured is where [adapted] keeps structuredContent, as a text: the SDK would make its
// numbers floats.
const metaStructured = "toolfleet/structured"

// contentTypes are the types that the SDK knows; after any other type it closes the whole
// connection.
func contentTypes() []string { return []string{"text", "image", "audio", "resource", "resource_link"} }

// adapted is a message of a server with what the SDK does not carry in a form that it does: content
// of an unknown type becomes text, and structuredContent goes into the metadata. Any other message
// is returned as it is.
func adapted(message []byte) []byte {
	if !bytes.Contains(message, []byte(`"result"`)) || !bytes.Contains(message, []byte(`ontent"`)) {
		return message
	}
	var whole, result map[string]json.RawMessage
	if json.Unmarshal(message, &whole) != nil || json.Unmarshal(whole["result"], &result) != nil {
		return message
	}
	var content []json.RawMessage
	_, structured := result["structuredContent"]
	if json.Unmarshal(result["content"], &content) != nil && !structured {
		return message
	}
	for i := range content {
		var part struct{ Type string }
		if json.Unmarshal(content[i], &part) != nil || !slices.Contains(contentTypes(), part.Type) {
			content[i] = encoded(map[string]string{"type": "text", "text": fmt.Sprintf("[content of unknown type %q: %s]", part.Type, content[i])})
		}
	}
	if content != nil {
		result["content"] = encoded(content)
	}
	if structured && string(result["structuredContent"]) != "null" {
		meta := map[string]json.RawMessage{}
		_ = json.Unmarshal(result["_meta"], &meta) // what is no object is no metadata
		if meta == nil {
			meta = map[string]json.RawMessage{}
		}
		meta[metaStructured] = encoded(string(result["structuredContent"]))
		result["_meta"] = encoded(meta)
		delete(result, "structuredContent")
	}
	whole["result"] = encoded(result)
	return encoded(whole)
}

// encoded is JSON of what was JSON before.
func encoded(value any) json.RawMessage {
	body, _ := json.Marshal(value)
	return body
}

// structuredOf is the structuredContent of a result, as its server sent it.
func structuredOf(result *mcp.CallToolResult) json.RawMessage {
	text, _ := result.Meta[metaStructured].(string)
	if !json.Valid([]byte(text)) { // a server can have put anything there
		return nil
	}
	return json.RawMessage(text)
}

// adaptResponse has the messages of a response [adapted].
func adaptResponse(response *http.Response) {
	switch kind, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type")); kind {
	case "text/event-stream":
		response.Body = &events{ReadCloser: response.Body, in: bufio.NewReader(response.Body)}
	case "application/json":
		response.Body = &events{ReadCloser: response.Body, in: bufio.NewReader(response.Body), whole: true}
		response.ContentLength = -1
		response.Header.Del("Content-Length")
	}
}

// events is a body with its messages [adapted]: each is the data of an event in a line, or the
// whole body.
type events struct {
	io.ReadCloser

	in    *bufio.Reader
	whole bool
	rest  []byte
	err   error // after rest
}

// Read implements [io.Reader].
func (e *events) Read(p []byte) (int, error) {
	for len(e.rest) == 0 {
		if e.err != nil {
			return 0, e.err
		}
		e.rest, e.err = e.next()
	}
	n := copy(p, e.rest)
	e.rest = e.rest[n:]
	return n, nil
}

// next reads a line, or all. What is too long for a message is passed on as it is.
func (e *events) next() ([]byte, error) {
	if e.whole {
		body, err := io.ReadAll(io.LimitReader(e.in, mcp.DefaultMaxLineLength))
		if err != nil || len(body) == mcp.DefaultMaxLineLength {
			e.whole = false
			return body, err
		}
		return adapted(body), io.EOF
	}
	var line []byte
	for {
		part, err := e.in.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case errors.Is(err, bufio.ErrBufferFull) && len(line) < mcp.DefaultMaxLineLength:
		case errors.Is(err, bufio.ErrBufferFull):
			return line, nil
		case err == nil && bytes.HasPrefix(line, []byte("data:")):
			return slices.Concat([]byte("data: "), adapted(bytes.TrimSpace(line[len("data:"):])), []byte("\n")), nil
		default:
			return line, err
		}
	}
}
