package webui

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/access"
	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// all are the sessions of the fleet.
func (u *ui) all() fleet.Sessions { return u.Client.Sessions(u.Pool) }

// of are the sessions of the pool that has the sandbox of a session.
func (u *ui) of(ctx context.Context, id protocol.SessionID) fleet.Sessions {
	return u.Client.Sessions(u.Local.Pool(ctx, id))
}

// maxSessions is how many sessions a page lists.
const maxSessions = 200

// maxFound is how many passages a search shows.
const maxFound = 30

// sessionList is the page of sessions.
type sessionList struct {
	Sessions []report.Session
	LeftOut  int
	Filter   string
	Found    report.Found
	Fault    string // why nothing was searched
}

// sessions lists those that changed last.
func (u *ui) sessions(w http.ResponseWriter, r *http.Request) error {
	ctx, cancel := within(r.Context())
	defer cancel()
	list, leftOut, err := u.Local.List(ctx, maxSessions)
	if err != nil {
		return err
	}
	p := sessionList{Sessions: list, LeftOut: leftOut, Filter: strings.TrimSpace(r.URL.Query().Get("q"))}
	if p.Filter != "" {
		p.Sessions = slices.DeleteFunc(list, func(s report.Session) bool { return !matches(&s, p.Filter) })
		if p.Found, err = u.all().Search(ctx, fleet.Search{Words: p.Filter, Limit: maxFound}); err != nil {
			p.Fault = err.Error()
		}
	}
	u.show(w, r, http.StatusOK, "sessions", view{Title: "Sessions", Section: "sessions", Data: p})
	return nil
}

// matches reports whether a session has each word of a filter.
func matches(s *report.Session, filter string) bool {
	text := strings.ToLower(strings.Join([]string{string(s.SessionID), s.Prompt, s.State, stateOf(s.State).Word, s.Model, s.By, s.Workspace, string(s.Tenant)}, " "))
	for word := range strings.FieldsSeq(strings.ToLower(filter)) {
		if !strings.Contains(text, word) {
			return false
		}
	}
	return true
}

// startSession begins a session with a turn.
func (u *ui) startSession(w http.ResponseWriter, r *http.Request) error {
	ctx, cancel := within(r.Context())
	defer cancel()
	id := protocol.NewSessionID()
	of, err := u.using(ctx, id, "send")
	if err != nil {
		return err
	}
	ref, err := of.Submit(ctx, fleet.Turn{Session: id, Prompt: r.PostFormValue("prompt"), Model: strings.TrimSpace(r.PostFormValue("model"))})
	if err != nil {
		return err
	}
	u.redirect(w, r, "/sessions/"+url.PathEscape(string(ref.SessionID)))
	return nil
}

// sessionPage is the page of a session.
type sessionPage struct {
	*conversation

	Of      *report.Session
	Tab     string
	Changed int
	Live    bool // the page follows the session
	Call    *call
}

// idOf is the session of a request.
func idOf(r *http.Request) protocol.SessionID { return protocol.SessionID(r.PathValue("session")) }

// load reads a session.
func (u *ui) load(ctx context.Context, r *http.Request) (*sessionPage, error) {
	id := idOf(r)
	shown, err := u.Local.Show(ctx, id)
	if err != nil {
		return nil, err
	}
	history, err := u.all().Log(ctx, id)
	if err != nil && !errors.Is(err, fleet.ErrNotFound) {
		return nil, err
	}
	c := newConversation(id, u.formKey(r))
	for i := range history.Events {
		c.add(&history.Events[i])
	}
	return &sessionPage{conversation: c, Of: shown}, nil
}

// showSession shows a tab of a session.
func (u *ui) showSession(w http.ResponseWriter, r *http.Request, p *sessionPage, name string) {
	title := firstLine(p.Of.Prompt)
	if title == "" {
		title = string(p.Session)
	}
	u.show(w, r, http.StatusOK, name, view{Title: title, Section: "sessions", Path: []crumb{{"Sessions", "/sessions"}}, Data: p})
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	if runes := []rune(line); len(runes) > 80 {
		line = string(runes[:79]) + "…"
	}
	return line
}

// session shows the conversation.
func (u *ui) session(w http.ResponseWriter, r *http.Request) error {
	ctx, cancel := within(r.Context())
	defer cancel()
	p, err := u.load(ctx, r)
	if err != nil {
		return err
	}
	p.Tab, p.Live = "conversation", true
	u.showSession(w, r, p, "session")
	return nil
}

