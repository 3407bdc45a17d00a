package webui

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/session/timeline"
	"github.com/toolfleet/toolfleet/internal/system/moment"
	"github.com/toolfleet/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// callsOnPage is how many calls of the log a page lists.
const callsOnPage = 50

// choice is one of the values of a filter.
type choice struct {
	Value, Word string
	On          bool
}

// filter is a filter of the log that is set.
type filter struct{ Name, Value, Without string }

// callsPage is a page of the log.
type callsPage struct {
	report.CallLog

	Query    url.Values
	Statuses []choice
	Times    []choice
	Filters  []filter
	NextPage string
	First    bool
	Fault    string // why the filters are not understood
}

// callFilters are the filters that the form has, in its order.
var callFilters = []string{"text", "tool", "session", "lane", "tenant", "worker"} //nolint:gochecknoglobals // a constant

// Fields are the filters of the form.
func (p *callsPage) Fields() (fields []field) {
	for _, name := range callFilters {
		fields = append(fields, field{name, p.Query.Get(name)})
	}
	return fields
}

// to is the address of the log with the filters of the page, and another value of one; "" is none.
// It begins at the first page.
func (p *callsPage) to(name, value string) string {
	return withQuery("/calls", changed(p.Query, "after", "", name, value))
}

// Start is the address of the first page.
func (p *callsPage) Start() string { return p.to("after", "") }

// statuses are those of calls that ended.
var statuses = []protocol.Status{ //nolint:gochecknoglobals // a constant
	protocol.StatusOK, protocol.StatusFailed, protocol.StatusTimeout, protocol.StatusCancelled, protocol.StatusRejected, protocol.StatusOutcomeUnknown,
}

// callQuery is the query of the log that a request has.
func callQuery(q url.Values) (fleet.CallQuery, error) {
	made := fleet.CallQuery{
		Session: protocol.SessionID(q.Get("session")), Tool: q.Get("tool"), Lane: q.Get("lane"),
		Tenant: protocol.Tenant(q.Get("tenant")), Worker: protocol.WorkerID(q.Get("worker")),
		Text: q.Get("text"), After: q.Get("after"), Limit: callsOnPage,
	}
	if status := q.Get("status"); status != "" {
		made.Status = []protocol.Status{protocol.Status(status)}
	}
	if since := q.Get("since"); since != "" {
		m, err := moment.Parse(since)
		if err != nil {
			return made, fmt.Errorf("%w: since %w", fleet.ErrInvalid, err)
		}
		made.Since = m.Before(time.Now())
	}
	return made, nil
}

// calls lists the log of calls.
func (u *ui) calls(ctx context.Context, w http.ResponseWriter, r *http.Request) error {
	q := url.Values{}
	for name, values := range r.URL.Query() { // fields of the form that are empty filter nothing
		if value := strings.TrimSpace(values[0]); value != "" {
			q.Set(name, value)
		}
	}
	query, err := callQuery(q)
	query.Journaled = len(u.Hooks) > 0 // they have not seen the other texts
	p := &callsPage{
		Query: q, First: query.After == "",
		Statuses: []choice{{"", "any", false}, {string(report.CallsNotOK), "not ok", false}, {string(report.CallsExit), "ok, but with an exit code", false}},
		Times:    []choice{{"", "any time", false}},
	}
	for _, status := range statuses {
		p.Statuses = append(p.Statuses, choice{string(status), report.StateWords(string(status)), false})
	}
	for _, since := range moment.Sinces() {
		p.Times = append(p.Times, choice{since, since, false})
	}
	p.Statuses, p.Times = chosen(p.Statuses, q.Get("status")), chosen(p.Times, q.Get("since"))
	for _, name := range append(slices.Clone(callFilters), "status", "since") {
		value := q.Get(name)
		switch {
		case value == "":
			continue
		case name == "status":
			value = report.StateWords(value)
		}
		p.Filters = append(p.Filters, filter{name, value, p.to(name, "")})
	}
	if err == nil {
		p.CallLog, err = u.Client.Calls(ctx, query)
	}
	status := http.StatusOK
	switch {
	case errors.Is(err, fleet.ErrInvalid):
		status, p.Fault = http.StatusUnprocessableEntity, err.Error()
	case err != nil:
		return err
	}
	if p.Next != "" {
		p.NextPage = p.to("after", p.Next)
	}
	u.show(w, r, status, "calls", view{Title: "Calls", Section: "calls", Data: p})
	return nil
}

// chosen marks the choice of a value, which may be none of the list.
func chosen(choices []choice, value string) []choice {
	is := false
	for i := range choices {
		choices[i].On = choices[i].Value == value
		is = is || choices[i].On
	}
	if !is {
		choices = append(choices, choice{value, value, true})
	}
	return choices
}

// wait is what a call waited for.
type wait struct {
	Word string
	MS   float64
	To   string
}

// waitsOf is what a call waited for, the longest first.
func waitsOf(c *report.LoggedCall) (waits []wait) {
	for _, p := range timeline.Waited(c) {
		w := wait{p.Reason.What(), p.MS, partPath(c.SessionID, c.Lane, &p)}
		if p.For != "" && p.Reason != report.ReasonLane { // its link says it
			w.Word += " (" + p.For + ")"
		}
		waits = append(waits, w)
	}
	return waits
}

