package session

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/internal/workspace"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// At is a point of a session: the result of a call, or the end of a turn. The zero At is the
// present, and with a negative Turn it is the beginning.
type At struct {
	Call protocol.CallID
	Turn int
}

// in is the index of the event that is the point, -1 when it is none of them.
func (at At) in(events []loop.Event) int {
	if at == (At{}) {
		return len(events) - 1
	}
	if at.Turn < 0 {
		return -1
	}
	return slices.IndexFunc(events, func(e loop.Event) bool {
		if at.Turn > 0 {
			return e.Turn == at.Turn && e.Type == loop.EventTurnEnded
		}
		return e.CallID == at.Call && e.EndsCall()
	})
}

// unknown is the error of a point that a session does not have.
func (at At) unknown() error {
	if at.Turn > 0 {
		return fmt.Errorf("turn %d: not there, or it has not ended (session show lists the turns)", at.Turn)
	}
	return fmt.Errorf("call %s: %w", at.Call, workspace.ErrNone)
}

// Behind are the calls of a session behind a point, with those of its sub-agents that began there.
// ok is false when the conversation does not have the point.
func Behind(ctx context.Context, journal loop.Journal, id protocol.SessionID, at At) (calls map[protocol.CallID]bool, ok bool, err error) {
	history, err := journal.Load(ctx, id)
	if err != nil {
		return nil, false, err
	}
	cut := at.in(history.Events)
	calls = map[protocol.CallID]bool{}
	return calls, cut >= 0, behind(ctx, journal, history.Events[cut+1:], calls)
}

func behind(ctx context.Context, journal loop.Journal, events []loop.Event, calls map[protocol.CallID]bool) error {
	for i := range events {
		if events[i].Type != loop.EventToolCall || calls[events[i].CallID] {
			continue
		}
		calls[events[i].CallID] = true
		if events[i].Name != wire.AgentTool {
			continue
		}
		child, err := loop.LoadAgent(ctx, journal, events, events[i].CallID)
		if err != nil {
			return err
		}
		if err := behind(ctx, journal, child.Events, calls); err != nil {
			return err
		}
	}
	return nil
}

// forkOf is the conversation of a session up to a point, for another session, which has none. A
// turn that is open there is interrupted. Outputs that are stored outside of the conversation,
// because they were too long, are not copied, and neither is the seed of the ids of its calls: the
// next turn begins with another.
func forkOf(ctx context.Context, journal loop.Journal, from protocol.SessionID, at At, to protocol.SessionID) (*copying, error) {
	history, err := journal.Load(ctx, from)
	if err != nil {
		return nil, err
	}
	if history.Owned() {
		if err := judge.Judge(ctx, judge.Use, judge.Object{Kind: judge.Session, ID: string(from), Owner: judge.OwnerOf(history)}); err != nil {
			return nil, err
		}
	}
	c := &copying{journal: journal, to: to, from: from, events: eventsUntil(history.Events, at), ends: loop.EventSessionForked, what: "the fork of session " + string(from)}
	switch {
	case at.Turn > 0:
		c.what += fmt.Sprint(" at turn ", at.Turn)
	case at.Call != "":
		c.what += " at call " + string(at.Call)
	}
	c.id = wire.CopyCallID(to, fmt.Sprint(c.what, "/", history.Last))
	c.turns = rename(c.events, to)
	return c, nil
}

// ErrExists means that there is a session of an id.
var ErrExists = codes.As(codes.ErrExists, errors.New("exists"))

