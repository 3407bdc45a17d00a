package webui

import (
	"encoding/base64"
	"fmt"
	"html/template"
	"slices"
	"time"

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

	calls map[protocol.CallID]*call
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
	Items   []item
	Bars    []bar // of the timeline
}

// item is one thing of a turn: exactly one of its fields is set.
type item struct {
	Said      string // by the model
	Saying    string // a reply that is not complete
	Reasoning string
	User      string // what a person added
	Note      string // what the fleet says
	Call      *call
}

// Prose is what the model says, as HTML.
func (i item) Prose() template.HTML { return prose(i.Said + i.Saying) }

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
	State     string // of one that has no status
	Waits     string // for what, while it waits
	Worker    protocol.WorkerID
	Attempt   int
	Tries     []protocol.Try
	QueueMS   *float64
	RunMS     *float64
	Content   string
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
}

// approval is a call that waits for a person.
type approval struct {
	Rule, Reason string
	Since        time.Time
}

// decision is what a rule, a person or a hook decided about a call.
type decision struct{ Status, Rule, By, Via, Note, Text string }

// Open reports whether the call has no result yet.
func (c *call) Open() bool { return c.Status == "" }

// Now is the state that a pill shows.
func (c *call) Now() string {
	switch {
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

// Picture is the address of an image, as browsers show it; "" if they show none.
func (c *call) Picture() template.URL {
	if c.Image == nil || len(c.Image.Data) == 0 || !slices.Contains([]string{"image/png", "image/jpeg", "image/gif", "image/webp"}, c.Image.MediaType) {
		return ""
	}
	return template.URL("data:" + c.Image.MediaType + ";base64," + base64.StdEncoding.EncodeToString(c.Image.Data)) //nolint:gosec // of a fixed list of types
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

// add adds an event. Live ones may come twice, or be missing.
func (c *conversation) add(e *loop.Event) {
	switch e.Type {
	case loop.EventSessionStarted:
		c.Model, c.Parent = e.Model, e.Parent
		return
	case loop.EventTurnStarted:
		c.Turns = append(c.Turns, &turn{
			Session: c.Session, N: e.Turn, Input: e.Input, By: e.By, Trigger: e.Trigger, Files: e.Attachments, Begun: e.Time,
		})
		return
	case loop.EventRewound:
		for _, t := range c.Turns {
			t.Left = t.Left || t.N > e.KeptTurn
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
	c.addSaid(t, e)
}

// addSaid adds what the model, a person or the fleet says.
func (c *conversation) addSaid(t *turn, e *loop.Event) {
	switch e.Type {
	case loop.EventTextDelta:
		t.partial().Saying += e.Text
	case loop.EventReasoningDelta:
		t.partial().Reasoning += e.Text
	case loop.EventModelReply:
		t.dropPartial()
		if e.Reasoning != nil && e.Reasoning.Text != "" {
			t.Items = append(t.Items, item{Reasoning: e.Reasoning.Text})
		}
		if e.Text != "" {
			t.Items = append(t.Items, item{Said: e.Text})
		}
		if e.Usage != nil {
			t.Usage = e.Usage
		}
		t.replied(e)
	case loop.EventInputAdded:
		t.Items = append(t.Items, item{User: e.Input})
	case loop.EventModelWaits:
		t.partial().Note = e.Text
	case loop.EventNativeCall:
		t.note("The provider ran " + e.Name + ": " + e.Text)
	case loop.EventTurnEnded:
		t.dropPartial()
		t.Ended, t.Outcome, t.Error, t.Cost, t.Usage = e.Time, e.Status, e.Error, e.CostUSD, e.Usage
	case loop.EventCompacted:
		t.note("A summary stands for the earlier replies: " + e.Text)
	case loop.EventRewound:
		t.note(fmt.Sprintf("The conversation was taken back to turn %d.", e.KeptTurn))
	case loop.EventSessionForked:
		t.note("This session is a fork of session " + string(e.From) + ".")
	case loop.EventImported:
		t.note("This session was imported.")
	case loop.EventReplyFailed, loop.EventBudgetLow, loop.EventBudgetSpent, loop.EventAnswerRefused, loop.EventTurnPostponed, loop.EventSessionMerged, loop.EventCallResolved, loop.EventRevertEnded, loop.EventPartLeftOut:
		t.note(e.Text)
	case loop.EventHookDecided:
		if e.Hook != nil && e.Text != "" {
			t.note("A hook: " + e.Text)
		}
	default:
	}
}

// partial is the item of a reply that is not complete.
func (t *turn) partial() *item {
	if n := len(t.Items); n == 0 || !t.Items[n-1].isPartial() {
		t.Items = append(t.Items, item{Saying: " "})
		t.Items[len(t.Items)-1].Saying = ""
	}
	return &t.Items[len(t.Items)-1]
}

// isPartial reports whether more may follow of an item.
func (i *item) isPartial() bool { return i.Said == "" && i.User == "" && i.Call == nil }

// dropPartial removes the item of a reply that is complete now.
func (t *turn) dropPartial() {
	if n := len(t.Items); n > 0 && t.Items[n-1].isPartial() && t.Items[n-1].Saying != "" {
		t.Items = t.Items[:n-1]
	}
}

func (t *turn) note(text string) {
	if text != "" {
		t.Items = append(t.Items, item{Note: text})
	}
}

// addCall adds an event of a call, and reports whether it was one.
func (c *conversation) addCall(t *turn, e *loop.Event) bool {
	of := c.calls[e.CallID]
	if of == nil {
		if e.Type != loop.EventToolCall && e.Type != loop.EventCallJudged {
			return false
		}
		of = &call{Session: c.Session, Key: c.Key, ID: e.CallID, ToolCall: e.ToolCallID, Turn: t.N, Step: e.Step, Tool: e.Name, Arguments: e.Arguments, Asked: e.Time, State: "queued"}
		c.calls[e.CallID] = of
		t.Items = append(t.Items, item{Call: of})
	}
	switch e.Type {
	case loop.EventToolCall:
		of.Lane, of.Agent = e.Lane, e.Lane == "" && e.Name == "agent"
		if e.Status != "" { // it was refused
			of.end(e)
		}
	case loop.EventToolQueued:
		of.State, of.Waits = "queued", e.Text
	case loop.EventToolRunning:
		of.State, of.Waits, of.Worker, of.Attempt, of.Started = "running", "", e.WorkerID, e.Attempt, e.Time
	case loop.EventWorkerLost:
		of.State, of.Waits = "lost", e.Text
	case loop.EventApprovalAsked:
		of.Approval = &approval{e.Rule, e.Text, e.Time}
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
			of.end(e)
			break
		}
		of.State, of.Content = "running", e.Content // in the background
	case loop.EventJobEnded:
		of.end(e)
	default:
		return false
	}
	t.timed(of)
	return true
}

// end is the result of a call.
func (c *call) end(e *loop.Event) {
	c.Status, c.Ended, c.Waits, c.Approval, c.Question = e.Status, e.Time, "", nil, nil
	c.Content, c.Diff, c.Image, c.Error, c.Effect, c.Tries = e.Content, e.Diff, e.Image, e.Error, e.Effect, e.Tries
	c.QueueMS, c.RunMS = e.QueueMS, e.RunMS
	c.Worker, c.Attempt = e.WorkerID, e.Attempt
	c.Live, c.Moves = "", nil
}

// write adds what a running call writes.
func (c *conversation) write(id protocol.CallID, piece *fleet.Output) {
	of := c.calls[id]
	if of == nil || !of.Open() {
		return
	}
	of.State = "running"
	if of.Live += string(piece.Data); len(of.Live) > maxLive {
		of.Live = of.Live[len(of.Live)-maxLive:]
	}
}
