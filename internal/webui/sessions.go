package webui

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/system/moment"
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

// maxSessions is how many sessions a list reads at least, maxFiltered how many its filters look at,
// sessionRows how many rows a page has, and maxFound how many passages a search shows.
const (
	maxSessions = 100
	maxFiltered = 5000
	sessionRows = 50
	maxFound    = 30
)

// listLife is how long a list of sessions is shown to the same principal without being read again.
const listLife = 2 * time.Second

// listed is a list that is read by one request at a time.
type listed struct {
	mu      sync.Mutex
	at      time.Time
	most    int
	list    []report.Session
	leftOut int
}

// maxLists bounds the principals whose lists are kept.
const maxLists = 64

// list returns the sessions that changed last. Pages that are open for the same principal, and
// renew themselves, share one reading.
func (u *ui) list(ctx context.Context, most int, renews bool) (list []report.Session, leftOut int, err error) {
	who := watcher(ctx)
	of := u.lists.Make(who, func() *listed { return &listed{} })
	u.lists.Resize(who, of, 0)
	of.mu.Lock()
	defer of.mu.Unlock()
	if !renews || time.Since(of.at) > listLife || of.most < most {
		if of.list, of.leftOut, err = u.Local.List(ctx, most); err != nil {
			of.at = time.Time{}
			return nil, 0, err
		}
		of.list = slices.DeleteFunc(of.list, func(s report.Session) bool { return s.Turns == 0 && s.State == "" }) // there is nothing to show
		of.at, of.most = time.Now(), most
	}
	n := min(most, len(of.list))
	return of.list[:n], of.leftOut + len(of.list) - n, nil
}

// sessionFilter says which sessions a page lists.
type sessionFilter struct {
	Words, State, Model, Tool, Since, Tenant string
}

// filterOf is the filter of a request.
func filterOf(r *http.Request) (f sessionFilter) {
	for name, value := range f.fields() {
		*value = strings.TrimSpace(r.URL.Query().Get(name))
	}
	return f
}

func (f *sessionFilter) fields() map[string]*string {
	return map[string]*string{"q": &f.Words, "state": &f.State, "model": &f.Model, "tool": &f.Tool, "since": &f.Since, "tenant": &f.Tenant}
}

// query is the filter as addresses have it, with other values, as names and values.
func (f sessionFilter) query(values ...string) url.Values {
	query := url.Values{}
	for name, value := range f.fields() {
		query = changed(query, name, *value)
	}
	return changed(query, values...)
}

// chip is a filter that is set, and the address of the list without it.
type chip struct{ Name, Value, Without string }

// chips are the filters that are set.
func (f sessionFilter) chips() (chips []chip) {
	for _, name := range []string{"q", "state", "model", "tool", "since", "tenant"} {
		if value := *f.fields()[name]; value != "" {
			chips = append(chips, chip{cmp.Or(map[string]string{"q": "words"}[name], name), value, withQuery("/sessions", f.query(name, ""))})
		}
	}
	return chips
}

// sessionList is the page of sessions.
type sessionList struct {
	sessionFilter

	Sessions []report.Session
	Page     pages
	LeftOut  int // sessions that no filter has looked at
	Newer    int // sessions that changed and are not shown
	Chips    []chip
	States   []string
	Models   []string
	Tenants  []string
	Found    report.Found
	Fault    string          // why nothing was searched
	Reach    protocol.Tenant // the only one whose sessions the principal sees; "" is each
	Shown    string          // the ids of the rows
}

// Start is the address of the first page.
func (p *sessionList) Start() string { return withQuery("/sessions", p.query()) }

// To is the address of a page, from 1.
func (p *sessionList) To(page int) string {
	return withQuery("/sessions", p.query("page", strconv.Itoa(page)))
}

// Again is the address of the rows that the page has, as they are now.
func (p *sessionList) Again() string { return again("/sessions", p.query(), p.Shown) }

