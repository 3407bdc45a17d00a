package terminal

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Bounds of what has a place in a line, in columns.
const (
	maxName   = 24
	maxWorker = 40
)

// labels are the names of a step's tool calls, in a column of one width.
type labels struct {
	turn, step, width int
}

// reset begins the column of the step of a reply.
func (l *labels) reset(reply *loop.Event) {
	*l = labels{turn: reply.Turn, step: reply.Step}
	for i := range reply.ToolCalls {
		l.width = max(l.width, columns(label(reply.Step, i, reply.ToolCalls[i].Name)))
	}
}

// of returns the label of an event. Of calls whose reply was not seen the column
// grows as they come.
func (l *labels) of(e *loop.Event) string {
	if l.turn != e.Turn || l.step != e.Step {
		*l = labels{turn: e.Turn, step: e.Step}
	}
	text := label(e.Step, e.Index, e.Name)
	l.width = max(l.width, columns(text))
	return pad(text, l.width)
}

func label(step, index int, name string) string {
	return "[" + strconv.Itoa(step) + "." + strconv.Itoa(index+1) + " " + fit(name, maxName) + "]"
}

// callMoved shows that a call came a step further.
func (v *View) callMoved(e *loop.Event) {
	label := v.labels.of(e)
	switch e.Type {
	case loop.EventToolCall:
		room := max(v.width-columns(label)-len(" > "), minWidth/2)
		v.line(v.ink.paint(bold, label) + " " + v.ink.paint(cyan, "›") + " " + fit(summary(e.Name, e.Arguments), room))
	case loop.EventToolQueued:
		v.line(v.ink.paint(dim, label+" · queued"))
	default:
		text := label + " ▸ running"
		if e.WorkerID != "" {
			text += " on " + fit(string(e.WorkerID), maxWorker)
		}
		if e.Attempt > 1 {
			v.line(v.ink.paint(yellow, fmt.Sprintf("%s, attempt %d", text, e.Attempt)))
			return
		}
		v.line(v.ink.paint(dim, text))
	}
}

// callEnded shows a result.
func (v *View) callEnded(e *loop.Event) {
	v.turn.result(e)
	v.session.result(e)
	label := v.labels.of(e)
	mark, st := statusMark(protocol.Status(e.Status))
	head := mark + " " + fit(e.Status, maxName)
	if e.Error != nil {
		head += " (" + fit(string(e.Error.Code), maxName) + ")"
	}
	parts := append([]string{v.ink.paint(bold, label) + " " + v.ink.paint(st, head)}, facts(e)...)
	v.line(strings.Join(parts, separator))
	v.resultBody(e, strings.Repeat(" ", columns(label)+1))
}

// facts are who ran a call and how long it took, as far as they are known.
func facts(e *loop.Event) []string {
	var parts []string
	if e.WorkerID != "" {
		by := "on " + fit(string(e.WorkerID), maxWorker)
		if e.Attempt > 0 {
			by += ", attempt " + strconv.Itoa(e.Attempt)
		}
		parts = append(parts, by)
		if queued := millis(e.QueueMS); queued != "" {
			parts = append(parts, "queued "+queued)
		}
	}
	if ran := millis(e.RunMS); ran != "" && *e.RunMS > 0 {
		parts = append(parts, "ran "+ran)
	}
	return parts
}

func statusMark(status protocol.Status) (string, style) {
	switch status {
	case protocol.StatusOK:
		return "✓", green
	case protocol.StatusCancelled:
		return "■", yellow
	case protocol.StatusOutcomeUnknown:
		return "?", yellow
	case protocol.StatusFailed, protocol.StatusTimeout, protocol.StatusRejected:
		return "✗", red
	default:
		return "?", yellow
	}
}
