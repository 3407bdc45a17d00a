package loop

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/calls/ports"
	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// Price is what a model's replies cost.
type Price struct {
	// Input and Output are dollars per million tokens.
	Input, Output float64
	// Tools are dollars per call of the tools that the provider runs, by [NativeCall].Kind. Another
	// tool costs as much as the dearest of them.
	Tools map[string]float64
}

// cacheWriteShare is how much more a token costs that the provider writes to its cache.
const cacheWriteShare = 0.25

// Of is the price of a usage in dollars, without the provider's tools. Tokens that were read from
// a cache cost as much as others: a budget rather ends early than late.
func (p Price) Of(u protocol.Usage) float64 {
	return ((float64(u.InputTokens)+cacheWriteShare*float64(u.CacheWriteTokens))*p.Input + float64(u.OutputTokens)*p.Output) / 1e6
}

// native is the price of the calls that the provider ran for a reply.
func (p Price) native(calls []NativeCall) (sum float64) {
	dearest := 0.0
	for _, price := range p.Tools {
		dearest = max(dearest, price)
	}
	for _, call := range calls {
		price, known := p.Tools[call.Kind]
		if !known {
			price = dearest
		}
		sum += price * float64(max(call.Uses, 1))
	}
	return sum
}

// budgetWarning is the share of a budget at which the model gets a note.
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

// reached describes the bounds whose share is used up; "" if there is none.
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

// usedUp is a bound of a session that is reached, and whose it is.
type usedUp struct{ whose, amounts, remedy string }

// note is what the model reads of it.
func (u *usedUp) note() string {
	return "[" + strings.ToUpper(u.whose[:1]) + u.whose[1:] + " is used up: " + u.amounts + ". Answer now, without a tool call: what is done, and what is left.]"
}

// err is why a turn ends by it.
func (u *usedUp) err() *protocol.Error {
	return &protocol.Error{Code: protocol.CodeLimitReached, Message: u.whose + " is used up (" + u.amounts + "): " + u.remedy}
}

// account is a run of a turn, as the budgets of the session and of those above it see it. It counts
// what running sub-agents use that the journal does not have yet.
type account struct {
	rec   *recorder
	above *account
	began time.Time // when the call began that started the session, or its turn
	alone *ports.Unattended

	mu      sync.Mutex
	running protocol.Spending
}

// add counts for the session and all above it.
func (a *account) add(s protocol.Spending) {
	for ; a != nil; a = a.above {
		a.mu.Lock()
		a.running = a.running.Add(s)
		a.mu.Unlock()
	}
}

// budgets returns what binds the session in its turn, and what it has used of each; the second one
// is for turns that no person has begun. Time is that of the journal.
func (a *account) budgets() (budget, used, aloneBudget, aloneUsed protocol.Spending) {
	a.mu.Lock()
	running := a.running
	a.mu.Unlock()
	a.rec.mu.Lock()
	defer a.rec.mu.Unlock()
	s := a.rec.session
	if t := s.open(); t != nil && t.trigger != "" && a.alone != nil {
		aloneUsed, _ = s.unattended(time.Now())
		aloneBudget, aloneUsed = a.alone.Most, aloneUsed.Add(running)
	}
	return s.budget, s.spent.Add(running), aloneBudget, aloneUsed
}

// usedUp returns the first bound that is used up to a share: of the session, or of one above it.
// The time since the last event of the journal counts, too.
func (a *account) usedUp(share float64, since protocol.Millis) *usedUp {
	for of := a; of != nil; of = of.above {
		if of != a {
			share = 1 // its own model is warned
		}
		budget, used, aloneBudget, aloneUsed := of.budgets()
		used.TimeMS, aloneUsed.TimeMS = used.TimeMS+since, aloneUsed.TimeMS+since
		amounts, alone := reached(budget, used, share), reached(aloneBudget, aloneUsed, share)
		whose := "the budget of the session"
		if of != a {
			whose = fmt.Sprintf("the budget of session %s, which started this one,", of.rec.id)
		}
		switch {
		case amounts != "":
			return &usedUp{whose, amounts, "give it a larger one"}
		case alone != "":
			return &usedUp{
				fmt.Sprintf("what session %s may use in 24 hours without a person", of.rec.id), alone,
				"a turn that a person begins has the whole amount again (coordinator serve --unattended)",
			}
		}
		since = protocol.MillisOf(time.Since(of.began))
	}
	return nil
}

// inDollars reports whether a budget in dollars binds the session.
func (a *account) inDollars() bool {
	for ; a != nil; a = a.above {
		if budget, _, alone, _ := a.budgets(); budget.USD > 0 || alone.USD > 0 {
			return true
		}
	}
	return false
}

// unpriced names a model of unknown price that may reply, or write a summary; "" if there is none.
func (r *Runner) unpriced() string {
	other, _ := r.model.(interface{ Fallback() Fallback })
	switch writer := r.opts.Compaction; {
	case r.opts.Price == nil:
		return r.opts.ModelName
	case other != nil && other.Fallback().Price == nil:
		return other.Fallback().Model + " (fallback)"
	case writer != nil && writer.Model != nil && writer.Price == nil:
		return writer.ModelName + " (compaction)"
	default:
		return ""
	}
}

// CheckPrices reports what [New] does about a budget in dollars: models of unknown price that reply
// for this one, write its summaries or are sub-agents would pass it.
func (o *Options) CheckPrices(model Model, table *tools.Table) error {
	return (&Runner{model: model, table: table, opts: *o}).validatePrices()
}

