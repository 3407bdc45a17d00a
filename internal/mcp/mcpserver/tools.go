package mcpserver

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// callable reports whether a tool works without a session's loop: jobs and stateful tools do not.
// The client's person answers ask_user.
func callable(tool *tools.Tool) bool { return !tool.Effect.Loop || tool.Name == wire.AskUserTool }

// described is a tool as clients get it.
func described(tool *tools.Tool) *mcp.Tool {
	title := strings.ReplaceAll(tool.Name, "_", " ")
	title = cmp.Or(tool.Title, strings.ToUpper(title[:1])+title[1:])
	destructive, open := !tool.Effect.ReadOnly && !tool.Effect.Additive, tool.Effect.Open
	return &mcp.Tool{
		Name: tool.Name, Title: title, Description: tool.Description, InputSchema: tool.Schema, OutputSchema: outputSchema(tool),
		Annotations: &mcp.ToolAnnotations{
			Title: title, ReadOnlyHint: tool.Effect.ReadOnly, DestructiveHint: &destructive,
			IdempotentHint: tool.Effect.ReadOnly || tool.Effect.Idempotent, OpenWorldHint: &open,
		},
	}
}

// outputSchema is the schema of [structured], with the value that the tool returns.
func outputSchema(tool *tools.Tool) json.RawMessage {
	return json.RawMessage(strings.Replace(structuredSchema, `"VALUE"`, string(valueSchema(tool)), 1))
}

// structuredSchema is the schema of [structured].
const structuredSchema = `{
	"type": "object",
	"properties": {
		"status": {"type": "string", "enum": ["ok", "failed", "timeout", "cancelled", "rejected", "outcome_unknown", "working"], "description": "How the call ended; working when it goes on."},
		"error": {"type": "object", "properties": {"code": {"type": "string"}, "message": {"type": "string"}}, "required": ["code", "message"], "description": "Why it is not ok."},
		"call_id": {"type": "string", "description": "The call in the fleet; toolfleet://result/ID is its whole result."},
		"session_id": {"type": "string", "description": "Whose sandbox it used."},
		"worker_id": {"type": "string"},
		"attempt": {"type": "integer", "description": "Which start of the call this is the result of, from 1."},
		"level": {"type": "string", "description": "The isolation that was proven where it ran: none, paths, full or kernel."},
		"queue_ms": {"type": "number"},
		"run_ms": {"type": "number"},
		"value": "VALUE"
	},
	"required": ["status", "session_id"]
}`

// aboutValues describes the value of a result.
const aboutValues = "What the tool returned, typed; see docs/wire.md."

// valueSchema is the schema of the value that a tool returns.
func valueSchema(tool *tools.Tool) json.RawMessage {
	schema := &jsonschema.Schema{}
	for _, value := range tool.Returns {
		schema.AnyOf = append(schema.AnyOf, schemaOf(reflect.TypeOf(value)))
	}
	if len(schema.AnyOf) == 1 {
		schema = schema.AnyOf[0]
	}
	if structured := schema.Properties["structured"]; structured != nil {
		*structured = jsonschema.Schema{}
		if !bytes.Contains(tool.Structured, []byte(`"$`)) { // else it refers to its own root
			_ = json.Unmarshal(tool.Structured, structured) // any, if it is none
		}
	}
	schema.Description = aboutValues
	body, err := json.Marshal(schema)
	if err != nil {
		return json.RawMessage(`{}`)
	}
	return body
}

// schemaOf is the schema of the JSON of a type of the wire, to which later versions may add.
func schemaOf(t reflect.Type) *jsonschema.Schema {
	schema, err := jsonschema.ForType(t, &jsonschema.ForOptions{TypeSchemas: map[reflect.Type]*jsonschema.Schema{
		reflect.TypeFor[protocol.Bytes](): {AnyOf: []*jsonschema.Schema{
			{Type: "string"},
			{Type: "object", Properties: map[string]*jsonschema.Schema{"base64": {Type: "string"}}, Required: []string{"base64"}},
		}},
		reflect.TypeFor[protocol.Millis](): {Type: "integer"},
		reflect.TypeFor[json.RawMessage](): {},
		reflect.TypeFor[time.Time]():       {Type: "string"},
	}})
	if err != nil {
		return &jsonschema.Schema{} // a type that the wire does not have
	}
	loosen(schema)
	return schema
}

