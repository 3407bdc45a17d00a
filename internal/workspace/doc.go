// Package workspace keeps the contents of workspaces with the fleet, so that any worker can
// continue with them.
//
// The workspace of a lane is the fold of its journal: one subject of the workspaces stream, one
// message a checkpoint, and the subject's last sequence as the guard.
//
//	take   ► a worker opens the sandbox: its epoch, and nothing else
//	commit ► a call that may have changed something ended: what changed, and the call's result
//
// A worker that takes a workspace appends, so a commit of the worker before is refused from then
// on: it names a last sequence that is not the last any more. An epoch that is smaller than the
// last one is refused as well. So what a worker does after it has lost its lane never happened.
//
// A commit is stored before the results that it covers, and carries them: when the worker is lost
// between the two, the next one finds the effects with the result, and does not run the call again.
//
// Contents are in bodies, in an object store; a little of them is in the commit itself. When a
// journal has grown, a commit names a base, the whole tree in bodies of its own, and the fold
// begins there. What came before stays: it is how the workspace was after earlier calls.
package workspace
