package loop

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools/policy"
)

// Ledger has the tool calls that reach sessions by other interfaces than turns: what was decided
// about them, and how many there were. It writes to the sessions' journals, so the rules of a
// policy about numbers of calls hold for all interfaces of a session, and for all processes: an
// entry is appended only behind the calls that were counted for it. It is safe for concurrent use.
type Ledger struct {
	journal Journal // nil keeps the counts in memory

	mu    pause.Mutex
	pages map[protocol.SessionID]*page
	holds bool
	held  map[protocol.SessionID][]Event // not written yet
}

// NewLedger returns a ledger that writes to a journal. Without one, the counts are those of the
// ledger alone: for sessions that nobody else uses.
func NewLedger(journal Journal) *Ledger { return &Ledger{journal: journal} }

// Hold has the ledger write nothing until [Ledger.Flush]: calls that are planned together count
// together, or not at all. It is called before the first call.
func (l *Ledger) Hold() { l.holds, l.held = true, map[protocol.SessionID][]Event{} }

// Flush writes what was held. The error wraps [ErrJournalConflict] if a session was extended since
// its calls were counted: then none of the calls may be sent.
func (l *Ledger) Flush(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for session, events := range l.held {
		if _, err := l.journal.Append(ctx, session, l.pages[session].last, events...); err != nil {
			return fmt.Errorf("count the calls of session %s: %w", session, err)
		}
	}
	l.held, l.pages, l.holds = nil, nil, false
	return nil
}

// page is a session's journal, as far as the ledger knows it.
type page struct {
	asked time.Time // for the last time; under the lock of the ledger

	mu     pause.Mutex
	gone   bool // the ledger has forgotten it
	known  bool
	fresh  bool         // the journal is empty
	owner  *judge.Owner // of the session; nil while it is not known
	last   uint64
	turns  int
	open   bool                       // a turn is
	used   map[string]int             // calls that were not refused, by tool
	judged map[protocol.CallID]string // calls with an entry that is counted, and their tools
	order  []protocol.CallID          // of their entries, oldest first
}

const (
	// maxPages is how many sessions' pages a ledger has in memory. With a journal, those that it
	// forgets are read again. Without one it forgets a session that has no counted calls, or else
	// the one that has made none for the longest time, at least forgetAfter.
	maxPages = 10_000
	// forgetAfter is how long a session without a journal must be idle until its calls may count no
	// more.
	forgetAfter = 24 * time.Hour
	// maxJudged is how many calls of a session may be sent again without counting again.
	maxJudged = 1000
)

// errPages means that a ledger without a journal can count no calls of another session.
var errPages = fmt.Errorf("the calls of %d sessions of the last %s are counted in memory, and that is the limit: end sessions, or serve them from a fleet, whose journals have the counts", maxPages, forgetAfter)

// errTurnOpen means that the session's journal is written by the process of its turn.
var errTurnOpen = errors.New("a turn of the session is open: calls from outside are not journaled until it ends")

// page returns the page of a session, locked.
func (l *Ledger) page(session protocol.SessionID) (*page, error) {
	for {
		p, err := l.find(session)
		if err != nil {
			return nil, err
		}
		if p.mu.Lock(); !p.gone {
			return p, nil
		}
		p.mu.Unlock() // it was forgotten meanwhile
	}
}

func (l *Ledger) find(session protocol.SessionID) (*page, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p := l.pages[session]; p != nil {
		p.asked = time.Now()
		return p, nil
	}
	full := len(l.pages) >= maxPages
	if full && l.journal == nil && !l.forgetOne() {
		return nil, errPages
	}
	if l.pages == nil || full && l.journal != nil {
		l.pages = map[protocol.SessionID]*page{}
	}
	p := &page{asked: time.Now(), known: l.journal == nil, used: map[string]int{}, judged: map[protocol.CallID]string{}}
	l.pages[session] = p
	return p, nil
}

// forgetOne forgets a session of a ledger without a journal, and reports whether there is one that
// may be forgotten. The lock is held.
func (l *Ledger) forgetOne() bool {
	var oldest *page
	var id protocol.SessionID
	for session, p := range l.pages {
		if (oldest == nil || p.asked.Before(oldest.asked)) && p.forget(false) {
			oldest, id = p, session
		}
	}
	if oldest == nil || !oldest.forget(true) {
		return false
	}
	delete(l.pages, id)
	return true
}

