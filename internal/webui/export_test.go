package webui

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"

	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Follow serves a stream of a thing at a path, for tests.
func (h *Handler) Follow(path string, read func(context.Context) (any, error)) {
	h.ui.page("GET "+path, func(_ context.Context, w http.ResponseWriter, r *http.Request) error {
		what := followed{thing: path, open: func() func(context.Context) (any, error) { return read }}
		return h.ui.stream(w, r, what, path, func(data any) []part {
			p := h.ui.part(r, "fleet", "stale", errors.New(fmt.Sprint(data)))
			p.id = "thing"
			return []part{p}
		})
	})
}

// LookEvery is the least time between two readings.
const LookEvery = lookEvery

// Feeds is how many things are read now.
func (h *Handler) Feeds() int {
	h.ui.feeds.mu.Lock()
	defer h.ui.feeds.mu.Unlock()
	return len(h.ui.feeds.all)
}

// Kept is how many events a session was read of, and how many sessions are kept.
func (h *Handler) Kept(id protocol.SessionID) (events, sessions int) {
	if k, is := h.ui.kept.Get(id); is {
		k.mu.Lock()
		defer k.mu.Unlock()
		events = k.of.version
	}
	return events, h.ui.kept.Len()
}

// Lingers is how long a thing is still read that no page shows.
const Lingers = lingers

// Bars are the heights of the bars of each plot, by their classes, for each step.
func Bars(rates report.CallRates) (plots []map[string][]float64) {
	for _, p := range plotsOf(rates).Plots {
		heights, steps := map[string][]float64{}, len(rates.Buckets)
		for _, bar := range p.Bars {
			if heights[bar.Class] == nil {
				heights[bar.Class] = make([]float64, steps)
			}
			heights[bar.Class][int(bar.X*float64(steps)/plotWidth)] = math.Round(bar.H)
		}
		plots = append(plots, heights)
	}
	return plots
}

// Served are the patterns of the pages.
func (h *Handler) Served() []string { return h.ui.served }

// Matches is the pattern that serves a path.
func (h *Handler) Matches(path string) string {
	_, pattern := h.ui.mux.Handler(httptest.NewRequestWithContext(context.Background(), http.MethodGet, path, nil))
	return pattern
}

// PlottedWaits are the reasons that the plots of waits have.
func PlottedWaits() (all []report.Reason) {
	for _, w := range plottedWaits {
		all = append(all, w.reasons...)
	}
	return all
}

// Opens opens a cookie of a browser, on a connection of which nothing is known.
func (h *Handler) Opens(cookie string) error {
	_, err := h.ui.Browsers.Open(httptest.NewRequestWithContext(context.Background(), http.MethodGet, "/ui/", nil), cookie)
	return err
}
