package webui

import (
	"cmp"
	"encoding/json"
	"fmt"
	"html/template"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/session/timeline"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// conversation is a session as a person reads it: what was said, and the calls between. It is made
// of the events of the session, in their order, and of what running calls write. Of results it has
// what a card shows: the whole ones are read where a page shows them.
type conversation struct {
	Session protocol.SessionID
	Turns   []*turn

	calls map[protocol.CallID]*call
	order []*call
	bytes int // about what it takes

	version int // counts the changes
	stored  int // the version of the last stored event
	facts   int // the version in which what is known of the whole session has changed
}

// viewer is who sees a conversation.
type viewer struct {
	key string // of forms
	may bool   // approve calls
}

// position is an item of a turn.
type position struct{ turn, item int }

// String is the position as addresses have it.
func (p position) String() string { return strconv.Itoa(p.turn) + "." + strconv.Itoa(p.item) }

// positionOf reads a position; the beginning, if it is none.
func positionOf(text string) (p position) {
	turn, item, _ := strings.Cut(text, ".")
	p.turn, _ = strconv.Atoi(turn)
	p.item, _ = strconv.Atoi(item)
	return p
}

// turn is one turn of a conversation.
type turn struct {
	Session protocol.SessionID
	N       int
	Input   string
	By      string
	Trigger string
	Files   []loop.Attachment
	Begun   time.Time
	Ended   time.Time
	Outcome string // "" while it is open
	Error   *protocol.Error
	Step    int
	Cost    *float64
	Usage   *protocol.Usage
	Left    bool // the conversation was taken back to before it
	Items   []*item
	From    int // the first item that is drawn

	schema  bool    // its answer has one
	at      string  // the id of the event that began it
	saying  *item   // a reply that is not complete
	says    int     // the step of that reply
	replied int     // the step of the last reply that is complete
	unsent  []*call // of that reply
	asks    timeline.Asks
	begun   int // the version in which it began
	foot    int // the version in which its end has changed
}

// item is one thing of a turn.
type item struct {
	Turn, N   int
	Said      string // by the model
	IsJSON    bool   // what was said is an answer under a schema, or may be
	Saying    string // a reply that is not complete
	Reasoning string
	User      string // what a person added
	Note      string // what the fleet says
	Call      *call

	begun, changed int // the versions
}

// ID is that of the item's element.
func (i *item) ID() string { return fmt.Sprintf("i-%d-%d", i.Turn, i.N) }

// Prose is what the model says, as HTML.
func (i *item) Prose() template.HTML { return prose(i.Said + i.Saying) }

// Empty reports whether the item shows nothing: it stands for a reply whose text has not come.
func (i *item) Empty() bool {
	return i.Call == nil && i.Said+i.Saying+i.Reasoning+i.User+i.Note == ""
}

// Spoken says in a line what an item is, once it is complete; "" before.
func (i *item) Spoken() string {
	switch {
	case i.Call != nil && i.Call.Approval != nil:
		return "Approval is asked: " + about(i.Call.Tool, i.Call.Arguments)
	case i.Call != nil && i.Call.Question != nil:
		return "A question is asked: " + firstLine(i.Call.Question.Message)
	case i.Call != nil && !i.Call.Open():
		return about(i.Call.Tool, i.Call.Arguments) + ": " + stateOf(i.Call.Now()).Word
	case i.Said != "":
		return "The model says: " + firstLine(i.Said)
	default:
		return firstLine(i.Note)
	}
}

// call is a tool call.
type call struct {
	Session   protocol.SessionID
	Key       string // of forms
	ID        protocol.CallID
	ToolCall  string
	Turn      int
	Step      int
	Tool      string
	Arguments string
	Lane      string
	Asked     time.Time // when the model has asked for it
	Started   time.Time
	Ended     time.Time
	Status    string // "" while it runs or waits
	Exit      string // how a command ended that ran and did not succeed
	State     string // of one that has no status
	Waits     string // for what, while it waits
	Worker    protocol.WorkerID
	Attempt   int
	Tries     []protocol.Try
	PersonMS  float64 // how long it waited for persons, of those who have answered
	QueueMS   *float64
	waitedMS  float64 // for its time, before QueueMS
	RunMS     *float64
	Content   string // the whole result, on the page of the call
	Folded    folded
	Live      []written
	Diff      string
	Image     *loop.Image
	Error     *protocol.Error
	Effect    *loop.Effect
	Job       string
	Approval  *approval
	Decisions []decision
	Question  *protocol.Question
	Moves     []string // what a sub-agent does
	Agent     bool

	in    *turn
	item  *item
	at    string    // the id of the event that has the result
	since time.Time // when it asked the question that has no answer yet
}

// written is what an attempt of a running call writes.
type written struct {
	Attempt int
	Text    string
}

// approval is a call that waits for a person's approval.
type approval struct {
	Session         protocol.SessionID
	Call            protocol.CallID
	Key             string
	Tool, Arguments string
	Rule, Source    string
	Reason, Scope   string
	Since           time.Time
	To              string // the page to which an answer leads
	May             bool   // the person may answer
}

// Command is the text of a command as it runs, if its JSON has it on one line; "" without one.
func (a *approval) Command() string {
	var fields struct{ Command, Code, Script string }
	if json.Unmarshal([]byte(a.Arguments), &fields) != nil {
		return ""
	}
	text := cmp.Or(fields.Command, fields.Code, fields.Script)
	if !strings.ContainsAny(text, "\n\"\\\t") {
		return ""
	}
	return text
}

// Long reports whether a page shows a part of the arguments only.
func (a *approval) Long() bool { return cut(pretty(a.Arguments)) != pretty(a.Arguments) }

// Stays reports whether the page that is open shows by itself what came of an answer.
func (a *approval) Stays() bool { return a.To == "stay" }

// Covers says what an approval for the session covers.
func (a *approval) Covers() string {
	words, _, same := strings.Cut(a.Scope, " sha256:")
	if same {
		words += ", with the same arguments"
	}
	return words
}

// decision is what a rule, a person or a hook decided about a call.
type decision struct{ Status, Rule, By, Via, Note, Text string }

// Form is the form that answers what the call asks.
func (c *call) Form() *questionForm {
	if c.Question == nil {
		return nil
	}
	pool, _, _ := strings.Cut(c.Lane, "/")
	return formOf(c.Session, c.ID, protocol.Pool(pool), c.Question, c.Key, "stay")
}

// Tail are the last lines of what the attempt writes.
func (w written) Tail() string {
	const most = 24
	text := strings.TrimRight(w.Text, "\n")
	at := len(text)
	for range most {
		if at = strings.LastIndexByte(text[:at], '\n'); at < 0 {
			return text
		}
	}
	return text[at+1:]
}

// Open reports whether the call has no result yet.
func (c *call) Open() bool { return c.Status == "" }

// Now is the state that a pill shows.
func (c *call) Now() string {
	switch {
	case c.Exit != "":
		return c.Exit
	case c.Status != "":
		return c.Status
	case c.Approval != nil:
		return "waits_for_approval"
	case c.Question != nil:
		return "waits_for_answer"
	default:
		return c.State
	}
}

// pictures are the types of images that browsers are given: none of them can hold a script.
func pictures() []string { return []string{"image/png", "image/jpeg", "image/gif", "image/webp"} }

// Picture reports whether the call has an image that browsers are given.
func (c *call) Picture() bool {
	return c.Image != nil && slices.Contains(pictures(), c.Image.MediaType)
}

// Document is the type of a document that the call has returned; "" without one.
func (c *call) Document() string {
	if c.Image == nil || c.Picture() {
		return ""
	}
	return c.Image.MediaType
}

// maxLive is how much of what an attempt of a running call writes is kept, in bytes, and maxTries
// for how many attempts.
const (
	maxLive  = 16 << 10
	maxTries = 3
)

func newConversation(session protocol.SessionID) *conversation {
	return &conversation{Session: session, calls: map[protocol.CallID]*call{}}
}

// last is the turn that runs or ran last; nil before the first one.
func (c *conversation) last() *turn {
	if len(c.Turns) == 0 {
		return nil
	}
	return c.Turns[len(c.Turns)-1]
}

// window is from where on a page shows the last items before a position, and how many are before
// it. The zero value of a position is the end.
func (c *conversation) window(most int, until position) (from position, before int) {
	for _, t := range slices.Backward(c.Turns) {
		n := t.until(until)
		if n < 0 {
			continue
		}
		if most > 0 {
			from = position{t.N, max(0, n-most)}
			before += from.item
		} else {
			before += n + 1
		}
		most -= n + 1
	}
	return from, before
}

// until is how many items of the turn are before a position; -1 if the turn begins behind it.
func (t *turn) until(end position) int {
	switch {
	case end == position{} || t.N < end.turn:
		return len(t.Items)
	case t.N > end.turn || end.item <= 0:
		return -1
	}
	return min(end.item, len(t.Items))
}

// copied are the turns between two positions as a viewer sees them, with the items that have
// changed since a version; 0 is all. Nothing changes them any more.
func (c *conversation) copied(from, until position, since int, who viewer) (turns []*turn) {
	for _, t := range slices.Backward(c.Turns) {
		if t.N < from.turn {
			break
		}
		n := t.until(until)
		if n < 0 {
			continue
		}
		made := *t
		made.Items, made.saying, made.unsent, made.From = nil, nil, nil, 0
		if t.N == from.turn {
			made.From = min(max(from.item, 0), n)
		}
		for _, i := range t.Items[made.From:n] {
			if i.changed > since {
				made.Items = append(made.Items, i.copied(who))
			}
		}
		turns = append(turns, &made)
	}
	slices.Reverse(turns)
	return turns
}

func (i *item) copied(who viewer) *item {
	made := *i
	if i.Call != nil {
		made.Call = i.Call.copied(who)
	}
	return &made
}

func (c *call) copied(who viewer) *call {
	made := *c
	made.Key, made.Live, made.in, made.item = who.key, slices.Clone(c.Live), nil, nil
	if c.Approval != nil {
		asked := *c.Approval
		asked.Key, asked.May = who.key, who.may
		made.Approval = &asked
	}
	if !c.Sent() {
		if asked := c.in.asked(); asked != nil {
			made.Waits = "what a person says of " + about(asked.Tool, asked.Arguments)
		}
	}
	return &made
}

// asked is the call of the turn that waits for an approval; nil without one. It is one of the last
// reply.
func (t *turn) asked() *call {
	for _, i := range slices.Backward(t.Items) {
		if of := i.Call; of != nil && (of.Approval != nil || of.Sent() && of.Step < t.replied) {
			if of.Approval != nil {
				return of
			}
			break
		}
	}
	return nil
}

// add adds an event; id is that of a stored one. Live ones may come twice, late, or be missing.
func (c *conversation) add(e *loop.Event, id string) {
	c.version++
	if id != "" {
		c.stored = c.version
		c.bytes += 256 + len(e.Text) + len(e.Input) + len(e.Diff)
	}
	switch e.Type {
	case loop.EventRemoved:
		c.facts = c.version
		return
	case loop.EventTurnStarted:
		t := &turn{Session: c.Session, N: e.Turn, Input: e.Input, By: e.By, Trigger: e.Trigger, Files: e.Attachments, Begun: e.Time, at: id, begun: c.version, foot: c.version, schema: len(e.AnswerSchema) > 0}
		c.Turns, c.facts = append(c.Turns, t), c.version
		return
	case loop.EventRewound:
		for _, t := range c.Turns {
			if t.N > e.KeptTurn && !t.Left {
				t.Left, t.foot = true, c.version
			}
		}
	case loop.EventTurnEnded, loop.EventApprovalAsked, loop.EventPolicyDecision, loop.EventQuestionAsked, loop.EventAnswered, loop.EventModelReply:
		c.facts = c.version
	default:
	}
	t := c.last()
	if t == nil {
		return
	}
	t.Step = max(t.Step, e.Step)
	if e.CallID == "" || !c.addCall(t, e, id) {
		c.addSaid(t, e)
	}
}

// quiet forgets what is live only: nothing says any more how it continues.
func (c *conversation) quiet() {
	c.version++
	for _, t := range c.Turns {
		if t.saying != nil {
			t.saying.Saying, t.saying.Reasoning, t.saying.Note = "", "", ""
			c.touch(t.saying)
		}
	}
	for _, of := range c.calls {
		if len(of.Live) > 0 {
			of.Live = nil
			c.touch(of.item)
		}
	}
}

// put adds an item to a turn.
func (c *conversation) put(t *turn, i item) *item {
	i.Turn, i.N, i.begun = t.N, len(t.Items), c.version
	t.Items = append(t.Items, &i)
	c.touch(&i)
	return &i
}

// touch notes that an item has changed.
func (c *conversation) touch(i *item) { i.changed = c.version }

// addSaid adds what the model, a person or the fleet says.
func (c *conversation) addSaid(t *turn, e *loop.Event) {
	switch e.Type {
	case loop.EventTextDelta, loop.EventReasoningDelta, loop.EventModelWaits:
		c.piece(t, e)
	case loop.EventModelReply:
		c.reply(t, e)
	case loop.EventInputAdded:
		c.put(t, item{User: e.Input})
	case loop.EventNativeCall:
		c.note(t, "The provider ran "+e.Name+": "+e.Text)
	case loop.EventTurnEnded:
		t.saying, t.foot = nil, c.version
		t.Ended, t.Outcome, t.Error, t.Cost, t.Usage = e.Time, e.Status, e.Error, e.CostUSD, e.Usage
	case loop.EventCompacted:
		c.note(t, "A summary stands for the earlier replies: "+e.Text)
	case loop.EventRewound:
		c.note(t, fmt.Sprintf("The conversation was taken back to turn %d.", e.KeptTurn))
	case loop.EventSessionForked:
		c.note(t, "This session is a fork of session "+string(e.From)+".")
	case loop.EventImported:
		c.note(t, "This session was imported.")
	case loop.EventReplyFailed:
		if t.saying != nil {
			t.saying.Saying, t.saying.Reasoning, t.saying.Note = "", "", e.Text
			c.touch(t.saying)
			t.saying = nil
			break
		}
		c.note(t, e.Text)
	case loop.EventBudgetLow, loop.EventBudgetSpent, loop.EventAnswerRefused, loop.EventTurnPostponed,
		loop.EventSessionMerged, loop.EventCallResolved, loop.EventRevertEnded, loop.EventPartLeftOut:
		c.note(t, e.Text)
	case loop.EventHookDecided:
		if e.Hook != nil && e.Text != "" {
			c.note(t, "A hook: "+e.Text)
		}
	default:
	}
}

// piece adds a piece of a reply that is not complete.
func (c *conversation) piece(t *turn, e *loop.Event) {
	if e.Step > 0 && e.Step <= t.replied || t.Outcome != "" { // it comes late
		return
	}
	of := c.partial(t, e.Step)
	switch e.Type {
	case loop.EventTextDelta:
		of.Saying += e.Text
	case loop.EventReasoningDelta:
		of.Reasoning += e.Text
	default:
		of.Note = e.Text
	}
}

// reply adds a complete reply, which replaces what came of it before, and behind it its calls, in
// their order.
func (c *conversation) reply(t *turn, e *loop.Event) {
	var thought string
	if e.Reasoning != nil {
		thought = e.Reasoning.Text
		c.bytes += len(thought)
	}
	if t.saying != nil || e.Text != "" || thought != "" {
		of := c.partial(t, e.Step)
		of.Said, of.Saying, of.Reasoning, of.Note = e.Text, "", thought, ""
		of.IsJSON = t.schema && len(e.ToolCalls) == 0 && json.Valid([]byte(e.Text))
	}
	t.saying, t.replied, t.unsent = nil, e.Step, nil
	if e.Usage != nil {
		t.Usage = e.Usage
	}
	for _, asked := range e.ToolCalls {
		if !slices.ContainsFunc(c.order[max(0, len(c.order)-len(e.ToolCalls)):], func(of *call) bool { return of.in == t && of.Step == e.Step && of.ToolCall == asked.ID }) {
			of := &call{Session: c.Session, ToolCall: asked.ID, Turn: t.N, Step: e.Step, Tool: asked.Name, Arguments: asked.Arguments, Asked: e.Time, State: stateNotSent, in: t}
			c.bytes += 512 + len(asked.Arguments)
			of.item = c.put(t, item{Call: of})
			t.unsent = append(t.unsent, of)
		}
	}
}

// partial is the item of a reply that is not complete.
func (c *conversation) partial(t *turn, step int) *item {
	if t.saying == nil || step > t.says { // the one before was never completed
		t.saying, t.says = c.put(t, item{}), step
	}
	c.touch(t.saying)
	return t.saying
}

func (c *conversation) note(t *turn, text string) {
	if text != "" {
		c.put(t, item{Note: text})
	}
}

const (
	// stateNotSent is the state of a call that the reply has, and that was not sent yet.
	stateNotSent = "not_sent"
	// stateQueued is that of a call that was sent, and of which no start is known.
	stateQueued = "queued"
)

// Sent reports whether the call has been sent, or judged: it has an id then.
func (c *call) Sent() bool { return c.ID != "" }

// begun is the call of an event that comes first of it; nil for an event that begins none.
func (c *conversation) begun(t *turn, e *loop.Event) *call {
	if !slices.Contains([]loop.EventType{loop.EventToolCall, loop.EventCallJudged, loop.EventApprovalAsked, loop.EventPolicyDecision}, e.Type) {
		return nil
	}
	var of *call
	if at := slices.IndexFunc(t.unsent, func(of *call) bool { return of.Step == e.Step && of.ToolCall == e.ToolCallID }); at >= 0 {
		of = t.unsent[at]
		t.unsent = slices.Delete(t.unsent, at, at+1)
	} else {
		if e.Step > t.replied && e.Interface == "" {
			c.partial(t, e.Step) // the text of the reply, which is not complete, is before its calls
		}
		of = &call{Session: c.Session, Turn: t.N, Step: e.Step, in: t, Tool: e.Name, Asked: e.Time}
		of.item = c.put(t, item{Call: of})
	}
	of.ID, of.ToolCall, of.State, of.Arguments = e.CallID, e.ToolCallID, stateQueued, cmp.Or(e.Arguments, of.Arguments)
	c.bytes += 512 + len(e.Arguments)
	c.calls[e.CallID], c.order = of, append(c.order, of)
	return of
}

// addCall adds an event of a call, and reports whether it was one.
func (c *conversation) addCall(t *turn, e *loop.Event, id string) bool {
	of := c.calls[e.CallID]
	if of == nil {
		if of = c.begun(t, e); of == nil {
			return false
		}
	}
	c.touch(of.item)
	switch e.Type {
	case loop.EventToolCall:
		of.ToolCall, of.Arguments = e.ToolCallID, cmp.Or(e.Arguments, of.Arguments)
		of.Lane, of.Agent = e.Lane, e.Lane == "" && e.Name == "agent"
		of.PersonMS = max(of.PersonMS, float64(t.asks.Waited(e)))
		if e.Status != "" { // it was refused
			c.end(of, e, id)
		}
	case loop.EventToolQueued, loop.EventToolRunning, loop.EventWorkerLost:
		of.moved(e)
	case loop.EventApprovalAsked:
		of.Approval = &approval{
			Session: c.Session, Call: of.ID, Tool: of.Tool, Arguments: cmp.Or(e.Arguments, of.Arguments),
			Rule: e.Rule, Source: e.Source, Reason: e.Text, Scope: e.Scope, Since: e.Time, To: "stay",
		}
		t.asks.Asked(e)
		c.touchUnsent(of.in)
	case loop.EventPolicyDecision, loop.EventCallJudged:
		t.asks.Answered(e)
		of.Approval = nil
		of.Decisions = append(of.Decisions, decision{e.Status, e.Rule, e.By, e.Via, e.Note, e.Text})
		c.touchUnsent(of.in)
	case loop.EventQuestionAsked:
		of.Question, of.since = e.Question, cmp.Or(of.since, e.Time)
	case loop.EventAnswered:
		of.answered(e.Time)
	case loop.EventAgentMoved:
		of.Agent = true
		of.Moves = append(slices.Clone(of.Moves[max(0, len(of.Moves)-4):]), e.Text)
	case loop.EventToolResult:
		if of.Job = e.Job; of.Job == "" {
			c.end(of, e, id)
			break
		}
		of.State, of.Folded, of.at = "running", fold(e.Content), id // in the background
	case loop.EventJobEnded:
		c.end(of, e, id)
	default:
		return false
	}
	return true
}

// touchUnsent notes that calls which were not sent wait for something else.
func (c *conversation) touchUnsent(t *turn) {
	for _, of := range t.unsent {
		c.touch(of.item)
	}
}

// answered notes that nobody is asked any more by the call.
func (c *call) answered(at time.Time) {
	if !c.since.IsZero() {
		c.PersonMS += float64(max(at.Sub(c.since).Milliseconds(), 0))
	}
	c.Question, c.since = nil, time.Time{}
}

// WaitedMS is how long the call has waited, as the log of calls has it; nil if that is not known.
func (c *call) WaitedMS() *float64 {
	if c.QueueMS == nil && c.PersonMS == 0 {
		return nil
	}
	all := c.PersonMS + c.waitedMS
	if c.QueueMS != nil {
		all += *c.QueueMS
	}
	return &all
}

// moved is what the fleet says of a call without a result.
func (c *call) moved(e *loop.Event) {
	switch {
	case !c.Open(): // it comes late
	case e.Type == loop.EventToolQueued:
		c.State, c.Waits = stateQueued, e.Text
	case e.Type == loop.EventWorkerLost:
		c.State, c.Waits = "lost", e.Text
	default:
		c.State, c.Waits, c.Worker, c.Attempt, c.Started = "running", "", e.WorkerID, e.Attempt, e.Time
	}
}

// traced adds which calls run: their start is no stored event, so a page that comes later does not
// get it.
func (c *conversation) traced(spans []report.Span) {
	for i := range spans {
		of := c.calls[spans[i].CallID]
		if of != nil && of.Open() && of.State == stateQueued && spans[i].State == report.SpanRunning {
			c.version++
			c.touch(of.item)
			of.State, of.Waits, of.Worker, of.Attempt = report.SpanRunning, "", spans[i].WorkerID, spans[i].Attempt
		}
	}
}

// end is the result of a call.
func (c *conversation) end(of *call, e *loop.Event, id string) {
	of.answered(e.Time) // it may have ended before
	of.Status, of.Ended, of.Waits, of.Approval, of.Exit = e.Status, e.Time, "", nil, e.Exit
	of.Folded, of.Diff, of.Image, of.Error, of.Effect, of.Tries = fold(e.Content), e.Diff, e.Image, e.Error, e.Effect, e.Tries
	of.QueueMS, of.waitedMS, of.RunMS = e.QueueMS, e.Waits.NotBeforeMS, e.RunMS
	of.Worker, of.Attempt = e.WorkerID, e.Attempt
	of.Live, of.Moves, of.at = nil, nil, id
	c.bytes += len(of.Folded.Head) + len(of.Folded.Tail)
}

// write adds what a running call writes: that of each attempt by itself.
func (c *conversation) write(id protocol.CallID, piece *fleet.Output) {
	of := c.calls[id]
	if of == nil || !of.Open() {
		return
	}
	c.version++
	c.touch(of.item)
	of.State = "running"
	at := slices.IndexFunc(of.Live, func(w written) bool { return w.Attempt == piece.Attempt })
	if at < 0 {
		at, of.Live = len(of.Live), append(of.Live, written{Attempt: piece.Attempt})
	}
	w := &of.Live[at]
	w.Text += string(piece.Data)
	w.Text = w.Text[max(0, len(w.Text)-maxLive):]
	of.Live = of.Live[max(0, len(of.Live)-maxTries):]
}
