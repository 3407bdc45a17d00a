// Package toolserver keeps servers of the Model Context Protocol alive between the calls of their
// tools.
//
//	mcp_call ──► Servers.Call ──► does it live? ── no ──► program: sandbox.Exec, fed and read
//	                                   │                   URL: streamable HTTP, from the worker
//	   result ◄── content, structured ◄┴─ tools/call ──► progress ──► live output
//
// A server lives in one sandbox, with its state, until it has had no call for a while, its sandbox
// is closed, or it ends by itself; until then the worker holds the lane, as for background
// processes. One that has died is started again by the next call, with growing delays if it dies
// again and again. The resource keys of calls, not this package, decide which calls may overlap.
//
// When a call is stopped, the server is notified, and ended after a moment unless the tool only
// reads: it might ignore the notification, and change files after the call's result.
package toolserver

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolfleet/toolfleet/internal/mcp/login"
	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// Bounds of [Servers].
const (
	// MaxServers is how many servers may live in a sandbox.
	MaxServers = 32
	// maxTools is the maximum number of a server's tools.
	maxTools = 1000
	// startTimeout bounds the start of a server: some install themselves first.
	startTimeout = 2 * time.Minute
	// Idle is how long a server lives without a call.
	Idle = 10 * time.Minute
	// stopGrace is how long a server has to stop by itself when a call was stopped.
	stopGrace = 500 * time.Millisecond
	// Times between starts of a server that dies again and again.
	firstDelay, maxDelay = time.Second, time.Minute
)

// Surroundings is where servers run, and what they reach.
type Surroundings struct {
	// Sandbox is open while calls run.
	Sandbox sandbox.Sandbox
	// Root is the workspace as programs in the sandbox know it.
	Root string
	// HTTP reaches servers that have a URL; nil refuses them.
	HTTP *http.Transport
	// Logins are the logins of people at such servers.
	Logins login.Store
	// Variable is a variable of the worker's environment, for "${NAME}". The error says why it
	// may not be used.
	Variable func(name string) (string, error)
	// Show gets the progress and the server's log messages while a call runs. Calls do not overlap,
	// and none comes after the call has returned; nil shows nothing.
	Show func(text string)
	// Running is the call that runs; nil for requests that are none.
	Running *Running
	// Ask puts a question of a call that runs to a person, and returns an answer that fits, which
	// may complete it. It ends with ctx; the error says why there is no answer. nil declines.
	Ask AskFunc
}

// Running is a call as its server is told of it: what it needs to do nothing twice.
type Running struct {
	SessionID protocol.SessionID `json:"session_id"`
	CallID    protocol.CallID    `json:"call_id"` // the same in every attempt
	Attempt   int                `json:"attempt"` // from 1
	// Fence grows with each holder of the call's lane: a resource that stores the greatest refuses
	// those who continue after their lease.
	Fence uint64 `json:"fence"`
}

// AskFunc is the type of [Surroundings].Ask.
type AskFunc = func(ctx context.Context, q protocol.Question, fits func(*protocol.Answer) error) (protocol.Answer, error)

// Servers are the servers of one sandbox. It is safe for concurrent use.
type Servers struct {
	group sync.WaitGroup

	mu  sync.Mutex
	all map[string]*server // by name
}

// New returns none yet.
func New() *Servers { return &Servers{all: map[string]*server{}} }

// server is a server that runs or has ended.
type server struct {
	spec protocol.MCPServer

	starting sync.Mutex // held while it is started

	mu     sync.Mutex
	live   *live // nil before the first start
	calls  int   // that run
	idle   *time.Timer
	delays *backoff.ExponentialBackOff
	notYet time.Time // when it may be started again
}

// Running is how many servers live, or are being started.
func (s *Servers) Running() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, one := range s.all {
		one.mu.Lock()
		if one.calls > 0 || one.live != nil && one.live.IsRunning() {
			n++
		}
		one.mu.Unlock()
	}
	return n
}

// End ends all servers; later calls start them again.
func (s *Servers) End() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.all {
		one.end()
	}
}

// Wait returns when all servers have ended.
func (s *Servers) Wait() { s.group.Wait() }

// List returns the tools of a server. The error is a *[protocol.Error] when
// the server is to blame.
func (s *Servers) List(ctx context.Context, at Surroundings, spec protocol.MCPServer) (list wire.MCPListResult, err error) {
	list.Tools = []wire.MCPTool{}
	err = s.withServer(ctx, at, spec, callOptions{again: true, harmless: true}, func(l *live) error {
		list.Tools = list.Tools[:0]
		l.changed.Store(false)
		if l.session.InitializeResult().Capabilities.Tools == nil {
			return nil
		}
		for tool, err := range l.session.Tools(ctx, nil) {
			if err != nil {
				return err
			}
			if len(list.Tools) == maxTools {
				return protocol.Errorf(codes.TooLarge, "MCP server %s has more than %d tools", spec.Name, maxTools)
			}
			list.Tools = append(list.Tools, toolOf(tool))
		}
		return nil
	})
	return list, err
}