// Import stores the events of an export as a new session, which they give no right to anything of
// another one. A turn that is open at their end is interrupted. It returns the number of turns.
// The error wraps [codes.ErrInvalid] if an event has an impossible amount.
func Import(ctx context.Context, journal loop.Journal, events []loop.Event, to protocol.SessionID) (turns int, err error) {
	if err := judge.Judge(ctx, judge.Make, judge.Object{Kind: judge.Session, ID: string(to), Owner: judge.Of(ctx).Owner()}); err != nil {
		return 0, err
	}
	for i := range events {
		if err := checkAmounts(&events[i]); err != nil {
			return 0, codes.As(codes.ErrInvalid, fmt.Errorf("event %d of the export, %s: %w", i+1, events[i].Type, err))
		}
	}
	sum := sha256.New()
	if err := json.NewEncoder(sum).Encode(events); err != nil {
		return 0, fmt.Errorf("import session %s: %w", to, err)
	}
	events = slices.DeleteFunc(events, func(e loop.Event) bool {
		return e.Type == loop.EventCopyStarted || e.Type == loop.EventImported || e.Type == loop.EventRemoved
	})
	c := &copying{
		journal: journal, to: to, events: eventsUntil(events, At{}), ends: loop.EventImported,
		what: fmt.Sprintf("the import of an export (SHA-256 %x)", sum.Sum(nil)),
	}
	c.id = wire.CopyCallID(to, c.what)
	for i := range c.events {
		dropForeign(&c.events[i])
	}
	if c.turns = rename(c.events, to); c.turns == 0 {
		return 0, errors.New("the export has no turn")
	}
	if err := c.run(ctx, nil); err != nil {
		return 0, fmt.Errorf("import session %s: %w", to, err)
	}
	return c.turns, nil
}

// copying makes a session of the events of another one. The journal begins with what is to be made,
// [loop.EventCopyStarted], and ends with the event that completes it; in between there is no
// session. The same request completes an interrupted one: its events begin with a mark of their
// own, behind which a process of the earlier attempt cannot append.
type copying struct {
	journal loop.Journal
	to      protocol.SessionID
	what    string          // the request, for people
	id      protocol.CallID // of the request, and of what it copies
	from    protocol.SessionID
	events  []loop.Event
	turns   int
	ends    loop.EventType

	occupied bool // it has a workspace already
	again    bool // an earlier attempt was interrupted, and may have made files
}

// run makes the session, with the files that fork makes; nil makes none.
func (c *copying) run(ctx context.Context, files func() error) error {
	history, err := c.journal.Load(ctx, c.to)
	switch {
	case errors.Is(err, loop.ErrUncompleted):
		if mark := history.Events[0]; mark.Text != c.what {
			return fmt.Errorf("session %s %w, uncompleted: %s began at %s; repeat that, or remove the session (session rm %s)",
				c.to, ErrExists, mark.Text, mark.Time.Format(time.RFC3339), c.to)
		}
		c.again = true
	case err != nil:
		return err
	case len(history.Events) > 0:
		if last := history.Events[len(history.Events)-1]; last.Type == c.ends && last.CallID == c.id {
			return nil // the answer to the first attempt was lost
		}
		return fmt.Errorf("session %s %w: give another id", c.to, ErrExists)
	}
	if c.occupied && !c.again {
		return workspace.ErrExists
	}
	if c.turns == 0 { // there is no conversation: the files are all
		if files == nil {
			return nil
		}
		return files()
	}
	now := time.Now().UTC()
	if c.events[0].Type != loop.EventSessionStarted { // an earlier version has stored single calls without it
		c.events = slices.Insert(c.events, 0, loop.Event{Type: loop.EventSessionStarted, SessionID: c.to, Time: now})
	}
	first := &c.events[0] // its owner makes it; a fork is of the tenant of its origin
	first.Tenant, first.By = cmp.Or(first.Tenant, wire.TenantOf(ctx)), judge.Of(ctx).By()
	mark := loop.Event{
		Type: loop.EventCopyStarted, SessionID: c.to, Time: now, Text: c.what,
		CallFields: loop.CallFields{CallID: c.id}, NoteFields: loop.NoteFields{From: c.from, By: first.By},
	}
	mark.Tenant = cmp.Or(first.Tenant, judge.DefaultTenant)
	last, err := c.journal.Append(ctx, c.to, history.Last, mark)
	if errors.Is(err, loop.ErrJournalConflict) {
		return fmt.Errorf("session %s %w: another process makes it now", c.to, ErrExists)
	}
	if err == nil && files != nil {
		err = files()
	}
	if err == nil {
		mark.Type, mark.Text, mark.Tenant, mark.By = c.ends, "", "", ""
		_, err = c.journal.Append(ctx, c.to, last, append(c.events, mark)...)
	}
	switch {
	case errors.Is(err, loop.ErrJournalConflict):
		return fmt.Errorf("session %s %w: another process has begun to make it again", c.to, ErrExists)
	case err != nil:
		return uncompleted{err}
	default:
		return nil
	}
}

// uncompleted is an error that leaves, or may leave, a fork or an import that is not completed.
type uncompleted struct{ error }

