package loop

import (
	"encoding/json"
	"slices"
	"strings"
)

// emptyReply is what a model is told whose reply was empty. The journal has neither.
const emptyReply = "[Your last reply was empty. Answer, or ask for a tool.]"

// empty reports whether the reply says nothing at all.
func (r *Reply) empty() bool {
	return strings.TrimSpace(r.Text) == "" && len(r.ToolCalls) == 0 && !r.Cut
}

// What a model is told behind a reply that was cut.
const (
	cutText  = "[Your reply was cut off at the limit of output tokens. Go on exactly where it stopped, and repeat nothing.]"
	cutCalls = "[Your reply was cut off at the limit of output tokens: its last tool call may be incomplete. Ask for less at a time.]"
)

// wordAfter is what the model is told behind a step that was cut, unless the turn ended there.
func (t *turn) wordAfter(step int) []string {
	switch s := &t.steps[step]; {
	case !s.cut, step == len(t.steps)-1 && t.result != nil:
		return nil
	case len(s.calls) > 0:
		return []string{cutCalls}
	default:
		return []string{cutText}
	}
}

// cutAgain reports whether the last reply was cut, as was the one before it: the word to the model
// did not help.
func (t *turn) cutAgain() bool {
	n := len(t.steps)
	return n > 1 && t.steps[n-1].cut && t.steps[n-2].cut
}

// text is the last that the model said: a text that was cut, with what followed it.
func (t *turn) text() string {
	text := ""
	for i := range slices.Backward(t.steps) {
		if i < len(t.steps)-1 && (!t.steps[i].cut || len(t.steps[i].calls) > 0) {
			break
		}
		text = t.steps[i].text + text
	}
	return text
}

// valid is reasoning as it is journaled; nil when there is none.
func (r *Reasoning) valid() *Reasoning {
	if r == nil || r.Text == "" && len(r.Opaque) == 0 {
		return nil
	}
	valid := &Reasoning{Text: validText(r.Text)}
	if json.Valid(r.Opaque) { // else no journal could keep it
		valid.Opaque = r.Opaque
	}
	return valid
}
