package top

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/overview"
	"github.com/toolfleet/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// target is what a row is about.
type target struct {
	pool    protocol.Pool
	lane    protocol.Lane
	session protocol.SessionID
	call    protocol.CallID
	tool    string
	state   string
	lanes   string // the filter that shows its lanes
	logged  bool   // the call has ended, and is in the log
}

// tab is one of the lists.
type tab struct {
	name, short string
	of          func(*overview.Picture) *table
}

// tabs are the lists, in the order of their keys.
func tabs() []tab {
	return []tab{
		{"Stalled", "Stall", stalled},
		{"Workers", "Work", workers},
		{"Lanes", "Lane", lanes},
		{"Sessions", "Sess", sessions},
		{"Waits", "Wait", waits},
		{"Limits", "Lim", limits},
	}
}

// colour is the colour of the class of a state.
func colour(state string) style {
	switch report.ClassOf(state) {
	case report.StateClassBad:
		return red
	case report.StateClassWait, report.StateClassStop:
		return yellow
	case report.StateClassRun:
		return blue
	case report.StateClassOK:
		return green
	default:
		return plain
	}
}

func word(state string) cell { return cell{text: report.StateWords(state), style: colour(state)} }

// maxCell bounds the text of a cell, in bytes: a prompt may be long.
const maxCell = 500

// text is a text of others, on one line.
func text(s string) cell { return cell{text: strings.Join(strings.Fields(prose.Cut(s, maxCell)), " ")} }

func number[N int | int64 | uint64](n N) cell {
	if n == 0 {
		return cell{text: "-"}
	}
	return cell{text: fmt.Sprint(n), value: float64(n)}
}

// age is a time that has passed.
func age(ms int64) cell {
	if ms <= 0 {
		return cell{text: "-"}
	}
	d := time.Duration(ms) * time.Millisecond
	if d >= 10*time.Second {
		d = d.Round(time.Second)
	}
	return cell{text: terminal.Duration(d), value: float64(ms)}
}

func rate(r *float64) cell {
	if r == nil {
		return cell{text: "-"}
	}
	return cell{text: fmt.Sprintf("%.1f", *r), value: *r}
}

func stalled(p *overview.Picture) *table {
	t := &table{
		columns: []column{{"STATE", 9, 0, false}, {"FOR", 6, 1, true}, {"WHAT", 16, 0, false}, {"WHY", 12, 0, false}},
		empty:   "nothing is stalled: each worker answers, and no call waits for long",
	}
	for i := range p.Looks {
		l := &p.Looks[i]
		to := target{pool: l.Pool, lane: l.Lane, session: l.SessionID, call: l.CallID, state: l.State}
		if l.WorkerID != "" {
			to.lanes = string(l.WorkerID)
		}
		if l.Kind == overview.KindLimit {
			to.lanes = l.Why
		}
		t.rows = append(t.rows, row{l.Kind + " " + l.What + " " + string(l.CallID), []cell{word(l.State), age(l.AgeMS), text(l.What), text(l.Why)}, to})
	}
	return t
}

func workers(p *overview.Picture) *table {
	t := &table{
		columns: []column{
			{"WORKER", 12, 0, false},
			{"STATE", 8, 0, false},
			{"POOL", 7, 3, false},
			{"SLOTS", 5, 0, true},
			{"LANES", 5, 2, true},
			{"CALLS/S", 7, 1, true},
			{"FAILED/S", 8, 1, true},
			{"ENDED", 6, 4, true},
			{"FAILED", 6, 4, true},
			{"LEVEL", 5, 5, false},
			{"VERSION", 8, 6, false},
		},
		empty: "no worker answers: one starts with coordinator run on this machine, for as long as it runs; or with worker --nats URL for a fleet",
	}
	for _, all := range [][]overview.Worker{p.Workers, p.Coordinators} {
		for i := range all {
			w := &all[i]
			slots := cell{text: fmt.Sprintf("%d/%d", w.Running, w.Slots), value: float64(w.Running)}
			t.rows = append(t.rows, row{string(w.Pool) + " " + string(w.WorkerID), []cell{
				text(string(w.WorkerID)), word(w.State), text(string(w.Pool)), slots, number(w.HeldLanes),
				rate(w.CallsPerS), rate(w.FailedPerS), number(w.Ended), number(w.Failed), text(cmp.Or(w.Level, "-")), text(cmp.Or(w.Build, "-")),
			}, target{pool: w.Pool, lanes: string(w.WorkerID)}})
		}
	}
	return t
}

