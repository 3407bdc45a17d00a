package webui

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/toolfleet/toolfleet/internal/overview"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// pool is the pool of a request.
func (u *ui) pool(r *http.Request) protocol.Pool {
	return cmp.Or(protocol.Pool(r.URL.Query().Get("pool")), u.Pool, protocol.DefaultPool)
}

const (
	// lanesOnPage is how many lanes, calls of a lane or schedules a page lists.
	lanesOnPage = 100
	// maxPage bounds the number of a page.
	maxPage = 10_000
)

// lanesPage is a page of the lanes of a pool.
type lanesPage struct {
	*report.LaneList

	Pool   protocol.Pool
	Pools  []protocol.Pool
	Filter string
	Page   int // from 1
	Live   string
}

// To is the address of another page of the list.
func (p *lanesPage) To(by int) string {
	return queried("/lanes", "pool", string(p.Pool), "q", p.Filter, "page", strconv.Itoa(p.Page+by))
}

// From is the number of the first lane of the page.
func (p *lanesPage) From() int { return (p.Page-1)*lanesOnPage + 1 }

// Last is the number of the last one.
func (p *lanesPage) Last() int { return (p.Page-1)*lanesOnPage + len(p.Lanes) }

// Whole is how many lanes the list has.
func (p *lanesPage) Whole() int { return p.Last() + p.LeftOut }

// lanesOf follows a page of lanes.
func (u *ui) lanesOf(r *http.Request) followed {
	q := r.URL.Query()
	number, _ := strconv.Atoi(q.Get("page")) // else it is the first one
	pool, filter, page := u.pool(r), strings.TrimSpace(q.Get("q")), min(max(number, 1), maxPage)
	thing := fmt.Sprintf("lanes\x00%s\x00%s\x00%d", pool, filter, page)
	return followed{thing: thing, open: func() func(context.Context) (any, error) {
		return func(ctx context.Context) (any, error) {
			p := &lanesPage{Pool: pool, Filter: filter, Page: page, Live: withQuery("/lanes/live", q)}
			var err error
			if p.LaneList, err = u.Client.Lanes(pool).Find(ctx, fleet.LaneQuery{Words: filter, Skip: (page - 1) * lanesOnPage, Limit: lanesOnPage}); err != nil {
				return nil, err
			}
			if p.Pools, err = u.Client.Pools(ctx); err != nil && !errors.Is(err, fleet.ErrRights) {
				return nil, err
			}
			return p, nil
		}
	}}
}

// lanes lists the lanes of a pool.
func (u *ui) lanes(ctx context.Context, w http.ResponseWriter, r *http.Request) error {
	p, err := look[*lanesPage](ctx, u, u.lanesOf(r))
	if err != nil {
		return err
	}
	u.show(w, r, http.StatusOK, "lanes", view{Title: "Lanes", Section: "lanes", Data: p})
	return nil
}

func (u *ui) lanesLive(_ context.Context, w http.ResponseWriter, r *http.Request) error {
	return u.stream(w, r, u.lanesOf(r), "lanes", func(data any) []part { return u.parts(r, "lanes", data, "list") })
}

// lanePage is the page of a lane.
type lanePage struct {
	*report.LaneCalls

	Pool protocol.Pool
	Live string
}

// laneOf follows a lane.
func (u *ui) laneOf(r *http.Request) followed {
	pool, lane := u.pool(r), protocol.Lane(r.URL.Query().Get("lane"))
	live := withQuery("/lane/live", r.URL.Query())
	return followed{thing: fmt.Sprintf("lane\x00%s\x00%s", pool, lane), free: overview.Patience, open: func() func(context.Context) (any, error) {
		seen := false
		return func(ctx context.Context) (any, error) {
			shown, err := u.Client.Lanes(pool).Show(ctx, lane, lanesOnPage)
			if seen = seen || err == nil; seen && errors.Is(err, fleet.ErrNotFound) {
				shown, err = &report.LaneCalls{Lane: report.Lane{Lane: lane, Pool: pool, State: "idle"}}, nil // its calls have ended
			}
			return &lanePage{shown, pool, live}, err
		}
	}}
}

// lane shows a lane with its calls.
func (u *ui) lane(ctx context.Context, w http.ResponseWriter, r *http.Request) error {
	p, err := look[*lanePage](ctx, u, u.laneOf(r))
	if err != nil {
		return err
	}
	u.show(w, r, http.StatusOK, "lane", view{
		Title: "Lane " + string(p.Lane.Lane), Section: "lanes", Path: []crumb{{"Lanes", lanesPath(p.Pool)}}, Data: p,
	})
	return nil
}

func (u *ui) laneLive(_ context.Context, w http.ResponseWriter, r *http.Request) error {
	return u.stream(w, r, u.laneOf(r), "lane", func(data any) []part { return u.parts(r, "lane", data, "state", "calls") })
}

// laneAct pauses or resumes a lane, or cancels calls of it.
func (u *ui) laneAct(ctx context.Context, w http.ResponseWriter, r *http.Request) error {
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
		err = fmt.Errorf("%w: %.100q: must be pause, resume, cancel or kill", fleet.ErrInvalid, act)
	}
	if err != nil {
		return err
	}
	u.feeds.renew(r.Context(), "lane")
	u.redirect(w, r, lanePath(pool, lane))
	return nil
}
