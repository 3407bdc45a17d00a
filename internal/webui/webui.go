// Package webui serves the web pages of a fleet: its sessions as they run, what waits for a person,
// its lanes, workers, limits and schedules. It is a client of package fleet, as the HTTP API is: a
// browser has a token, which is a principal, and package judge decides what it may see and do.
//
//	browser ──► bounds ──► cookie ──► principal ──► fleet.Client ──► view ──► template
//	            [Serve]    [sign in]  judge.With                     what a page shows, as values
//	                                                 └► events ──► the open turn, at most
//	                                                              some times in a second
//
// Pages are made on the server. A text of a model, a tool or a person is text in them: templates
// escape it, the policy of the pages allows no script but theirs, and colours of a terminal become
// classes of a fixed list.
package webui

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/toolfleet/toolfleet/internal/access"
	"github.com/toolfleet/toolfleet/internal/access/browsers"
	"github.com/toolfleet/toolfleet/internal/httpapi"
	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/system/recent"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Options are what the pages show.
type Options struct {
	httpapi.Options

	// Fleet is the name of the fleet.
	Fleet protocol.Fleet
	// Base is the path below which the pages are, such as /ui; "" is the whole address.
	Base string
	// Browsers knows who is signed in; nil knows it until the process ends.
	Browsers *browsers.Book
	// Secure says that browsers come over TLS, to this server or to a proxy before it.
	Secure bool
}

//go:embed assets templates
var files embed.FS

// maxWait bounds what a page waits for.
const maxWait = 20 * time.Second

// maxForm bounds the form of a request, and maxUpload one with files, in bytes: what the HTTP API
// takes of files, which are longer there.
const (
	maxForm   = 1 << 20
	maxUpload = httpapi.MaxBody * 3 / 4
)

// ui has what the pages share.
type ui struct {
	Options

	mux    *http.ServeMux
	served []string // patterns of pages
	pages  map[string]*template.Template
	codes  codes
	feeds  feeds
	lists  *recent.Cache[string, *listed] // by their watchers
	kept   *recent.Cache[protocol.SessionID, *kept]

	followed sync.Map // of each session that is followed
	closed   atomic.Bool
	joined   sync.WaitGroup
}

// Handler serves the pages.
type Handler struct {
	http.Handler

	ui *ui
}

// New returns a handler of the pages.
func New(o Options) *Handler {
	if o.Local == nil {
		o.Local = httpapi.OnePool(o.Client, o.Pool)
	}
	if o.NoTurns {
		o.Local = noTurns{o.Local}
	}
	if o.Browsers == nil {
		o.Browsers = browsers.InMemory()
	}
	u := &ui{
		Options: o, mux: http.NewServeMux(), pages: parsed(o.Base),
		lists: recent.New[string, *listed](maxLists, 0), kept: recent.New[protocol.SessionID, *kept](maxKept, maxKeptBytes),
	}
	u.routes()
	return &Handler{u.guarded(), u}
}

// noTurns refuses turns, which would wait without an end.
type noTurns struct{ httpapi.Local }

// Use implements [httpapi.Local].
func (n noTurns) Use(ctx context.Context, id protocol.SessionID, begin, turn bool) (protocol.Pool, error) {
	if turn {
		return "", fmt.Errorf("%w: this server runs no turns: start coordinator ui or http with --model", fleet.ErrInvalid)
	}
	return n.Local.Use(ctx, id, begin, turn)
}

// Close ends what pages follow. No page is served after it.
func (h *Handler) Close() {
	h.ui.closed.Store(true)
	for of := range h.ui.followed.Range {
		if k, is := of.(*kept); is {
			k.stop()
		}
	}
	h.ui.joined.Wait()
	h.ui.feeds.close()
}

// Code returns a code that signs one browser in with a token, at /open?code=, within a minute.
func (h *Handler) Code(bearer string) string { return h.ui.codes.add(bearer) }