func lanes(p *overview.Picture) *table {
	t := &table{
		columns: []column{
			{"LANE", 14, 0, false},
			{"STATE", 7, 0, false},
			{"WAIT", 4, 0, true},
			{"OLDEST", 6, 0, true},
			{"RUNNING", 10, 3, false},
			{"HOLDER", 8, 2, false},
			{"WAITS FOR", 12, 1, false},
			{"POOL", 7, 4, false},
		},
		empty: "no lane has calls, a holder or a pause",
	}
	for i := range p.Lanes {
		l := &p.Lanes[i]
		running := "-"
		if len(l.Running) > 0 {
			running = terminal.ToolName(l.Running[0].Tool) + " " + age(max(l.Running[0].RunningMS, 1)).text
		}
		if more := len(l.Running) - 1; more > 0 {
			running += fmt.Sprintf(" +%d", more)
		}
		t.rows = append(t.rows, row{string(l.Pool) + " " + l.Hash, []cell{
			text(terminal.LaneName(l.Lane, l.Hash)), word(l.State), number(l.Waiting + l.Delayed), age(l.OldestMS), text(running),
			text(cmp.Or(string(l.Holder), "-")), text(cmp.Or(l.WaitsFor, "-")), text(string(l.Pool)),
		}, target{pool: l.Pool, lane: l.Lane, state: l.State}})
	}
	switch {
	case p.Incomplete:
		t.note = "there are too many lanes to count: some may be missing"
	case p.LanesLeftOut > 0:
		t.note = fmt.Sprintf("%s wait less long, and are not listed (--limit)", terminal.Plural(p.LanesLeftOut, "more lane"))
	}
	return t
}

func sessions(p *overview.Picture) *table {
	t := &table{
		columns: []column{
			{"SESSION", 12, 0, false},
			{"STATE", 8, 0, false},
			{"TURN", 4, 0, true},
			{"COST", 6, 1, true},
			{"CALLS", 5, 5, true},
			{"CHANGED", 7, 2, true},
			{"MODEL", 8, 3, false},
			{"TENANT", 6, 6, false},
			{"PROMPT", 10, 4, false},
		},
		empty: "there are no sessions: coordinator run PROMPT begins one on this machine, and coordinator submit --nats URL PROMPT in a fleet",
	}
	for i := range p.Sessions {
		s := &p.Sessions[i]
		cost := cell{text: "-"}
		if s.CostUSD != nil {
			cost = cell{text: fmt.Sprintf("$%.2f", *s.CostUSD), value: *s.CostUSD}
		}
		t.rows = append(t.rows, row{string(s.SessionID), []cell{
			text(string(s.SessionID)), word(s.State), number(s.Turns), cost, number(s.ToolCalls), age(max(p.Time.Sub(s.UpdatedAt).Milliseconds(), 1)),
			text(cmp.Or(s.Model, "-")), text(string(cmp.Or(s.Tenant, "-"))), text(cmp.Or(s.Prompt, "-")),
		}, target{session: s.SessionID, state: s.State}})
	}
	if p.SessionsLeftOut > 0 {
		t.note = fmt.Sprintf("%s changed earlier, and are not listed (--limit)", terminal.Plural(p.SessionsLeftOut, "more session"))
	}
	return t
}

