// Package tools is what a model sees: tools, their schemas, and what becomes of a tool call.
//
// A [Tool] is a [Definition] (name, description, JSON Schema) and a pure function from arguments to
// a [Plan]: either a Go function to run on the spot, or a payload for a worker together with the
// resources that it touches. A [Table] is a set of tools that was checked once and never changes;
// everything that a model writes passes through it, and everything that it reads comes out of it.
//
//	model: name, arguments (any string)
//	   │
//	   ▼
//	Table.Plan ── unknown name, bad JSON, schema ──► *protocol.Error ─┐
//	   │ parse, coerce, validate                                      │
//	   ▼                                                              │
//	Tool.Plan  ── bad path, panic ─────────────────► *protocol.Error ─┤
//	   │                                                              │
//	   ├── Plan.Inline ──RunInline──► text ──────────────────────┐    │ RenderFailure
//	   │                                                         ▼    ▼
//	   └── Plan.Payload ──Plan.Call──► protocol.Call ··· Result ──► text: model
//	                                         (a worker)       Tool.Text
//
// # Contracts
//
// Nothing that a model writes is a Go error, ends a session, or panics: it becomes a
// [protocol.Error] whose message says everything that is wrong and what to send instead. A Go error
// from this package (of [NewTable]) is a mistake of whoever set up the program.
//
// A plan is a function of its scope and its arguments alone, so a resumed coordinator makes the
// same call again, under the same id.
//
// Arguments are parsed strictly (one JSON object, no duplicate keys, UTF-8) and validated against
// the schema, all faults at once. The one liberty: a string that spells a number or a boolean is
// taken as such where the schema allows nothing else. What a Plan function gets is re-encoded:
// integers have neither fraction nor exponent.
//
// # Resources
//
// The plan names what a call touches, and with that what it may overlap with; see toolset.Core for
// the rules of the built-in tools. Paths are canonical before they become keys and payloads, so one
// file has one key, however it is spelled, and a path that leaves the workspace is refused before
// anything is sent. This is lexical: two names that a symbolic or hard link makes one file are two
// keys. A tool that says nothing gets its session's whole sandbox for itself.
//
// # Text
//
// What the model reads has at most [MaxText] characters of valid UTF-8, and says what was left out
// and how to get at it; what a person said who approved a call stands behind that. Results that are
// not ok have one form for all tools: status, code, message, what to do next, and the partial
// output.
//
// # Packages
//
//	toolset             the built-in tools, in sets that have names
//	manifest            tools of a folder
//	policy, shell       which calls may be made, and what a command line runs
//	internal/argument   arguments: parsed, coerced, validated
//	internal/workspace  paths, and the keys that they become
//	internal/render     results to text; internal/prose the texts themselves
//
// Everything here is safe for concurrent use.
package tools
