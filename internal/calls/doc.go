// Package calls sends calls to a fleet and follows them to their results. A call that was sent is a
// [Handle], whichever way it came: a step of a session waits for many, a program for one, and a
// future for none. Another caller may hold a handle later: the calls of a reply that streams are
// held by the step of that reply, and a call that becomes a background job by that job.
//
//	SendWith ──► queue of the lane ──► Publisher.Enqueue ──► stored ──► started ──► result
//	             queued                sending               accepted   running     done
//
// # The queue
//
// Calls of one lane are sent in the order of [Dispatcher.SendWith]. Futures have a queue for each
// lane, and share a few senders. A call for which a caller waits is sent by its caller, unless its
// lane has a queue: then it is sent behind that. A call that meets a full lane or pool is first in
// the queue of its lane, and is sent again after a pause. A call is sent after the calls of its
// After that this process is sending (after.go). A shared sender that uploads a large payload is
// replaced meanwhile, so that small calls pass.
//
// # The result
//
// The results stream is authoritative. NATS passes on each result as it is stored, and may lose it,
// so results are also looked up: at once after a cancel or a reconnect, else after a second, and
// then less and less often unless a caller waits. The first result ends the handle. Nothing depends
// on the process that waits: workers look after lanes in which calls wait.
//
// A handle with an observer also gets what happens before: that the fleet has the call, what it
// waits for, its starts, questions to a person, and whether its worker is lost. Only that costs
// more than a result: a subscription for each call of an MCP server, questions to workers after
// 2 s, and reading the heartbeat of a worker that is silent.
//
// # The end of a context
//
// The calls of one Send are stopped together when their context ends, whose cause decides how:
//
//	ErrDetached            nothing is cancelled: the handles end with the cause
//	not sent yet           the call does not run: an error that wraps ErrNotSent, or a result
//	the deadline of each   the calls may end by their own deadlines for a moment, then:
//	sent                   a request to cancel each call is stored, the last call first
//
// After a cancel the result says what a worker did. A call without one after CancelWait has an
// unknown outcome. A call that may be stored, since an earlier attempt or process sent it (Again)
// or since the server did not answer, is never said to be unsent.
//
// # Locks
//
// The handles of a [Dispatcher] are in one table with one lock, which is never held across a
// request. Observers are called with it held, so they only store what they get. A step passes that
// on: in the goroutine of the caller that waits, or in one for all calls of a [Dispatcher.Send].
package calls
