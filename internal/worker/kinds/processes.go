package kinds

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/internal/worker/background"
	"github.com/toolfleet/toolfleet/internal/worker/dialog"
	"github.com/toolfleet/toolfleet/internal/worker/results"
	"github.com/toolfleet/toolfleet/internal/worker/spool"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// earlyEnd is how long the start of a background process waits for its end, so that the call
// reports a process that fails at once.
const earlyEnd = 150 * time.Millisecond

// terminalType is what terminals of processes are called: programs may move the cursor there.
const terminalType = "xterm-256color"

func processList(_ context.Context, a *Attempt, _ wire.ProcessList) (protocol.Value, error) {
	return a.laneSandbox.Processes.List(), nil
}

func processRead(ctx context.Context, a *Attempt, p wire.ProcessRead) (protocol.Value, error) {
	return valued(a.laneSandbox.Processes.Read(ctx, p))
}

func processSend(ctx context.Context, a *Attempt, p wire.ProcessSend) (protocol.Value, error) {
	return valued(a.laneSandbox.Processes.Send(ctx, p))
}

func processKill(ctx context.Context, a *Attempt, p wire.ProcessKill) (protocol.Value, error) {
	return valued(a.laneSandbox.Processes.Kill(ctx, p.Process))
}

// startProcess starts a command in the background.
func (a *Attempt) startProcess(ctx context.Context, p protocol.CommandRun, cmd sandbox.Cmd) (protocol.Value, error) {
	e, c := a.env, a.Run.Call
	life := e.Background
	if wall := p.Limits.Wall.Duration(); wall > 0 && wall < life {
		life = wall
	}
	if _, given := p.Env["TERM"]; p.TTY && !given {
		given := cmd.Env
		cmd.Env = map[string]string{"TERM": terminalType}
		maps.Copy(cmd.Env, given)
	}
	handle := processHandle(c.ID)
	started, err := a.laneSandbox.Processes.Start(ctx, a.sandbox, background.Command{
		Handle: handle, Text: cmp.Or(p.Command, strings.Join(p.Argv, " ")), Cmd: cmd, Lifetime: life, Live: a.Live.Sparingly(), TTY: p.TTY,
		Written: spool.New(e.Sandboxes.Spools()), StoreFull: e.storeWritten(ctx, c),
		Ended: func() { e.Sandboxes.SetAsideLater(ctx, a.lane()) },
	}, earlyEnd)
	if err != nil {
		return nil, err
	}
	return protocol.CommandRunResult{
		Execution: protocol.Execution{
			ExitCode: started.ExitCode, Signal: started.Signal, Reason: started.Reason,
			Combined: started.Content, StdoutBytes: started.Bytes, LimitKinds: e.limitKinds,
		},
		Process: handle, TTY: p.TTY,
	}, ctx.Err()
}

// storeWritten returns a function that stores all that a process wrote as the output of the call
// that started it.
func (e *Env) storeWritten(ctx context.Context, c *protocol.Call) func(*spool.Spool) (protocol.CallID, error) {
	return func(written *spool.Spool) (protocol.CallID, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), results.Timeout)
		defer cancel()
		if _, err := results.Output(written)(ctx, e.Results, c); err != nil {
			e.Logger.WarnContext(ctx, "output of a process cannot be kept", slog.String("call_id", string(c.ID)), slog.Any("error", err))
			return "", err
		}
		return c.ID, nil
	}
}

// processHandle names the process that a call started: short, and the same in every attempt.
func processHandle(id protocol.CallID) string {
	const length = 8
	return "p-" + string(id[max(0, len(id)-length):])
}

// Stateful is a tool whose function answers several calls; see package dialog. Errors are
// as those of a [Handler].
type Stateful = dialog.Tool[*Attempt]

// Talk is a dialog as the function of a stateful tool sees it.
type Talk = dialog.Talk[*Attempt]

// answerGrace is how long the function of a stateful tool may take to answer a call that
// was stopped, before its dialog ends.
const answerGrace = time.Second

// graceAfter returns [answerGrace], or 0 for a lane that must stop at once.
func graceAfter(cause error) time.Duration {
	if errors.Is(cause, lane.ErrLost) || errors.Is(cause, lane.ErrDraining) {
		return 0
	}
	return answerGrace
}

// checkDialog refuses a stateful tool that this worker does not have.
func checkDialog(e *Env, p wire.DialogOpen) *protocol.Error {
	if e.Handlers.Stateful[p.Tool].Run == nil {
		return protocol.Errorf(codes.UnknownPayload, "this worker does not know the stateful tool %q: it may be older than the coordinator, or lack the handler", p.Tool)
	}
	return nil
}

func dialogOpen(ctx context.Context, a *Attempt, p wire.DialogOpen) (protocol.Value, error) {
	c := a.Run.Call
	state, err := a.env.dialogs.Open(ctx, a.env.Handlers.Stateful[p.Tool], dialog.Opening[*Attempt]{
		ID: c.ID, Session: c.SessionID, Lane: c.Lane(), Kind: p.Tool, Call: a, Arguments: p.Arguments,
	})
	err = checkedState(&state, err)
	return wire.DialogOpenResult{DialogState: state}, err
}

func dialogContinue(ctx context.Context, a *Attempt, p wire.DialogContinue) (protocol.Value, error) {
	input := p.Input
	if input == nil {
		input = json.RawMessage("null")
	}
	state, err := a.env.dialogs.Continue(ctx, p.Dialog, a.Run.Call.SessionID, a.lane(), a, input)
	err = checkedState(&state, err)
	return wire.DialogContinueResult{DialogState: state}, err
}

func dialogEnd(ctx context.Context, a *Attempt, p wire.DialogEnd) (protocol.Value, error) {
	state, err := a.env.dialogs.End(ctx, p.Dialog, a.Run.Call.SessionID, a.lane())
	err = checkedState(&state, err)
	return wire.DialogEndResult{DialogState: state}, err
}

// dialogSize is the size of what a stateful tool answered.
func dialogSize(v protocol.Value) int {
	state, _ := wire.DialogStateOf(v)
	return len(state.Output)
}

// checkedState returns the error of a state as a tool's error; an output that is no JSON is an
// error, too.
func checkedState(state *wire.DialogState, err error) error {
	if len(state.Output) > 0 && !json.Valid(state.Output) {
		state.Output = nil
		err = errors.Join(err, errors.New("the tool answered with something that is no JSON"))
	}
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return toolError(err)
}