// Call calls a tool. again says that a call during which the server dies may be made again. A value
// returned with an error is what the tool said of its failure. Errors are as of
// [Servers.List], with outcome_unknown for a server that died.
func (s *Servers) Call(ctx context.Context, at Surroundings, p protocol.MCPCall, again bool) (value *protocol.MCPCallResult, err error) {
	err = s.withServer(ctx, at, p.Server, callOptions{again: again, harmless: p.ReadOnly}, func(l *live) error {
		show := newCallOutput(ctx, at)
		defer show.end()
		value, err = l.call(ctx, p, show)
		return err
	})
	switch {
	case err != nil:
		return nil, err
	case value.IsError:
		return value, protocol.Errorf(protocol.CodeToolFailed, "%s", failureOf(value))
	}
	return value, nil
}

// callOptions is what may be done about a request that did not come to its end.
type callOptions struct {
	again    bool // it may be made again
	harmless bool // it may continue after its call was stopped
}

// withServer calls do with a running server, and judges the outcome.
func (s *Servers) withServer(ctx context.Context, at Surroundings, spec protocol.MCPServer, how callOptions, do func(*live) error) error {
	one, err := s.findServer(spec)
	if err != nil {
		return err
	}
	one.addCalls(1)
	defer one.addCalls(-1)
	for attempt := 1; ; attempt++ {
		l, err := s.start(ctx, at, one)
		if err != nil {
			return err
		}
		err = do(l)
		_, isAnswer := errors.AsType[*jsonrpc.Error](err)
		isLost, answers := lost(err), false
		fault, isFault := errors.AsType[*protocol.Error](err)
		switch {
		case err == nil:
			one.resetDelay()
			return nil
		case isFault:
			return fault
		case ctx.Err() != nil:
			if !how.harmless {
				l.Stop(stopGrace, nil)
			}
			return ctx.Err()
		case isLost: // the SDK takes some for calls that were not sent
			answers = l.IsRunning() && l.responds(ctx)
		case isAnswer && l.IsRunning():
			return protocol.Errorf(protocol.CodeToolFailed, "MCP server %s: %v", spec.Name, err)
		case l.IsRunning() && l.responds(ctx):
			return protocol.Errorf(protocol.CodeToolFailed, "MCP server %s: its answer cannot be read: %s", spec.Name, l.hide(err.Error()))
		}
		// After Stop, that would be the reason.
		why := l.diagnosis(err)
		if !answers { // a server that answers has other calls, which continue
			l.Stop(0, nil)
		}
		forgotten := errors.Is(err, mcp.ErrSessionMissing) // so the request was not looked at
		if isLost && (attempt > 1 || !how.again) {
			return protocol.Errorf(protocol.CodeOutcomeUnknown, "MCP server %s was called, and its answer was lost (%s)", spec.Name, why)
		}
		if attempt > 1 || !how.again && !forgotten {
			return protocol.Errorf(protocol.CodeOutcomeUnknown,
				"MCP server %s ended while the call ran (%s); the next call starts it anew, without what it knew", spec.Name, why)
		}
	}
}

// findServer is the server of a name, which a different spec ends.
func (s *Servers) findServer(spec protocol.MCPServer) (*server, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.all[spec.Name]
	if one != nil && reflect.DeepEqual(one.spec, spec) {
		return one, nil
	}
	if one != nil {
		one.end()
	} else if len(s.all) >= MaxServers {
		return nil, protocol.Errorf(protocol.CodeLimitReached, "%d MCP servers were started in this sandbox, and that is the limit", MaxServers)
	}
	delays := backoff.NewExponentialBackOff()
	delays.InitialInterval, delays.MaxInterval = firstDelay, maxDelay
	one = &server{spec: spec, delays: delays}
	one.idle = time.AfterFunc(Idle, one.endIdle)
	s.all[spec.Name] = one
	return one, nil
}

