package tools

import (
	"context"
	"encoding/json"
	"time"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Definition is a tool as the model gets it.
type Definition struct {
	Name        string `json:"name"`
	Description string `json:"description"`
	// Schema is the JSON Schema of the arguments: always of type "object".
	Schema json.RawMessage `json:"parameters"`
}

// Tool is a definition and what its arguments mean.
type Tool struct {
	Definition

	// Plan turns arguments, already valid under the schema, into what to do. It is
	// pure: same scope and arguments, same plan. An error becomes a rejected result.
	Plan func(scope Scope, args json.RawMessage) (Plan, *protocol.Error)
	// Render turns a result into the text that the model reads; nil means [RenderJSON].
	Render func(result *protocol.Result) string
}

// Scope is where a tool call happens.
type Scope struct {
	Session protocol.SessionID
	// Sandbox is the id of the session's sandbox.
	Sandbox string
}

// Plan is what a tool call becomes: exactly one of Inline and Payload is set.
type Plan struct {
	// Inline runs in the coordinator. It must have no side effects.
	Inline func(ctx context.Context) (string, *protocol.Error)

	// Payload is what a worker executes.
	Payload protocol.Payload
	// Resources is what the call touches; nil means the session's whole sandbox, exclusively.
	Resources []protocol.Use
	// Delivery is what may happen after a lost worker; "" means rollback.
	Delivery protocol.Delivery
	// Timeout bounds one attempt; 0 means the protocol's default.
	Timeout time.Duration
	// Pool is who can serve the call; "" means the default pool.
	Pool protocol.Pool
}
