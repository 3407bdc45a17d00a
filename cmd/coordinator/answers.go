package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/toolfleet/toolfleet/internal/approval"
	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// answers asks the person at this terminal what a coordinator elsewhere, or a call that runs, wants
// to know, and sends the answers. Without a terminal it says how to answer.
type answers struct {
	fleet  *fleet.Fleet
	prompt *prompt
	where  string // flags by which others reach the fleet
	alone  bool   // nobody else can answer, so that without a terminal all is declined
	say    func(string)

	mu      sync.Mutex // events come from another goroutine, and may come behind the end
	closed  bool
	open    map[protocol.CallID]context.CancelFunc // of questions that are put
	running sync.WaitGroup
}

func newAnswers(p program, fl *fleet.Fleet, where string, session protocol.SessionID, show view) *answers {
	a := answersOf(newPrompt(p, show.screen, ""), fl, where, show)
	if a.prompt != nil {
		a.prompt.old = kept(fl, session)
	}
	return a
}

func answersOf(prompt *prompt, fl *fleet.Fleet, where string, show view) *answers {
	return &answers{fleet: fl, prompt: prompt, where: where, say: show.warn, open: map[protocol.CallID]context.CancelFunc{}}
}

// observe asks what an event asks, and takes back what an event answers.
func (a *answers) observe(ctx context.Context, e loop.Event) {
	switch e.Type {
	case loop.EventApprovalAsked:
		a.approval(ctx, e)
	case loop.EventQuestionAsked:
		pool, _, _ := strings.Cut(e.Lane, "/")
		a.question(ctx, e.Name, approval.Asked{Pool: protocol.Pool(pool), Session: e.SessionID, Call: e.CallID}, e.Question)
	case loop.EventToolResult, loop.EventAnswered:
		a.mu.Lock()
		defer a.mu.Unlock()
		a.takeBack(e.CallID)
	default:
	}
}

// approval puts the question of an event whether a call may be made. A turn asks one at a time, so
// one that is still put was answered elsewhere, or is asked again.
func (a *answers) approval(ctx context.Context, e loop.Event) {
	request := loop.ApprovalRequest{SessionID: e.SessionID, CallID: e.CallID, Tool: e.Name, Arguments: e.Arguments, Reason: e.Text}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.prompt == nil && !a.closed {
		a.say(waits(request, a.where))
		return
	}
	for call := range a.open {
		a.takeBack(call)
	}
	a.put(ctx, request.CallID, func(ctx context.Context) error {
		answer, err := a.prompt.approve(ctx, request)
		if err != nil {
			return nil //nolint:nilerr // nobody waits for it any more, or nobody can answer
		}
		return approval.Answer(ctx, a.fleet.NC, a.fleet.Name, request.SessionID, request.CallID,
			protocol.Approval{Granted: answer.Granted, By: answer.By, Note: answer.Note})
	})
}

// question puts what a call asks while it runs, until the call ends.
func (a *answers) question(ctx context.Context, tool string, call approval.Asked, question *protocol.Question) {
	if question == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.prompt == nil && a.alone {
		a.put(ctx, call.Call, func(ctx context.Context) error {
			return a.reply(ctx, call, protocol.Answer{Question: question.ID, Action: protocol.ActionDecline})
		})
		return
	}
	if err := approval.TakeOn(a.fleet.Conn(call.Pool), a.fleet.Name, call, question.ID); err != nil {
		a.say(err.Error())
		return
	}
	if a.prompt == nil {
		a.say(asks(tool, call, question, a.where))
		return
	}
	a.put(ctx, call.Call, func(ctx context.Context) error {
		for {
			answer, err := a.prompt.fill(ctx, tool, question)
			if ctx.Err() != nil {
				return nil //nolint:nilerr // nobody waits for it any more
			}
			if err != nil {
				answer = protocol.Answer{Question: question.ID, Action: protocol.ActionCancel}
			}
			if err = a.reply(ctx, call, answer); !errors.Is(err, approval.ErrRefused) {
				return err
			}
			a.say(err.Error())
		}
	})
}

func (a *answers) reply(ctx context.Context, call approval.Asked, answer protocol.Answer) error {
	return approval.Reply(ctx, a.fleet.Conn(call.Pool), a.fleet.Name, call, answer)
}

// asks tells that a call waits for what a person says.
func asks(tool string, call approval.Asked, question *protocol.Question, where string) string {
	return fmt.Sprintf("%s asks: %s; accept its defaults with: coordinator approve%s%s %s %s; --deny declines, --content JSON answers, of the schema %s",
		tool, shortened(question.Message), where, ofPool(call.Pool), call.Session, call.Call, question.Schema)
}

// ofPool is the flag that names a pool, with a space in front; "" for the default pool.
func ofPool(pool protocol.Pool) string {
	if pool == protocol.DefaultPool {
		return ""
	}
	return " --pool " + string(pool)
}

// put has a question answered beside everything else. The lock is held. After close it puts none.
func (a *answers) put(ctx context.Context, call protocol.CallID, answer func(context.Context) error) {
	if a.closed {
		return
	}
	a.takeBack(call)
	ctx, cancel := context.WithCancel(ctx)
	a.open[call] = cancel
	a.running.Go(func() {
		defer cancel()
		if err := answer(ctx); err != nil && ctx.Err() == nil {
			a.say(fmt.Sprintf("the answer did not arrive: %v", err))
		}
	})
}

// takeBack ends the question about a call, if one is put. The lock is held.
func (a *answers) takeBack(call protocol.CallID) {
	if cancel := a.open[call]; cancel != nil {
		cancel()
		delete(a.open, call)
	}
}

// close takes back what is put; nothing is put any more.
func (a *answers) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	for call := range a.open {
		a.takeBack(call)
	}
	a.running.Wait()
}
