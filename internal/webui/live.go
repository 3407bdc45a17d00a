package webui

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"html"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/access"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// A page that follows a session waits at least drawEvery between two drawings, and slowEvery for
// what takes more to make: the facts, and the turn in time.
const (
	drawEvery = 120 * time.Millisecond
	slowEvery = time.Second
)

// A stream that has nothing to say sends idleMessage each idleEvery, so that nothing between it and
// the browser takes the connection for a lost one.
const (
	idleEvery   = 15 * time.Second
	idleMessage = ": \n\n"
)

// live sends what changes of a session, until the browser has gone. For a page that shows nothing
// of the session yet ("begins"), it sends that the session can be shown.
func (u *ui) live(_ context.Context, w http.ResponseWriter, r *http.Request) error {
	ctx, begins := r.Context(), r.URL.Query().Has("begins")
	k, leave, err := u.watch(ctx, idOf(r))
	none := errors.Is(err, fleet.ErrNotFound)
	if none && !begins {
		if _, unknown := u.Local.Show(ctx, idOf(r)); unknown != nil {
			return err
		}
	} else if err != nil && !none {
		return err
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.WriteHeader(http.StatusOK)
	switch {
	case begins:
		if !none {
			leave()
		}
		if u.begun(ctx, w, idOf(r), loop.EventTurnStarted) {
			u.showBegun(w, r)
		}
		return nil
	case none: // it has files, and no turn yet
		if !u.begun(ctx, w, idOf(r), "") {
			return nil
		}
		if k, leave, err = u.watch(ctx, idOf(r)); err != nil {
			return nil // it was removed: the browser connects again, and then gets the error
		}
	}
	defer leave()
	d := &drawing{ui: u, w: w, r: r, of: k, who: u.viewerOf(r), from: positionOf(r.URL.Query().Get("from"))}
	return d.run(ctx)
}

// begun waits until a session has an event of a type, or any if the type is "", and reports whether
// it has one.
func (u *ui) begun(ctx context.Context, w http.ResponseWriter, id protocol.SessionID, first loop.EventType) bool {
	reading, end := context.WithCancel(ctx)
	found := make(chan bool, 1)
	var joined sync.WaitGroup
	joined.Go(func() {
		for p, err := range u.all().Events(reading, id, "") {
			if err != nil {
				break
			}
			if p.Event != nil && p.ID != "" && (first == "" || p.Event.Type == first) {
				found <- true
				return
			}
		}
		found <- false
	})
	defer joined.Wait()
	defer end()
	idle := time.NewTicker(idleEvery)
	defer idle.Stop()
	for more := send(w, []byte(idleMessage)); more; more = send(w, []byte(idleMessage)) {
		select {
		case is := <-found:
			return is
		case <-access.Draining(ctx):
			return false // the browser connects again
		case <-idle.C:
		}
	}
	return false
}

// showBegun has a page show a session that has begun.
func (u *ui) showBegun(w http.ResponseWriter, r *http.Request) {
	if body, err := u.render(r, "begins", "begun", view{Data: idOf(r)}); err == nil {
		var out bytes.Buffer
		partial(&out, "begun", "innerHTML", body)
		send(w, message(out.Bytes()))
	}
}

// drawing draws what changes of a session for a page.
type drawing struct {
	ui   *ui
	w    http.ResponseWriter
	r    *http.Request
	of   *kept
	who  viewer
	from position // the first item of the page

	drawn int // the version of the conversation that the page has; 0 before the first drawing
	facts int // the version of which it has what is known of the whole session
	slow  time.Time
}

// run draws until nothing more comes.
func (d *drawing) run(ctx context.Context) error {
	tick := time.NewTicker(drawEvery)
	defer tick.Stop()
	quiet, more := time.Now(), d.draw(ctx)
	for more {
		select {
		case <-ctx.Done():
			return nil
		case <-access.Draining(ctx):
			return nil // the browser connects again
		case <-tick.C:
		}
		d.of.mu.Lock()
		last, version, facts, ended := d.of.of.last(), d.of.of.version, d.of.of.facts, d.of.ended
		open := last != nil && last.Outcome == ""
		d.of.mu.Unlock()
		switch {
		case version > d.drawn || (open || facts > d.facts) && time.Since(d.slow) > slowEvery: // the facts also after the end of a turn
			quiet, more = time.Now(), d.draw(ctx)
		case time.Since(quiet) > idleEvery:
			quiet, more = time.Now(), send(d.w, []byte(idleMessage))
		}
		more = more && ended == nil
	}
	return nil
}

// partial is a piece of a page, which replaces or extends an element.
func partial(out *bytes.Buffer, target, swap string, body []byte) {
	fmt.Fprintf(out, `<hx-partial hx-target="#%s" hx-swap="%s">%s</hx-partial>`, target, swap, body)
}

// draw sends what has changed; false if the browser has gone.
func (d *drawing) draw(ctx context.Context) bool {
	var out bytes.Buffer
	d.of.mu.Lock()
	turns := d.of.of.copied(d.from, position{}, d.drawn, d.who)
	since := d.drawn
	d.drawn = d.of.of.version
	facts := d.of.of.facts
	d.of.mu.Unlock()
	if since == 0 {
		d.drawAll(&out, turns)
	} else {
		d.drawChanges(&out, turns, since)
	}
	if len(turns) > 0 && time.Since(d.slow) > slowEvery {
		d.slow = time.Now()
		if c := d.ui.near(ctx, d.of, turns[len(turns)-1].N); c != nil {
			d.part(&out, "now", "outerMorph", "now", c)
		}
		if facts > d.facts {
			d.drawFacts(ctx, &out, facts)
		}
	}
	return out.Len() == 0 || send(d.w, message(out.Bytes()))
}

// part draws a block of the page into an element. What cannot be made is not shown.
func (d *drawing) part(out *bytes.Buffer, target, swap, block string, data any) {
	if body, err := d.ui.render(d.r, "session", block, view{Data: data}); err == nil {
		partial(out, target, swap, body)
	}
}

// drawAll draws the whole of what the page shows: it may have missed something.
func (d *drawing) drawAll(out *bytes.Buffer, turns []*turn) {
	var all bytes.Buffer
	for _, t := range turns {
		body, _ := d.ui.render(d.r, "session", "turn", view{Data: t}) // what cannot be made is not shown
		all.Write(body)
	}
	if all.Len() > 0 {
		partial(out, "turns", "innerMorph", all.Bytes())
	}
}

// drawChanges draws turns and items that are new or have changed since a version.
func (d *drawing) drawChanges(out *bytes.Buffer, turns []*turn, since int) {
	for _, t := range turns {
		if t.begun > since {
			d.part(out, "turns", "beforeend", "turn", t)
			continue
		}
		for _, i := range t.Items {
			if i.begun > since {
				d.part(out, fmt.Sprintf("items-%d", t.N), "beforeend", "item", i)
			} else {
				d.part(out, i.ID(), "outerMorph", "item", i)
			}
			if words := i.Spoken(); words != "" {
				partial(out, "announce", "innerHTML", harmless([]byte(html.EscapeString(words))))
			}
		}
		if t.foot > since {
			d.part(out, fmt.Sprintf("foot-%d", t.N), "outerMorph", "foot", t)
		}
	}
}

// drawFacts draws what is known of the whole session.
func (d *drawing) drawFacts(ctx context.Context, out *bytes.Buffer, version int) {
	ctx, cancel := within(ctx)
	defer cancel()
	shown, err := d.ui.describe(ctx, d.of, version)
	if err != nil {
		return // the next ones may be
	}
	d.facts = version
	p := &sessionPage{Session: d.of.id, Of: shown, kept: d.of}
	d.part(out, "facts", "outerMorph", "facts", p)
	d.part(out, "cancel", "outerMorph", "cancel", p)
	partial(out, "calls-count", "innerHTML", []byte(grouped(strconv.Itoa(shown.ToolCalls))))
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
