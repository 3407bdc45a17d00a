package webui

import (
	"cmp"
	"fmt"
	"maps"
	"net/url"
	"strings"

	"github.com/toolfleet/toolfleet/internal/overview"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Addresses are below the base, which templates and redirect put before them. What they are about
// is escaped here, in the path and in the query: a template that put it together would have to know
// whether the attribute is one that package html/template takes for an address.

// address is the address of a page by the segments of its path.
func address(segments ...any) string {
	var path strings.Builder
	for _, s := range segments {
		path.WriteString("/" + url.PathEscape(fmt.Sprint(s)))
	}
	return path.String()
}

// withQuery is an address with a query.
func withQuery(path string, query url.Values) string {
	if len(query) == 0 {
		return path
	}
	return path + "?" + query.Encode()
}

// changed is a query with other values, as names and values; "" leaves a name out.
func changed(query url.Values, values ...string) url.Values {
	made := url.Values{}
	maps.Copy(made, query)
	for i := 0; i+1 < len(values); i += 2 {
		if made.Del(values[i]); values[i+1] != "" {
			made.Set(values[i], values[i+1])
		}
	}
	return made
}

// queried is an address with a query of names and values.
func queried(path string, values ...string) string { return withQuery(path, changed(nil, values...)) }

// again is an address that is asked with what a page shows, which may be nothing.
func again(path string, query url.Values, shown string) string {
	query.Set("shown", shown)
	return withQuery(path, query)
}

// sessionPath is the address of a session, or of a page below it. The id of a sub-agent is that of
// its call.
func sessionPath(id any, below ...any) string { return address("sessions", id) + address(below...) }

// sessionCallPath is the address of a call in its session.
func sessionCallPath(session protocol.SessionID, call protocol.CallID) string {
	return sessionPath(session, "calls", call)
}

// callPath is the address of a call in the log.
func callPath(session protocol.SessionID, call protocol.CallID) string {
	return address("calls", session, call)
}

func lanePath(pool protocol.Pool, lane protocol.Lane) string {
	return queried("/lane", "pool", string(pool), "lane", string(lane))
}

// laneAt is the page of a lane, as POOL/LANE; "" without one.
func laneAt(lane string) string {
	pool, rest, is := strings.Cut(lane, "/")
	if !is {
		return ""
	}
	return lanePath(protocol.Pool(pool), protocol.Lane(rest))
}

func lanesPath(pool protocol.Pool) string { return queried("/lanes", "pool", string(pool)) }

func workerPath(pool protocol.Pool, id protocol.WorkerID) string {
	return queried("/worker", "pool", string(pool), "id", string(id))
}

func limitPath(l fleet.Limit) string {
	return queried("/limit", "lane", l.Lane, "tenant", string(l.Tenant), "pool", string(l.Pool))
}

// logPath is the address of the log of calls, filtered by names and values.
func logPath(values ...string) string { return queried("/calls", values...) }

// lookPath is where more is said of what needs a look; "" for nothing.
func lookPath(l overview.Look) string {
	switch l.Kind {
	case overview.KindWorker:
		return workerPath(l.Pool, l.WorkerID)
	case overview.KindLane:
		if l.Lane != "" {
			return lanePath(l.Pool, l.Lane)
		}
	case overview.KindCall:
		return sessionCallPath(l.SessionID, l.CallID)
	case overview.KindSession:
		return sessionPath(l.SessionID)
	case overview.KindLimit:
		return "/limits"
	}
	return ""
}

// waitPath is the page of what something waits for; "" if there is none.
func waitPath(w *report.Wait) string {
	switch {
	case w.CallID != "":
		return callPath(w.SessionID, w.CallID)
	case w.Limit != "":
		return limitPath(fleet.Limit{Lane: w.Limit})
	case w.WorkerID != "":
		return workerPath(w.Pool, w.WorkerID)
	}
	return ""
}

// partPath is the page of what a call of a session and a lane waited for; "" if there is none.
func partPath(session protocol.SessionID, lane string, p *report.Part) string {
	pool, _, inLane := strings.Cut(lane, "/")
	switch p.Reason {
	case report.ReasonLane, report.ReasonAfter:
		if other, call, is := strings.Cut(p.For, "/"); is {
			return callPath(protocol.SessionID(other), protocol.CallID(call))
		} else if p.For != "" {
			return callPath(session, protocol.CallID(p.For))
		}
		return laneAt(lane)
	case report.ReasonPause, report.ReasonFull:
		return laneAt(lane)
	case report.ReasonLimit, report.ReasonRate:
		return cmp.Or(waitPath(&report.Wait{Limit: p.For}), "/limits")
	case report.ReasonLost:
		return waitPath(&report.Wait{WorkerID: protocol.WorkerID(p.For), Pool: protocol.Pool(pool)})
	case report.ReasonSlot, report.ReasonWorker:
		if inLane {
			return lanesPath(protocol.Pool(pool))
		}
	default:
	}
	return ""
}
