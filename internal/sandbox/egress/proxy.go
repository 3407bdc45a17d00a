// Package egress is the one way out of a sandbox that may reach some hosts: a proxy that runs next
// to the sandbox and serves a listener made inside of it, and a network stack at the other end of
// its interface, for programs that use no proxy. The sandbox has no other network, so it cannot
// reach what they refuse.
//
//	sandbox                        │  worker
//	program ── CONNECT, GET http:, ──► Proxy ── is it listed? ── resolve once ──┐
//	                               │    ▲                                       │
//	program ── DNS, TCP ── eth0 ─────► link   dial that address ◄── may it be reached?
//
// The link answers questions for listed names with addresses that mean them in that
// sandbox only, so a connection to one of them names a target as a request does.
//
// A request names a target. The target is brought into one spelling ([ParseTarget]:
// case, trailing dot, international names, forms of addresses), so that no other
// spelling of a name gets past the list ([Allow]). A name that is listed is resolved
// once, each of its addresses is judged, and one that passed is dialled, so that a
// name server cannot give one answer to the check and another to the connection.
// Addresses that are not on the public Internet are refused, and so are those of the
// host itself and those that [Options].Deny names: a listed name is no way into the
// network of the worker.
//
// The proxy does not look into encrypted connections: the owner of a listed host receives all that
// a sandbox sends to it.
package egress

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"strings"
	"sync"
	"time"
)

// Defaults of [Options].
const (
	DefaultConns = 64
	DefaultIdle  = 5 * time.Minute
)

// greetTimeout is how long a client may take to say what it wants.
const greetTimeout = 10 * time.Second

// listedInText is how many entries of the list a refusal names.
const listedInText = 20

// Resolver finds the addresses of names; [net.Resolver] is one.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Options of a [Proxy]; zero values mean the documented default.
type Options struct {
	// Allow is what may be reached; the default is nothing.
	Allow Allow
	// Private are ranges that may be reached although they are not on the public
	// Internet, or belong to this host. Default: none.
	Private []netip.Prefix
	// Deny, when set, reports addresses that must never be reached. It wins over
	// Private, and is called by several goroutines.
	Deny func(netip.AddrPort) bool
	// Resolver resolves names; default the system's.
	Resolver Resolver
	// Conns is how many connections each listener serves at once; further ones wait. Default
	// [DefaultConns].
	Conns int
	// Setting is the flag that lists an address which is not public, for errors. Default:
	// --allow-net-private, which takes ranges.
	Setting string
	// Idle is how long a connection stays on which no byte moves. Default [DefaultIdle].
	Idle time.Duration
	// Logger gets each connection at debug level; nil discards.
	Logger *slog.Logger
}

// Proxy connects sandboxes to the hosts that are listed. It is safe for concurrent
// use; each listener has bounds of its own.
type Proxy struct {
	allow    Allow
	listed   string
	setting  string
	judge    *judge
	resolver Resolver
	dialer   *net.Dialer
	conns    int
	idle     time.Duration
	log      *slog.Logger
}

// New makes a proxy. With a list that allows everything it still refuses private addresses.
func New(o Options) (*Proxy, error) {
	if o.Conns < 0 || o.Idle < 0 {
		return nil, fmt.Errorf("egress proxy: %d connections, idle time %s: must not be negative", o.Conns, o.Idle)
	}
	p := &Proxy{
		allow: o.Allow, listed: o.Allow.String(), setting: o.Setting, judge: newJudge(o), resolver: o.Resolver, dialer: &net.Dialer{},
		conns: cmp.Or(o.Conns, DefaultConns), idle: cmp.Or(o.Idle, DefaultIdle), log: o.Logger,
	}
	if n := len(o.Allow.rules); n > listedInText {
		p.listed = fmt.Sprintf("%s and %d more", Allow{rules: o.Allow.rules[:listedInText]}, n-listedInText)
	}
	p.listed = strings.ReplaceAll(p.listed, ",", ", ")
	if p.resolver == nil {
		p.resolver = net.DefaultResolver
	}
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	return p, nil
}

// tunnel moves bytes both ways until both sides are done or the client's connection is
// closed, and closes upstream. early is what the client has sent already.
func (p *Proxy) tunnel(client *conn, upstream net.Conn, early []byte, t Target) {
	p.log.DebugContext(client.ctx, "connected", slog.String("target", t.String()), slog.String("address", upstream.RemoteAddr().String()))
	join(client.ctx, client, upstream, early)
}

