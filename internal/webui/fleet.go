package webui

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/overview"
	"github.com/toolfleet/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// picture is a picture of the fleet, of which each page of the fleet shows a part.
type picture struct {
	*overview.Picture

	held map[workerKey][]report.Lane // what each worker held when it answered last, as it is now
}

// workerKey is a worker.
type workerKey struct {
	pool protocol.Pool
	id   protocol.WorkerID
}

// picture follows the picture of the fleet.
func (u *ui) picture() followed {
	return followed{thing: "fleet", paced: true, open: func() func(context.Context) (any, error) {
		reader, held := overview.New(u.Client, overview.Options{Fleet: u.Fleet}), map[workerKey][]report.Lane{}
		return func(ctx context.Context) (any, error) {
			p, err := reader.Read(ctx)
			if err != nil {
				return nil, err
			}
			held = heldOf(p, held)
			for i := range p.Looks {
				if l := &p.Looks[i]; l.Kind == overview.KindWorker {
					l.Why += becameOf(held[workerKey{l.Pool, l.WorkerID}], l.WorkerID)
				}
			}
			return &picture{p, held}, nil
		}
	}}
}

// heldOf are the lanes that each worker holds, and those that one held that does not answer now,
// before.
func heldOf(p *overview.Picture, before map[workerKey][]report.Lane) map[workerKey][]report.Lane {
	type laneKey struct {
		pool protocol.Pool
		hash string
	}
	now, held := map[laneKey]report.Lane{}, map[workerKey][]report.Lane{}
	for _, l := range p.Lanes {
		now[laneKey{l.Pool, l.Hash}] = l
		if l.Holder != "" {
			held[workerKey{l.Pool, l.Holder}] = append(held[workerKey{l.Pool, l.Holder}], l)
		}
	}
	for _, w := range slices.Concat(p.Workers, p.Coordinators) {
		key := workerKey{w.Pool, w.WorkerID}
		if w.State == overview.Serving || w.State == overview.Draining || before[key] == nil {
			continue
		}
		held[key] = nil
		for _, l := range before[key] {
			as, is := now[laneKey{l.Pool, l.Hash}]
			if !is {
				as = report.Lane{Lane: l.Lane, Hash: l.Hash, Pool: l.Pool, State: "idle"} // its calls have ended
			}
			held[key] = append(held[key], as)
		}
	}
	return held
}

// becameOf says what became of the lanes of a worker that does not answer.
func becameOf(lanes []report.Lane, worker protocol.WorkerID) string {
	if len(lanes) == 0 {
		return ""
	}
	taken, ended := 0, 0
	for i := range lanes {
		switch {
		case lanes[i].State == "idle":
			ended++
		case lanes[i].Holder != "" && lanes[i].Holder != worker:
			taken++
		}
	}
	return fmt.Sprintf("; it held %s: %d taken over, %d ended, %d not yet", terminal.Plural(len(lanes), "lane"), taken, ended, len(lanes)-taken-ended)
}

// fleetView is a part of the picture: all of it, a worker or a limit.
type fleetView struct {
	*picture

	Worker *overview.Worker
	Limit  *overview.Limit
	Of     []report.Lane // that the worker holds, or that wait for the limit
	Log    string        // its calls in the log
	Live   string

	Loading bool // the first picture is still being read: the stream brings it
}

// soon is how long the page of the fleet waits for the first picture.
const soon = 300 * time.Millisecond

// lookAtFleet reads the picture. Pages of the whole fleet are shown at once, also without it.
func (u *ui) lookAtFleet(ctx context.Context, whole bool) (p *picture, loading bool, err error) {
	waiting, cancel := ctx, context.CancelFunc(func() {})
	if whole {
		waiting, cancel = context.WithTimeout(ctx, soon)
	}
	defer cancel()
	p, err = look[*picture](waiting, u, u.picture())
	if whole && errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return &picture{Picture: &overview.Picture{}}, true, nil
	}
	return p, false, err
}

// shownLanes is how many lanes the page of the fleet lists.
const shownLanes = 15

// First are the lanes that the page of the fleet lists.
func (v *fleetView) First() []report.Lane { return v.Lanes[:min(len(v.Lanes), shownLanes)] }

// fleetBlocks are the parts of the page of the fleet that follow the fleet.
var fleetBlocks = []string{"tiles", "looks", "workers", "lanes", "waits", "limits"} //nolint:gochecknoglobals // a constant

// fleetPages registers the pages of the picture, each with a stream of its parts.
func (u *ui) fleetPages() {
	for name, page := range map[string]struct {
		section string
		above   []crumb // nil for one of the whole fleet
		blocks  []string
		view    func(r *http.Request, p *picture) (title string, v *fleetView, err error)
	}{
		"fleet":  {"fleet", nil, fleetBlocks, u.wholeFleet},
		"worker": {"fleet", []crumb{{"Fleet", "/fleet"}}, []string{"worker"}, oneWorker},
		"limits": {"limits", nil, []string{"limits"}, u.wholeFleet},
		"limit":  {"limits", []crumb{{"Limits", "/limits"}}, []string{"limit"}, oneLimit},
	} {
		path, whole := "/"+name, page.above == nil
		u.page("GET "+path, func(ctx context.Context, w http.ResponseWriter, r *http.Request) error {
			p, loading, err := u.lookAtFleet(ctx, whole)
			if err != nil {
				return err
			}
			title, v, err := page.view(r, p)
			if err != nil {
				return err
			}
			v.Loading, v.Live = loading, withQuery(path+"/live", r.URL.Query())
			u.show(w, r, http.StatusOK, name, view{Title: title, Section: page.section, Path: page.above, Data: v})
			return nil
		})
		u.page("GET "+path+"/live", func(_ context.Context, w http.ResponseWriter, r *http.Request) error {
			drawn := path
			if !whole {
				q := r.URL.Query()
				drawn += fmt.Sprintf("%q", []string{q.Get("id"), q.Get("pool"), q.Get("lane"), q.Get("tenant")})
			}
			return u.stream(w, r, u.picture(), drawn, func(data any) []part {
				p, _ := data.(*picture)
				_, v, err := page.view(r, p)
				if err != nil {
					return []part{u.part(r, "fleet", "stale", err)}
				}
				return u.parts(r, name, v, page.blocks...)
			})
		})
	}
}

