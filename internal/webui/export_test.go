package webui

import (
	"context"
	"errors"
	"fmt"
	"net/http"
)

// Follow serves a stream of a thing at a path, for tests.
func (h *Handler) Follow(path string, read func(context.Context) (any, error)) {
	h.ui.page("GET "+path, func(w http.ResponseWriter, r *http.Request) error {
		what := followed{thing: path, open: func() func(context.Context) (any, error) { return read }}
		return h.ui.stream(w, r, what, func(data any) []part {
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

// Lingers is how long a thing is still read that no page shows.
const Lingers = lingers