// routes registers the pages.
func (u *ui) routes() {
	assets, _ := fs.Sub(files, "assets") // it is there
	u.mux.Handle("GET /assets/", cached(http.StripPrefix("/assets/", http.FileServerFS(assets))))
	u.mux.HandleFunc("GET /sign-in", u.signInPage)
	u.mux.HandleFunc("POST /sign-in", u.signIn)
	u.mux.HandleFunc("POST /sign-out", u.signOut)
	u.mux.HandleFunc("GET /open", u.openCode)

	u.page("GET /", func(_ context.Context, _ http.ResponseWriter, r *http.Request) error {
		return fmt.Errorf("page %s: %w", r.URL.Path, fleet.ErrNotFound)
	})
	u.page("GET /{$}", func(_ context.Context, w http.ResponseWriter, r *http.Request) error {
		u.redirect(w, r, "/sessions")
		return nil
	})
	u.page("GET /sessions", u.sessions)
	u.page("POST /sessions", u.startSession)
	u.sessionTabs()
	u.outputPages()
	u.filePages()
	u.page("GET /sessions/{session}/live", u.live)
	u.page("GET /sessions/{session}/confirm/{act}", u.confirm)
	u.page("POST /sessions/{session}/{act}", u.act)
	u.page("GET /waits", u.waits)
	u.page("GET /waits/count", u.waitsCount)
	u.fleetPages()
	u.page("GET /lanes", u.lanes)
	u.page("GET /lanes/live", u.lanesLive)
	u.page("GET /lane", u.lane)
	u.page("GET /lane/live", u.laneLive)
	u.page("POST /lane/{act}", u.laneAct)
	u.page("GET /schedules", u.schedules)
	u.page("POST /schedules/{act}", u.scheduleAct)
	u.page("GET /webhooks", u.webhooks)
	u.page("POST /webhooks/{act}", u.webhookAct)
	u.page("GET /calls", u.calls)
	u.page("GET /calls/{session}/{call}", u.loggedCall)
	u.page("POST /calls/{session}/{call}/again", u.runAgain)
	u.page("GET /fleet/plots", u.plots)
}

// guarded lets in those that may come, before any page.
func (u *ui) guarded() http.Handler {
	handler := httpapi.WithRequest(http.StripPrefix(u.Base, u.mux))
	if u.Shares != nil {
		handler = u.Shares.Bound(handler, u.refuse)
	}
	if u.Access != nil {
		handler = u.signedIn(handler)
	}
	origins := http.NewCrossOriginProtection()
	origins.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		u.refuse(w, http.StatusForbidden, "a web page of another origin has sent the request")
	}))
	if handler = origins.Handler(handler); !u.AnyHost {
		handler = access.LocalHost(handler, u.refuse)
	}
	return headers(handler, u.Base)
}

// policy is what browsers may do with a page: nothing that it does not need.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"

// headers sets what browsers are to know of each answer, and bounds the forms that they send.
func headers(next http.Handler, base string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		most := int64(maxForm)
		if r.URL.Path == base+"/sessions" || strings.HasSuffix(r.URL.Path, "/send") {
			most = maxUpload
		}
		r.Body = http.MaxBytesReader(w, r.Body, most)
		next.ServeHTTP(w, r)
	})
}

// cached lets browsers keep files of the program, whose addresses have its version.
func cached(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.RawQuery != "" {
			w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
		}
		next.ServeHTTP(w, r)
	})
}

// page registers a page. Its context bounds what it asks the fleet; that of the request ends with
// the browser alone. What it returns as an error becomes a page that says so, or a line in the page
// that is open.
func (u *ui) page(pattern string, serve func(context.Context, http.ResponseWriter, *http.Request) error) {
	u.served = append(u.served, pattern)
	writes := !strings.HasPrefix(pattern, http.MethodGet)
	u.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		if large, is := errors.AsType[*http.MaxBytesError](parsedForm(r, writes)); is {
			u.fail(w, r, fmt.Errorf("%w: the form, with its files, must have at most %s", fleet.ErrInvalid, size(large.Limit)))
			return
		}
		if writes && !u.formIsOurs(r) {
			u.refuse(w, http.StatusForbidden, "the form is of another sign-in: load the page again")
			return
		}
		ctx, cancel := within(r.Context())
		defer cancel()
		if err := serve(ctx, w, r); err != nil {
			u.fail(w, r, err)
		}
	})
}

// parsedForm reads the form of a request, all of it in memory.
func parsedForm(r *http.Request, has bool) error {
	if !has {
		return nil
	}
	return r.ParseMultipartForm(maxUpload) //nolint:gosec // its body is bounded, see headers
}