// validatePrices returns an error for a budget in dollars that a model of unknown price would pass.
func (r *Runner) validatePrices() error {
	unknown := func(usd float64, model string) error {
		if usd <= 0 || model == "" {
			return nil
		}
		return fmt.Errorf("budget: usd %v: the price of model %s is unknown", usd, model)
	}
	usd := 0.0
	if r.opts.Budget != nil {
		usd = r.opts.Budget.USD
	}
	errs := []error{unknown(usd, r.unpriced())}
	if _, starts := r.table.Lookup(wire.AgentTool); !starts {
		return errors.Join(errs...)
	}
	for _, kind := range r.opts.Agents {
		most := usd
		if kind.Budget != nil {
			most = max(most, kind.Budget.USD)
		}
		if model := r.as(kind).unpriced(); model != "" && (kind.Model != nil || usd <= 0) {
			errs = append(errs, unknown(most, model+" (agent "+kind.Name+")"))
		}
	}
	return errors.Join(errs...)
}

// budgeted keeps the turn in the budget of its session. It reports whether the model may be asked;
// else the turn ends, or something was journaled and the turn continues with what follows from
// that.
func (t *turnRun) budgeted(ctx context.Context) (may bool, end *ending, err error) {
	turn := t.session.open()
	event := Event{Turn: turn.number, Step: len(turn.steps)}
	if turn.lastAt > 0 { // the answer to budget_spent is asked for
		return true, nil, nil
	}
	if model := t.unpriced(); model != "" && t.account.inDollars() {
		return false, &ending{OutcomeLimitReached, limitReached("dollars (budget), which cannot be counted: the price of model %s is unknown", model)}, nil
	}
	switch spent := t.account.usedUp(1, t.elapsed()); {
	case spent != nil && len(turn.steps) == 0:
		return false, &ending{OutcomeLimitReached, spent.err()}, nil
	case spent != nil:
		event.Type, event.Text, event.Error = EventBudgetSpent, spent.note(), spent.err()
		return false, nil, t.record(ctx, event)
	}
	low := t.account.usedUp(budgetWarning, t.elapsed())
	if low == nil || t.session.warned {
		return true, nil, nil
	}
	event.Type = EventBudgetLow
	event.Text = fmt.Sprintf("[Most of %s is used: %s. Finish what matters most.]", low.whose, low.amounts)
	return true, nil, t.record(ctx, event)
}

// overBudget is the end of a turn that has been asked for its last answer.
func (t *turnRun) overBudget() *ending {
	failure := t.session.open().spentErr
	if spent := t.account.usedUp(1, t.elapsed()); spent != nil { // with the answer
		failure = spent.err()
	}
	if failure == nil { // of an older journal
		failure = &protocol.Error{Code: protocol.CodeLimitReached, Message: "the budget of the session is used up: give it a larger one"}
	}
	return &ending{OutcomeLimitReached, failure}
}

// lastAnswer reports whether the model has been asked for its answer without tools.
func (t *turn) lastAnswer() bool { return t.lastAt > 0 && len(t.steps) > t.lastAt }

// elapsed is the time since the last reply that this run journaled, or since it began.
func (t *turnRun) elapsed() protocol.Millis { return protocol.MillisOf(time.Since(t.since)) }

// spend describes what a reply took.
func (t *turnRun) spend(e *Event, price *Price, native []NativeCall) {
	e.ElapsedMS, t.since = t.elapsed(), time.Now()
	if price != nil && e.Usage != nil {
		e.CostUSD = new(price.Of(*e.Usage) + price.native(native))
	}
}

// failedEvent is the event of an attempt that gave no reply, although it is billed.
func (t *turnRun) failedEvent(failed *Reply, price *Price, model, why string) Event {
	turn := &t.session.turns[len(t.session.turns)-1]
	e := Event{Type: EventReplyFailed, Turn: turn.number, Step: len(turn.steps) + 1, Text: prose.Valid(why), ReplyFields: ReplyFields{Usage: new(failed.Counted(0))}}
	if e.Model = model; failed.Fallback != nil {
		e.Model, price = failed.Fallback.Model, failed.Fallback.Price
	}
	if price != nil {
		e.CostUSD = new(price.Of(*e.Usage) + price.native(failed.Native))
	}
	return e
}

// noteSpent adds what an event says was used.
func (s *session) noteSpent(e *Event) {
	used := spentBy(e)
	s.spent = s.spent.Add(used)
	if n := len(s.turns); n > 0 {
		s.turns[n-1].spent = s.turns[n-1].spent.Add(used)
	}
}

// spentBy is what an event says was used.
func spentBy(e *Event) (used protocol.Spending) {
	switch e.Type {
	case EventModelReply, EventCompacted, EventReplyFailed:
		if e.Type == EventModelReply {
			used.Steps++
		}
		if e.Usage != nil {
			used.Tokens = e.Usage.Total()
		}
		if e.CostUSD != nil {
			used.USD = *e.CostUSD
		}
		used.TimeMS = e.ElapsedMS
	case EventTurnEnded:
		used.TimeMS = e.ElapsedMS
	case EventToolResult, EventJobEnded:
		if e.Type == EventToolResult && protocol.Status(e.Status) != protocol.StatusRejected {
			used.Calls++
		}
		if e.Spent != nil {
			used = used.Add(*e.Spent)
		}
	default:
	}
	return used
}

// noteBudget adds a note about the budget for the model, behind the last step.
func (s *session) noteBudget(e *Event) error {
	t := s.open()
	if t == nil || e.Turn != t.number || e.Step != len(t.steps) {
		return errors.New("step is not the last")
	}
	s.warned = true
	if e.Type == EventBudgetSpent {
		t.lastAt, t.spentErr = len(t.steps), e.Error
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