// Join moves bytes both ways until both sides are done or ctx ends, and closes both.
func Join(ctx context.Context, client, upstream net.Conn) {
	join(ctx, client, upstream, nil)
	_ = client.Close()
}

// join is Join, without the end of the client. early goes upstream first.
func join(ctx context.Context, client, upstream net.Conn, early []byte) {
	defer upstream.Close()
	stop := context.AfterFunc(ctx, func() { _, _ = client.Close(), upstream.Close() })
	defer stop()
	up := make(chan struct{})
	go func() {
		defer close(up)
		if _, err := upstream.Write(early); err == nil {
			_, err = io.Copy(upstream, client)
			halfClose(upstream, err)
		}
	}()
	_, err := io.Copy(client, upstream)
	halfClose(client, err)
	<-up
}

// halfClose ends one direction of a connection. After an error it ends the other one too.
func halfClose(c net.Conn, err error) {
	half, ok := c.(interface{ CloseWrite() error })
	if err != nil || !ok || half.CloseWrite() != nil {
		_ = c.Close()
	}
}

// maxHeader bounds what a client sends before its request is judged, in bytes.
const maxHeader = 16 << 10

// Serve serves a listener until ctx ends or the listener is closed, and closes it. It
// returns when no connection is left; nil unless the listener broke.
func (p *Proxy) Serve(ctx context.Context, l net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	clients := &clients{Listener: l, ctx: ctx, idle: p.idle, slots: make(chan struct{}, p.conns)}
	web := newWeb(p, clients.work.Done)
	server := &http.Server{
		Handler:                      web,
		ReadHeaderTimeout:            greetTimeout,
		IdleTimeout:                  p.idle,
		MaxHeaderBytes:               maxHeader,
		DisableGeneralOptionsHandler: true,
		ErrorLog:                     slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug),
		ConnState:                    clients.count,
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	err := server.Serve(clients)
	stop()
	cancel()
	_ = server.Close() // the listener may be closed already
	clients.work.Wait()
	web.close()
	if !errors.Is(err, net.ErrClosed) && !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("egress proxy: %w", err)
	}
	return nil
}

// clients is a listener with a bound of connections; further ones wait.
type clients struct {
	net.Listener

	ctx   context.Context //nolint:containedctx // the life of the listener
	idle  time.Duration
	slots chan struct{}
	work  sync.WaitGroup // connections and the goroutines that serve them
}

// Accept implements [net.Listener].
func (c *clients) Accept() (net.Conn, error) {
	select {
	case c.slots <- struct{}{}:
	case <-c.ctx.Done():
		return nil, net.ErrClosed
	}
	raw, err := c.Listener.Accept()
	if err != nil {
		<-c.slots
		return nil, err
	}
	c.work.Add(1)
	return newConn(c.ctx, raw, c.idle, func() { <-c.slots; c.work.Done() }), nil
}

// count counts the goroutines of the HTTP server. Those whose connection was hijacked
// are counted out when the tunnel ends.
func (c *clients) count(_ net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		c.work.Add(1)
	case http.StateClosed:
		c.work.Done()
	default:
	}
}

// maxResponseHeader bounds what a host sends before its answer.
const maxResponseHeader = 256 << 10

// web answers HTTP requests to the proxy: CONNECT and absolute "http:" addresses.
type web struct {
	proxy     *Proxy
	transport *http.Transport
	forward   *httputil.ReverseProxy
	hijacked  func() // called when a connection that was taken from the server has been served
}

func newWeb(p *Proxy, hijacked func()) *web {
	w := &web{proxy: p, hijacked: hijacked, transport: &http.Transport{
		Proxy: nil,
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			t, err := ParseTarget(addr, 0)
			if err != nil {
				return nil, err
			}
			return p.dial(ctx, t)
		},
		DisableCompression:     true,
		MaxIdleConns:           8,
		IdleConnTimeout:        p.idle,
		ResponseHeaderTimeout:  p.idle,
		MaxResponseHeaderBytes: maxResponseHeader,
	}}
	w.forward = &httputil.ReverseProxy{
		Transport: w.transport,
		// Nothing that names the client is added, and the query stays as it is.
		Rewrite:  func(r *httputil.ProxyRequest) { r.Out.URL.RawQuery = r.In.URL.RawQuery },
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug),
		ErrorHandler: func(rw http.ResponseWriter, r *http.Request, err error) {
			w.refuse(rw, r, dialStatus(err), err)
		},
		FlushInterval: -1,
	}
	return w
}

