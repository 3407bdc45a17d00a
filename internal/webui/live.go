package webui

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"html"
	"net/http"
	"strconv"
	"time"

	"github.com/toolfleet/toolfleet/internal/access"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/loop"
)

// A page that follows a session waits at least drawEvery between two drawings, and slowEvery for
// what takes more to make: the facts, and the turn in time.
const (
	drawEvery = 120 * time.Millisecond
	slowEvery = time.Second
)

// live sends what changes of a session, until the browser has gone.
func (u *ui) live(w http.ResponseWriter, r *http.Request) error {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	c, next := newConversation(idOf(r), u.formKey(r)), make(chan passed, 64)
	c.may = mayApprove(r.Context())
	c.pieces, c.drawn = true, positionOf(r.URL.Query().Get("from"))
	go func() {
		defer close(next)
		for p, err := range u.all().Events(ctx, c.Session, "") {
			select {
			case next <- passed{p, err}:
			case <-ctx.Done():
				return
			}
		}
	}()
	first, more := <-next
	if !more || first.err != nil {
		return cmp.Or(first.err, fleet.ErrNotFound)
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.WriteHeader(http.StatusOK)
	d := &drawing{ui: u, w: w, r: r, of: c, known: map[int]int{}}
	d.take(first)
	return d.run(ctx, next)
}

// passed is one of a session's events, or why there are no more.
type passed struct {
	fleet.Passed

	err error
}

// drawing draws what changes of a session.
type drawing struct {
	ui    *ui
	w     http.ResponseWriter
	r     *http.Request
	of    *conversation
	known map[int]int // how many items of a turn the page has; nil before the first drawing

	begun   bool
	changed bool
	facts   bool // have changed
	slow    time.Time
	removed bool
}

// take adds what was passed on.
func (d *drawing) take(p passed) {
	d.changed = true
	switch {
	case p.err != nil:
		d.removed = true
	case p.Event != nil:
		d.of.add(p.Event)
		switch p.Event.Type {
		case loop.EventTurnStarted, loop.EventTurnEnded, loop.EventApprovalAsked, loop.EventPolicyDecision, loop.EventQuestionAsked, loop.EventAnswered, loop.EventModelReply:
			d.facts = true
		default:
		}
	case p.Output != nil:
		d.of.write(p.CallID, p.Output)
	}
}

// run draws until nothing more comes.
func (d *drawing) run(ctx context.Context, next <-chan passed) error {
	tick := time.NewTicker(drawEvery)
	defer tick.Stop()
	quiet := time.Now()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-access.Draining(ctx):
			return nil // the browser connects again
		case p, more := <-next:
			if !more {
				d.draw(ctx)
				return nil
			}
			d.take(p)
		case <-tick.C:
			last := d.of.Last()
			due := last != nil && (last.Outcome == "" || d.facts) // the facts also after the end of a turn
			switch {
			case d.changed || due && time.Since(d.slow) > slowEvery:
				if !d.draw(ctx) {
					return nil
				}
			case time.Since(quiet) > 15*time.Second:
				if !send(d.w, []byte(": \n\n")) {
					return nil
				}
			default:
				continue
			}
			quiet = time.Now()
		}
	}
}

// partial is a piece of a page, which replaces or extends an element.
func partial(out *bytes.Buffer, target, swap string, body []byte) {
	fmt.Fprintf(out, `<hx-partial hx-target="#%s" hx-swap="%s">%s</hx-partial>`, target, swap, body)
}

// draw sends what has changed; false if the browser has gone.
func (d *drawing) draw(ctx context.Context) bool {
	d.changed = false
	var out bytes.Buffer
	if d.begun {
		d.drawChanges(&out)
	} else {
		d.drawAll(&out)
	}
	if last := d.of.Last(); last != nil && time.Since(d.slow) > slowEvery {
		d.slow = time.Now()
		if c := d.ui.near(ctx, d.of.Session, last.N); c != nil {
			if body, err := d.ui.render(d.r, "session", "now", view{Data: c}); err == nil {
				partial(&out, "now", "outerMorph", body)
			}
		}
		if d.facts {
			d.facts = false
			d.drawFacts(ctx, &out)
		}
	}
	return out.Len() == 0 || send(d.w, message(out.Bytes()))
}

// drawAll draws the whole of what the page shows: it may have missed something.
func (d *drawing) drawAll(out *bytes.Buffer) {
	var turns bytes.Buffer
	for _, t := range d.of.Turns {
		if t.N >= d.of.drawn.turn {
			turns.Write(d.turn(t))
		}
	}
	if turns.Len() > 0 {
		d.begun = true
		partial(out, "turns", "innerMorph", turns.Bytes())
	}
}

// turn draws a turn.
func (d *drawing) turn(t *turn) []byte {
	d.known[t.N] = len(t.Items)
	clear(t.changed)
	t.redraw = false
	body, _ := d.ui.render(d.r, "session", "turn", view{Data: t}) // what cannot be made is not shown
	return body
}

// drawChanges draws items that are new or have changed.
func (d *drawing) drawChanges(out *bytes.Buffer) {
	for _, t := range d.of.Turns {
		if t.N < d.of.drawn.turn {
			continue
		}
		if _, is := d.known[t.N]; !is {
			partial(out, "turns", "beforeend", d.turn(t))
			continue
		}
		for _, i := range t.Items[min(t.from, len(t.Items)):] {
			if !t.changed[i] {
				continue
			}
			body, err := d.ui.render(d.r, "session", "item", view{Data: i})
			switch {
			case err != nil:
			case i.N < d.known[t.N]:
				partial(out, i.ID(), "outerMorph", body)
			default:
				d.known[t.N] = i.N + 1
				partial(out, fmt.Sprintf("items-%d", t.N), "beforeend", body)
			}
			if words := i.Spoken(); words != "" {
				partial(out, "announce", "innerHTML", harmless([]byte(html.EscapeString(words))))
			}
		}
		clear(t.changed)
		if t.redraw {
			t.redraw = false
			if body, err := d.ui.render(d.r, "session", "foot", view{Data: t}); err == nil {
				partial(out, fmt.Sprintf("foot-%d", t.N), "outerMorph", body)
			}
		}
	}
}

// drawFacts draws what is known of the whole session.
func (d *drawing) drawFacts(ctx context.Context, out *bytes.Buffer) {
	ctx, cancel := within(ctx)
	defer cancel()
	shown, err := d.ui.Local.Show(ctx, d.of.Session)
	if err != nil {
		return // the next ones may be
	}
	if body, err := d.ui.render(d.r, "session", "facts", view{Data: &sessionPage{conversation: d.of, Of: shown}}); err == nil {
		partial(out, "facts", "outerMorph", body)
		partial(out, "calls-count", "innerHTML", []byte(grouped(strconv.Itoa(shown.ToolCalls))))
	}
}

// message is a message of a stream, of lines.
func message(body []byte) []byte {
	var out bytes.Buffer
	for line := range bytes.Lines(bytes.ReplaceAll(body, []byte("\r"), nil)) {
		out.WriteString("data: ")
		out.Write(bytes.TrimSuffix(line, []byte("\n")))
		out.WriteByte('\n')
	}
	out.WriteByte('\n')
	return out.Bytes()
}
