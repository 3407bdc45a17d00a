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
	*conversation

	Of      *report.Session
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

// sessionPath is the address of a session.
func sessionPath(id protocol.SessionID) string { return "/sessions/" + url.PathEscape(string(id)) }

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
	c.may = mayApprove(ctx)
	for i := range history.Events {
		c.add(&history.Events[i])
	}
	return &sessionPage{conversation: c, Of: shown, Agents: len(c.agents())}, nil
}

// tab registers a page of a session: fill adds what it shows.
func (u *ui) tab(path, name string, fill func(context.Context, *http.Request, *sessionPage) error) {
	u.page("GET /sessions/{session}"+path, func(w http.ResponseWriter, r *http.Request) error {
		ctx, cancel := within(r.Context())
		defer cancel()
		p, err := u.load(ctx, r)
		if errors.Is(err, fleet.ErrNotFound) && r.URL.Query().Has("begins") { // no coordinator has taken its turn yet
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
		p.Page = pageOf(r, len(p.order), maxCalls)
		p.Listed = p.order[p.Page.First-1 : max(p.Page.First-1, p.Page.Last)]
		return nil
	})
	u.tab("/calls/{call}", "call", u.oneCall)
	u.tab("/timeline", "timeline", u.timeline)
	u.tab("/agents", "agents", func(ctx context.Context, _ *http.Request, p *sessionPage) error {
		room := maxAgents
		p.Tree = u.agentsOf(ctx, p.conversation, 1, &room)
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
	p.Before = p.window(maxItems, positionOf(p.Until))
	p.Live = p.Until == ""
	if last := p.Last(); last != nil {
		p.Chart = u.near(ctx, p.Session, last.N)
	}
	return nil
}

// find is a call of the session.
func (p *sessionPage) find(id protocol.CallID) error {
	if p.Call = p.calls[id]; p.Call == nil {
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
	return nil
}

// brief shows next to a conversation what is known of a call.
func (u *ui) brief(w http.ResponseWriter, r *http.Request) error {
	ctx, cancel := within(r.Context())
	defer cancel()
	p, err := u.load(ctx, r)
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

// agentsOf is the tree of sub-agents below a conversation.
func (u *ui) agentsOf(ctx context.Context, c *conversation, depth int, room *int) (tree []branch) {
	for _, of := range c.agents() {
		if *room--; *room < 0 {
			break
		}
		b := branch{Call: of}
		child := protocol.SessionID(of.ID)
		shown, err := u.Local.Show(ctx, child)
		if err == nil && shown.Parent == c.Session { // a call of an imported session may have the id of any session
			b.Session = shown
			if history, err := u.all().Log(ctx, child); err == nil && depth < maxDepth {
				inner := newConversation(child, c.Key)
				inner.pieces = true
				for i := range history.Events {
					inner.add(&history.Events[i])
				}
				b.Branches = u.agentsOf(ctx, inner, depth+1, room)
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
func (u *ui) export(w http.ResponseWriter, r *http.Request) error {
	ctx, cancel := within(r.Context())
	defer cancel()
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
func (u *ui) image(w http.ResponseWriter, r *http.Request) error {
	ctx, cancel := within(r.Context())
	defer cancel()
	p, err := u.load(ctx, r)
	if err != nil {
		return err
	}
	found := p.imageOf(r.URL.Query())
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
func (p *sessionPage) imageOf(query url.Values) *loop.Image {
	if id := query.Get("call"); id != "" {
		if of := p.calls[protocol.CallID(id)]; of != nil {
			return of.Image
		}
		return nil
	}
	n, _ := strconv.Atoi(query.Get("turn"))
	at, err := strconv.Atoi(query.Get("file"))
	for _, t := range p.Turns {
		if t.N == n && err == nil && at >= 0 && at < len(t.Files) {
			return &t.Files[at].Image
		}
	}
	return nil
}
