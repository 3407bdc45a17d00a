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

	"github.com/toolfleet/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// conversation is a session as a person reads it: what was said, and the calls between. It is made
// of the events of the session, in their order, and of what running calls write.
type conversation struct {
	Session protocol.SessionID
	Model   string
	Parent  *loop.Parent
	Turns   []*turn
	Key     string // of forms

	calls  map[protocol.CallID]*call
	order  []*call
	drawn  position // from where on it is drawn: what is before need not be kept
	may    bool     // the person may approve calls
	pieces bool     // only what a card shows of a result is kept
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

	saying  *item // a reply that is not complete
	from    int   // items before it are not drawn
	changed map[*item]bool
	redraw  bool // as a whole
}

// Shown are the items that are drawn.
func (t *turn) Shown() []*item { return t.Items[min(t.from, len(t.Items)):] }

// From is the first item that is drawn.
func (t *turn) From() int { return t.from }

// item is one thing of a turn.
type item struct {
	Turn, N   int
	Said      string // by the model
	Saying    string // a reply that is not complete
	Reasoning string
	User      string // what a person added
	Note      string // what the fleet says
	Call      *call
}

// ID is that of the item's element.
func (i *item) ID() string { return fmt.Sprintf("i-%d-%d", i.Turn, i.N) }

// Prose is what the model says, as HTML.
func (i *item) Prose() template.HTML { return prose(i.Said + i.Saying) }

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
	QueueMS   *float64
	RunMS     *float64
	Content   string // "" where only Folded is kept
	Folded    folded
	Live      string // what it writes
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

	in   *turn
	item *item
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

