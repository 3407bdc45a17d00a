// Package httpapi serves a fleet over HTTP: the verbs of package fleet as a JSON API that OpenAPI
// describes, with streams of events. It translates, and decides nothing: each request has a
// principal, and what the client of the fleet does for it is judged by package judge.
//
//	request ──► bounds ──► token ──► principal ──► fleet.Client ──► answer, or problem
//	            [Serve]    [Access]  judge.With                     [problem]
//	                                                └► events ──► text/event-stream
//	                                                              ids continue after a break
package httpapi

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"reflect"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/toolfleet/toolfleet/internal/access"
	"github.com/toolfleet/toolfleet/internal/calls"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// MaxBody bounds the body of a request, in bytes.
const MaxBody = 8 << 20

// maxWait bounds what an operation that only asks the fleet waits for.
const maxWait = time.Minute

// Options are what the API serves.
type Options struct {
	// Client is the fleet.
	Client *fleet.Client
	// Access knows who sends a request; nil lets everyone act as the operator.
	Access access.Verifier
	// Table returns the tools that requests may name, which may change.
	Table func() *tools.Table
	// Pool runs the calls of sessions; "" is [protocol.DefaultPool].
	Pool protocol.Pool
	// Local knows the processes of this machine that run sessions; nil means that Pool runs all of
	// them.
	Local Local
	// NoTurns refuses turns: no model is served here.
	NoTurns bool
	// Session has the calls that name none; "" is one for all such calls of the client.
	Session protocol.SessionID
	// MinLevel is the minimum sandbox level of calls that name none.
	MinLevel string
	// Shares bound what each principal uses; nil does not.
	Shares *access.Shares
	// AnyHost lets in requests to a loopback address under any name: those that a proxy sends.
	AnyHost bool
	// Policy judges single calls; nil allows each one. Those of turns are judged where they run.
	Policy loop.Policy
	// Hooks see, change and refuse single calls, and the results of all calls.
	Hooks []loop.Hook
	// Version is that of this program.
	Version string
	Logger  *slog.Logger
}

// Local knows the processes that run the sessions of this machine.
type Local interface {
	// List, Show, Cancel and Remove are those of [fleet.Sessions].
	List(ctx context.Context, limit int) (list []report.Session, leftOut int, err error)
	Show(ctx context.Context, id protocol.SessionID) (*report.Session, error)
	Cancel(ctx context.Context, id protocol.SessionID) ([]protocol.CallID, error)
	Remove(ctx context.Context, id protocol.SessionID, force bool) (report.Removed, error)
	// Pool has the sandbox of a session. Use is Pool for what takes a process that runs the
	// session, or a turn. With begin, the session is begun if there is none.
	Pool(ctx context.Context, id protocol.SessionID) protocol.Pool
	Use(ctx context.Context, id protocol.SessionID, begin, turn bool) (protocol.Pool, error)
}

// OnePool returns a [Local] of sessions that are all run by workers of one pool.
func OnePool(client *fleet.Client, pool protocol.Pool) Local {
	return onePool{client.Sessions(pool), pool}
}

// onePool is a [Local] whose sessions are all run by workers of one pool.
type onePool struct {
	fleet.Sessions

	pool protocol.Pool
}

// Pool implements [Local].
func (p onePool) Pool(context.Context, protocol.SessionID) protocol.Pool { return p.pool }

// Use implements [Local].
func (p onePool) Use(context.Context, protocol.SessionID, bool, bool) (protocol.Pool, error) {
	return p.pool, nil
}

// of are the sessions of the pool that has the sandbox of a session.
func (a *api) of(ctx context.Context, id protocol.SessionID) fleet.Sessions {
	return a.Client.Sessions(a.Local.Pool(ctx, id))
}

// using answers with what do does in the sessions of the pool that has the sandbox of a session. It
// is for what takes a process that runs the session, or a turn. With begin, the session is begun if
// there is none.
func using[T any](ctx context.Context, a *api, id protocol.SessionID, begin, turn bool, do func(fleet.Sessions) (T, error)) (*answer[T], error) {
	if turn && a.NoTurns {
		return nil, ofRequest(http.StatusUnprocessableEntity, "this server runs no turns: start coordinator http with --model")
	}
	pool, err := a.Local.Use(ctx, id, begin, turn)
	if err != nil {
		return nil, problem(err)
	}
	return answered(do(a.Client.Sessions(pool)))
}

// api has what the operations share.
type api struct {
	Options

	huma huma.API
}

// New returns a handler of the API, with its description at /openapi.json.
func New(o Options) http.Handler {
	mux := http.NewServeMux()
	a := newAPI(mux, o)
	handler := WithRequest(problems(mux))
	if a.Shares != nil {
		handler = a.Shares.Bound(handler, refuse)
	}
	if a.Access != nil {
		handler = require(a.Access, handler)
	}
	origins := http.NewCrossOriginProtection()
	origins.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		refuse(w, http.StatusForbidden, "a web page of another origin has sent the request")
	}))
	if handler = origins.Handler(handler); a.AnyHost {
		return handler
	}
	return access.LocalHost(handler, refuse)
}

// Description returns the OpenAPI description, as the handler serves it.
func Description(version string) ([]byte, error) {
	a := newAPI(http.NewServeMux(), Options{Version: version})
	return json.MarshalIndent(a.huma.OpenAPI(), "", "  ")
}

