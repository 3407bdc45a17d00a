// Package history checks what really happened in a fleet against the laws of the
// lane engine.
//
// A [History] is put together from what every process wrote down while it happened:
// callers write what they put and what they were told, workers when each execution
// started and ended, the test when it killed or stopped a process, and at the end what
// the results stream holds. All times are of the machine's monotonic clock, which the
// processes of one machine share, so that times of different processes can be compared.
//
//	callers  put, accepted, cancel, told ──┐
//	workers  start, end ───────────────────┼──► History ──► Check ──► violations
//	test     killed, stopped, went on ─────┤
//	stream   stored results ───────────────┘
//
// [Check] is pure, knows nothing of the engine, and gives no benefit of the doubt:
// an execution without an end lasts until its worker was seen to be dead; what a
// stopped worker does after its lease counts from the moment it goes on.
package history