// endOf is the pill of how a call ended: a command that ran may have failed nevertheless.
func endOf(c *report.LoggedCall) pill { return stateOf(cmp.Or(c.Exit, string(c.Status))) }

// waited is the longest wait of a call, if it is worth a word.
func waited(c *report.LoggedCall) *wait {
	if all := waitsOf(c); len(all) > 0 && terminal.IsSaid(&report.Part{MS: all[0].MS}) {
		return &all[0]
	}
	return nil
}

// loggedPage is the page of a call.
type loggedPage struct {
	Ref     protocol.CallRef
	Logged  *report.LoggedCall // nil if it has not ended
	In      *call              // in the conversation of its session; nil without one
	Again   *question
	NoAgain string // why it cannot be run again here
	State   string // of one that has not ended
}

// refOf is the call of a request.
func refOf(r *http.Request) protocol.CallRef {
	return protocol.CallRef{SessionID: protocol.SessionID(r.PathValue("session")), ID: protocol.CallID(r.PathValue("call"))}
}

// loggedCall shows all that is known of a call.
func (u *ui) loggedCall(ctx context.Context, w http.ResponseWriter, r *http.Request) error {
	p, err := u.loadCall(ctx, r)
	if err != nil {
		return err
	}
	title := "Call " + string(p.Ref.ID)
	switch {
	case p.In != nil:
		title = about(p.In.Tool, p.In.Arguments)
	case p.Logged != nil:
		title = about(p.Logged.Tool, p.Logged.Input)
	}
	p.Again, p.NoAgain = u.again(r, p)
	u.show(w, r, http.StatusOK, "logged", view{Title: firstLine(title), Section: "calls", Path: []crumb{{"Calls", "/calls"}}, Data: p})
	return nil
}

// loadCall reads a call: from the log, from the conversation of its session, or as it runs.
func (u *ui) loadCall(ctx context.Context, r *http.Request) (*loggedPage, error) {
	p := &loggedPage{Ref: refOf(r)}
	logged, err := u.LoggedCall(ctx, p.Ref)
	switch {
	case err == nil:
		p.Logged = &logged
	case !errors.Is(err, fleet.ErrNotFound):
		return nil, err
	}
	if session, err := u.open(ctx, r); err == nil {
		p.In = session.call(p.Ref.ID)
	}
	if p.Logged != nil {
		return p, nil
	}
	if p.In != nil {
		p.State = p.In.Now()
		return p, nil
	}
	if _, attached := u.Client.Attach(ctx, p.Ref); attached != nil {
		return nil, attached
	}
	p.State = "waiting"
	return p, nil
}

// again is the question whether a call is to be made again, or why it cannot be.
func (u *ui) again(r *http.Request, p *loggedPage) (*question, string) {
	switch {
	case p.Logged != nil && p.Logged.Tool == string(wire.KindTurnRun):
		return nil, "It is a turn: its session goes on with the next message."
	case p.In == nil:
		return nil, "Its arguments are known to its sender only: send it again there."
	case u.Table == nil:
		return nil, "This server makes no calls."
	}
	_, plan, refusal := u.Table().Plan(tools.Scope{Session: p.Ref.SessionID, Sandbox: string(p.Ref.SessionID)}, p.In.Tool, p.In.Arguments)
	switch {
	case refusal != nil:
		return nil, "This server cannot make it: " + refusal.Message
	case plan.Payload == nil:
		return nil, "It ran inside its session, without a worker."
	}
	q := ask(u.formKey(r), callPath(p.Ref.SessionID, p.Ref.ID)+"/again", "Run again", "",
		"Send this call again, with the same arguments, in the workspace of session "+string(p.Ref.SessionID)+
			" as it is now? The model of the session does not read its result.")
	switch {
	case plan.Delivery == protocol.AtMostOnce:
		q.Text = "This call must not start twice: its tool says so (delivery at_most_once). " + q.Text
	case p.In.Effect != nil:
		q.Text = "This call reached outside of its workspace (" + strings.Join(p.In.Effect.Reaches, ", ") + "). " + q.Text
	case p.In.Status == string(protocol.StatusOutcomeUnknown):
		q.Text = "It is not known whether this call has had its effects. " + q.Text
	default:
		return &q, ""
	}
	q.Sure = "What it does may happen twice. I want that."
	return &q, ""
}

// runAgain makes a call again: as a new one, which this server's policy judges.
func (u *ui) runAgain(ctx context.Context, w http.ResponseWriter, r *http.Request) error {
	p, err := u.loadCall(ctx, r)
	if err != nil {
		return err
	}
	asked, why := u.again(r, p)
	switch {
	case asked == nil:
		return fmt.Errorf("%w: call %s: %s", fleet.ErrInvalid, p.Ref.ID, why)
	case asked.Sure != "" && r.PostFormValue("sure") != "yes":
		return fmt.Errorf("%w: call %s: what it does may happen twice: say that this is wanted", fleet.ErrInvalid, p.Ref.ID)
	}
	made, err := u.Prepared(ctx, fleet.Call{Tool: p.In.Tool, Arguments: p.In.Arguments, Session: p.Ref.SessionID})
	if err != nil {
		return err
	}
	ref, err := u.Client.Submit(ctx, made)
	if err != nil {
		return err
	}
	u.redirect(w, r, callPath(ref.SessionID, ref.ID))
	return nil
}
