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
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
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
		allow: o.Allow, listed: o.Allow.String(), judge: newJudge(o), resolver: o.Resolver, dialer: &net.Dialer{},
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