func (w *web) close() { w.transport.CloseIdleConnections() }

// response is an answer that notes whether the connection was taken from the server: for a tunnel,
// or because a host has answered by another protocol.
type response struct {
	http.ResponseWriter

	hijacked bool
}

// Unwrap is for [http.ResponseController].
func (r *response) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// Hijack implements [http.Hijacker].
func (r *response) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, buffered, err := http.NewResponseController(r.ResponseWriter).Hijack()
	r.hijacked = err == nil
	return c, buffered, err
}

// ServeHTTP implements [http.Handler].
func (w *web) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	to := &response{ResponseWriter: rw}
	defer func() {
		if to.hijacked {
			w.hijacked()
		}
	}()
	w.serve(to, r)
}

func (w *web) serve(rw http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodConnect {
		w.connect(rw, r)
		return
	}
	t, err := webTarget(r)
	if err != nil {
		w.refuse(rw, r, http.StatusBadRequest, err)
		return
	}
	out := r.Clone(r.Context())
	out.URL.Host, out.URL.User, out.Host = t.String(), nil, t.String()
	if t.Port == httpPort {
		out.Host = hostOnly(t)
	}
	w.forward.ServeHTTP(rw, out)
}

const httpPort = 80

func hostOnly(t Target) string {
	if t.Addr.Is6() {
		return "[" + t.Host + "]"
	}
	return t.Host
}

// errRequest is the error of a request that no proxy answers.
var errRequest = errors.New("this is a proxy: send CONNECT host:port, or an absolute http:// address")

// webTarget is the target of a request with an absolute address.
func webTarget(r *http.Request) (Target, error) {
	if r.URL.Scheme != "http" || r.URL.Host == "" {
		return Target{}, errRequest
	}
	if r.URL.User != nil {
		return Target{}, errors.New("user names in addresses are not allowed; send an Authorization header")
	}
	return ParseTarget(r.URL.Host, httpPort)
}

// connect opens a tunnel.
func (w *web) connect(rw http.ResponseWriter, r *http.Request) {
	t, err := ParseTarget(r.RequestURI, 0)
	if err != nil {
		w.refuse(rw, r, http.StatusBadRequest, err)
		return
	}
	upstream, err := w.proxy.dial(r.Context(), t)
	if err != nil {
		w.refuseTunnel(rw, r, err)
		return
	}
	raw, early, err := http.NewResponseController(rw).Hijack()
	if err != nil { // the client is gone
		_ = upstream.Close()
		return
	}
	client := raw.(*conn) //nolint:errcheck,forcetypeassert // every connection is one of clients
	defer client.Close()
	if _, err := io.WriteString(client, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		_ = upstream.Close()
		return
	}
	sent, _ := early.Peek(early.Reader.Buffered()) // what is buffered is there
	w.proxy.tunnel(client, upstream, sent, t)
}

// dialStatus is the status of a target that was not reached.
func dialStatus(err error) int {
	if _, refused := errors.AsType[*Refusal](err); refused {
		return http.StatusForbidden
	}
	return http.StatusBadGateway
}

// refuseTunnel answers with the reason in the status line, too: of an answer to CONNECT, programs
// show that at most.
func (w *web) refuseTunnel(rw http.ResponseWriter, r *http.Request, err error) {
	w.logRefusal(r, err)
	client, _, hijackErr := http.NewResponseController(rw).Hijack()
	if hijackErr != nil { // the client is gone
		return
	}
	defer client.Close()
	reason := "network: " + strings.ReplaceAll(err.Error(), "\n", "; ")
	_, _ = fmt.Fprintf(client, "HTTP/1.1 %d %s\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n%s\n", dialStatus(err), reason, reason)
}

func (w *web) logRefusal(r *http.Request, err error) {
	w.proxy.log.DebugContext(r.Context(), "request refused", slog.String("method", r.Method), slog.Any("error", err))
}

// refuse answers with the reason.
func (w *web) refuse(rw http.ResponseWriter, r *http.Request, status int, err error) {
	w.logRefusal(r, err)
	rw.Header().Set("Content-Type", "text/plain; charset=utf-8")
	rw.Header().Set("X-Content-Type-Options", "nosniff")
	rw.Header().Set("Connection", "close")
	rw.WriteHeader(status)
	_, _ = fmt.Fprintf(rw, "network: %v\n", err)
}
