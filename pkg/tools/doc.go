// Package tools turns the tool calls of a model into calls for workers, and results into text for
// the model.
//
// A [Tool] is a [Definition] (name, description, JSON Schema) and a pure function from arguments to
// a [Plan]: either a Go function to run on the spot, or a payload for a worker together with the
// resources that it touches. A [Table] is a checked set of tools that never changes; all tool calls
// of a model go through it, and all results.
//
//	model: name, arguments (any string)
//	   │
//	   ▼
//	Table.Plan ── unknown name, bad JSON, schema ──► *protocol.Error ─┐
//	   │ parse, coerce, validate                                      │
//	   ▼                                                              │
//	Tool.Plan  ── bad path, panic ─────────────────► *protocol.Error ─┤
//	   │                                                              │
//	   ├── Plan.Inline ──RunInline──► text ──────────────────────┐    │ Tool.Failure
//	   │                                                         ▼    ▼
//	   └── Plan.Payload ──Plan.Call──► protocol.Call ··· Result ──► text: model
//	                                         (a worker)       Tool.Text
//
// # Contracts
//
// A mistake of a model is never a Go error or a panic, and ends no session: it becomes a
// [protocol.Error], whose message lists all mistakes and says what to send instead. A Go error from
// [NewTable] is a mistake of the program.
//
// A plan is a function of its scope and its arguments alone, so a resumed coordinator makes the
// same call again, under the same id.
//
// Arguments are parsed strictly (one JSON object, no duplicate keys, UTF-8) and validated against
// the schema, all errors at once. One exception: a string that spells a number or a boolean becomes
// one where the schema allows nothing else. Arguments are re-encoded for the Plan function:
// integers have neither fraction nor exponent.
//
// # Resources
//
// The plan names the resources of a call, which decide with which calls it may overlap; see
// toolset.Core for the built-in tools. Paths are canonical before they become keys and payloads, so
// one file has one key, however it is spelled, and a path that leaves the workspace is refused
// before anything is sent. This is lexical: two names of one file (links) are two keys. A tool
// without resources has its session's whole sandbox exclusively.
//
// # Text
//
// A text for the model has at most 48,000 characters of valid UTF-8, and says what was left out
// and where to read it. The note of a person who approved the call comes last. Results that are not
// ok have one form for all tools: status, code, message, what to do next, and the partial output.
//
// # Packages
//
//	toolset   the built-in tools, in sets that have names
//	formats   tools in the names and words of other systems
//	manifest  tools of a folder
//	mcp       tools of servers of the Model Context Protocol
//	policy    which calls may be made
//
// Everything here is safe for concurrent use.
package tools
