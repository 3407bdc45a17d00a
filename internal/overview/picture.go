package overview

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// States of lanes.
const (
	laneLost    = "lost"
	laneStalled = "stalled"
	laneReady   = "ready"
	lanePaused  = "paused"
)

// stalledAfter is how long a call waits until a person should look at it.
const stalledAfter = 10 * time.Second

// maxLooks bounds what is listed to be looked at.
const maxLooks = 200

// picture puts together what was read.
func (r *Reader) picture(now time.Time) *Picture {
	p := &Picture{
		Format: Format, Fleet: r.options.Fleet, Time: now.UTC(), Lanes: []report.Lane{},
		Sessions: append([]report.Session{}, r.sessions.value.all...), SessionsLeftOut: r.sessions.value.leftOut,
		Limits: append([]Limit{}, r.limits.value...), Missing: []Missing{},
	}
	for _, of := range r.lanes {
		if list := of.value; list != nil {
			p.Lanes = append(p.Lanes, list.Lanes...)
			p.LanesLeftOut += list.LeftOut
			p.Incomplete = p.Incomplete || list.Incomplete
		}
	}
	for what, gap := range r.parts {
		if !gap.Denied || what.what != partUnserved && what.what != partUnmet { // who may not see lanes misses these, too
			p.Missing = append(p.Missing, gap.Missing)
		}
	}
	slices.SortFunc(p.Missing, func(a, b Missing) int { return cmp.Compare(a.Part, b.Part) })
	slices.SortStableFunc(p.Lanes, func(a, b report.Lane) int {
		return cmp.Or(cmp.Compare(laneRank(&a), laneRank(&b)), cmp.Compare(b.OldestMS, a.OldestMS), cmp.Compare(a.Pool, b.Pool), cmp.Compare(a.Lane, b.Lane))
	})
	slices.SortStableFunc(p.Sessions, func(a, b report.Session) int {
		return cmp.Or(cmp.Compare(sessionRank(a.State), sessionRank(b.State)), b.UpdatedAt.Compare(a.UpdatedAt))
	})
	p.Workers, p.Coordinators = r.allWorkers(p.Lanes)
	r.nameUnmet(p)
	p.Waits = append(Waits(p.Lanes), waitsForPersons(p.Sessions)...)
	slices.SortStableFunc(p.Waits, func(a, b Wait) int { return cmp.Compare(b.Calls, a.Calls) })
	p.Rates = rates(p)
	throttled(p)
	p.Looks = looks(p, r.unmetCalls())
	return p
}

// unmetCall is a call that no worker of its pool can run.
type unmetCall struct {
	report.Call

	pool protocol.Pool
}

// lane is where it waits; "" if it says no resource.
func (c *unmetCall) lane() protocol.Lane {
	if len(c.Resources) == 0 {
		return ""
	}
	return c.Resources[0].Key.Lane()
}

// unmetCalls are those of all pools, the oldest first.
func (r *Reader) unmetCalls() (all []unmetCall) {
	for pool, of := range r.unmet {
		for _, call := range of.value {
			all = append(all, unmetCall{call, pool})
		}
	}
	slices.SortFunc(all, func(a, b unmetCall) int {
		return cmp.Or(a.AcceptedAt.Compare(b.AcceptedAt), cmp.Compare(a.CallID, b.CallID))
	})
	return all
}

// nameUnmet says of lanes that no worker has claimed what no worker meets: a free slot would not
// help. Without a worker that is the same for all lanes of a pool.
func (r *Reader) nameUnmet(p *Picture) {
	served := map[protocol.Pool]bool{}
	for _, w := range slices.Concat(p.Workers, p.Coordinators) {
		served[w.Pool] = served[w.Pool] || w.State == Serving
	}
	type poolLane struct {
		pool protocol.Pool
		lane protocol.Lane
	}
	waits := map[poolLane]*report.Call{}
	for _, c := range r.unmetCalls() {
		waits[poolLane{c.pool, c.lane()}] = &c.Call
		if !served[c.pool] {
			waits[poolLane{pool: c.pool}] = &c.Call
		}
	}
	for i := range p.Lanes {
		l := &p.Lanes[i]
		call := cmp.Or(waits[poolLane{l.Pool, l.Lane}], waits[poolLane{pool: l.Pool}])
		if call != nil && l.Waiting > 0 && (l.State == laneReady || l.State == laneLost) {
			l.WaitsFor, l.Wait = call.WaitsFor, call.Wait
		}
	}
}