func (u uncompleted) Error() string {
	return u.error.Error() + "; the same command again completes it, and session rm removes it"
}

func (u uncompleted) Unwrap() []error { return []error{u.error, loop.ErrUncompleted} }

// dropForeign removes what an event of an export says about other sessions: its author may
// have made it up. Sub-agents are recognized by their own journals ([loop.LoadAgent]).
func dropForeign(e *loop.Event) {
	e.Parent, e.Tenant, e.From, e.Checkpoint, e.Bound = nil, "", "", 0, nil
	if e.Type == loop.EventSessionStarted {
		e.By = ""
	}
	if e.Effect != nil && e.Effect.Revert != nil {
		e.Effect = &loop.Effect{Reaches: e.Effect.Reaches}
	}
	if e.Image != nil && e.Image.Blob != "" {
		e.Image = &loop.Image{MediaType: e.Image.MediaType, Data: e.Image.Data}
	}
	e.Attachments = slices.Clone(e.Attachments)
	for i := range e.Attachments {
		e.Attachments[i].Blob = ""
	}
}

// maxAmount is more than one event can have: sums of so large ones could overflow.
const maxAmount = 1e12

// checkAmounts returns the first amount of an event that is negative, too large or no number: it
// would reduce what the session has used.
func checkAmounts(e *loop.Event) error {
	amounts := map[string]float64{"elapsed_ms": float64(e.ElapsedMS)}
	if e.CostUSD != nil {
		amounts["cost_usd"] = *e.CostUSD
	}
	if u := e.Usage; u != nil {
		amounts["usage.input_tokens"], amounts["usage.output_tokens"] = float64(u.InputTokens), float64(u.OutputTokens)
		amounts["usage.cached_tokens"], amounts["usage.cache_write_tokens"] = float64(u.CachedTokens), float64(u.CacheWriteTokens)
	}
	if s := e.Spent; s != nil {
		amounts["spent.steps"], amounts["spent.calls"], amounts["spent.tokens"] = float64(s.Steps), float64(s.Calls), float64(s.Tokens)
		amounts["spent.time_ms"], amounts["spent.usd"] = float64(s.TimeMS), s.USD
	}
	for _, field := range slices.Sorted(maps.Keys(amounts)) {
		if n := amounts[field]; !(n >= 0 && n <= maxAmount) { // which NaN is not, either
			return fmt.Errorf("%s %v: must be from 0 to %v", field, n, maxAmount)
		}
	}
	return nil
}

// rename makes events belong to another session, without the seed of the ids of its calls, and
// returns how many turns they have.
func rename(events []loop.Event, to protocol.SessionID) (turns int) {
	for i := range events {
		events[i].SessionID, events[i].Seed, events[i].Call = to, "", nil
		if events[i].Type == loop.EventTurnStarted {
			turns++
		}
	}
	return turns
}

// eventsUntil returns the events up to a point, and then events that end what is open there.
func eventsUntil(events []loop.Event, at At) []loop.Event {
	if at != (At{}) {
		last := at.in(events)
		events = slices.Concat(events[:last+1], leftOutOf(events[:last+1], events[last+1:]))
	}
	events = withoutStreamed(events)
	open := loop.StateOf(events)
	end := len(events)
	if open.Turn == nil && len(open.Jobs) > 0 { // which end in a turn: the last one
		end--
		for events[end].Type != loop.EventTurnEnded {
			end--
		}
	}
	return slices.Concat(events[:end], endsOf(&open), events[end:])
}

// withoutStreamed leaves out the calls of a reply that is not there yet.
func withoutStreamed(events []loop.Event) []loop.Event {
	last := loop.Event{}
	for i := range events {
		if events[i].Type == loop.EventModelReply {
			last = events[i]
		}
	}
	return slices.DeleteFunc(slices.Clone(events), func(e loop.Event) bool {
		return e.Type == loop.EventToolCall && (e.Turn > last.Turn || e.Turn == last.Turn && e.Step > last.Step)
	})
}

// leftOutOf are the events behind a cut that say which parts of calls before it, and which
// attachments, are left out.
func leftOutOf(before, behind []loop.Event) []loop.Event {
	var events []loop.Event
	for i := range behind {
		has := func(e loop.Event) bool {
			return slices.ContainsFunc(e.ToolCalls, func(c loop.ToolCall) bool { return c.ID == behind[i].ToolCallID }) ||
				slices.ContainsFunc(e.Attachments, func(a loop.Attachment) bool { return a.ID == behind[i].ToolCallID })
		}
		if behind[i].Type == loop.EventPartLeftOut && slices.ContainsFunc(before, has) {
			events = append(events, behind[i])
		}
	}
	return events
}

