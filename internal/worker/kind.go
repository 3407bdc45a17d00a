package worker

import (
	"context"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker/sandboxes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
	"github.com/toolfleet/toolfleet/pkg/tools/plain"
)

// kind says how this worker runs the payloads of one kind.
type kind struct {
	needs need
	// noFiles says that a payload touches no file of the workspace. In a directory that is used in
	// place it does not wait for the calls of other processes.
	noFiles bool
	// check refuses a payload before anything is opened; nil accepts every one.
	check func(w *Worker, p protocol.Payload) *protocol.Error
	// run executes a payload. The error is as [Worker.failed] reads it.
	run func(ctx context.Context, a *Attempt, p protocol.Payload) (protocol.Value, error)
	// long reports whether a reader may be shown less than all of a value, which is stored whole
	// then; nil means a value whose JSON is longer than an error may be.
	long func(v protocol.Value) bool
}

// need is what a payload needs before it runs.
type need int

const (
	// needsNothing: every worker runs it, and its result names no sandbox level.
	needsNothing need = iota
	// needsFunction: a function of the worker's program runs it, which may open the sandbox.
	needsFunction
	// needsLane: its lane must be that of a sandbox, which is not opened.
	needsLane
	// needsAnySandbox: an open sandbox, which is a temporary one on a lane of another resource.
	needsAnySandbox
	// needsSandbox: the open sandbox of its lane.
	needsSandbox
)

// kinds are all kinds of payloads that a worker with these handlers runs.
func kinds(handlers Handlers) map[protocol.Kind]*kind {
	table := map[protocol.Kind]*kind{
		wire.KindCommandRun:  {needs: needsSandbox, check: checks(checkCommand), run: runs(commandRun), long: longer(outputSize)},
		wire.KindCodeRun:     {needs: needsSandbox, check: checks(checkCode), run: runs(codeRun), long: longer(outputSize)},
		wire.KindToolRun:     {needs: needsAnySandbox, run: runs(toolRun), long: longer(toolSize)},
		wire.KindProcessList: {needs: needsSandbox, noFiles: true, run: runs(processList)},
		wire.KindProcessRead: {needs: needsSandbox, noFiles: true, run: runs(processRead), long: never},
		wire.KindProcessSend: {needs: needsSandbox, noFiles: true, run: runs(processSend), long: never},
		wire.KindProcessKill: {needs: needsSandbox, noFiles: true, run: runs(processKill)},

		wire.KindFilesRead:      {needs: needsSandbox, run: runs(inFiles(fileOps.read)), long: never},
		wire.KindFilesWrite:     {needs: needsSandbox, run: runs(inFiles(fileOps.write))},
		wire.KindFilesEdit:      {needs: needsSandbox, run: runs(inFiles(fileOps.edit))},
		wire.KindFilesJSONRead:  {needs: needsSandbox, run: runs(inFiles(fileOps.readJSON))},
		wire.KindFilesJSONWrite: {needs: needsSandbox, run: runs(inFiles(fileOps.writeJSON))},
		wire.KindFilesExists:    {needs: needsSandbox, run: runs(inFiles(fileOps.exists))},
		wire.KindFilesList:      {needs: needsSandbox, run: runs(inFiles(fileOps.list))},
		wire.KindFilesTree:      {needs: needsSandbox, run: runs(inFiles(fileOps.tree))},
		wire.KindFilesGlob:      {needs: needsSandbox, run: runs(inFiles(fileOps.glob))},
		wire.KindFilesSearch:    {needs: needsSandbox, run: runs(inFiles(fileOps.search))},

		wire.KindMCPList:        {needs: needsSandbox, run: runs(mcpList)},
		wire.KindMCPCall:        {needs: needsSandbox, run: runs(mcpCall), long: longer(mcpSize)},
		wire.KindDialogOpen:     {needs: needsFunction, check: checks(checkDialog), run: runs(dialogOpen), long: longer(dialogSize)},
		wire.KindDialogContinue: {needs: needsFunction, run: runs(dialogContinue), long: longer(dialogSize)},
		wire.KindDialogEnd:      {needs: needsFunction, run: runs(dialogEnd), long: longer(dialogSize)},

		wire.KindWorkspaceImport:  {needs: needsSandbox, check: checks(checkImport), run: runs(workspaceImport)},
		wire.KindWorkspaceExport:  {needs: needsSandbox, check: checks(checkExport), run: runs(workspaceExport)},
		wire.KindWorkspaceRestore: {needs: needsSandbox, run: runs(workspaceRestore)},
		wire.KindWorkspaceRemove:  {needs: needsLane, noFiles: true, run: runs(workspaceRemove)},

		wire.KindResultRead: {needs: needsNothing, noFiles: true, run: runs(resultRead), long: never},
		wire.KindHTTPFetch:  {needs: needsNothing, noFiles: true, run: runs(httpFetch), long: longer(pageSize)},
		wire.KindNoop:       {needs: needsNothing, noFiles: true, run: runs(noop), long: never},
		wire.KindTurnRun:    {needs: needsNothing, check: checks(refuseTurn)},
	}
	for name, handler := range handlers.Calls {
		table[name] = &kind{needs: needsFunction, run: runs(handler.run), long: longer(userSize)}
	}
	return table
}

