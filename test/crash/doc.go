// Package crash ends the world at every write of a session.
//
// Each operation is run once, and its writes are counted: appends to journals, calls, cancels,
// results, objects and keys. Then it is run again for each of them, and this write meets one of six
// faults. The process ends before the write, or after it. Or the process lives: the write is
// refused, its answer is wrong, its answer is lost, or it is delayed until another process has
// continued the session. Then another process continues the session: as it is, after a cancel,
// after a removal, or under another policy. At the end the laws of a session are checked.
//
// A case has the name of its operation, its write, its fault and what comes between:
//
//	go test ./test/crash -args -operation='turn/tf.event.*_2/lost/resumes'
//
// All cases run in one bubble of [testing/synctest], with a NATS server in it. The code under test
// must not wait for a [sync.Mutex] that is held during a request: it would stop the time of the
// bubble. It uses a pause.Mutex of internal/system/pause.
package crash
