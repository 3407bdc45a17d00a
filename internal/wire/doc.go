// Package wire has what coordinators and workers agree on beyond the types of package protocol: the
// names of subjects, streams, consumers, buckets and headers; the records of the engine, [Claim]
// and [Heartbeat]; live output, [Frame]; what a worker reports of itself, [WorkerInfo]; and the
// JSON of all messages. Programs of users do not need it. docs/wire.md describes the format.
//
//	subject.go   subjects, streams, buckets, consumers; what a mailbox subject says
//	header.go    headers of messages
//	name.go      ids, and the names of stored objects
//	kind.go      the kinds of payloads and values, and their types
//	payload.go   payloads and values as JSON
//	call.go      calls and results as JSON
//	dialog.go, kept.go, mcp.go, process.go, turn.go, workspace.go
//	             payloads and values that programs of users neither make nor read
//
// The files under testdata pin the format of every type: old files must decode for ever.
package wire