// wholeFleet shows all of the picture.
func (u *ui) wholeFleet(r *http.Request, p *picture) (string, *fleetView, error) {
	if strings.HasPrefix(r.URL.Path, "/limits") {
		return "Limits", &fleetView{picture: p}, nil
	}
	return "Fleet " + string(u.Fleet), &fleetView{picture: p}, nil
}

// oneWorker shows a worker, or a coordinator.
func oneWorker(r *http.Request, p *picture) (string, *fleetView, error) {
	id, pool := protocol.WorkerID(r.URL.Query().Get("id")), protocol.Pool(r.URL.Query().Get("pool"))
	v := &fleetView{picture: p, Log: logPath("worker", string(id))}
	all := slices.Concat(p.Workers, p.Coordinators)
	if i := slices.IndexFunc(all, func(w overview.Worker) bool { return w.WorkerID == id && w.Pool == pool }); i >= 0 {
		v.Worker = &all[i]
	}
	v.Of = p.held[workerKey{pool, id}]
	if v.Worker == nil {
		return "", nil, fmt.Errorf("worker %.100q of pool %.100q: %w: it does not answer, and has no lane; the log has what it ran: %s", id, pool, fleet.ErrNotFound, v.Log)
	}
	return "Worker " + string(id), v, nil
}

// oneLimit shows a limit.
func oneLimit(r *http.Request, p *picture) (string, *fleetView, error) {
	q := r.URL.Query()
	for i := range p.Limits {
		l := &p.Limits[i]
		if l.Lane != q.Get("lane") || string(l.Tenant) != q.Get("tenant") || string(l.Pool) != q.Get("pool") {
			continue
		}
		v := &fleetView{picture: p, Limit: l}
		for j := range p.Lanes {
			if l.Lane != "" && p.Lanes[j].Wait.Limit == l.Lane || l.Pool != "" && p.Lanes[j].Pool == l.Pool && p.Lanes[j].Waiting > 0 {
				v.Of = append(v.Of, p.Lanes[j])
			}
		}
		if l.Tenant != "" {
			v.Log = logPath("tenant", string(l.Tenant))
		}
		return "Limit of " + l.Name(), v, nil
	}
	return "", nil, fmt.Errorf("limit: %w: there is none of these lanes, this tenant or pool", fleet.ErrNotFound)
}

// use is how much of a bound is used.
type use struct {
	Name, Used, Of string
	Known          bool
	Value, Max     float64 // Max is 0 without a meter
}

// usesOf are the bounds of a limit.
func usesOf(l *overview.Limit) (uses []use) {
	counted := func(name string, used, bound int, known bool) {
		if bound > 0 {
			uses = append(uses, use{name, grouped(strconv.Itoa(used)), grouped(strconv.Itoa(bound)), known, float64(used), float64(bound)})
		}
	}
	rated := func(name, rate string, left *float64) {
		switch {
		case rate != "" && left != nil:
			uses = append(uses, use{Name: name + " " + rate + ", at once", Used: grouped(strconv.Itoa(max(int(*left), 0))), Of: "now", Known: true})
		case rate != "":
			uses = append(uses, use{Name: name, Of: rate})
		}
	}
	if l.Tenant != "" {
		counted("calls in flight", l.Use.Calls, l.Concurrent, true)
	} else {
		counted("calls of a lane at once", 0, l.Concurrent, false)
	}
	rated("rate", l.Rate, l.Use.Left)
	rated("tokens", l.Tokens, l.Use.TokensLeft)
	counted("turns in flight", l.Use.Turns, l.Sessions, true)
	counted("calls that wait", l.Use.Waiting, l.Waiting, l.Pool != "")
	if l.Stored > 0 {
		uses = append(uses, use{"stored", size(l.Use.Stored), size(l.Stored), true, float64(l.Use.Stored), float64(l.Stored)})
	}
	if l.Weight > 0 {
		uses = append(uses, use{Name: "weight", Of: strconv.Itoa(l.Weight)})
	}
	for i := range uses {
		uses[i].Value = min(uses[i].Value, uses[i].Max)
		if uses[i].Max = max(uses[i].Max, 0); !uses[i].Known {
			uses[i].Max = 0
		}
	}
	return uses
}

// nearly reports whether four fifths of a bound of a limit are used, of one that is not so small
// that the next use is the last one.
func nearly(l *overview.Limit) bool {
	return slices.ContainsFunc(usesOf(l), func(u use) bool { return u.Max >= 5 && u.Value >= 0.8*u.Max })
}

// reason is what something waits for in words, with a link to it; To is "" without a page.
type reason struct{ Text, To string }

func reasonOf(text string, wait report.Wait) reason { return reason{text, waitPath(&wait)} }

// pillOfWait is the pill of a reason for which something waits. An older worker says none.
func pillOfWait(r report.Reason) pill { return pill{"wait", cmp.Or(r.What(), "other")} }