// forget reports whether the page may be forgotten, and marks it as gone if that is final. One in
// use may not. The lock of the ledger is held.
func (p *page) forget(final bool) bool {
	if !p.mu.TryLock() {
		return false
	}
	defer p.mu.Unlock()
	counts := slices.ContainsFunc(slices.Collect(maps.Values(p.used)), func(n int) bool { return n > 0 })
	may := !counts || time.Since(p.asked) >= forgetAfter
	p.gone = may && final
	return may
}

// Forget drops what is known of a session that has ended.
func (l *Ledger) Forget(session protocol.SessionID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.holds {
		delete(l.pages, session)
	}
}

// judge notes a counted call. The oldest one beyond the bound counts again when it is sent again.
func (p *page) judge(call protocol.CallID, tool string) {
	_, again := p.judged[call]
	if p.judged[call] = tool; again {
		return
	}
	if p.order = append(p.order, call); len(p.order) > maxJudged {
		delete(p.judged, p.order[0])
		p.order = p.order[1:]
	}
}

// read makes the page known. It is called with the lock of the page.
func (p *page) read(ctx context.Context, journal Journal, session protocol.SessionID) error {
	if p.known {
		return nil
	}
	history, err := journal.Load(ctx, session)
	if err != nil {
		return err
	}
	s, err := fold(history.Events)
	if err != nil {
		return err
	}
	steps := 0
	if len(s.turns) > 0 {
		steps = len(s.turns[len(s.turns)-1].steps)
	}
	p.last, p.turns, p.open, p.fresh = history.Last, len(s.turns), s.open() != nil, len(history.Events) == 0
	if p.owner = nil; history.Owned() {
		owner := judge.OwnerOf(history)
		p.owner = &owner
	}
	p.known = !p.open // its process extends the journal
	p.used, p.judged, p.order = s.usedBefore(steps), map[protocol.CallID]string{}, nil
	for id, call := range s.judged {
		if call.counts() {
			p.judge(id, call.tool)
		}
	}
	return nil
}

// before is how many calls the session had, by tool, without the call itself, which may be sent
// again.
func (p *page) before(call protocol.CallID) map[string]int {
	used := maps.Clone(p.used)
	if tool, again := p.judged[call]; again {
		used[tool]--
	}
	return used
}

// may judges a call in a session from outside of its turns. A session that has no journal belongs
// to the principal from now on, if it may make one.
func (l *Ledger) may(ctx context.Context, act judge.Act, session protocol.SessionID) error {
	if l == nil || l.journal == nil || session == "" || !judge.Bounded(ctx) {
		return nil
	}
	own := judge.Object{Kind: judge.Session, ID: string(session), Owner: judge.Of(ctx).Owner()}
	if err := judge.Judge(ctx, act, own); err != nil {
		return err // of no session
	}
	if b, short := l.journal.(interface {
		Begin(ctx context.Context, session protocol.SessionID) (History, error)
	}); short {
		if begun, err := b.Begin(ctx, session); err == nil && begun.Owned() {
			return judge.Judge(ctx, act, judge.Object{Kind: judge.Session, ID: string(session), Owner: judge.OwnerOf(begun)})
		}
	}
	if err := l.reread(session); err != nil {
		return err
	}
	if judge.Judge(ctx, judge.Make, own) == nil {
		err := l.append(ctx, session, func(*page) []Event { return nil })
		if err != nil && !errors.Is(err, errTurnOpen) {
			return err
		}
	}
	p, err := l.page(session)
	if err != nil {
		return err
	}
	defer p.mu.Unlock()
	if err := p.read(ctx, l.journal, session); err != nil || p.owner == nil { // of an earlier version: its workspace has an owner
		return err
	}
	return judge.Judge(ctx, act, judge.Object{Kind: judge.Session, ID: string(session), Owner: *p.owner})
}

// reread has the journal of a session read again: the session may have been removed, and one of the
// same name made, by another process.
func (l *Ledger) reread(session protocol.SessionID) error {
	p, err := l.page(session)
	if err != nil {
		return err
	}
	defer p.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	p.known = p.known && l.holds // what it holds is in no journal
	return nil
}

