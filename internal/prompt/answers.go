package prompt

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

// Answers passes the questions of coordinators elsewhere, and of running calls, to the person at
// this terminal, and sends the answers. Without a terminal it reports how to answer.
type Answers struct {
	// Alone says that nobody else can answer: without a terminal every question is declined.
	Alone bool

	fleet  *fleet.Fleet
	prompt *Prompt // nil without a terminal
	flags  string  // by which other commands reach the fleet
	report func(string)

	mu      sync.Mutex // events come from another goroutine, also after Close
	closed  bool
	open    map[protocol.CallID]context.CancelFunc // questions that are shown
	running sync.WaitGroup
}

// NewAnswers answers questions of a fleet, which other commands reach by some flags.
func NewAnswers(prompt *Prompt, fl *fleet.Fleet, flags string, report func(string)) *Answers {
	return &Answers{fleet: fl, prompt: prompt, flags: flags, report: report, open: map[protocol.CallID]context.CancelFunc{}}
}

// Observe asks the question of an event, and withdraws the one that an event answers.
func (a *Answers) Observe(ctx context.Context, e loop.Event) {
	switch e.Type {
	case loop.EventApprovalAsked:
		a.approval(ctx, e)
	case loop.EventQuestionAsked:
		pool, _, _ := strings.Cut(e.Lane, "/")
		a.Question(ctx, e.Name, approval.Asked{Pool: protocol.Pool(pool), Session: e.SessionID, Call: e.CallID}, e.Question)
	case loop.EventToolResult, loop.EventAnswered:
		a.mu.Lock()
		defer a.mu.Unlock()
		a.withdraw(e.CallID)
	default:
	}
}

// approval shows the question whether a call may be made. A turn asks one at a time, so an earlier
// question was answered elsewhere, or is asked again.
func (a *Answers) approval(ctx context.Context, e loop.Event) {
	request := loop.ApprovalRequest{SessionID: e.SessionID, CallID: e.CallID, Tool: e.Name, Arguments: e.Arguments, Reason: e.Text}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.prompt == nil && !a.closed {
		a.report(WaitsForApproval(request, a.flags))
		return
	}
	for call := range a.open {
		a.withdraw(call)
	}
	a.show(ctx, request.CallID, func(ctx context.Context) error {
		answer, err := a.prompt.Approve(ctx, request)
		if err != nil {
			return nil //nolint:nilerr // nobody waits for the answer any more, or nobody can give one
		}
		return approval.Answer(ctx, a.fleet.NC, a.fleet.Name, request.SessionID, request.CallID,
			protocol.Approval{Granted: answer.Granted, By: answer.By, Note: answer.Note})
	})
}

// Question shows what a running call asks, until the call ends; nil asks nothing.
func (a *Answers) Question(ctx context.Context, tool string, call approval.Asked, question *protocol.Question) {
	if question == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.prompt == nil && a.Alone {
		a.show(ctx, call.Call, func(ctx context.Context) error {
			return a.reply(ctx, call, protocol.Answer{Question: question.ID, Action: protocol.ActionDecline})
		})
		return
	}
	if err := approval.TakeOn(a.fleet.Conn(call.Pool), a.fleet.Name, call, question.ID); err != nil {
		a.report(err.Error())
		return
	}
	if a.prompt == nil {
		a.report(WaitsForAnswer(tool, call, question, a.flags))
		return
	}
	a.show(ctx, call.Call, func(ctx context.Context) error {
		for {
			answer, err := a.prompt.Fill(ctx, tool, question)
			if ctx.Err() != nil {
				return nil //nolint:nilerr // nobody waits for the answer any more
			}
			if err != nil {
				answer = protocol.Answer{Question: question.ID, Action: protocol.ActionCancel}
			}
			if err = a.reply(ctx, call, answer); !errors.Is(err, approval.ErrRefused) {
				return err
			}
			a.report(err.Error())
		}
	})
}

func (a *Answers) reply(ctx context.Context, call approval.Asked, answer protocol.Answer) error {
	return approval.Reply(ctx, a.fleet.Conn(call.Pool), a.fleet.Name, call, answer)
}

// WaitsForAnswer says that a running call waits for an answer, with a command line that answers it.
func WaitsForAnswer(tool string, call approval.Asked, question *protocol.Question, flags string) string {
	return fmt.Sprintf("%s asks: %s; accept its defaults with: coordinator approve%s%s %s %s; --deny declines, --content JSON answers, of the schema %s",
		tool, Shorten(question.Message), flags, PoolFlag(call.Pool), call.Session, call.Call, question.Schema)
}

// PoolFlag is the flag that names a pool, with a space in front; "" for the default pool.
func PoolFlag(pool protocol.Pool) string {
	if pool == protocol.DefaultPool {
		return ""
	}
	return " --pool " + string(pool)
}

// show has a question answered in a goroutine; after Close it shows none. The lock is held.
func (a *Answers) show(ctx context.Context, call protocol.CallID, answer func(context.Context) error) {
	if a.closed {
		return
	}
	a.withdraw(call)
	ctx, cancel := context.WithCancel(ctx)
	a.open[call] = cancel
	a.running.Go(func() {
		defer cancel()
		if err := answer(ctx); err != nil && ctx.Err() == nil {
			a.report(fmt.Sprintf("the answer did not arrive: %v", err))
		}
	})
}

// withdraw ends the question about a call, if one is shown. The lock is held.
func (a *Answers) withdraw(call protocol.CallID) {
	if cancel := a.open[call]; cancel != nil {
		cancel()
		delete(a.open, call)
	}
}

// Close withdraws all questions, and shows none any more.
func (a *Answers) Close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	for call := range a.open {
		a.withdraw(call)
	}
	a.running.Wait()
}

// WaitsForApproval says that a call waits for approval, with a command line that answers it.
func WaitsForApproval(request loop.ApprovalRequest, flags string) string {
	return fmt.Sprintf("%s: %s %s; approve it, or with --deny refuse it, with: coordinator approve%s %s %s",
		request.Reason, request.Tool, Shorten(request.Arguments), flags, request.SessionID, request.CallID)
}

// Shorten cuts a text to a few lines of a terminal.
func Shorten(text string) string {
	const most = 1000
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most]) + fmt.Sprintf(" [... and %d more characters]", len(runes)-most)
	}
	return text
}