// start returns the server as it lives, and starts it if need be, but not too soon after it died.
func (s *Servers) start(ctx context.Context, at Surroundings, one *server) (*live, error) {
	one.starting.Lock()
	defer one.starting.Unlock()
	one.mu.Lock()
	l, wait := one.live, time.Until(one.notYet)
	one.mu.Unlock()
	if l != nil && l.IsRunning() {
		if l.Context().Err() == nil {
			return l, nil
		}
		select { // its idle time has ended it
		case <-l.Done():
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if wait > 0 && !pause.For(ctx, wait) || ctx.Err() != nil {
		return nil, ctx.Err()
	}
	l, err := s.connect(ctx, at, one)
	one.mu.Lock()
	defer one.mu.Unlock()
	one.live = l
	if fault, is := errors.AsType[*protocol.Error](err); !is || fault.Code != codes.LoginRequired { // a login is no death
		one.notYet = time.Now().Add(one.delays.NextBackOff()) // until it has answered
	}
	return l, err
}

// addCalls counts the calls of a server: it is idle without any.
func (one *server) addCalls(calls int) {
	one.mu.Lock()
	defer one.mu.Unlock()
	if one.calls += calls; one.calls == 0 {
		one.idle.Reset(Idle)
	}
}

// resetDelay resets the pause before the server's next start.
func (one *server) resetDelay() {
	one.mu.Lock()
	defer one.mu.Unlock()
	one.delays.Reset()
	one.notYet = time.Time{}
}

// endIdle ends a server without calls. A call that begins later starts it again.
func (one *server) endIdle() {
	one.mu.Lock()
	defer one.mu.Unlock()
	if one.calls == 0 && one.live != nil {
		one.live.End(nil)
	}
}

// end ends the server, without waiting.
func (one *server) end() {
	one.idle.Stop()
	one.mu.Lock()
	defer one.mu.Unlock()
	if one.live != nil {
		one.live.End(nil)
	}
}

// remote is the transport of a server that has a URL; its requests end with alive.
func remote(alive context.Context, at Surroundings, spec protocol.MCPServer) (mcp.Transport, error) {
	client := &http.Client{
		Transport: &headerTransport{alive: alive, base: at.HTTP, headers: spec.Headers},
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse // another host must not get the headers
		},
	}
	transport := &mcp.StreamableClientTransport{Endpoint: spec.URL, HTTPClient: client}
	var err error
	switch {
	case spec.Client != nil:
		transport.OAuthHandler, err = login.Machine(alive, at.HTTP, spec.Name, *spec.Client)
	case !authorizes(spec.Headers):
		client.Transport = &login.Transport{Login: at.Logins.Of(spec.Name, spec.URL), Server: client.Transport, Authority: at.HTTP}
	}
	return transport, err
}

// authorizes reports whether headers say who comes.
func authorizes(headers map[string]string) bool {
	for name := range headers {
		if http.CanonicalHeaderKey(name) == "Authorization" {
			return true
		}
	}
	return false
}

// follow waits for the end of a connection, and notifies the server.
func (s *Servers) follow(l *live, endRequests context.CancelFunc, ended func(error)) {
	s.join(func() {
		err := l.session.Wait()       // the call reports it
		if l.Context().Err() != nil { // it was to end
			err = nil
		}
		ended(err)
		l.End(nil)
	})
	s.join(func() {
		l.Run(func(ctx context.Context) {
			<-ctx.Done()
			late := time.AfterFunc(stopGrace, endRequests)
			defer late.Stop()
			defer endRequests()
			_ = l.session.Close() // if it fails, the server forgets the session later
		})
	})
}

// headerTransport adds the headers of a server, and ends requests with its connection.
type headerTransport struct {
	alive   context.Context //nolint:containedctx // the life of the connection is no request's
	base    http.RoundTripper
	headers map[string]string
}

// RoundTrip implements [http.RoundTripper].
func (t *headerTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(request.Context())
	stop := context.AfterFunc(t.alive, cancel) //nolint:contextcheck // a request ends with its connection, too
	request = request.Clone(ctx)
	for name, value := range t.headers {
		request.Header.Set(name, value)
	}
	var sent atomic.Bool
	request = request.WithContext(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteHeaders: func() { sent.Store(true) }}))
	response, err := t.base.RoundTrip(request)
	if err == nil && request.Method == http.MethodPost && (response.StatusCode == http.StatusBadGateway || response.StatusCode == http.StatusGatewayTimeout) {
		err = errors.Join(errors.New(response.Status), response.Body.Close())
	}
	if err != nil {
		stop()
		cancel()
		if sent.Load() {
			err = &lostAnswerError{err}
		}
		return nil, err
	}
	adaptResponse(response)
	response.Body = &responseBody{ReadCloser: response.Body, end: func() { stop(); cancel() }}
	return response, nil
}

// lostAnswerError is the error of a request that was sent, and that nothing is known of: its
// connection broke, or a proxy says that the server did not answer it.
type lostAnswerError struct{ cause error }

func (e *lostAnswerError) Error() string { return e.cause.Error() }
func (e *lostAnswerError) Unwrap() error { return e.cause }

// endedWithoutAnswer is what the SDK says of a call whose events ended before its answer; it has no
// error of its own for that.
const endedWithoutAnswer = "request terminated without response"

// lost reports whether nothing is known of a call but that it was sent.
func lost(err error) bool {
	_, is := errors.AsType[*lostAnswerError](err)
	return is || err != nil && strings.Contains(err.Error(), endedWithoutAnswer)
}

// responseBody ends what a response has kept.
type responseBody struct {
	io.ReadCloser

	end func()
}

// Close implements [io.Closer].
func (b *responseBody) Close() error {
	defer b.end()
	return b.ReadCloser.Close()
}