// used is how many calls the session has had, by tool, without the call itself.
func (l *Ledger) used(ctx context.Context, session protocol.SessionID, call protocol.CallID) (map[string]int, error) {
	if l == nil {
		return map[string]int{}, nil
	}
	p, err := l.page(session)
	if err != nil {
		return map[string]int{}, err
	}
	defer p.mu.Unlock()
	if err := p.read(ctx, l.journal, session); err != nil {
		return map[string]int{}, err
	}
	return p.before(call), nil
}

// enter appends what entry returns for the calls that the session has had without the call itself.
// If another process has extended the session meanwhile, entry is called again.
func (l *Ledger) enter(ctx context.Context, session protocol.SessionID, call protocol.CallID, entry func(used map[string]int) Event) error {
	if l == nil {
		return nil
	}
	return l.append(ctx, session, func(p *page) []Event { return []Event{entry(p.before(call))} })
}

// Append journals a call that ended as a turn of its session: see [Single.Turn].
func (l *Ledger) Append(ctx context.Context, session protocol.SessionID, input, tool, arguments string, outcome *Single) error {
	return l.append(ctx, session, func(p *page) []Event {
		return outcome.Turn(session, p.turns+1, input, tool, arguments)
	})
}

func (l *Ledger) append(ctx context.Context, session protocol.SessionID, entries func(*page) []Event) error {
	p, err := l.page(session)
	if err != nil {
		return err
	}
	defer p.mu.Unlock()
	for {
		if err := p.read(ctx, l.journal, session); err != nil {
			return err
		}
		if p.open {
			return errTurnOpen
		}
		events := entries(p)
		if p.fresh {
			events = slices.Insert(events, 0, Event{
				Type: EventSessionStarted, SessionID: session, Time: time.Now().UTC(),
				StartFields: StartFields{Tenant: wire.TenantOf(ctx)}, NoteFields: NoteFields{By: judge.Of(ctx).By()},
			})
		}
		if len(events) == 0 {
			return nil
		}
		if l.journal == nil || l.hold(session, events) {
			p.fresh = false
			p.add(events)
			return nil
		}
		last, err := l.journal.Append(ctx, session, p.last, events...)
		if err == nil {
			if p.last = last; p.fresh {
				p.owner = &judge.Owner{Tenant: events[0].Tenant, By: events[0].By}
			}
			p.fresh = false
			p.add(events)
			return nil
		}
		p.known = false // also when some of it may have been stored
		if !errors.Is(err, ErrJournalConflict) {
			return err
		}
	}
}

// hold reports whether events wait for [Ledger.Flush].
func (l *Ledger) hold(session protocol.SessionID, events []Event) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.holds {
		l.held[session] = append(l.held[session], events...)
	}
	return l.holds
}

// add counts events that were appended.
func (p *page) add(events []Event) {
	for i := range events {
		switch e := &events[i]; e.Type {
		case EventTurnStarted:
			p.turns++
		case EventCallJudged:
			if j := (judgedCall{tool: e.Name, status: e.Status}); j.counts() {
				p.used = p.before(e.CallID)
				p.used[e.Name]++
				p.judge(e.CallID, e.Name)
			}
		case EventToolResult:
			p.used = p.before(e.CallID)
			p.order = slices.DeleteFunc(p.order, func(id protocol.CallID) bool { return id == e.CallID })
			if delete(p.judged, e.CallID); e.Status != string(protocol.StatusRejected) {
				p.used[e.Name]++
			}
		default:
		}
	}
}

// judgedCall is a call by another interface than a turn about which something was decided.
type judgedCall struct {
	tool, status string
	turned       bool // a turn of the journal has it, and counts it
}

// counts reports whether the call was let through.
func (j *judgedCall) counts() bool {
	return !j.turned && (j.status == string(policy.Allowed) || j.status == decisionApproved)
}

// countsCalls reports whether a policy decides by the number of calls. One that is not known may.
func countsCalls(p Policy) bool {
	judge, known := p.(*policy.Judge)
	if !known || judge == nil {
		return p != nil && !known
	}
	for _, rules := range judge.Policies() {
		if rules.MaxCalls > 0 || len(rules.MaxCallsOf) > 0 {
			return true
		}
	}
	return false
}
