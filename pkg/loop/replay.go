package loop

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Recording is a session that is played back in a new one. As a [Model] it replies what the model
// of that session replied, whatever the tools return now. As [Options].Replay it also has the
// results of the tool calls: none of them is judged by a policy, and none is made.
type Recording struct {
	// Live has the tool calls made, except those of sub-agents, whose sessions are not recorded.
	Live bool

	events  []Event
	inputs  []Input
	replies map[position]*Event
	ends    map[int]*Event           // of turns
	calls   map[callPosition][]Event // what was journaled about a call, up to its result
	jobs    map[position][]Event     // ends of jobs, by the first reply after them
	added   map[position][]Event     // what a person said while a turn ran, by the reply before it
}

// position is the step of a turn, callPosition a tool call in it.
type (
	position     struct{ turn, step int }
	callPosition struct {
		position
		index int
	}
)

var _ Model = (*Recording)(nil)

// Recording returns the session as a recording. The error wraps [ErrJournalInvalid].
func (h History) Recording() (*Recording, error) {
	events := h.Events
	if _, err := fold(events); err != nil {
		return nil, err
	}
	r := &Recording{
		events:  events,
		replies: map[position]*Event{}, ends: map[int]*Event{}, calls: map[callPosition][]Event{}, jobs: map[position][]Event{}, added: map[position][]Event{},
	}
	var next position // reply
	for i := range events {
		e := &events[i]
		at := position{e.Turn, e.Step}
		switch e.Type {
		case EventTurnStarted:
			r.inputs, next = append(r.inputs, Input{Text: e.Input, Attachments: e.Attachments}), position{e.Turn, 1}
		case EventModelReply:
			r.replies[at], next = e, position{e.Turn, e.Step + 1}
		case EventInputAdded:
			r.added[at] = append(r.added[at], *e)
		case EventTurnEnded:
			r.ends[e.Turn] = e
		case EventPolicyDecision, EventToolCall, EventToolResult:
			call := callPosition{at, e.Index}
			r.calls[call] = append(r.calls[call], *e)
		case EventJobEnded:
			r.jobs[next] = append(r.jobs[next], *e)
		default:
		}
	}
	return r, nil
}

// Inputs are the inputs of the recorded turns, without ids.
func (r *Recording) Inputs() []Input { return r.inputs }

// Transcript writes the transcript of the recorded session.
func (r *Recording) Transcript(w io.Writer) error { return History{Events: r.events}.Transcript(w) }

// Reply implements [Model].
func (r *Recording) Reply(_ context.Context, req Request, delta func(Delta)) (Reply, error) {
	e, end := r.replies[position{req.Turn, req.Step}], r.ends[req.Turn]
	switch {
	case e == nil && end != nil && end.Error != nil:
		return Reply{}, errors.New(end.Error.Message) // as the recorded turn ended
	case e == nil:
		return Reply{}, fmt.Errorf("the recording has no step %d of turn %d", req.Step, req.Turn)
	}
	reply := Reply{
		Text: e.Text, ToolCalls: slices.Clone(e.ToolCalls), Reasoning: e.Reasoning, Model: "replay", Cut: e.Finish == FinishLength, Scripted: true,
	}
	if e.Usage != nil {
		reply.Usage = *e.Usage
	}
	if e.Model != "" {
		reply.Fallback = &Fallback{Model: e.Model}
	}
	if e.Reasoning != nil {
		delta(Delta{Reasoning: e.Reasoning.Text})
	}
	delta(Delta{Text: e.Text})
	return reply, nil
}

// has reports whether the result of a call is played back.
func (r *Recording) has(call *ToolCall) bool {
	return r != nil && (!r.Live || call.Name == wire.AgentTool)
}

// recorded are the events of a call that is played back.
func (t *turnRun) recorded(p *pendingCall, call *stepCall) []Event {
	r, at := t.opts.Replay, position{p.event.Turn, p.event.Step}
	var events []Event
	if reply := r.replies[at]; reply != nil && p.event.Index < len(reply.ToolCalls) && reply.ToolCalls[p.event.Index] == call.ToolCall {
		events = r.calls[callPosition{at, p.event.Index}]
	}
	if !slices.ContainsFunc(events, func(e Event) bool { return e.Type == EventToolResult }) {
		return []Event{p.local(protocol.StatusOutcomeUnknown, "", protocol.Errorf(protocol.CodeOutcomeUnknown, "The recording has no result of this call."), 0)}
	}
	events = slices.Clone(events)
	for i := range events {
		events[i].CallID = p.event.CallID
	}
	return events
}

// recordedEnds are the ends of jobs that come before the next reply. In a live replay they end as
// soon as they have begun.
func (t *turnRun) recordedEnds() []Event {
	r, turn := t.opts.Replay, t.session.open()
	if r == nil {
		return nil
	}
	var events []Event
	for at, ends := range r.jobs {
		if !r.Live && at != (position{turn.number, len(turn.steps) + 1}) {
			continue
		}
		for i := range ends {
			place := t.session.place(t.id, ends[i].Turn, ends[i].Step, ends[i].Index)
			if j := t.session.jobOf(place.ID); j != nil && j.ended == nil && r.has(&ToolCall{Name: j.Name}) {
				e := ends[i]
				e.CallID = place.ID
				events = append(events, e)
			}
		}
	}
	return events
}
