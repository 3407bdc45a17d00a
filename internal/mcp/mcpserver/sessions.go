package mcpserver

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// maxSessions is how many sessions of the protocol a token has at once. One more ends the one that
// is idle for longest; its client greets again, as the protocol has it.
const maxSessions = 64

// sessionHeader names a session of the protocol.
const sessionHeader = "Mcp-Session-Id"

// openSessions bounds the sessions of each token: each costs memory until it ends, or is idle for
// [idleSession].
type openSessions struct {
	handler http.Handler
	ended   func(ctx context.Context, id string) // is called when a client ends its session

	mu sync.Mutex
	of map[string]map[string]*openSession // by the principal, and the id
}

// openSession is a session that has not ended, as far as is known here.
type openSession struct {
	used     time.Time
	requests int // that are being answered
}

func (o *openSessions) serve(w http.ResponseWriter, r *http.Request) {
	owner := principalOf(auth.TokenInfoFromContext(r.Context())).ID()
	id := r.Header.Get(sessionHeader)
	if id == "" {
		o.open(w, r, owner)
		return
	}
	defer o.use(owner, id)()
	o.handler.ServeHTTP(w, r)
	if r.Method == http.MethodDelete {
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.of[owner][id] != nil {
			o.ended(r.Context(), id)
		}
		delete(o.of[owner], id)
	}
}

// open answers a request without a session, which may create one. It reserves the slot before.
func (o *openSessions) open(w http.ResponseWriter, r *http.Request, owner string) {
	place := "opening " + rand.Text()
	if !o.makeRoom(r, owner, place) {
		http.Error(w, "too many sessions of this token are in use: end one", http.StatusTooManyRequests)
		return
	}
	defer func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(o.of[owner], place)
		if made := w.Header().Get(sessionHeader); made != "" {
			o.of[owner][made] = &openSession{used: time.Now()}
		}
	}()
	o.handler.ServeHTTP(w, r)
}

// use notes that a session is used until the function is called.
func (o *openSessions) use(owner, id string) (done func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	s := o.of[owner][id]
	if s == nil {
		return func() {}
	}
	s.requests++
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		s.requests--
		s.used = time.Now()
	}
}

// makeRoom reserves a slot for another session. It reports whether there is one.
func (o *openSessions) makeRoom(r *http.Request, owner, place string) bool {
	oldest := ""
	o.mu.Lock()
	if o.of[owner] == nil {
		o.of[owner] = map[string]*openSession{}
	}
	of := o.of[owner]
	for id, s := range of {
		switch {
		case s.requests > 0:
		case time.Since(s.used) > idleSession: // it has ended by itself
			delete(of, id)
		case oldest == "" || s.used.Before(of[oldest].used):
			oldest = id
		}
	}
	full := len(of) >= maxSessions
	if full {
		delete(of, oldest)
	}
	if !full || oldest != "" {
		of[place] = &openSession{requests: 1}
	}
	o.mu.Unlock()
	if full && oldest != "" {
		end := r.Clone(r.Context())
		end.Method, end.Body, end.ContentLength = http.MethodDelete, http.NoBody, 0
		end.Header.Set(sessionHeader, oldest)
		o.handler.ServeHTTP(httptest.NewRecorder(), end)
	}
	return !full || oldest != ""
}

// endTimeout bounds the removal of what a session of the protocol used.
const endTimeout = 10 * time.Second

// ended removes what only a session of the protocol used, which its client has ended. This server
// made that, so the client's role does not matter. What cannot be removed now, such as the results
// of calls that continue without their client, stays.
func (s *Server) ended(ctx context.Context, id string) {
	session, err := protocol.ParseSessionID(id)
	if err != nil || s.options.Session != "" {
		return
	}
	s.ledger.Forget(session)
	if s.options.Ended == nil {
		return
	}
	s.following.all.Go(func() {
		ctx, cancel := context.WithTimeout(judge.With(context.WithoutCancel(ctx), judge.Principal{}), endTimeout)
		defer cancel()
		if err := s.options.Ended(ctx, session); err != nil {
			s.options.Logger.InfoContext(ctx, "session of a client that has ended it stays", slog.String("session", id), slog.Any("error", err))
		}
	})
}

// keyHeader carries the key of the URL from [Server.Handler] to the calls of a request.
const keyHeader = "Toolfleet-Mcp-Key"

// session returns the session whose sandbox a request uses: the server's configured one; else that
// of the protocol's session; else (2026-07-28 has no sessions) that of the name and the tenant of
// the token, and of the key in the URL.
func (s *Server) session(request mcp.Request) protocol.SessionID {
	if s.options.Session != "" {
		return s.options.Session
	}
	who, key := principal(request), ""
	if extra := request.GetExtra(); extra != nil {
		key = extra.Header.Get(keyHeader)
	}
	if id := request.GetSession().ID(); id != "" && key == "" {
		if session, err := protocol.ParseSessionID(id); err == nil {
			return session
		}
	}
	named := []byte(string(s.options.Name) + "\x00" + who.Name + "\x00" + key)
	if who.Tenant != "" { // no fleet's name begins as a list of JSON does
		named, _ = json.Marshal([]string{string(s.options.Name), string(who.Tenant), who.Name, key}) // texts always can be
	}
	return protocol.SessionID(uuid.NewSHA1(keySpace, named).String())
}

// keySpace is the name space of sessions that have a key.
var keySpace = uuid.MustParse("4ad8c2ab-6b0d-4c1c-9a55-2d0f4b1f7a10") //nolint:gochecknoglobals // a constant
