package webui

import (
	"errors"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// patience is how long a page waits for the reports of workers.
const patience = 700 * time.Millisecond

// fleetPage is the page of a fleet.
type fleetPage struct {
	Workers []*report.Worker
	Lanes   *report.LaneList
	Unmet   []report.Call
	Pools   []protocol.Pool
	Slots   int
	Held    int
	Waiting int
	Looks   []look
}

// look is something that a person should look at.
type look struct {
	State string
	What  string
	To    string
	Since time.Duration
	Why   string
}

// stalledAfter is how long a call waits before a page says that it does.
const stalledAfter = 10 * time.Second

// pool is the pool of a request.
func (u *ui) pool(r *http.Request) protocol.Pool {
	if pool := r.URL.Query().Get("pool"); pool != "" {
		return protocol.Pool(pool)
	}
	if u.Pool != "" {
		return u.Pool
	}
	return protocol.DefaultPool
}

// workers shows the workers of all pools, and what needs a look.
func (u *ui) workers(w http.ResponseWriter, r *http.Request) error {
	ctx, cancel := within(r.Context())
	defer cancel()
	var p fleetPage
	var err error
	if p.Pools, err = u.Client.Pools(ctx); err != nil {
		return err
	}
	for _, pool := range p.Pools {
		workers, err := u.Client.Workers(ctx, pool, patience)
		if err != nil {
			return err
		}
		p.Workers = append(p.Workers, workers...)
		lanes, err := u.Client.Lanes(pool).List(ctx, maxLanes)
		if errors.Is(err, fleet.ErrRights) {
			continue
		}
		if err != nil {
			p.Looks = append(p.Looks, look{State: "failed", What: "lanes of pool " + string(pool), Why: err.Error()})
			continue
		}
		unmet, err := u.Client.Lanes(pool).Unmet(ctx)
		if err == nil {
			p.Looks = append(p.Looks, looksOf(pool, lanes, unmet)...)
		}
		for _, l := range lanes.Lanes {
			p.Waiting += l.Waiting
		}
	}
	for _, worker := range p.Workers {
		p.Slots += worker.Slots
		p.Held += worker.HeldLanes
	}
	slices.SortFunc(p.Looks, func(a, b look) int { return int(b.Since - a.Since) })
	u.show(w, r, http.StatusOK, "fleet", view{Title: "Fleet " + string(u.Fleet), Section: "fleet", Data: p})
	return nil
}

// looksOf finds what needs a look in a pool.
func looksOf(pool protocol.Pool, lanes *report.LaneList, unmet []report.Call) (looks []look) {
	for _, call := range unmet {
		looks = append(looks, look{State: "waiting", What: about(call.Tool, ""), To: sessionCallPath(call.SessionID, call.CallID), Since: time.Duration(call.AgeMS) * time.Millisecond, Why: call.WaitsFor})
	}
	for _, l := range lanes.Lanes {
		since := time.Duration(l.OldestMS) * time.Millisecond
		switch {
		case l.State == "stalled" || l.State == "lost":
			looks = append(looks, look{State: l.State, What: "lane " + string(l.Lane), To: lanePath(pool, l.Lane), Since: since, Why: l.WaitsFor})
		case l.Waiting > 0 && since > stalledAfter && l.WaitsFor != "":
			looks = append(looks, look{State: "waiting", What: "lane " + string(l.Lane), To: lanePath(pool, l.Lane), Since: since, Why: l.WaitsFor})
		}
	}
	return looks
}

func sessionCallPath(session protocol.SessionID, call protocol.CallID) string {
	return "/sessions/" + url.PathEscape(string(session)) + "/calls/" + url.PathEscape(string(call))
}

func lanePath(pool protocol.Pool, lane protocol.Lane) string {
	return "/lane?" + url.Values{"pool": {string(pool)}, "lane": {string(lane)}}.Encode()
}

// maxLanes is how many lanes a page lists.
const maxLanes = 200

// lanesPage is the page of a pool's lanes.
type lanesPage struct {
	*report.LaneList

	Pool  protocol.Pool
	Pools []protocol.Pool
}

// Link is the address of a lane.
func (p lanesPage) Link(l report.Lane) string { return lanePath(p.Pool, l.Lane) }

// lanes lists the lanes of a pool.
func (u *ui) lanes(w http.ResponseWriter, r *http.Request) error {
	ctx, cancel := within(r.Context())
	defer cancel()
	p := lanesPage{Pool: u.pool(r)}
	var err error
	if p.Pools, err = u.Client.Pools(ctx); err != nil {
		return err
	}
	if p.LaneList, err = u.Client.Lanes(p.Pool).List(ctx, maxLanes); err != nil {
		return err
	}
	u.show(w, r, http.StatusOK, "lanes", view{Title: "Lanes", Section: "lanes", Data: p})
	return nil
}

// lanePage is the page of a lane.
type lanePage struct {
	*report.LaneCalls

	Pool protocol.Pool
}

// lane shows a lane with its calls.
func (u *ui) lane(w http.ResponseWriter, r *http.Request) error {
	ctx, cancel := within(r.Context())
	defer cancel()
	pool, lane := u.pool(r), protocol.Lane(r.URL.Query().Get("lane"))
	shown, err := u.Client.Lanes(pool).Show(ctx, lane, maxLanes)
	if err != nil {
		return err
	}
	u.show(w, r, http.StatusOK, "lane", view{Title: "Lane " + string(lane), Section: "lanes", Path: []crumb{{"Lanes", "/lanes?pool=" + url.QueryEscape(string(pool))}}, Data: lanePage{shown, pool}})
	return nil
}

// laneAct pauses or resumes a lane, or cancels a call of it.
func (u *ui) laneAct(w http.ResponseWriter, r *http.Request) error {
	ctx, cancel := within(r.Context())
	defer cancel()
	pool, lane := protocol.Pool(r.PostFormValue("pool")), protocol.Lane(r.PostFormValue("lane"))
	lanes := u.Client.Lanes(pool)
	var err error
	switch act := r.PathValue("act"); act {
	case "pause":
		_, err = lanes.Pause(ctx, lane)
	case "resume":
		_, err = lanes.Resume(ctx, lane)
	case "cancel":
		err = lanes.Cancel(ctx, lane, protocol.CallID(r.PostFormValue("call")))
	case "kill":
		_, err = lanes.CancelRunning(ctx, lane)
	default:
		err = fleet.ErrNotFound
	}
	if err != nil {
		return err
	}
	u.redirect(w, r, lanePath(pool, lane))
	return nil
}

// limits lists the limits.
func (u *ui) limits(w http.ResponseWriter, r *http.Request) error {
	ctx, cancel := within(r.Context())
	defer cancel()
	list, err := u.Client.Limits().List(ctx)
	if err != nil {
		return err
	}
	u.show(w, r, http.StatusOK, "limits", view{Title: "Limits", Section: "limits", Data: list})
	return nil
}

// schedules lists the schedules.
func (u *ui) schedules(w http.ResponseWriter, r *http.Request) error {
	ctx, cancel := within(r.Context())
	defer cancel()
	list, _, err := u.Client.Schedules().Page(ctx, "", maxSessions)
	if err != nil {
		return err
	}
	u.show(w, r, http.StatusOK, "schedules", view{Title: "Schedules", Section: "schedules", Data: list})
	return nil
}