func waits(p *overview.Picture) *table {
	t := &table{
		columns: []column{{"CALLS", 5, 0, true}, {"LANES", 5, 0, true}, {"KIND", 6, 0, false}, {"WAITING FOR", 12, 0, false}},
		empty:   "no call waits",
	}
	for _, w := range p.Waits {
		t.rows = append(t.rows, row{w.WaitsFor, []cell{number(w.Calls), number(w.Lanes), text(w.Wait.Reason.What()), text(w.WaitsFor)}, target{lanes: w.WaitsFor}})
	}
	return t
}

func limits(p *overview.Picture) *table {
	t := &table{
		columns: []column{{"OF", 12, 0, false}, {"STATE", 9, 0, false}, {"USED", 10, 1, false}, {"BOUNDS", 12, 2, false}, {"WHY", 10, 0, false}},
		empty:   "there are no limits: coordinator limits set sets some",
	}
	for i := range p.Limits {
		l := &p.Limits[i]
		state := "free"
		if l.Throttled {
			state = "throttled"
		}
		to := target{lanes: string(l.Pool)}
		if l.Lane != "" {
			to.lanes = "limit " + l.Lane + ":"
		}
		t.rows = append(t.rows, row{l.Name(), []cell{text(l.Name()), word(state), text(used(l)), text(bounds(l)), text(cmp.Or(l.Why, "-"))}, to})
	}
	return t
}

// bounds are the bounds of a limit.
func bounds(l *overview.Limit) string {
	var all []string
	add := func(is bool, format string, value any) {
		if is {
			all = append(all, fmt.Sprintf(format, value))
		}
	}
	add(l.Concurrent > 0, "%d at once", l.Concurrent)
	add(l.Rate != "", "%s", l.Rate)
	add(l.Tokens != "", "%s tokens", l.Tokens)
	add(l.Waiting > 0, "%d wait", l.Waiting)
	add(l.Sessions > 0, "%d turns", l.Sessions)
	add(l.Stored > 0, "%.1f MiB", float64(l.Stored)/(1<<20))
	add(l.Weight > 0, "weight %d", l.Weight)
	return cmp.Or(strings.Join(all, ", "), "-")
}

// used is how much of a limit is used.
func used(l *overview.Limit) string {
	var all []string
	add := func(is bool, format string, value any) {
		if is {
			all = append(all, fmt.Sprintf(format, value))
		}
	}
	add(l.Tenant != "" && l.Concurrent > 0, "%d calls", l.Use.Calls)
	add(l.Sessions > 0, "%d turns", l.Use.Turns)
	add(l.Stored > 0, "%.1f MiB", float64(l.Use.Stored)/(1<<20))
	add(l.Pool != "", "%d wait", l.Use.Waiting)
	if l.Use.Left != nil {
		add(true, "%.0f left", max(*l.Use.Left, 0))
	}
	if l.Use.TokensLeft != nil {
		add(true, "%.0f tokens left", max(*l.Use.TokensLeft, 0))
	}
	if l.Lane != "" && l.Lanes > 0 {
		add(true, "%s wait", terminal.Plural(l.Lanes, "lane"))
	}
	return cmp.Or(strings.Join(all, ", "), "-")
}

// heading is the line above all lists.
func heading(p *overview.Picture) string {
	lost, silent := 0, 0
	for _, w := range p.Workers {
		switch w.State {
		case overview.Lost:
			lost++
		case overview.Silent:
			silent++
		}
	}
	workers := terminal.Plural(len(p.Workers)-lost-silent, "worker")
	if lost > 0 {
		workers += fmt.Sprintf(", %d LOST", lost)
	}
	if silent > 0 {
		workers += fmt.Sprintf(", %d silent", silent)
	}
	all := []string{
		string(p.Fleet), p.Time.Local().Format(time.TimeOnly), workers, fmt.Sprintf("%d/%d slots", p.Rates.Running, p.Rates.Slots),
		rate(p.Rates.CallsPerS).text + " calls/s", rate(p.Rates.FailedPerS).text + " failed/s", fmt.Sprintf("%d wait", p.Rates.Waiting),
	}
	return strings.Join(all, " · ")
}