func newAPI(mux *http.ServeMux, o Options) *api {
	if o.Local == nil {
		o.Local = OnePool(o.Client, o.Pool)
	}
	config := huma.DefaultConfig("toolfleet", o.Version)
	config.Info.Description = "Sessions, tool calls and the state of a fleet. Times are RFC 3339, durations are milliseconds."
	config.DocsPath, config.SchemasPath, config.CreateHooks = "", "", nil // no page of a foreign host, and no $schema in answers
	config.Components.Schemas = huma.NewMapRegistry("#/components/schemas/", schemaName)
	config.RejectUnknownQueryParameters = true
	config.Components.SecuritySchemes = map[string]*huma.SecurityScheme{"token": {Type: "http", Scheme: "bearer"}}
	config.Security = []map[string][]string{{"token": {}}}
	a := &api{Options: o, huma: humago.New(mux, config)}
	a.calls()
	a.sessions()
	a.files()
	a.fleet()
	a.webhooks()
	describe(a.huma.OpenAPI())
	return a
}

// renamed are types whose names others have, too.
var renamed = map[reflect.Type]string{ //nolint:gochecknoglobals // a constant
	reflect.TypeFor[loop.Attachment]():   "EventAttachment",
	reflect.TypeFor[protocol.Question](): "AskedQuestion",
	reflect.TypeFor[protocol.Result]():   "ProtocolResult",
	reflect.TypeFor[loop.Effect]():       "EventEffect",
	reflect.TypeFor[fleet.Limit]():       "Limit",
}

// schemaName is the name of a type in the description.
func schemaName(t reflect.Type, hint string) string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if name, is := renamed[t]; is {
		return name
	}
	return huma.DefaultSchemaNamer(t, hint)
}

// operation describes one, with the answers that every operation may give.
func operation(method, path, id, tag, summary string, more ...func(*huma.Operation)) huma.Operation {
	op := huma.Operation{
		OperationID: id, Method: method, Path: "/v1" + path, Summary: summary, Tags: []string{tag}, MaxBodyBytes: MaxBody, BodyReadTimeout: -1, // [access.Serve] bounds it

		Errors: []int{
			http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusConflict, http.StatusUnprocessableEntity,
			http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusServiceUnavailable,
		},
	}
	if method != http.MethodGet && method != http.MethodDelete {
		op.Errors = append(op.Errors, http.StatusRequestTimeout, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType)
	}
	for _, change := range more {
		change(&op)
	}
	return op
}

// accepted is the status of an operation whose effect is still to come.
func accepted(op *huma.Operation) { op.DefaultStatus = http.StatusAccepted }

// created is the status of an operation that made something.
func created(op *huma.Operation) { op.DefaultStatus = http.StatusCreated }

// answer is a body of type T.
type answer[T any] struct{ Body T }

// answered makes an answer of a result and an error of the client.
func answered[T any](body T, err error) (*answer[T], error) {
	if err != nil {
		return nil, problem(err)
	}
	return &answer[T]{body}, nil
}

// done is the answer without a body of an operation.
func done(err error) (*struct{}, error) {
	if err != nil {
		return nil, problem(err)
	}
	return nil, nil //nolint:nilnil // no body
}

// bounded ends an operation that only asks the fleet after [maxWait].
func bounded(op *huma.Operation) {
	op.Middlewares = append(op.Middlewares, func(ctx huma.Context, next func(huma.Context)) {
		within, cancel := context.WithTimeout(ctx.Context(), maxWait)
		defer cancel()
		next(huma.WithContext(ctx, within))
	})
}

// public are the paths that need no token.
var public = map[string]bool{"/openapi.json": true, "/openapi.yaml": true} //nolint:gochecknoglobals // a constant

// require lets requests with a known token pass.
func require(verifier access.Verifier, next http.Handler) http.Handler {
	bound := access.Require(verifier, next, refuse)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if public[r.URL.Path] {
			next.ServeHTTP(w, r)
			return
		}
		bound.ServeHTTP(w, r)
	})
}

// WithRequest ends what a request follows with the request, see [calls.WithRequest].
func WithRequest(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, end := calls.WithRequest(r.Context())
		defer end()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// refuse answers with a problem, and ends the connection.
func refuse(w http.ResponseWriter, status int, reason string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("Connection", "close")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(ofRequest(status, reason)) // the client has gone
}

// problems answers with problems where the router answers with texts: an unknown path, or a method
// that a path has not.
func problems(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, pattern := mux.Handler(r); pattern != "" {
			mux.ServeHTTP(w, r)
			return
		}
		found := &headOnly{header: http.Header{}, code: http.StatusNotFound}
		mux.ServeHTTP(found, r)
		reason := r.URL.Path + ": there is no such path; /openapi.json has all of them"
		if found.code < http.StatusBadRequest { // the router would redirect to another operation
			found.code, reason = http.StatusNotFound, r.URL.Path+": no segment of a path is empty, . or .."
		}
		if allowed := found.header.Get("Allow"); allowed != "" {
			w.Header().Set("Allow", allowed)
			reason = r.Method + ": " + r.URL.Path + " has " + allowed
		}
		refuse(w, found.code, reason)
	})
}

// headOnly is an answer of which only the head counts.
type headOnly struct {
	header http.Header
	code   int
}

// Header implements [http.ResponseWriter].
func (s *headOnly) Header() http.Header { return s.header }

// WriteHeader implements [http.ResponseWriter].
func (s *headOnly) WriteHeader(code int) { s.code = code }

// Write implements [http.ResponseWriter].
func (s *headOnly) Write(p []byte) (int, error) { return len(p), nil }