// loosen lets objects have more than is known of them.
func loosen(s *jsonschema.Schema) {
	if s == nil {
		return
	}
	s.AdditionalProperties = nil
	loosen(s.Items)
	for _, property := range s.Properties {
		loosen(property)
	}
	for _, property := range s.AnyOf {
		loosen(property)
	}
}

// offer is what clients may call now.
type offer struct {
	tools atomic.Pointer[tools.Table]

	mu      sync.Mutex
	told    map[string]string // by name, as clients get them
	reading *Server           // whose tools change nothing; nil without one
}

// SetTools has clients call other tools from now on. Clients that listen are notified if that
// changes anything for them (tools/list_changed); running calls continue.
func (s *Server) SetTools(table *tools.Table) {
	s.offer.mu.Lock()
	defer s.offer.mu.Unlock()
	s.offer.tools.Store(table)
	told := map[string]string{}
	for _, definition := range table.DefinitionsFor("") {
		tool, _ := table.Lookup(definition.Name)
		if tool == nil || !callable(tool) {
			continue
		}
		described := described(tool)
		body, _ := json.Marshal(described) // it has nothing that JSON has not
		if told[tool.Name] = string(body); s.offer.told[tool.Name] != told[tool.Name] {
			s.server.AddTool(described, s.call)
		}
	}
	for name := range s.offer.told {
		if told[name] == "" {
			s.server.RemoveTools(name)
		}
	}
	s.offer.told = told
	if s.offer.reading != nil {
		s.offer.reading.SetTools(harmless(table))
	}
}

// readingServer is a server whose tools change nothing, with the read-only tools of this one.
func (s *Server) readingServer() *Server {
	s.offer.mu.Lock()
	defer s.offer.mu.Unlock()
	o := s.options
	o.Tools = harmless(s.offer.tools.Load())
	s.offer.reading = New(o)
	s.offer.reading.following, s.offer.reading.ledger = s.following, s.ledger
	return s.offer.reading
}

// harmless are the tools that change nothing.
func harmless(table *tools.Table) *tools.Table {
	return table.Only(slices.DeleteFunc(table.Names(), func(name string) bool { return changes(table, name) }))
}

// changes reports whether calls of a tool can change anything. That they cannot has to be known
// from more than the word of a server of others.
func changes(table *tools.Table, name string) bool {
	tool, _ := table.Lookup(name)
	return tool == nil || !tool.Effect.ReadOnly || tool.Effect.Hinted
}

// may judges what a client does with its own objects, for each request: the server of a session of
// the protocol was chosen when that began.
func may(who judge.Principal, act judge.Act, kind judge.Kind, id string) error {
	if err := judge.May(who, act, judge.Object{Kind: kind, ID: id, Owner: who.Owner()}); err != nil {
		return &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: err.Error()}
	}
	return nil
}

// mayCall judges the call of a tool: one that changes nothing only sees.
func (s *Server) mayCall(who judge.Principal, tool string) error {
	if changes(s.offer.tools.Load(), tool) {
		return may(who, judge.Make, judge.Call, tool)
	}
	return may(who, judge.See, judge.Workspace, "")
}

// acting has requests act as the principals of their tokens. What they do in a session that the
// operator has opened for all clients, the operator does: their roles bind them, and the session,
// its calls and its workspace are the operator's, whichever tenant a client is of.
func (s *Server) acting(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, request mcp.Request) (mcp.Result, error) {
		if s.options.Session == "" {
			ctx = judge.With(ctx, principal(request))
		}
		return next(ctx, method, request)
	}
}