// endsOf are the events that end what is open where events were cut off.
func endsOf(open *loop.SessionState) (events []loop.Event) {
	for _, c := range open.Calls() {
		events = append(events, loop.Event{
			Type: loop.EventToolResult, Turn: c.Turn, Step: c.Step,
			CallFields: loop.CallFields{Index: c.Index, Name: c.Name, ToolCallID: c.ToolCallID},
		})
	}
	for _, j := range open.Jobs {
		job := *j
		job.Type, job.Handle, job.Image, job.Arguments, job.Lane = loop.EventJobEnded, "", nil, "", ""
		events = append(events, job)
	}
	for i := range events {
		events[i].Status = string(protocol.StatusCancelled)
		events[i].Content = "The session was forked or exported before this call ended: the call belongs to the other session."
	}
	if open.Turn != nil {
		events = append(events, loop.Event{Type: loop.EventTurnEnded, Turn: open.Turn.Turn, Status: string(loop.OutcomeInterrupted)})
	}
	for i := range events {
		events[i].Time = time.Now().UTC()
	}
	return events
}

// Restore has a worker of a pool make a session's workspace what it was after a call; "" is the
// default pool. That is a further checkpoint: those after the call stay. The error wraps [ErrBusy]
// when the session has an open turn or unfinished calls; then nothing was changed.
func Restore(ctx context.Context, f *fleet.Fleet, id protocol.SessionID, pool protocol.Pool, at protocol.CallID) (wire.WorkspaceRestoreResult, error) {
	r, err := idle(ctx, f, f.Journal, id, pool, judge.Change)
	var value protocol.Value
	if err == nil {
		value, err = r.change(ctx, wire.RandomCallID(), loop.Event{}, wire.WorkspaceRestore{At: at})
	}
	if err != nil {
		return wire.WorkspaceRestoreResult{}, fmt.Errorf("restore session %s: %w", id, err)
	}
	restored, _ := value.(wire.WorkspaceRestoreResult)
	return restored, nil
}

// change has a worker change the workspace of a session that is idle. Without a conversation
// nothing can be between: the call is all.
func (r *remover) change(ctx context.Context, id protocol.CallID, about loop.Event, payload protocol.Payload) (protocol.Value, error) {
	if len(r.history.Events) == 0 {
		return r.call(ctx, id, payload)
	}
	call := r.callOf(id, payload)
	about.Type, about.Name = loop.EventChangeStarted, call.Tool
	ended, err := r.completes(ctx, &call, about)
	if err != nil {
		return nil, err
	}
	return r.outcome(ctx, &call, ended)
}

// completes begins a change of a session that is idle, and completes it, see
// [loop.CompleteChanges]. about has more of the event that begins it. The error wraps [ErrBusy] if
// the session was extended since it was found idle.
func (r *remover) completes(ctx context.Context, call *protocol.Call, about loop.Event) (ended []protocol.Result, err error) {
	about.CallID = call.ID
	if about.Call, err = wire.EncodeCall(call); err != nil {
		return nil, err
	}
	if err := appendEvent(ctx, r.journals, r.history, r.id, about); errors.Is(err, loop.ErrJournalConflict) {
		return nil, errBegun
	} else if err != nil {
		return nil, err
	}
	return loop.CompleteChanges(ctx, r.journals, r.fleet.Dispatcher, r.id)
}

// outcome is what a change did, which this process has ended, or another one.
func (r *remover) outcome(ctx context.Context, call *protocol.Call, ended []protocol.Result) (protocol.Value, error) {
	var result *protocol.Result
	for i := range ended {
		if ended[i].CallID == call.ID {
			result = &ended[i]
		}
	}
	if result == nil {
		var err error
		if result, err = r.fleet.Dispatcher.Result(ctx, call); err != nil || result == nil {
			return nil, errors.Join(errors.New("another process has ended the change, and its result cannot be read"), err)
		}
	}
	if result.Error != nil {
		return nil, fmt.Errorf("workspace: %w", result.Error)
	}
	return result.Value, nil
}
