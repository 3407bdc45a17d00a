// Package dispatch is the coordinator's side of a call: it enqueues the calls of a
// step, follows them, and brings each one's result back to the session loop.
//
//	Dispatch ──► Publisher.Put ──► accepted (queued)
//	                                  │ frames: a worker started it (running)
//	                                  ▼
//	             results stream ──► told by NATS, or found by looking (done)
//
// What NATS tells may be lost, so every unfinished call is also looked up now and
// then, and its lane is kicked: a crash anywhere between two steps of the
// protocol costs a second, not a call. A call whose context ends is cancelled
// durably; its result is still waited for, for a moment, because what a worker did
// is better known than guessed.
package dispatch
