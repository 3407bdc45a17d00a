// Package kinds runs the payloads of calls: one entry of a table for each kind.
//
//	Env.Accept ──► Kind: what it needs, what it refuses ──► Attempt.Execute ──► value and error
//
// The table in this file has for each kind its requirements, the checks before it runs, and the
// function that runs it. To add a kind:
//
//  1. Describe it in package wire.
//  2. Write the function in a file of its own, with its payload's type:
//     func httpFetch(ctx context.Context, a *Attempt, p protocol.HTTPFetch) (protocol.Value, error)
//  3. Add a line to the table: wire.KindHTTPFetch: {Needs: NeedsSandbox, run: runs(httpFetch)}.
//
// A file operation is a row of the table in package files of the sandbox, and here a line with run:
// fileRun.
//
// A failure of a tool is an error that [protocol.Error] describes; any other
// error is the worker's.
package kinds

import (
	"context"

	"github.com/toolfleet/toolfleet/internal/modeltext/plain"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Kind says how a worker runs the payloads of one kind.
type Kind struct {
	Needs Need
	// NoFiles says that a payload touches no file of the workspace. In a directory that is used in
	// place it does not wait for the calls of other processes.
	NoFiles bool
	// acts says that a program of the sandbox may change files because of the payload, although it
	// touches none itself.
	acts bool
	// reads says that a payload changes no file.
	reads bool
	// check refuses a payload before anything is opened; nil accepts every one.
	check func(e *Env, p protocol.Payload) *protocol.Error
	// run executes a payload. The error is as the worker reads it.
	run func(ctx context.Context, a *Attempt, p protocol.Payload) (protocol.Value, error)
	// long reports whether a reader may be shown less than all of a value, which is stored whole
	// then; nil means a value whose JSON is longer than an error may be.
	long func(v protocol.Value) bool
}

// Need is what a payload needs before it runs.
type Need int

const (
	// NeedsNothing means that every worker runs the kind; the result names no sandbox level.
	NeedsNothing Need = iota
	// NeedsFunction means that a function of the worker's program runs the kind, and may open the
	// sandbox.
	NeedsFunction
	// NeedsLane means that the lane must be a sandbox's; the sandbox is not opened.
	NeedsLane
	// NeedsAnySandbox means an open sandbox, a temporary one if the lane is of another resource.
	NeedsAnySandbox
	// NeedsSandbox means the open sandbox of the lane.
	NeedsSandbox
)

// table has all kinds of payloads that a worker with these handlers runs.
func table(handlers Handlers) map[protocol.Kind]*Kind {
	all := map[protocol.Kind]*Kind{
		wire.KindCommandRun:  {Needs: NeedsSandbox, check: checks(checkCommand), run: runs(commandRun), long: longer(outputSize)},
		wire.KindCodeRun:     {Needs: NeedsSandbox, check: checks(checkCode), run: runs(codeRun), long: longer(outputSize)},
		wire.KindToolRun:     {Needs: NeedsAnySandbox, run: runs(toolRun), long: longer(toolSize)},
		wire.KindProcessList: {Needs: NeedsSandbox, NoFiles: true, run: runs(processList)},
		wire.KindProcessRead: {Needs: NeedsSandbox, NoFiles: true, run: runs(processRead), long: never},
		wire.KindProcessSend: {Needs: NeedsSandbox, NoFiles: true, acts: true, run: runs(processSend), long: never},
		wire.KindProcessKill: {Needs: NeedsSandbox, NoFiles: true, acts: true, run: runs(processKill)},

		wire.KindFilesRead:      {Needs: NeedsSandbox, reads: true, run: fileRun, long: never},
		wire.KindFilesWrite:     {Needs: NeedsSandbox, run: fileRun},
		wire.KindFilesEdit:      {Needs: NeedsSandbox, run: fileRun},
		wire.KindFilesJSONRead:  {Needs: NeedsSandbox, reads: true, run: fileRun},
		wire.KindFilesJSONWrite: {Needs: NeedsSandbox, run: fileRun},
		wire.KindFilesExists:    {Needs: NeedsSandbox, reads: true, run: fileRun},
		wire.KindFilesList:      {Needs: NeedsSandbox, reads: true, run: fileRun},
		wire.KindFilesTree:      {Needs: NeedsSandbox, reads: true, run: fileRun},
		wire.KindFilesGlob:      {Needs: NeedsSandbox, reads: true, run: fileRun},
		wire.KindFilesSearch:    {Needs: NeedsSandbox, reads: true, run: fileRun},

		wire.KindMCPList:        {Needs: NeedsSandbox, run: runs(mcpList)},
		wire.KindMCPCall:        {Needs: NeedsSandbox, run: runs(mcpCall), long: longer(mcpSize)},
		wire.KindDialogOpen:     {Needs: NeedsFunction, check: checks(checkDialog), run: runs(dialogOpen), long: longer(dialogSize)},
		wire.KindDialogContinue: {Needs: NeedsFunction, run: runs(dialogContinue), long: longer(dialogSize)},
		wire.KindDialogEnd:      {Needs: NeedsFunction, run: runs(dialogEnd), long: longer(dialogSize)},

		wire.KindWorkspaceImport:  {Needs: NeedsSandbox, check: checks(checkImport), run: runs(workspaceImport)},
		wire.KindWorkspaceExport:  {Needs: NeedsSandbox, reads: true, check: checks(checkExport), run: runs(workspaceExport)},
		wire.KindWorkspaceRestore: {Needs: NeedsSandbox, run: runs(workspaceRestore)},
		wire.KindWorkspaceFork:    {Needs: NeedsSandbox, check: checks(checkFork), run: runs(workspaceFork)},
		wire.KindWorkspaceMerge:   {Needs: NeedsSandbox, check: checks(checkMerge), run: runs(workspaceMerge)},
		wire.KindWorkspaceRemove:  {Needs: NeedsLane, NoFiles: true, run: runs(workspaceRemove)},

		wire.KindResultRead: {Needs: NeedsNothing, NoFiles: true, run: runs(resultRead), long: never},
		wire.KindHTTPFetch:  {Needs: NeedsNothing, NoFiles: true, run: runs(httpFetch), long: longer(pageSize)},
		wire.KindNoop:       {Needs: NeedsNothing, NoFiles: true, run: runs(noop), long: never},
		wire.KindTurnRun:    {Needs: NeedsNothing, check: checks(refuseTurn)},
	}
	for name, handler := range handlers.Calls {
		all[name] = &Kind{Needs: NeedsFunction, run: runs(handler.run), long: longer(userSize)}
	}
	return all
}

// runs makes a function for one type of payload that of a [Kind].
func runs[P protocol.Payload](run func(context.Context, *Attempt, P) (protocol.Value, error)) func(context.Context, *Attempt, protocol.Payload) (protocol.Value, error) {
	return func(ctx context.Context, a *Attempt, p protocol.Payload) (protocol.Value, error) {
		typed, ok := p.(P)
		if !ok {
			return nil, unknownPayload(wire.KindOf(p))
		}
		return run(ctx, a, typed)
	}
}

// checks makes a check of one type of payload that of a [Kind].
func checks[P protocol.Payload](check func(*Env, P) *protocol.Error) func(*Env, protocol.Payload) *protocol.Error {
	return func(e *Env, p protocol.Payload) *protocol.Error {
		typed, ok := p.(P)
		if !ok {
			return unknownPayload(wire.KindOf(p))
		}
		return check(e, typed)
	}
}

func unknownPayload(name protocol.Kind) *protocol.Error {
	return protocol.Errorf(codes.UnknownPayload, "this worker does not know payload %q: it may be older than the coordinator, or lack the handler", name)
}

// longer reports whether a value of one type is too long to be shown whole, by its size in bytes.
func longer[V protocol.Value](size func(V) int) func(protocol.Value) bool {
	return func(v protocol.Value) bool {
		typed, ok := v.(V)
		return ok && size(typed) > plain.MaxShown
	}
}

// never is for values that are shown whole, or that store themselves.
func never(protocol.Value) bool { return false }

// valued is the result of a function that returns a certain value, as a value.
func valued[V protocol.Value](v V, err error) (protocol.Value, error) {
	if err != nil {
		return nil, err
	}
	return v, nil
}
