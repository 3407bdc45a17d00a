// Package protocol is the wire format of a fleet: the calls of coordinators, and the results of
// workers.
//
//	tool call (model) ──plan──► Call ──────────► worker
//	                             │ ID, Session     │ Payload: command_run, files_read, ...
//	                             │ Resources       │
//	                             │ Delivery        ▼
//	text for the model ◄──────  Result  (exactly one, terminal, typed)
//
// A [Call] says what to execute (its [Payload]), which resources it touches
// and how (its [Use] list), how long it may wait and run, and what may happen
// after a lost worker ([Delivery]). The first two segments of its resource keys
// are its [Lane]: the unit of order and of ownership.
//
// A [Result] is terminal and typed. A tool that ran and failed is a result; a
// Go error anywhere in this module means that the fleet failed.
//
// # Wire rules
//
// Bodies are JSON objects with a "type" name and a "version". Unknown fields are
// ignored, so that a newer sender may add some. A payload of a kind that is not built in
// decodes to [UnknownPayload]. A worker with a handler of that kind runs it; others answer with
// status "rejected": nothing is ever dropped. Metadata that a reader needs before it decodes a body
// travels in headers. Package internal/wire has the names of subjects and headers,
// and the encoding.
//
// The package depends on the standard library only. Every function in it is safe for concurrent
// use, and pure but for those that make new ids.
package protocol
