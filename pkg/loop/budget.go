package loop

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Price is what a model's tokens cost, in dollars per million.
type Price struct{ Input, Output float64 }

// Of is the price of a usage in dollars.
func (p Price) Of(u protocol.Usage) float64 {
	return (float64(u.InputTokens)*p.Input + float64(u.OutputTokens)*p.Output) / 1e6
}

// budgetWarning is the share of a budget at which the model is told.
const budgetWarning = 0.8

// bound is one field of a budget.
type bound struct {
	name       string
	used, most float64
	text       func(n float64) string
}

// bounds are the fields of a budget that bound something.
func bounds(budget, used protocol.Spending) []bound {
	number := func(unit string) func(float64) string {
		return func(n float64) string { return fmt.Sprintf("%.0f %s", n, unit) }
	}
	seconds := func(n float64) string { return protocol.Millis(n).Duration().Round(time.Second).String() }
	all := []bound{
		{"steps", float64(used.Steps), float64(budget.Steps), number("steps")},
		{"calls", float64(used.Calls), float64(budget.Calls), number("tool calls")},
		{"tokens", float64(used.Tokens), float64(budget.Tokens), number("tokens")},
		{"time", float64(used.TimeMS), float64(budget.TimeMS), seconds},
		{"usd", used.USD, budget.USD, func(n float64) string { return fmt.Sprintf("$%.2f", n) }},
	}
	var set []bound
	for _, b := range all {
		if b.most > 0 {
			set = append(set, b)
		}
	}
	return set
}

// reached describes the bounds of which a share is used; "" when there is none.
func reached(budget, used protocol.Spending, share float64) string {
	var parts []string
	for _, b := range bounds(budget, used) {
		if b.used >= share*b.most {
			parts = append(parts, fmt.Sprintf("%s of %s", b.text(b.used), b.text(b.most)))
		}
	}
	return strings.Join(parts, ", ")
}

// validateBudget returns every fault of a budget.
func validateBudget(b *protocol.Spending) error {
	if b == nil {
		return nil
	}
	var errs []error
	for _, field := range []struct {
		name  string
		value float64
	}{{"steps", float64(b.Steps)}, {"calls", float64(b.Calls)}, {"tokens", float64(b.Tokens)}, {"time", float64(b.TimeMS)}, {"usd", b.USD}} {
		if !(field.value >= 0) || math.IsInf(field.value, 1) { // which NaN is not, either
			errs = append(errs, fmt.Errorf("budget: %s %v: must not be negative", field.name, field.value))
		}
	}
	return errors.Join(errs...)
}

// budgeted keeps the turn in the budget of its session. It reports whether the model may be asked;
// else the turn ends, or something was journaled and the turn continues with what follows from
// that.
func (t *turnRun) budgeted(ctx context.Context) (may bool, end *ending, err error) {
	turn, budget := t.session.open(), t.session.budget
	used := t.session.spent
	used.TimeMS += t.elapsed()
	event := Event{Turn: turn.number, Step: len(turn.steps)}
	spent := reached(budget, used, 1)
	if spent == "" {
		spent = t.lineage.overAbove()
	}
	switch {
	case turn.lastAt > 0: // the answer to budget_spent is asked for
		return true, nil, nil
	case budget.USD > 0 && t.opts.Price == nil:
		return false, &ending{OutcomeLimitReached, limitReached("$%.2f (budget), which cannot be counted: the price of model %s is unknown", budget.USD, t.opts.ModelName)}, nil
	case spent != "" && len(turn.steps) == 0:
		return false, t.overBudget(spent), nil
	case spent != "":
		event.Type = EventBudgetSpent
		event.Text = fmt.Sprintf("[The budget of the session is used up: %s. Answer now, without a tool call: what is done, and what is left.]", spent)
		return false, nil, t.record(ctx, event)
	}
	low := reached(budget, used, budgetWarning)
	if low == "" || t.session.warned {
		return true, nil, nil
	}
	event.Type = EventBudgetLow
	event.Text = fmt.Sprintf("[Most of the session's budget is used: %s. Finish what matters most.]", low)
	return true, nil, t.record(ctx, event)
}

// overBudget is the end of a turn whose session has used up its budget.
func (t *turnRun) overBudget(spent string) *ending {
	return &ending{OutcomeLimitReached, &protocol.Error{
		Code:    protocol.CodeLimitReached,
		Message: "the session has used up its budget (" + spent + "): give it a larger one",
	}}
}

// lastAnswer reports whether the model has been asked for its answer without tools.
func (t *turn) lastAnswer() bool { return t.lastAt > 0 && len(t.steps) > t.lastAt }

// elapsed is the time since the last reply that this run journaled, or since it began.
func (t *turnRun) elapsed() protocol.Millis { return protocol.MillisOf(time.Since(t.since)) }

// spend describes what a reply took.
func (t *turnRun) spend(e *Event, price *Price) {
	e.ElapsedMS, t.since = t.elapsed(), time.Now()
	if price != nil && e.Usage != nil {
		e.CostUSD = new(price.Of(*e.Usage))
	}
}

// noteSpent adds what an event says was used.
func (s *session) noteSpent(e *Event) {
	switch e.Type {
	case EventModelReply, EventCompacted:
		if e.Type == EventModelReply {
			s.spent.Steps++
		}
		if e.Usage != nil {
			s.spent.Tokens += e.Usage.Total()
		}
		if e.CostUSD != nil {
			s.spent.USD += *e.CostUSD
		}
		s.spent.TimeMS += e.ElapsedMS
	case EventTurnEnded:
		s.spent.TimeMS += e.ElapsedMS
	case EventToolResult, EventJobEnded:
		if e.Type == EventToolResult && protocol.Status(e.Status) != protocol.StatusRejected {
			s.spent.Calls++
		}
		if e.Spent != nil {
			s.spent = s.spent.Add(*e.Spent)
		}
	default:
	}
}

// noteBudget tells the model about the budget, behind the last step.
func (s *session) noteBudget(e *Event) error {
	t := s.open()
	if t == nil || e.Turn != t.number || e.Step != len(t.steps) {
		return errors.New("step is not the last")
	}
	s.warned = true
	if e.Type == EventBudgetSpent {
		t.lastAt = len(t.steps)
	}
	t.addNote(e.Text)
	return nil
}

// addNote adds what the model reads before its next step.
func (t *turn) addNote(note string) {
	if last := t.last(); last != nil {
		last.notes = append(last.notes, note)
	} else {
		t.notes = append(t.notes, note)
	}
}