// sessionCall shows all that is known of a call.
func (u *ui) sessionCall(w http.ResponseWriter, r *http.Request) error {
	ctx, cancel := within(r.Context())
	defer cancel()
	p, err := u.load(ctx, r)
	if err != nil {
		return err
	}
	id := protocol.CallID(r.PathValue("call"))
	if p.Call = p.calls[id]; p.Call == nil {
		return fmt.Errorf("call %s of session %s: %w", id, p.Session, fleet.ErrNotFound)
	}
	p.Tab = "call"
	u.showSession(w, r, p, "call")
	return nil
}

// timeline shows what each turn took.
func (u *ui) timeline(w http.ResponseWriter, r *http.Request) error {
	ctx, cancel := within(r.Context())
	defer cancel()
	p, err := u.load(ctx, r)
	if err != nil {
		return err
	}
	p.Tab = "timeline"
	u.showSession(w, r, p, "timeline")
	return nil
}

// filesPage is the workspace of a session after a call.
type filesPage struct {
	*sessionPage

	At      protocol.CallID
	Files   []report.File
	Changes []report.Change
	Path    string
	Text    string
	Binary  int
	Diff    string
}

// sessionFiles lists the files of a session's workspace.
func (u *ui) sessionFiles(w http.ResponseWriter, r *http.Request) error {
	ctx, cancel := within(r.Context())
	defer cancel()
	p, err := u.load(ctx, r)
	if err != nil {
		return err
	}
	p.Tab = "files"
	f := &filesPage{sessionPage: p, At: protocol.CallID(r.URL.Query().Get("at"))}
	if f.Files, err = u.of(ctx, p.Session).Files(ctx, p.Session, f.At); err != nil {
		return err
	}
	if f.Changes, err = u.of(ctx, p.Session).Changes(ctx, p.Session); err != nil {
		return err
	}
	if f.At != "" {
		if f.Diff, err = u.of(ctx, p.Session).Diff(ctx, p.Session, f.At); err != nil {
			return err
		}
	}
	u.showFiles(w, r, f)
	return nil
}

// sessionFile shows a file.
func (u *ui) sessionFile(w http.ResponseWriter, r *http.Request) error {
	ctx, cancel := within(r.Context())
	defer cancel()
	p, err := u.load(ctx, r)
	if err != nil {
		return err
	}
	p.Tab = "files"
	f := &filesPage{sessionPage: p, At: protocol.CallID(r.URL.Query().Get("at")), Path: r.URL.Query().Get("path")}
	content, err := u.of(ctx, p.Session).ReadFile(ctx, p.Session, f.Path, f.At)
	if err != nil {
		return err
	}
	if f.Text = string(content); bytes.IndexByte(content, 0) >= 0 {
		f.Text, f.Binary = "", len(content)
	}
	u.showFiles(w, r, f)
	return nil
}

func (u *ui) showFiles(w http.ResponseWriter, r *http.Request, f *filesPage) {
	title := firstLine(f.Of.Prompt)
	u.show(w, r, http.StatusOK, "files", view{Title: title, Section: "sessions", Path: []crumb{{"Sessions", "/sessions"}}, Data: f})
}

// using is of, for acts that take a process that runs the session, or a turn.
func (u *ui) using(ctx context.Context, id protocol.SessionID, act string) (fleet.Sessions, error) {
	switch act {
	case "send", "restore", "remove":
		pool, err := u.Local.Use(ctx, id, act == "send")
		return u.Client.Sessions(pool), err
	default:
		return u.of(ctx, id), nil
	}
}

// act does what a person asks of a session.
func (u *ui) act(w http.ResponseWriter, r *http.Request) error {
	ctx, cancel := within(r.Context())
	defer cancel()
	id, call := idOf(r), protocol.CallID(r.PostFormValue("call"))
	act := r.PathValue("act")
	of, err := u.using(ctx, id, act)
	if err != nil {
		return err
	}
	switch act {
	case "send":
		_, err = of.Submit(ctx, fleet.Turn{Session: id, Prompt: r.PostFormValue("prompt")})
	case "approve", "refuse":
		err = of.Approve(ctx, id, call, protocol.Approval{Granted: act == "approve", By: judge.Of(r.Context()).Name, Note: r.PostFormValue("note")})
	case "answer":
		answer := protocol.Answer{Question: r.PostFormValue("question"), Action: protocol.Action(r.PostFormValue("action")), By: judge.Of(r.Context()).Name}
		if content := strings.TrimSpace(r.PostFormValue("content")); content != "" && answer.Action == protocol.ActionAccept {
			answer.Content = []byte(content)
		}
		err = of.Answer(ctx, id, call, answer)
	case "cancel":
		_, err = u.Local.Cancel(ctx, id)
	case "fork":
		var made protocol.SessionID
		made = protocol.NewSessionID()
		if _, err = of.Fork(ctx, id, fleet.At{Call: call}, made); err == nil {
			id = made
		}
	case "restore":
		_, _, err = of.Restore(ctx, id, call)
	case "remove":
		if _, err = of.Remove(ctx, id, false); err == nil {
			u.redirect(w, r, "/sessions")
			return nil
		}
	default:
		err = fmt.Errorf("%w: %q: must be send, approve, refuse, answer, cancel, fork, restore or remove", fleet.ErrInvalid, act)
	}
	if err != nil {
		return err
	}
	u.redirect(w, r, "/sessions/"+url.PathEscape(string(id)))
	return nil
}

