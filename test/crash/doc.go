// Package crash ends the world at every write of a session.
//
// Each operation is run once, and its writes are counted: appends to journals, calls, cancels,
// results, objects and keys. Then it is run again for each of them, so that this write meets a fault
// of six: the process ends before or behind it, its answer is wrong or lost
// while the process lives, or it is delayed until another process has gone on with the session.
// After that the session is continued by another process, as it is, after a cancel, after a removal,
// or under another policy, and what must always hold is checked.
//
// A case has the name of its operation, its write, its fault and what comes between:
//
//	go test ./test/crash -run 'TestCrash_EveryWrite/cases/turn/tf.event.*_2/lost/resumes' -args -every
package crash
