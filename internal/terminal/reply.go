package terminal

import (
	"strings"

	"github.com/toolfleet/toolfleet/internal/prose"
	"github.com/toolfleet/toolfleet/pkg/loop"
)

// reply is the model's text of the current step, as far as it came.
type reply struct {
	turn, step int
	said       strings.Builder
	mused      strings.Builder // what it thought, when that is shown live
	text       *flow           // nil when none is being written
	thought    *flow           // the same of what the model thinks before
}

// pause ends the line of the model's text, which may go on below.
func (r *reply) pause() {
	r.thought.pause()
	r.text.pause()
}

// above is the text of the current step that stands above calls which began while it streamed.
type above struct {
	turn, step int
	text       string
}

func (a *above) note(e *loop.Event, streamed *reply) {
	switch {
	case e.Type == loop.EventModelWaits: // the reply begins again
		*a = above{}
	case e.Type != loop.EventToolCall && e.Type != loop.EventToolQueued && e.Type != loop.EventToolRunning,
		streamed.said.Len() == 0, e.Turn != streamed.turn, e.Step != streamed.step:
	case a.turn == e.Turn && a.step == e.Step:
		a.text += streamed.said.String()
	default:
		*a = above{e.Turn, e.Step, streamed.said.String()}
	}
}

// reasoningDelta shows a piece of what the model thinks, dimmed.
func (v *View) reasoningDelta(e *loop.Event) {
	if v.reply.turn != e.Turn || v.reply.step != e.Step || v.reply.text != nil {
		v.endReply()
	}
	if v.live != nil {
		v.reply.turn, v.reply.step = e.Turn, e.Step
		v.reply.mused.WriteString(e.Text)
		return
	}
	if v.reply.thought == nil {
		v.gap = true
		v.reply.turn, v.reply.step = e.Turn, e.Step
		v.reply.thought = v.flow(v.ink.paint(dim, strings.TrimSpace(v.marks.thought))+" ", "  ")
		v.reply.thought.style = func(word string) string { return v.ink.paint(dim, word) }
	}
	v.reply.thought.add(e.Text)
}

func (v *View) textDelta(e *loop.Event) {
	if v.reply.text != nil && (v.reply.turn != e.Turn || v.reply.step != e.Step) {
		v.endReply()
	}
	if v.live == nil {
		v.beginReply(e)
		v.reply.text.add(e.Text)
	} else if v.reply.turn != e.Turn || v.reply.step != e.Step {
		v.endReply()
		v.reply.turn, v.reply.step = e.Turn, e.Step
	}
	v.reply.said.WriteString(e.Text)
}

// modelReply shows what has not been streamed of a reply.
func (v *View) modelReply(e *loop.Event) {
	if a := v.above; a.text != "" && a.turn == e.Turn && a.step == e.Step {
		below := *e
		below.Text, below.Reasoning = strings.TrimPrefix(e.Text, a.text), nil
		e = &below
	}
	if v.reply.turn != e.Turn || v.reply.step != e.Step {
		v.endReply()
		if e.Reasoning != nil { // none of it was streamed
			v.reasoningDelta(&loop.Event{Turn: e.Turn, Step: e.Step, Text: e.Reasoning.Text})
		}
	}
	if v.live != nil {
		v.reply.said.Reset()
		v.reply.said.WriteString(e.Text)
	} else {
		v.complete(e)
	}
	v.endReply()
	if e.Finish == loop.FinishLength {
		v.line(v.ink.paint(yellow, "  (cut off at the limit of output tokens)"))
	}
	v.turn.steps++
	v.session.steps++
	v.labels.reset(e, v.width)
	v.gap = true
}

// complete writes what of a reply is not there yet.
func (v *View) complete(e *loop.Event) {
	said := v.reply.said.String()
	rest, whole := unsaid(said, e.Text)
	if whole && strings.TrimSpace(said) != "" {
		v.endReply()
		v.line(v.ink.paint(dim, "(parts of the text above were lost; this is the whole text:)"))
	}
	if rest != "" {
		v.beginReply(e)
		v.reply.text.add(rest)
	}
}

// unsaid returns what of a text was not streamed. It is the whole text when what
// was streamed is not its beginning.
func unsaid(said, text string) (rest string, whole bool) {
	said = prose.Valid(said)
	if rest, ok := strings.CutPrefix(text, said); ok {
		return rest, said == ""
	}
	if strings.TrimSpace(said) == strings.TrimSpace(text) {
		return "", false
	}
	return text, true
}

func (v *View) beginReply(e *loop.Event) {
	if v.reply.text != nil {
		return
	}
	v.reply.thought.end()
	v.reply.thought = nil
	v.gap = true
	v.reply.turn, v.reply.step = e.Turn, e.Step
	v.reply.text = v.flow(v.ink.paint(cyan, strings.TrimSpace(v.marks.model))+" ", "  ")
}

func (v *View) endReply() {
	v.reply.thought.end()
	v.reply.text.end()
	if v.live != nil {
		v.mused(v.reply.mused.String())
		v.markdown(v.reply.said.String())
	}
	v.reply = reply{}
}

// mused shows what the model thought, folded.
func (p *page) mused(text string) {
	if strings.TrimSpace(text) == "" {
		return
	}
	p.gap = true
	thought := p.flow(p.ink.paint(dim, strings.TrimSpace(p.marks.thought))+" ", "  ")
	thought.restyle(func(piece string) string { return p.ink.paint(dim, piece) })
	thought.add(strings.Join(excerpt(text, maxFoldedLines), "\n"))
	thought.end()
}