// laneRank is what comes first: what no worker does anything about.
func laneRank(l *report.Lane) int {
	switch {
	case (l.State == laneStalled || l.State == laneLost) && l.OldestMS > 0:
		return 0
	case l.Waiting > 0:
		return 1
	case len(l.Running) > 0:
		return 2
	}
	return 3
}

func sessionRank(state string) int {
	switch state {
	case report.StateWaitsForApproval, report.StateWaitsForAnswer:
		return 0
	case report.StateWaitsForWorker, report.StateWaitsForCoordinator:
		return 1
	case report.StateInUse, report.StateOpen:
		return 2
	}
	return 3
}

// Waits returns what the calls of lanes wait for, the most frequent reason first.
func Waits(lanes []report.Lane) []Wait {
	type key struct {
		text string
		wait report.Wait
	}
	sums := map[key]*Wait{}
	for i := range lanes {
		l := &lanes[i]
		if l.WaitsFor == "" {
			continue
		}
		of := key{l.WaitsFor, l.Wait}
		of.wait.SessionID, of.wait.CallID = "", "" // each lane waits for another call
		w := sums[of]
		if w == nil {
			w = &Wait{WaitsFor: of.text, Wait: of.wait}
			sums[of] = w
		}
		w.Calls, w.Lanes = w.Calls+l.Waiting+l.Delayed, w.Lanes+1
	}
	all := []Wait{}
	for _, w := range slices.SortedFunc(maps.Values(sums), func(a, b *Wait) int {
		return cmp.Or(cmp.Compare(b.Calls, a.Calls), cmp.Compare(a.WaitsFor, b.WaitsFor))
	}) {
		all = append(all, *w)
	}
	return all
}

// waitsForPersons are the calls that ask a person.
func waitsForPersons(sessions []report.Session) (all []Wait) {
	sums := map[string]int{}
	for i := range sessions {
		if sessionRank(sessions[i].State) == 0 {
			sums["a person: "+asked(&sessions[i])]++
		}
	}
	for _, reason := range slices.Sorted(maps.Keys(sums)) {
		all = append(all, Wait{WaitsFor: reason, Wait: report.Wait{Reason: report.ReasonPerson}, Calls: sums[reason]})
	}
	return all
}

func rates(p *Picture) (sum Rates) {
	add := func(to **float64, rate *float64) {
		if rate == nil {
			return
		}
		if *to == nil {
			*to = new(float64)
		}
		**to += *rate
	}
	for i := range p.Workers {
		w := &p.Workers[i]
		if w.State == Serving || w.State == Draining {
			sum.Slots, sum.Running = sum.Slots+w.Slots, sum.Running+w.Running
			add(&sum.CallsPerS, w.CallsPerS)
			add(&sum.FailedPerS, w.FailedPerS)
		}
	}
	for i := range p.Coordinators {
		c := &p.Coordinators[i]
		if c.State == Serving || c.State == Draining {
			sum.Turns += c.Running
			add(&sum.TurnsPerS, c.CallsPerS)
		}
	}
	for i := range p.Lanes {
		if p.Lanes[i].Pool != protocol.SessionPool {
			sum.Waiting += p.Lanes[i].Waiting
		}
	}
	return sum
}

// throttled says of each limit whether it holds calls back, and sorts those first.
func throttled(p *Picture) {
	for i := range p.Limits {
		l := &p.Limits[i]
		if l.Lane != "" {
			for j := range p.Lanes {
				if lane := &p.Lanes[j]; lane.Wait.Limit == l.Lane {
					l.Throttled, l.Why, l.Lanes = true, lane.WaitsFor, l.Lanes+1
				}
			}
		}
		if full := l.full(); full != "" {
			l.Throttled, l.Why = true, full
		}
	}
	slices.SortStableFunc(p.Limits, func(a, b Limit) int {
		return cmp.Compare(rankOf(!a.Throttled), rankOf(!b.Throttled))
	})
}

func rankOf(later bool) int {
	if later {
		return 1
	}
	return 0
}

// full says which bound is used up.
func (l *Limit) full() string {
	use := l.Use
	switch {
	case l.Tenant != "" && l.Concurrent > 0 && use.Calls >= l.Concurrent:
		return fmt.Sprintf("%d of %d calls are in flight", use.Calls, l.Concurrent)
	case l.Sessions > 0 && use.Turns >= l.Sessions:
		return fmt.Sprintf("%d of %d turns are in flight", use.Turns, l.Sessions)
	case l.Stored > 0 && use.Stored >= l.Stored:
		return fmt.Sprintf("%.1f of %.1f MiB are stored", float64(use.Stored)/(1<<20), float64(l.Stored)/(1<<20))
	case l.Tenant != "" && l.Rate != "" && use.Left != nil && *use.Left < 1:
		return "the rate of " + l.Rate + " is used up"
	case l.Pool != "" && l.Waiting > 0 && use.Waiting >= l.Waiting:
		return fmt.Sprintf("%d of %d calls wait", use.Waiting, l.Waiting)
	}
	return ""
}