// runs makes a function for one type of payload that of a [kind].
func runs[P protocol.Payload](run func(context.Context, *Attempt, P) (protocol.Value, error)) func(context.Context, *Attempt, protocol.Payload) (protocol.Value, error) {
	return func(ctx context.Context, a *Attempt, p protocol.Payload) (protocol.Value, error) {
		typed, ok := p.(P)
		if !ok {
			return nil, unknownPayload(wire.KindOf(p))
		}
		return run(ctx, a, typed)
	}
}

// checks makes a check of one type of payload that of a [kind].
func checks[P protocol.Payload](check func(*Worker, P) *protocol.Error) func(*Worker, protocol.Payload) *protocol.Error {
	return func(w *Worker, p protocol.Payload) *protocol.Error {
		typed, ok := p.(P)
		if !ok {
			return unknownPayload(wire.KindOf(p))
		}
		return check(w, typed)
	}
}

func unknownPayload(name protocol.Kind) *protocol.Error {
	return protocol.Errorf(protocol.CodeUnknownPayload, "this worker does not know payload %q: it may be older than the coordinator, or lack the handler", name)
}

// longer reports whether a value of one type is too long to be shown whole, by its size in bytes.
func longer[V protocol.Value](size func(V) int) func(protocol.Value) bool {
	return func(v protocol.Value) bool {
		typed, ok := v.(V)
		return ok && size(typed) > plain.MaxShown
	}
}

// never is of values that are shown whole, or that store themselves.
func never(protocol.Value) bool { return false }

// valued is the result of a function that returns a certain value, as a value.
func valued[V protocol.Value](v V, err error) (protocol.Value, error) {
	if err != nil {
		return nil, err
	}
	return v, nil
}

// Attempt is one attempt of a call, as the function that runs it sees it.
type Attempt struct {
	Run *lane.Run

	worker  *Worker
	frames  *frames
	box     *sandboxes.Box  // nil unless the kind needs an open sandbox
	sandbox sandbox.Sandbox // that of the box
}

// Sandbox returns the sandbox of the call's session, which is opened by the first that asks.
func (a *Attempt) Sandbox(ctx context.Context) (sandbox.Sandbox, error) {
	if sandboxes.ID(a.lane()) == "" {
		return nil, errNoSandbox
	}
	_, s, err := a.worker.sandboxes.Open(ctx, a.lane(), a.Run.Fence, a.Run.LeaseEnd)
	return s, err
}

// Output sends live output to the followers of the call. It must not be called by
// two goroutines at a time, nor after the function has returned.
func (a *Attempt) Output(data []byte) { a.frames.output(sandbox.Stdout, data) }

func (a *Attempt) lane() protocol.Lane { return a.Run.Call.Lane() }
