// Package dispatch is the coordinator's side of a call: it enqueues the calls of a
// step, follows them, and brings each one's result back to the session loop.
//
//	Dispatch ──► Publisher.Put ──► accepted (queued)
//	                                  │ frames: a worker started it (running)
//	                                  ▼
//	             results stream ──► received from NATS, or looked up (done)
//
// Messages of NATS may be lost, so every unfinished call is also looked up now and
// then. Nothing else depends on the process that waits: workers look after lanes in which
// something waits. A call whose context ends is cancelled
// durably; its result is still waited for, for a moment, because what a worker did
// is better known than guessed.
package dispatch
