// Package worker executes calls: it takes lanes from the fleet, opens a sandbox
// for each, runs payloads in it, and answers with typed results.
//
//	lane.Holder ──Execute──► Worker ──► sandbox of the lane ──► Exec / FS
//	     │                      │            (opened at the first call)
//	     └─────Release────────► └──► sandbox idle or closed, the workspace stays
//
// A worker has no state but workspaces. Those live under its data directory and
// outlive it: another worker with the same directory (a restart, a neighbour on
// the machine, a shared volume) goes on where it stopped. Which directory has a
// sandbox's workspace is recorded in the fleet. A worker with another directory
// leaves its calls to one that has it, or answers "workspace_unavailable" when none
// lives, instead of starting over in an empty one. With [DurabilityCheckpoint] the
// fleet itself has the workspaces, and any worker goes on.
//
// Each kind of payload is one entry of the table in kind.go: what it needs before it runs, what it
// refuses, and the function that runs it. To add a kind:
//
//  1. Describe it in package protocol.
//  2. Write the function in a file of its own, with its payload's type:
//     func httpFetch(ctx context.Context, a *Attempt, p protocol.HTTPFetch) (protocol.Value, error)
//  3. Add a line to the table: wire.KindHTTPFetch: {needs: needsSandbox, run: runs(httpFetch)}.
//
// What a tool does wrong is a result. A panic while a payload is executed is one
// too: it is recovered here and nowhere else.
package worker
