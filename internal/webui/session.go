package webui

import (
	"context"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// maxItems is how many items of a conversation a page shows at once, and maxCalls how many rows the
// table of a session's calls has.
const (
	maxItems = 150
	maxCalls = 200
)

// sessionPage is the page of a session.
type sessionPage struct {
	Session protocol.SessionID
	Of      *report.Session
	Turns   []*turn // that are drawn
	Tab     string
	Agents  int  // sub-agents
	Live    bool // the page follows the session
	Before  int  // items that are before those which are shown
	Until   string
	Call    *call
	Chart   *chart
	Whole   int64 // bytes of the call's output that are stored
	Listed  []*call
	Page    pages
	Tree    []branch
	Effects []report.Effect
	Others  []report.Session

	kept  *kept
	who   viewer
	drawn position // the first item that is drawn
}

// Drawn is from where on the conversation is drawn.
func (p *sessionPage) Drawn() string { return p.drawn.String() }

// Open reports whether a turn has not ended.
func (p *sessionPage) Open() bool { return p.openTurn() > 0 }

// openTurn is the turn that has not ended; 0 without one.
func (p *sessionPage) openTurn() int {
	p.kept.mu.Lock()
	defer p.kept.mu.Unlock()
	if last := p.kept.of.last(); last != nil && last.Outcome == "" {
		return last.N
	}
	return 0
}

// Runs reports whether something of the session runs or waits that can be cancelled.
func (p *sessionPage) Runs() bool {
	return slices.Contains([]string{
		report.StateOpen, report.StateInUse, report.StateWaitsForApproval, report.StateWaitsForAnswer,
		report.StateWaitsForWorker, report.StateWaitsForCoordinator,
	}, p.Of.State)
}

// call is a call of the session; nil if there is none.
func (p *sessionPage) call(id protocol.CallID) *call {
	p.kept.mu.Lock()
	defer p.kept.mu.Unlock()
	if of := p.kept.of.calls[id]; of != nil {
		return of.copied(p.who)
	}
	return nil
}

// pages leads through a list.
type pages struct {
	N, Next, Prev int // from 1; 0 is none
	Of            int // all that there is
	First, Last   int // that the page shows, from 1
}

// pageOf is the page of a list that a request asks for.
func pageOf(r *http.Request, all, size int) pages {
	n, _ := strconv.Atoi(r.URL.Query().Get("page"))
	p := pages{N: max(1, min(n, (all+size-1)/size)), Of: all}
	p.First, p.Last = (p.N-1)*size+1, min(p.N*size, all)
	if p.Last < all {
		p.Next = p.N + 1
	}
	p.Prev = p.N - 1
	return p
}

// idOf is the session of a request.
func idOf(r *http.Request) protocol.SessionID { return protocol.SessionID(r.PathValue("session")) }

// viewerOf is who sees a page.
func (u *ui) viewerOf(r *http.Request) viewer { return viewer{u.formKey(r), mayApprove(r.Context())} }

// open reads the conversation of a session, which is empty where only the fleet knows of it.
func (u *ui) open(ctx context.Context, r *http.Request) (*sessionPage, error) {
	k, err := u.session(ctx, idOf(r))
	return &sessionPage{Session: idOf(r), kept: k, who: u.viewerOf(r)}, err
}

// load is open with what the fleet says of the session.
func (u *ui) load(ctx context.Context, r *http.Request) (*sessionPage, error) {
	p, err := u.open(ctx, r)
	if err != nil {
		return nil, err
	}
	if turn := p.openTurn(); turn > 0 {
		u.near(ctx, p.kept, turn) // it notes which calls run
	}
	p.kept.mu.Lock()
	version := p.kept.of.stored
	for _, of := range p.kept.of.order {
		if of.Agent {
			p.Agents++
		}
	}
	p.kept.mu.Unlock()
	p.Of, err = u.describe(ctx, p.kept, version)
	return p, err
}

// tab registers a page of a session: fill adds what it shows.
func (u *ui) tab(path, name string, fill func(context.Context, *http.Request, *sessionPage) error) {
	u.page("GET /sessions/{session}"+path, func(ctx context.Context, w http.ResponseWriter, r *http.Request) error {
		p, err := u.load(ctx, r)
		none := errors.Is(err, fleet.ErrNotFound) || err == nil && p.Of.Turns == 0
		if none && r.URL.Query().Has("begins") { // no coordinator has begun its turn yet
			u.show(w, r, http.StatusOK, "begins", view{Title: "The session begins", Section: "sessions", Path: []crumb{{"Sessions", "/sessions"}}, Data: idOf(r)})
			return nil
		}
		if err == nil {
			p.Tab = name
			err = fill(ctx, r, p)
		}
		switch {
		case err != nil:
			return err
		case r.URL.Query().Has("begins"): // the address is that of the session from now on
			u.redirect(w, r, sessionPath(p.Session))
			return nil
		}
		u.showSession(w, r, p, name, p)
		return nil
	})
}

// showSession shows a page of a session.
func (u *ui) showSession(w http.ResponseWriter, r *http.Request, p *sessionPage, name string, data any) {
	title := firstLine(p.Of.Prompt)
	if title == "" {
		title = string(p.Session)
	}
	u.show(w, r, http.StatusOK, name, view{Title: title, Section: "sessions", Path: []crumb{{"Sessions", "/sessions"}}, Data: data})
}

// sessionTabs registers the pages of a session.
func (u *ui) sessionTabs() {
	u.tab("", "session", u.talk)
	u.tab("/calls", "calls-of", func(_ context.Context, r *http.Request, p *sessionPage) error {
		p.kept.mu.Lock()
		defer p.kept.mu.Unlock()
		order := p.kept.of.order
		p.Page = pageOf(r, len(order), maxCalls)
		for _, of := range order[p.Page.First-1 : max(p.Page.First-1, p.Page.Last)] {
			p.Listed = append(p.Listed, of.copied(p.who))
		}
		return nil
	})
	u.tab("/calls/{call}", "call", u.oneCall)
	u.tab("/timeline", "timeline", u.timeline)
	u.tab("/agents", "agents", func(ctx context.Context, _ *http.Request, p *sessionPage) error {
		room := maxAgents
		p.Tree = u.agentsOf(ctx, p.kept, 1, &room)
		return nil
	})
	u.tab("/details", "details", u.details)
	u.page("GET /sessions/{session}/calls/{call}/brief", u.brief)
	u.page("GET /sessions/{session}/export", u.export)
	u.page("GET /sessions/{session}/image", u.image)
}

// talk shows the conversation: its end, or what is before a position.
func (u *ui) talk(ctx context.Context, r *http.Request, p *sessionPage) error {
	p.Until = r.URL.Query().Get("until")
	p.Live = p.Until == ""
	until := positionOf(p.Until)
	p.kept.mu.Lock()
	p.drawn, p.Before = p.kept.of.window(maxItems, until)
	p.Turns = p.kept.of.copied(p.drawn, until, 0, p.who)
	last := p.kept.of.last()
	p.kept.mu.Unlock()
	if last != nil {
		p.Chart = u.near(ctx, p.kept, last.N)
	}
	return nil
}

// find is a call of the session.
func (p *sessionPage) find(id protocol.CallID) error {
	if p.Call = p.call(id); p.Call == nil {
		return fmt.Errorf("call %s of session %s: %w", id, p.Session, fleet.ErrNotFound)
	}
	return nil
}

// oneCall shows all that is known of a call.
func (u *ui) oneCall(ctx context.Context, r *http.Request, p *sessionPage) error {
	if err := p.find(protocol.CallID(r.PathValue("call"))); err != nil {
		return err
	}
	p.Whole = u.wholeSize(ctx, p.Session, p.Call.ID)
	return u.wholeResult(ctx, p)
}

// wholeResult reads the whole result of the call of a page, as the model has it.
func (u *ui) wholeResult(ctx context.Context, p *sessionPage) error {
	if p.Call.at == "" {
		return nil
	}
	e, err := u.all().Event(ctx, p.Session, p.Call.at)
	p.Call.Content = e.Content
	return err
}

// brief shows next to a conversation what is known of a call.
func (u *ui) brief(ctx context.Context, w http.ResponseWriter, r *http.Request) error {
	p, err := u.open(ctx, r)
	if err == nil {
		err = p.find(protocol.CallID(r.PathValue("call")))
	}
	if err != nil {
		return err
	}
	u.write(w, r, http.StatusOK, "call", "about-call", view{Data: p.Call})
	return nil
}

// maxAgents bounds how many sub-agents a page looks at, and maxDepth how deep.
const (
	maxAgents = 60
	maxDepth  = 5
)

// branch is a sub-agent with its own ones.
type branch struct {
	Call     *call
	Session  *report.Session // nil if it has not begun, or is not to be seen
	Branches []branch
}

// agentsOf is the tree of sub-agents below a session.
func (u *ui) agentsOf(ctx context.Context, k *kept, depth int, room *int) (tree []branch) {
	k.mu.Lock()
	var agents []*call
	for _, of := range k.of.order {
		if of.Agent {
			agents = append(agents, of.copied(viewer{}))
		}
	}
	k.mu.Unlock()
	for _, of := range agents {
		if *room--; *room < 0 {
			break
		}
		b := branch{Call: of}
		below, err := u.session(ctx, protocol.SessionID(of.ID))
		var shown *report.Session
		if err == nil {
			shown, err = u.describe(ctx, below, 0)
		}
		if err == nil && shown.Parent == k.id { // a call of an imported session may have the id of any session
			if b.Session = shown; depth < maxDepth {
				b.Branches = u.agentsOf(ctx, below, depth+1, room)
			}
		}
		tree = append(tree, b)
	}
	return tree
}

// maxOthers is how many other sessions a page offers to be compared or merged.
const maxOthers = 50

// details shows what else is known of a session, and what can be done with it.
func (u *ui) details(ctx context.Context, _ *http.Request, p *sessionPage) (err error) {
	p.Effects, err = u.of(ctx, p.Session).Effects(ctx, p.Session, fleet.At{Turn: -1})
	if err != nil && !errors.Is(err, fleet.ErrNotFound) {
		return err
	}
	if p.Others, _, err = u.list(ctx, maxOthers, true); err == nil {
		p.Others = slices.DeleteFunc(slices.Clone(p.Others), func(s report.Session) bool { return s.SessionID == p.Session })
	}
	return err
}

// export sends the events of a session as a file.
func (u *ui) export(ctx context.Context, w http.ResponseWriter, r *http.Request) error {
	history, err := u.of(ctx, idOf(r)).Log(ctx, idOf(r))
	if err != nil {
		return err
	}
	asFile(w, "application/x-ndjson", "session-"+string(idOf(r))+".jsonl")
	_ = history.Export(w, idOf(r)) // the browser has gone
	return nil
}

// asFile has a browser save an answer, and never show it.
func asFile(w http.ResponseWriter, kind, name string) {
	name = strings.Map(func(r rune) rune {
		if unseen(r) || r == '/' || r == '\\' {
			return '_'
		}
		return r
	}, name)
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": name}))
}

// image sends an image that a tool has returned, or that a person has sent: of a type that cannot
// hold a script, and with nothing that it could load.
func (u *ui) image(ctx context.Context, w http.ResponseWriter, r *http.Request) error {
	p, err := u.open(ctx, r)
	if err != nil {
		return err
	}
	found, err := u.imageOf(ctx, p, r.URL.Query())
	if err != nil {
		return err
	}
	if found == nil || len(found.Data) == 0 {
		return fmt.Errorf("image of session %s: %w", p.Session, fleet.ErrNotFound)
	}
	w.Header().Set("Content-Security-Policy", "default-src 'none'; sandbox")
	if slices.Contains(pictures(), found.MediaType) {
		w.Header().Set("Content-Type", found.MediaType)
		w.Header().Set("Content-Disposition", "inline")
		w.Header().Set("Cache-Control", "private, max-age=600")
	} else {
		asFile(w, "application/octet-stream", "document")
	}
	_, _ = w.Write(found.Data) // never shown as a page; an error says that the browser has gone
	return nil
}

// imageOf is the image of a call, or the file of a turn; nil if there is none.
func (u *ui) imageOf(ctx context.Context, p *sessionPage, query url.Values) (*loop.Image, error) {
	id, file := "", -1
	if query.Has("call") {
		if of := p.call(protocol.CallID(query.Get("call"))); of != nil {
			id = of.at
		}
	} else {
		n, _ := strconv.Atoi(query.Get("turn"))
		var err error
		if file, err = strconv.Atoi(query.Get("file")); err != nil {
			file = -1
		}
		p.kept.mu.Lock()
		for _, t := range p.kept.of.Turns {
			if t.N == n && file >= 0 && file < len(t.Files) {
				id = t.at
			}
		}
		p.kept.mu.Unlock()
	}
	if id == "" {
		return nil, nil //nolint:nilnil // see above
	}
	e, err := u.all().Event(ctx, p.Session, id)
	switch {
	case err != nil:
		return nil, err
	case file < 0:
		return e.Image, nil
	case file < len(e.Attachments):
		return &e.Attachments[file].Image, nil
	}
	return nil, nil //nolint:nilnil // see above
}