// Tail are the last lines of what the call writes.
func (c *call) Tail() string {
	const most = 24
	text := strings.TrimRight(c.Live, "\n")
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

// maxLive is how much of what a running call writes is kept, in bytes.
const maxLive = 16 << 10

func newConversation(session protocol.SessionID, key string) *conversation {
	return &conversation{Session: session, Key: key, calls: map[protocol.CallID]*call{}}
}

// Last is the turn that runs or ran last; nil before the first one.
func (c *conversation) Last() *turn {
	if len(c.Turns) == 0 {
		return nil
	}
	return c.Turns[len(c.Turns)-1]
}

// agents are the calls that are sub-agents.
func (c *conversation) agents() (agents []*call) {
	for _, of := range c.order {
		if of.Agent {
			agents = append(agents, of)
		}
	}
	return agents
}

// window draws only the last items before a position, or before the end without one, and returns
// how many are before them.
func (c *conversation) window(most int, until position) (before int) {
	if until != (position{}) {
		c.Turns = slices.DeleteFunc(c.Turns, func(t *turn) bool { return t.N > until.turn })
		if last := c.Last(); last != nil && last.N == until.turn {
			last.Items = last.Items[:min(until.item, len(last.Items))]
		}
	}
	for _, t := range slices.Backward(c.Turns) {
		c.drawn = position{t.N, max(0, len(t.Items)-most)}
		if most -= len(t.Items) + 1; most <= 0 {
			break
		}
	}
	for _, t := range c.Turns {
		switch {
		case t.N < c.drawn.turn:
			before += len(t.Items) + 1
		case t.N == c.drawn.turn:
			t.from = c.drawn.item
			before += t.from
		}
	}
	c.Turns = slices.DeleteFunc(c.Turns, func(t *turn) bool { return t.N < c.drawn.turn })
	return before
}

// Drawn is from where on the conversation is drawn.
func (c *conversation) Drawn() string { return c.drawn.String() }

// add adds an event. Live ones may come twice, or be missing.
func (c *conversation) add(e *loop.Event) {
	switch e.Type {
	case loop.EventSessionStarted:
		c.Model, c.Parent = e.Model, e.Parent
		return
	case loop.EventTurnStarted:
		c.begin(e)
		return
	case loop.EventRewound:
		for _, t := range c.Turns {
			left := t.Left || t.N > e.KeptTurn
			t.Left, t.redraw = left, t.redraw || left != t.Left
		}
	default:
	}
	t := c.Last()
	if t == nil {
		return
	}
	t.Step = max(t.Step, e.Step)
	if e.CallID != "" && c.addCall(t, e) {
		return
	}
	t.addSaid(e)
}

// begin begins a turn. Those that are not drawn any more are let go.
func (c *conversation) begin(e *loop.Event) {
	if last := c.Last(); last != nil && last.N < c.drawn.turn {
		for _, i := range last.Items {
			if i.Call != nil && !i.Call.Open() {
				delete(c.calls, i.Call.ID)
			}
		}
		c.Turns, c.order = c.Turns[:len(c.Turns)-1], nil
	}
	t := &turn{Session: c.Session, N: e.Turn, Input: e.Input, By: e.By, Trigger: e.Trigger, Files: e.Attachments, Begun: e.Time}
	if t.N == c.drawn.turn {
		t.from = c.drawn.item
	}
	c.Turns = append(c.Turns, t)
}

// put adds an item to the turn.
func (t *turn) put(i item) *item {
	i.Turn, i.N = t.N, len(t.Items)
	t.Items = append(t.Items, &i)
	t.touch(&i)
	return &i
}

// touch notes that an item has changed.
func (t *turn) touch(i *item) {
	if t.changed == nil {
		t.changed = map[*item]bool{}
	}
	t.changed[i] = true
}

// addSaid adds what the model, a person or the fleet says.
func (t *turn) addSaid(e *loop.Event) {
	switch e.Type {
	case loop.EventTextDelta:
		t.partial().Saying += e.Text
	case loop.EventReasoningDelta:
		t.partial().Reasoning += e.Text
	case loop.EventModelReply:
		t.reply(e)
	case loop.EventInputAdded:
		t.put(item{User: e.Input})
	case loop.EventModelWaits:
		t.partial().Note = e.Text
	case loop.EventNativeCall:
		t.note("The provider ran " + e.Name + ": " + e.Text)
	case loop.EventTurnEnded:
		t.saying, t.redraw = nil, true
		t.Ended, t.Outcome, t.Error, t.Cost, t.Usage = e.Time, e.Status, e.Error, e.CostUSD, e.Usage
	case loop.EventCompacted:
		t.note("A summary stands for the earlier replies: " + e.Text)
	case loop.EventRewound:
		t.note(fmt.Sprintf("The conversation was taken back to turn %d.", e.KeptTurn))
	case loop.EventSessionForked:
		t.note("This session is a fork of session " + string(e.From) + ".")
	case loop.EventImported:
		t.note("This session was imported.")
	case loop.EventReplyFailed:
		if t.saying != nil {
			*t.saying = item{Turn: t.saying.Turn, N: t.saying.N, Note: e.Text}
			t.touch(t.saying)
			t.saying = nil
			break
		}
		t.note(e.Text)
	case loop.EventBudgetLow, loop.EventBudgetSpent, loop.EventAnswerRefused, loop.EventTurnPostponed, loop.EventSessionMerged, loop.EventCallResolved, loop.EventRevertEnded, loop.EventPartLeftOut:
		t.note(e.Text)
	case loop.EventHookDecided:
		if e.Hook != nil && e.Text != "" {
			t.note("A hook: " + e.Text)
		}
	default:
	}
}

// reply adds a complete reply, which replaces what came of it before.
func (t *turn) reply(e *loop.Event) {
	said := item{Said: e.Text}
	if e.Reasoning != nil {
		said.Reasoning = e.Reasoning.Text
	}
	switch {
	case t.saying != nil:
		said.Turn, said.N = t.saying.Turn, t.saying.N
		*t.saying = said
		t.touch(t.saying)
		t.saying = nil
	case said.Said != "" || said.Reasoning != "":
		t.put(said)
	}
	if e.Usage != nil {
		t.Usage = e.Usage
	}
}

// partial is the item of a reply that is not complete.
func (t *turn) partial() *item {
	if t.saying == nil {
		t.saying = t.put(item{})
	}
	t.touch(t.saying)
	return t.saying
}

func (t *turn) note(text string) {
	if text != "" {
		t.put(item{Note: text})
	}
}

// addCall adds an event of a call, and reports whether it was one.
func (c *conversation) addCall(t *turn, e *loop.Event) bool {
	of := c.calls[e.CallID]
	if of == nil {
		if !slices.Contains([]loop.EventType{loop.EventToolCall, loop.EventCallJudged, loop.EventApprovalAsked, loop.EventPolicyDecision}, e.Type) {
			return false
		}
		of = &call{Session: c.Session, Key: c.Key, ID: e.CallID, ToolCall: e.ToolCallID, Turn: t.N, Step: e.Step, Tool: e.Name, Arguments: e.Arguments, Asked: e.Time, State: "queued"}
		c.calls[e.CallID] = of
		c.order = append(c.order, of)
		of.in, of.item = t, t.put(item{Call: of})
	}
	of.in.touch(of.item)
	switch e.Type {
	case loop.EventToolCall:
		of.ToolCall, of.Arguments = e.ToolCallID, cmp.Or(e.Arguments, of.Arguments)
		of.Lane, of.Agent = e.Lane, e.Lane == "" && e.Name == "agent"
		if e.Status != "" { // it was refused
			c.end(of, e)
		}
	case loop.EventToolQueued:
		of.State, of.Waits = "queued", e.Text
	case loop.EventToolRunning:
		of.State, of.Waits, of.Worker, of.Attempt, of.Started = "running", "", e.WorkerID, e.Attempt, e.Time
	case loop.EventWorkerLost:
		of.State, of.Waits = "lost", e.Text
	case loop.EventApprovalAsked:
		of.Approval = &approval{
			Session: c.Session, Call: of.ID, Key: c.Key, Tool: of.Tool, Arguments: cmp.Or(e.Arguments, of.Arguments),
			Rule: e.Rule, Source: e.Source, Reason: e.Text, Scope: e.Scope, Since: e.Time, To: "stay", May: c.may,
		}
	case loop.EventPolicyDecision, loop.EventCallJudged:
		of.Approval = nil
		of.Decisions = append(of.Decisions, decision{e.Status, e.Rule, e.By, e.Via, e.Note, e.Text})
	case loop.EventQuestionAsked:
		of.Question = e.Question
	case loop.EventAnswered:
		of.Question = nil
	case loop.EventAgentMoved:
		of.Agent = true
		if of.Moves = append(of.Moves, e.Text); len(of.Moves) > 5 {
			of.Moves = of.Moves[1:]
		}
	case loop.EventToolResult:
		if of.Job = e.Job; of.Job == "" {
			c.end(of, e)
			break
		}
		of.State, of.Content, of.Folded = "running", e.Content, fold(e.Content) // in the background
	case loop.EventJobEnded:
		c.end(of, e)
	default:
		return false
	}
	return true
}

// end is the result of a call.
func (c *conversation) end(of *call, e *loop.Event) {
	of.Status, of.Ended, of.Waits, of.Approval, of.Question, of.Exit = e.Status, e.Time, "", nil, nil, terminal.ExitOf(e)
	of.Content, of.Folded, of.Diff, of.Image, of.Error, of.Effect, of.Tries = e.Content, fold(e.Content), e.Diff, e.Image, e.Error, e.Effect, e.Tries
	of.QueueMS, of.RunMS = e.QueueMS, e.RunMS
	of.Worker, of.Attempt = e.WorkerID, e.Attempt
	of.Live, of.Moves = "", nil
	if c.pieces {
		of.Content = ""
		if of.Image != nil {
			of.Image = &loop.Image{MediaType: of.Image.MediaType}
		}
	}
}

// write adds what a running call writes.
func (c *conversation) write(id protocol.CallID, piece *fleet.Output) {
	of := c.calls[id]
	if of == nil || !of.Open() {
		return
	}
	of.in.touch(of.item)
	of.State = "running"
	if of.Live += string(piece.Data); len(of.Live) > maxLive {
		of.Live = of.Live[len(of.Live)-maxLive:]
	}
}
