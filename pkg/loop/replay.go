package loop

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
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
	hooks   map[position][]Event     // what hooks decided about turns, by the reply before it
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
		replies: map[position]*Event{}, ends: map[int]*Event{}, calls: map[callPosition][]Event{},
		jobs: map[position][]Event{}, added: map[position][]Event{}, hooks: map[position][]Event{},
	}
	var next position // reply
	for i := range events {
		e := &events[i]
		at := position{e.Turn, e.Step}
		switch e.Type {
		case EventTurnStarted:
			r.inputs, next = append(r.inputs, Input{Text: e.Input, Attachments: e.Attachments, AnswerSchema: e.AnswerSchema}), position{e.Turn, 1}
		case EventModelReply:
			r.replies[at], next = e, position{e.Turn, e.Step + 1}
		case EventInputAdded:
			r.added[at] = append(r.added[at], *e)
		case EventTurnEnded:
			r.ends[e.Turn] = e
		case EventHookDecided:
			call := callPosition{at, e.Index}
			switch {
			case e.Hook != nil && e.Hook.Event == HookCompact: // a replay asks for no summary
			case e.Hook != nil && e.Hook.Event != HookBefore:
				r.hooks[at] = append(r.hooks[at], *e)
			default:
				r.calls[call] = append(r.calls[call], *e)
			}
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
		return []Event{p.localResult(protocol.StatusOutcomeUnknown, "", protocol.Errorf(protocol.CodeOutcomeUnknown, "The recording has no result of this call."), 0)}
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

// exportVersion is the version of the schema of exports. A field more is no new version: who reads
// an export ignores fields and types of events that it does not know.
const exportVersion = 1

// exportType is the type of the first line of an export.
const exportType = "session_export"

// exportHead is the first line of an export.
type exportHead struct {
	Type      string             `json:"type"`
	Version   int                `json:"version"`
	SessionID protocol.SessionID `json:"session_id"`
}

// Export writes the session as lines of JSON, for [ReadExport]: a line with the version, and each
// event as it is journaled, without the seed. Images and attachments are in it, other stored
// outputs are not.
func (h History) Export(w io.Writer, session protocol.SessionID) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(exportHead{exportType, exportVersion, session})
	for i := 0; err == nil && i < len(h.Events); i++ {
		e := h.Events[i]
		e.Seed = ""
		if e.Image != nil && len(e.Image.Data) > 0 {
			e.Image = &Image{MediaType: e.Image.MediaType, Data: e.Image.Data}
		}
		e.Attachments = slices.Clone(e.Attachments)
		for i := range e.Attachments {
			if a := &e.Attachments[i]; len(a.Data) > 0 {
				a.Blob = ""
			}
		}
		err = encoder.Encode(e)
	}
	if err != nil {
		return fmt.Errorf("export session %s: %w", session, err)
	}
	return nil
}

// ReadExport reads an export, and checks that its events are those of a session.
func ReadExport(r io.Reader) ([]Event, error) {
	lines := bufio.NewReader(r)
	var events []Event
	for number := 1; ; number++ {
		line, err := lines.ReadBytes('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		last := err != nil
		switch line = bytes.TrimSpace(line); {
		case number == 1:
			if err := checkHead(line); err != nil {
				return nil, err
			}
		case len(line) > 0:
			var e Event
			if err := json.Unmarshal(line, &e); err != nil {
				return nil, fmt.Errorf("line %d: %w", number, err)
			}
			events = append(events, e)
		}
		if last {
			_, err := fold(events)
			return events, err
		}
	}
}

func checkHead(line []byte) error {
	var head exportHead
	if err := json.Unmarshal(line, &head); err != nil || head.Type != exportType {
		return fmt.Errorf(`line 1: must be {"type":%q,"version":%d,...}, as session export prints it`, exportType, exportVersion)
	}
	if head.Version != exportVersion {
		return fmt.Errorf("line 1: version %d: this program reads version %d", head.Version, exportVersion)
	}
	return nil
}

// transcriptLine is a line of a transcript.
type transcriptLine struct {
	Turn       int        `json:"turn"`
	Step       int        `json:"step,omitempty"`
	Role       string     `json:"role"` // a Role, or "end" for the end of a turn
	Text       string     `json:"text,omitempty"`
	ToolCalls  []ToolCall `json:"tool_calls,omitempty"`
	ToolCallID string     `json:"tool_call_id,omitempty"`
	Name       string     `json:"name,omitempty"`
	Status     string     `json:"status,omitempty"` // of a tool call, or the Outcome of a turn
}

// Transcript writes what was said in a session as lines of JSON: each input, reply, result and
// note, in the order in which a model reads them, and how each turn ended. Times, ids that the
// fleet makes, workers and durations are not in it, so two sessions in which the same was said have
// the same transcript.
func (h History) Transcript(w io.Writer) error {
	s, err := fold(h.Events)
	if err != nil {
		return err
	}
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	write := func(line transcriptLine) {
		if err == nil {
			err = encoder.Encode(line)
		}
	}
	notes := func(turn, step int, notes []string) {
		for _, note := range notes {
			write(transcriptLine{Turn: turn, Step: step, Role: string(RoleUser), Text: note})
		}
	}
	for i := range s.turns {
		t := &s.turns[i]
		write(transcriptLine{Turn: t.number, Role: string(RoleUser), Text: t.input.message().Text})
		notes(t.number, 0, slices.Concat(t.notes, t.addedBehind(0)))
		for j := range t.steps {
			step := &t.steps[j]
			said := transcriptLine{Turn: t.number, Step: j + 1, Role: string(RoleAssistant), Text: step.text}
			for k := range step.calls {
				said.ToolCalls = append(said.ToolCalls, step.calls[k].ToolCall)
			}
			write(said)
			for k := range step.calls {
				if call := &step.calls[k]; call.content != nil {
					write(transcriptLine{
						Turn: t.number, Step: j + 1, Role: string(RoleTool), ToolCallID: call.ID, Name: call.Name, Status: string(call.status), Text: *call.content,
					})
				}
			}
			notes(t.number, j+1, slices.Concat(step.notes, t.addedBehind(j+1)))
		}
		if t.result != nil {
			write(transcriptLine{Turn: t.number, Role: "end", Status: string(t.result.Outcome)})
		}
	}
	return err
}