// Name is what the limit is of.
func (l *Limit) Name() string {
	switch {
	case l.Tenant != "":
		return "tenant " + string(l.Tenant)
	case l.Pool != "":
		return "pool " + string(l.Pool)
	}
	return "lanes " + l.Lane
}

// looks finds what a person should look at.
func looks(p *Picture, unmet []unmetCall) []Look {
	all := []Look{}
	for _, w := range slices.Concat(p.Workers, p.Coordinators) {
		if w.State == Lost || w.State == Silent {
			what := "worker " + string(w.WorkerID)
			if w.Pool == protocol.SessionPool {
				what = "coordinator " + string(w.WorkerID)
			}
			all = append(all, Look{Kind: KindWorker, State: w.State, What: what, Why: silence(&w), AgeMS: w.SilentMS, Pool: w.Pool, WorkerID: w.WorkerID})
		}
	}
	for i := range p.Lanes {
		if l := &p.Lanes[i]; (l.State == laneLost || l.State == laneStalled) && l.OldestMS > 0 { // an idle lane holds nothing up
			all = append(all, lookAt(l, l.State))
		}
	}
	for i := range unmet {
		c := &unmet[i]
		all = append(all, Look{
			Kind: KindCall, State: "waiting", What: "call of " + c.Tool, Why: c.WaitsFor, Wait: c.Wait, AgeMS: c.AgeMS,
			Pool: c.pool, Lane: c.lane(), SessionID: c.SessionID, CallID: c.CallID,
		})
	}
	for i := range p.Limits {
		if l := &p.Limits[i]; l.Throttled {
			all = append(all, Look{Kind: KindLimit, State: "throttled", What: l.Name(), Why: l.Why})
		}
	}
	for i := range p.Sessions {
		s := &p.Sessions[i]
		switch sessionRank(s.State) {
		case 0:
			all = append(all, Look{
				Kind: KindSession, State: "asks", What: "session " + string(s.SessionID), Why: asked(s),
				AgeMS: p.Time.Sub(askedAt(s)).Milliseconds(), SessionID: s.SessionID,
			})
		case 1:
			all = append(all, Look{
				Kind: KindSession, State: "waiting", What: "session " + string(s.SessionID),
				Why: report.StateWords(s.State), AgeMS: p.Time.Sub(s.UpdatedAt).Milliseconds(), SessionID: s.SessionID,
			})
		}
	}
	for i := range p.Lanes {
		l := &p.Lanes[i]
		if l.State != laneLost && l.State != laneStalled && l.Waiting > 0 && l.OldestMS > stalledAfter.Milliseconds() && l.WaitsFor != "" {
			state := "waiting"
			if l.State == lanePaused {
				state = lanePaused
			}
			all = append(all, lookAt(l, state))
		}
	}
	return all[:min(len(all), maxLooks)]
}

// silence says what is known of a worker that does not answer.
func silence(w *Worker) string {
	if w.Running > 0 {
		return fmt.Sprintf("it does not answer; calls that ran there: %d", w.Running)
	}
	return "it does not answer"
}

// lookAt is a look at a lane.
func lookAt(l *report.Lane, state string) Look {
	return Look{
		Kind: KindLane, State: state, What: "lane " + terminal.LaneName(l.Lane, l.Hash), Why: l.WaitsFor,
		Wait: l.Wait, AgeMS: l.OldestMS, Pool: l.Pool, Lane: l.Lane,
	}
}

// asked is what a session asks a person: which call, never what a model says of it.
func asked(s *report.Session) string {
	switch {
	case s.Approval != nil:
		return "approval of " + s.Approval.Tool
	case len(s.Questions) > 0:
		return "an answer to " + s.Questions[0].Tool
	}
	return report.StateWords(s.State)
}

func askedAt(s *report.Session) time.Time {
	switch {
	case s.Approval != nil:
		return s.Approval.AskedAt
	case len(s.Questions) > 0:
		return s.Questions[0].AskedAt
	}
	return s.UpdatedAt
}
