package httpapi

import (
	"encoding/json"
	"net/http"

	"github.com/toolfleet/toolfleet/internal/access"
)

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
