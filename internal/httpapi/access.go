package httpapi

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/toolfleet/toolfleet/internal/access"
)

// bodyTimeout is in what time the body of a request must arrive.
const bodyTimeout = time.Minute

// Access knows who sends a request.
type Access struct {
	Verifier access.Verifier
}

// public are the paths that need no token.
var public = map[string]bool{"/openapi.json": true, "/openapi.yaml": true} //nolint:gochecknoglobals // a constant

// require lets requests with a known token pass.
func (a *Access) require(next http.Handler) http.Handler {
	bound := access.Require(a.Verifier, next, refuse)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if public[r.URL.Path] {
			next.ServeHTTP(w, r)
			return
		}
		bound.ServeHTTP(w, r)
	})
}

// refuse answers with a problem.
func refuse(w http.ResponseWriter, status int, reason string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(ofRequest(status, reason)) // the client has gone
}
