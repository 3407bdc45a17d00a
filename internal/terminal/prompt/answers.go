package prompt

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Answers passes the questions of coordinators elsewhere, and of running calls, to the person at
// this terminal, and sends the answers. Without a terminal it reports how to answer.
type Answers struct {
	// Alone says that nobody else can answer: without a terminal every question is declined.
	Alone bool

	client *fleet.Client
	prompt *Prompt // nil without a terminal
	flags  string  // by which other commands reach the fleet
	report func(string)

	mu       sync.Mutex // events come from another goroutine, also after Close
	closed   bool
	open     map[protocol.CallID]context.CancelFunc // questions that are shown
	approval protocol.CallID                        // the last call for which an approval was asked
	running  sync.WaitGroup
}

// NewAnswers answers questions of a fleet, which other commands reach by some flags.
func NewAnswers(prompt *Prompt, client *fleet.Client, flags string, report func(string)) *Answers {
	return &Answers{client: client, prompt: prompt, flags: flags, report: report, open: map[protocol.CallID]context.CancelFunc{}}
}

// Observe asks the question of an event, and withdraws the one that an event answers.
func (a *Answers) Observe(ctx context.Context, e loop.Event) {
	switch e.Type {
	case loop.EventApprovalAsked:
		a.approve(ctx, e)
	case loop.EventQuestionAsked:
		a.Question(ctx, &report.Question{SessionID: e.SessionID, CallID: e.CallID, Tool: e.Name, Question: e.Question, Lane: e.Lane})
	case loop.EventToolResult, loop.EventAnswered:
		a.mu.Lock()
		defer a.mu.Unlock()
		a.withdraw(e.CallID)
	default:
	}
}

// approve shows the question whether a call may be made. A session asks one at a time, so an
// earlier one was answered elsewhere, or is asked again. What running calls ask stays.
func (a *Answers) approve(ctx context.Context, e loop.Event) {
	request := loop.ApprovalRequest{SessionID: e.SessionID, CallID: e.CallID, Tool: e.Name, Arguments: e.Arguments, Reason: e.Text}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.prompt == nil && !a.closed {
		a.report(WaitsForApproval(request, a.flags))
		return
	}
	a.withdraw(a.approval)
	a.approval = request.CallID
	a.show(ctx, request.CallID, func(ctx context.Context) error {
		answer, err := a.prompt.Approve(ctx, request)
		for errors.Is(err, loop.ErrAskAgain) && ctx.Err() == nil {
			answer, err = a.prompt.Approve(ctx, request)
		}
		if err != nil {
			return nil //nolint:nilerr // nobody waits for the answer any more, or nobody can give one
		}
		return a.client.Sessions("").Approve(ctx, request.SessionID, request.CallID,
			protocol.Approval{Granted: answer.Granted, By: answer.By, Note: answer.Note})
	})
}

// Question shows what a running call asks, until the call ends. Without a Question it asks nothing.
func (a *Answers) Question(ctx context.Context, q *report.Question) {
	if q.Question == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.show(ctx, q.CallID, func(ctx context.Context) error {
		if a.prompt == nil && a.Alone {
			return a.reply(ctx, q, protocol.ActionDecline)
		}
		switch err := a.reply(ctx, q, protocol.ActionWait); {
		case errors.Is(err, fleet.ErrNotFound): // it was answered elsewhere
			return nil
		case err != nil:
			return err
		case a.prompt == nil:
			a.report(WaitsForAnswer(q, a.flags))
			return nil
		}
		for {
			answer, err := a.prompt.Fill(ctx, q.Tool, q.Question)
			if ctx.Err() != nil {
				return nil //nolint:nilerr // nobody waits for the answer any more
			}
			if err != nil {
				return a.reply(ctx, q, protocol.ActionCancel)
			}
			if err = a.answer(ctx, q, answer); !errors.Is(err, fleet.ErrInvalid) {
				return err
			}
			a.report(err.Error())
		}
	})
}

func (a *Answers) reply(ctx context.Context, q *report.Question, action protocol.Action) error {
	return a.answer(ctx, q, protocol.Answer{Question: q.Question.ID, Action: action})
}

func (a *Answers) answer(ctx context.Context, q *report.Question, answer protocol.Answer) error {
	return a.client.Sessions(q.Pool()).Answer(ctx, q.SessionID, q.CallID, answer)
}

// WaitsForAnswer says that a running call waits for an answer, with a command line that answers it.
func WaitsForAnswer(q *report.Question, flags string) string {
	return fmt.Sprintf("%s asks: %s; accept its defaults with: coordinator approve%s%s %s %s; --deny declines, and --content JSON answers (it must fit the schema %s)",
		q.Tool, Shorten(q.Question.Message), flags, PoolFlag(q.Pool()), q.SessionID, q.CallID, q.Question.Schema)
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
	return fmt.Sprintf("%s: %s %s; approve it (or refuse it with --deny): coordinator approve%s %s %s",
		request.Reason, request.Tool, Shorten(request.Arguments), flags, request.SessionID, request.CallID)
}

// Shorten cuts a text to a few lines of a terminal.
func Shorten(text string) string { return prose.Head(text, 1000) }