// sessions lists those that changed last; with "shown", the same rows as before, as they are now.
func (u *ui) sessions(ctx context.Context, w http.ResponseWriter, r *http.Request) error {
	p := &sessionList{sessionFilter: filterOf(r), Reach: judge.Of(ctx).Reach()}
	n, _ := strconv.Atoi(r.URL.Query().Get("page"))
	most := max(maxSessions, min(n, maxFiltered/sessionRows)*sessionRows)
	filtered := p.sessionFilter != (sessionFilter{})
	if filtered {
		most = maxFiltered
	}
	list, leftOut, err := u.list(ctx, most, r.URL.Query().Has("shown"))
	if err != nil {
		return err
	}
	if p.Chips = p.chips(); filtered {
		p.LeftOut = leftOut
	}
	p.choices(list)
	matching, err := u.matching(ctx, list, p.sessionFilter)
	if err != nil {
		p.Fault = err.Error()
	}
	if r.URL.Query().Has("shown") {
		shown := strings.SplitN(r.URL.Query().Get("shown"), ",", sessionRows+1)
		p.again(list, matching, shown[:min(len(shown), sessionRows)])
		u.write(w, r, http.StatusOK, "sessions", "again", view{Data: p})
		return nil
	}
	all := len(matching)
	if !filtered {
		all += leftOut
	}
	p.Page = pageOf(r, all, sessionRows)
	p.Sessions = matching[min(p.Page.First-1, len(matching)):min(max(p.Page.First-1, p.Page.Last), len(matching))]
	p.note()
	if p.Words != "" {
		if p.Found, err = u.all().Search(ctx, fleet.Search{Words: p.Words, Limit: maxFound}); err != nil {
			p.Fault = err.Error()
		}
	}
	u.show(w, r, http.StatusOK, "sessions", view{Title: "Sessions", Section: "sessions", Data: p})
	return nil
}

// note notes the rows, so that they can be asked for again.
func (p *sessionList) note() {
	ids := make([]string, len(p.Sessions))
	for i := range p.Sessions {
		ids[i] = string(p.Sessions[i].SessionID)
	}
	p.Shown = strings.Join(ids, ",")
}

// again are the rows that a page has, in their order, and how many came above them since.
func (p *sessionList) again(list, matching []report.Session, shown []string) {
	at := map[string]int{}
	for i := range list {
		at[string(list[i].SessionID)] = i
	}
	for _, id := range shown {
		if i, is := at[id]; is {
			p.Sessions = append(p.Sessions, list[i])
		}
	}
	p.note()
	for i := range matching {
		if slices.Contains(shown, string(matching[i].SessionID)) {
			break
		}
		p.Newer++
	}
}

// choices are the values that filters offer.
func (p *sessionList) choices(list []report.Session) {
	for i := range list {
		p.States = append(p.States, report.StateWords(list[i].State))
		p.Models = append(p.Models, list[i].Model)
		p.Tenants = append(p.Tenants, string(list[i].Tenant))
	}
	for _, values := range []*[]string{&p.States, &p.Models, &p.Tenants} {
		slices.Sort(*values)
		*values = slices.DeleteFunc(slices.Compact(*values), func(s string) bool { return s == "" })
		*values = (*values)[:min(len(*values), 100)]
	}
}

// matching are the sessions that a filter lets through.
func (u *ui) matching(ctx context.Context, list []report.Session, f sessionFilter) ([]report.Session, error) {
	if f == (sessionFilter{}) {
		return list, nil
	}
	var since time.Time
	if f.Since != "" {
		m, err := moment.Parse(f.Since)
		if err != nil {
			return nil, fmt.Errorf("%w: changed within %w", fleet.ErrInvalid, err)
		}
		since = m.Before(time.Now())
	}
	withTool, err := u.withTool(ctx, f.Tool, since)
	var found []report.Session
	for i := range list {
		s := &list[i]
		if matches(s, f) && !s.UpdatedAt.Before(since) && (f.Tool == "" || withTool[s.SessionID]) {
			found = append(found, *s)
		}
	}
	return found, err
}

// matches reports whether a session has what a filter wants, but for its time and its tools.
func matches(s *report.Session, f sessionFilter) bool {
	if f.State != "" && report.StateWords(s.State) != report.StateWords(f.State) || f.Model != "" && s.Model != f.Model || f.Tenant != "" && string(s.Tenant) != f.Tenant {
		return false
	}
	text := strings.ToLower(strings.Join([]string{string(s.SessionID), s.Prompt, s.State, report.StateWords(s.State), s.Model, s.By, s.Workspace, string(s.Tenant)}, " "))
	for word := range strings.FieldsSeq(strings.ToLower(f.Words)) {
		if !strings.Contains(text, word) {
			return false
		}
	}
	return true
}

