package main

import (
	"context"
	"fmt"
	"sync"

	"github.com/toolfleet/toolfleet/internal/approval"
	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// answers asks the person at this terminal what a coordinator elsewhere wants to know,
// and sends the answers. Without a terminal it says how to answer.
type answers struct {
	fleet  *fleet.Fleet
	prompt *prompt
	say    func(string)

	mu      sync.Mutex // events come from another goroutine, and may come behind the end
	closed  bool
	cancel  context.CancelFunc // of the question that is put
	running sync.WaitGroup
}

func newAnswers(p program, fl *fleet.Fleet, show view) *answers {
	return &answers{fleet: fl, prompt: newPrompt(p, show.screen, ""), say: show.warn, cancel: func() {}}
}

// ask puts the question of an event. A turn asks one question at a time, so one that is
// still put was answered elsewhere, or is asked again. After close it asks nothing.
func (a *answers) ask(ctx context.Context, e loop.Event) {
	request := loop.ApprovalRequest{SessionID: e.SessionID, CallID: e.CallID, Tool: e.Name, Arguments: e.Arguments, Reason: e.Text}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return
	}
	if a.prompt == nil {
		a.say(waits(request))
		return
	}
	a.takeBack()
	ctx, a.cancel = context.WithCancel(ctx)
	a.running.Go(func() {
		answer, err := a.prompt.approve(ctx, request)
		if err != nil {
			return // nobody waits for it any more, or nobody can answer
		}
		err = approval.Answer(ctx, a.fleet.NC, a.fleet.Name, request.SessionID, request.CallID,
			protocol.Approval{Granted: answer.Granted, By: answer.By, Note: answer.Note})
		if err != nil {
			a.say(fmt.Sprintf("the answer did not arrive: %v", err))
		}
	})
}

// close takes back a question that is put; none is put any more.
func (a *answers) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	a.takeBack()
}

// takeBack ends the question that is put, if there is one. The lock is held.
func (a *answers) takeBack() {
	a.cancel()
	a.running.Wait()
}