// within bounds what a page asks the fleet.
func within(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, maxWait)
}

// statusOf is the status and the title of an error.
func statusOf(err error) (int, string) {
	refusal, refused := errors.AsType[*judge.RefusalError](err)
	switch {
	case refused && !refusal.Hides(), errors.Is(err, fleet.ErrRights):
		return http.StatusForbidden, "You have no right to this"
	case errors.Is(err, fleet.ErrNotFound):
		return http.StatusNotFound, "There is no such thing here"
	case errors.Is(err, fleet.ErrInvalid), errors.Is(err, protocol.ErrInvalidCall):
		return http.StatusUnprocessableEntity, "This cannot be read"
	case errors.Is(err, fleet.ErrExists), errors.Is(err, fleet.ErrSessionBusy), errors.Is(err, loop.ErrRemoved):
		return http.StatusConflict, "This does not fit now"
	case errors.Is(err, fleet.ErrUnreachable), errors.Is(err, context.DeadlineExceeded):
		return http.StatusServiceUnavailable, "The fleet does not answer"
	default:
		return http.StatusInternalServerError, "This failed"
	}
}

// fail answers with an error.
func (u *ui) fail(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil {
		return // the browser has gone
	}
	status, title := statusOf(err)
	if r.Header.Get("HX-Request") != "" && r.Method == http.MethodPost { // the page that is open says it
		w.Header().Set("HX-Retarget", "#fault")
		w.Header().Set("HX-Reswap", "innerHTML")
		u.write(w, r, status, "error", "fault", view{Title: title, Data: err.Error()})
		return
	}
	if status == http.StatusInternalServerError {
		u.Logger.WarnContext(r.Context(), "page failed", slog.String("path", r.URL.Path), slog.Any("error", err))
	}
	u.show(w, r, status, "error", view{Title: title, Data: err.Error()})
}

// refuse answers a request that no page gets.
func (u *ui) refuse(w http.ResponseWriter, status int, reason string) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	var page bytes.Buffer
	if err := u.pages["refused"].ExecuteTemplate(&page, "refused", view{Title: http.StatusText(status), Data: reason, Version: u.Version}); err == nil {
		_, _ = page.WriteTo(w) // the browser has gone
	}
}

// signedIn lets in those whose cookie has a known token; others are asked for one.
func (u *ui) signedIn(next http.Handler) http.Handler {
	required := access.Require(u.Access, next, func(w http.ResponseWriter, status int, reason string) {
		if status == http.StatusUnauthorized {
			w.Header().Del("WWW-Authenticate") // the browser would ask by itself
		}
		u.refuse(w, status, reason)
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if open(strings.TrimPrefix(r.URL.Path, u.Base)) {
			http.StripPrefix(u.Base, u.mux).ServeHTTP(w, r)
			return
		}
		browser, err := u.Browsers.Open(r, u.cookie(r))
		if err == nil {
			_, err = u.Access.Verify(r.Context(), browser.Bearer)
		}
		if errors.Is(err, access.ErrUnknown) {
			to := "/sign-in"
			if r.Method == http.MethodGet && r.Header.Get("HX-Request") == "" {
				to = queried(to, "to", strings.TrimPrefix(r.URL.RequestURI(), u.Base))
			}
			u.redirect(w, r, to)
			return
		}
		ctx, end := u.Browsers.Until(r.Context(), browser)
		defer end()
		r = r.WithContext(ctx)
		r.Header.Set("Authorization", "Bearer "+browser.Bearer)
		required.ServeHTTP(w, r)
	})
}

// open reports whether a path needs no token.
func open(path string) bool {
	return path == "/sign-in" || path == "/open" || strings.HasPrefix(path, "/assets/")
}

// redirect sends a browser to another page, also where a part of a page was asked for.
func (u *ui) redirect(w http.ResponseWriter, r *http.Request, to string) {
	to = u.Base + to
	if r.Header.Get("HX-Request") != "" {
		w.Header().Set("HX-Redirect", to)
		w.WriteHeader(http.StatusOK)
		return
	}
	http.Redirect(w, r, to, http.StatusSeeOther) //nolint:gosec // below Base; see inside
}