// waits shows what waits for a person.
func (u *ui) waits(w http.ResponseWriter, r *http.Request) error {
	ctx, cancel := within(r.Context())
	defer cancel()
	list, err := u.all().Approvals(ctx)
	if err != nil {
		return err
	}
	u.show(w, r, http.StatusOK, "waits", view{Title: "Waits for you", Section: "waits", Data: list})
	return nil
}

// waitsCount shows how many calls wait for a person.
func (u *ui) waitsCount(w http.ResponseWriter, r *http.Request) error {
	ctx, cancel := within(r.Context())
	defer cancel()
	list, err := u.all().Approvals(ctx)
	if err != nil {
		return err
	}
	u.write(w, r, http.StatusOK, "waits", "count", view{Data: len(list)})
	return nil
}

// drawEvery is how long a page that follows a session waits at least between two drawings.
const drawEvery = 120 * time.Millisecond

// live sends the open turn of a session whenever it changes, until the browser has gone.
func (u *ui) live(w http.ResponseWriter, r *http.Request) error {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	c, next := newConversation(idOf(r), u.formKey(r)), make(chan passed, 64)
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
		return cmpError(first.err)
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.WriteHeader(http.StatusOK)
	s := &drawing{ui: u, w: w, r: r, of: c, shown: map[int][]byte{}}
	s.take(first)
	return s.run(ctx, next)
}

func cmpError(err error) error {
	if err == nil {
		return fleet.ErrNotFound
	}
	return err
}

// passed is one of a session's events, or why there are no more.
type passed struct {
	fleet.Passed

	err error
}

// drawing draws what changes of a session.
type drawing struct {
	ui      *ui
	w       http.ResponseWriter
	r       *http.Request
	of      *conversation
	shown   map[int][]byte // turns, as they were drawn
	changed bool
	ended   error
}

// take adds what was passed on.
func (d *drawing) take(p passed) {
	switch {
	case p.err != nil:
		d.ended = p.err
	case p.Event != nil:
		d.of.add(p.Event)
	case p.Output != nil:
		d.of.write(p.CallID, p.Output)
	}
	d.changed = true
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
				d.draw()
				return nil
			}
			d.take(p)
		case <-tick.C:
			switch {
			case d.changed && !d.draw():
				return nil
			case time.Since(quiet) > 15*time.Second:
				if !d.send([]byte(": \n\n")) {
					return nil
				}
			default:
				continue
			}
			quiet = time.Now()
		}
	}
}

// draw sends the turns that changed; false if the browser has gone.
func (d *drawing) draw() bool {
	d.changed = false
	var out bytes.Buffer
	for _, t := range d.of.Turns {
		if d.shown[t.N] != nil && t != d.of.Last() && !t.Left {
			continue
		}
		body, err := d.ui.render(d.r, "session", "turn", view{Data: t})
		if err != nil || bytes.Equal(body, d.shown[t.N]) {
			continue
		}
		if d.shown[t.N] = body; true {
			fmt.Fprintf(&out, `<hx-partial hx-target="#turn-%d" hx-swap="outerMorph">%s</hx-partial>`, t.N, body)
		}
	}
	if last := d.of.Last(); last != nil {
		state, err := d.ui.render(d.r, "session", "now", view{Data: last})
		if err == nil {
			fmt.Fprintf(&out, `<hx-partial hx-target="#now" hx-swap="outerMorph">%s</hx-partial>`, state)
		}
	}
	if out.Len() == 0 {
		return true
	}
	return d.send(message(out.Bytes()))
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

func (d *drawing) send(body []byte) bool {
	if _, err := d.w.Write(body); err != nil {
		return false
	}
	return http.NewResponseController(d.w).Flush() == nil
}