// maxLogPages bounds how many pages of the call log a filter reads.
const maxLogPages = 20

// withTool are the sessions that have called a tool; nil without one.
func (u *ui) withTool(ctx context.Context, tool string, since time.Time) (map[protocol.SessionID]bool, error) {
	if tool == "" {
		return nil, nil //nolint:nilnil // every session
	}
	with := map[protocol.SessionID]bool{}
	query := fleet.CallQuery{Tool: tool, Since: since, Limit: 1000}
	for range maxLogPages {
		found, err := u.Client.Calls(ctx, query)
		if err != nil {
			return with, err
		}
		for i := range found.Calls {
			with[found.Calls[i].SessionID] = true
		}
		if query.After = found.Next; query.After == "" {
			break
		}
	}
	return with, nil
}

// startSession begins a session with a turn.
func (u *ui) startSession(ctx context.Context, w http.ResponseWriter, r *http.Request) error {
	id := protocol.NewSessionID()
	of, err := u.using(ctx, id, "send")
	if err != nil {
		return err
	}
	turn, err := turnOf(r)
	if err != nil {
		return err
	}
	turn.Session, turn.Model = id, strings.TrimSpace(r.PostFormValue("model"))
	ref, err := of.Submit(ctx, turn)
	if err != nil {
		return err
	}
	u.redirect(w, r, sessionPath(ref.SessionID)+"?begins")
	return nil
}

// waits shows what waits for a person.
func (u *ui) waits(ctx context.Context, w http.ResponseWriter, r *http.Request) error {
	list, err := u.all().Approvals(ctx)
	if err != nil {
		return err
	}
	p := waitsPage{}
	shown := strings.FieldsFunc(r.URL.Query().Get("shown"), func(r rune) bool { return r == ',' })
	p.Gone = slices.Clone(shown[:min(len(shown), maxWaits)])
	for i := range list[:min(len(list), maxWaits)] {
		id := string(list[i].CallID)
		p.Gone = slices.DeleteFunc(p.Gone, func(gone string) bool { return gone == id })
		p.Shown += id + ","
		if !slices.Contains(shown, id) {
			p.New = append(p.New, u.waitingOf(r, &list[i]))
		}
	}
	if r.URL.Query().Has("shown") {
		u.write(w, r, http.StatusOK, "waits", "changes", view{Data: p})
		return nil
	}
	u.show(w, r, http.StatusOK, "waits", view{Title: "Waits for you", Section: "waits", Data: p})
	return nil
}

// maxWaits is how many calls that wait for a person a page shows.
const maxWaits = 50

// waitsPage is the page of what waits for a person: all of it, or what has changed since.
type waitsPage struct {
	New   []waiting
	Gone  []string // calls that wait no more
	Shown string   // the ids of the calls that wait
}

// Again is the address of what has changed since.
func (p waitsPage) Again() string { return again("/waits", url.Values{}, p.Shown) }

// waiting is a call that waits for a person: for an approval, or for an answer.
type waiting struct {
	report.Question

	Ask  *approval
	Form *questionForm
}

// mayApprove reports whether a role may approve calls. Whether it may in a session is judged with
// the answer.
func mayApprove(ctx context.Context) bool {
	role := judge.Of(ctx).Role
	return role == "" || role == judge.RoleOperate
}

func (u *ui) waitingOf(r *http.Request, q *report.Question) waiting {
	made := waiting{Question: *q}
	if q.Question != nil {
		made.Form = formOf(q.SessionID, q.CallID, q.Pool(), q.Question, u.formKey(r), "/waits")
		return made
	}
	made.Ask = &approval{
		Session: q.SessionID, Call: q.CallID, Key: u.formKey(r), Tool: q.Tool, Arguments: q.Arguments, Rule: q.Rule, Source: q.Source,
		Reason: q.Reason, Scope: q.Scope, Since: q.AskedAt, To: "/waits", May: mayApprove(r.Context()),
	}
	return made
}

// waitsCount shows how many calls wait for a person.
func (u *ui) waitsCount(ctx context.Context, w http.ResponseWriter, r *http.Request) error {
	list, err := u.all().Approvals(ctx)
	if err != nil {
		return err
	}
	u.write(w, r, http.StatusOK, "waits", "count", view{Data: len(list)})
	return nil
}
