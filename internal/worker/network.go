package worker

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/internal/sandbox/egress"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/internal/worker/kinds"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// network returns what the options allow.
func (o Options) network(nc *nats.Conn) (kinds.Network, error) {
	own := &servers{
		list:      func() []string { return slices.Concat(nc.Servers(), nc.DiscoveredServers()) },
		connected: nc.ConnectedAddr, resolve: net.DefaultResolver.LookupNetIP,
	}
	proxy, err := egress.New(egress.Options{Allow: o.Allow, Private: o.AllowPrivate, Deny: own.deny, Logger: o.Logger})
	if err != nil {
		return kinds.Network{}, err
	}
	pages := &http.Transport{IdleConnTimeout: idleConn, MaxIdleConns: idleConns, TLSHandshakeTimeout: handshakeTime, MaxResponseHeaderBytes: maxHeaders, DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := proxy.DialContext(ctx, network, address)
		if refusal, is := errors.AsType[*egress.Refusal](err); is {
			return nil, protocol.Errorf(codes.NetworkOff, "%v", refusal)
		}
		return conn, err
	}}
	switch {
	case o.Allow.All():
		return kinds.Network{Allow: o.Allow, Sandboxes: isolation.Network{Mode: isolation.NetworkAll}, Servers: &http.Transport{}, Pages: pages}, nil
	case o.Allow.Empty():
		return kinds.Network{Allow: o.Allow, Sandboxes: isolation.Network{Mode: isolation.NetworkNone}, Pages: pages}, nil
	}
	ended := func(ctx context.Context, err error) {
		if err != nil {
			o.Logger.WarnContext(ctx, "the network of a sandbox ended", slog.Any("error", err))
		}
	}
	return kinds.Network{
		Allow: o.Allow, Servers: pages, Pages: pages,
		Sandboxes: isolation.Network{
			Mode: isolation.NetworkProxy, Addresses: o.Allow.Addresses(),
			Serve:     func(ctx context.Context, l net.Listener) { ended(ctx, proxy.Serve(ctx, l)) },
			ServeLink: func(ctx context.Context, l io.ReadWriteCloser) { ended(ctx, proxy.ServeLink(ctx, l)) },
		},
	}, nil
}

// Limits of connections to pages of the web: a model chooses the hosts.
const (
	idleConn      = 30 * time.Second
	idleConns     = 16
	handshakeTime = 10 * time.Second
	maxHeaders    = 256 << 10
)

// Times of looking up the fleet's servers.
const (
	serversCached = time.Minute
	serversWait   = 2 * time.Second
)

// servers are the addresses of the fleet's own servers, which no sandbox may reach: what
// can talk to them could act for the fleet.
type servers struct {
	list      func() []string // URLs
	connected func() string   // the address of the connection; "" while there is none
	resolve   func(ctx context.Context, network, host string) ([]netip.Addr, error)

	mu    sync.Mutex
	last  string   // the last address of the connection: it may come back there
	urls  []string // what known and ports are of, sorted
	known map[netip.AddrPort]bool
	ports map[uint16]bool // of servers whose addresses could not be found
	until time.Time
}

// deny reports whether an address is one of a server. While the address of a server is
// not known, every address with its port is. It resolves the addresses again once a minute, and
// when the worker has connected elsewhere or has learned of another server.
func (s *servers) deny(to netip.AddrPort) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = cmp.Or(s.connected(), s.last)
	urls := slices.Sorted(slices.Values(append(s.list(), "nats://"+s.last)))
	if now := time.Now(); now.After(s.until) || !slices.Equal(urls, s.urls) {
		s.urls, s.until = urls, now.Add(serversCached)
		s.refresh()
	}
	return s.known[to] || s.ports[to.Port()]
}

// refresh resolves the addresses again.
func (s *servers) refresh() {
	ctx, cancel := context.WithTimeout(context.Background(), serversWait) //nolint:forbidigo // asked for by connections of their own life
	defer cancel()
	s.known, s.ports = map[netip.AddrPort]bool{}, map[uint16]bool{}
	for _, text := range s.urls {
		host, port, ok := hostPort(text)
		if !ok {
			continue
		}
		addrs, err := s.resolve(ctx, "ip", host)
		if err != nil || len(addrs) == 0 {
			s.ports[port] = true
		}
		for _, addr := range addrs {
			s.known[netip.AddrPortFrom(addr.Unmap(), port)] = true
		}
	}
}

// hostPort is where a NATS URL leads; not ok for a URL that leads nowhere, such as the URL of a
// server in the same process.
func hostPort(text string) (host string, port uint16, ok bool) {
	u, err := url.Parse(text)
	if err != nil || u.Hostname() == "" {
		return "", 0, false
	}
	const natsPort = 4222
	n, err := strconv.ParseUint(u.Port(), 10, 16)
	if err != nil {
		n = natsPort
	}
	return u.Hostname(), uint16(n), true
}

// offlineEnv are the variables with which package managers use their caches, and fail at once where
// those are not enough, instead of trying for a minute to reach the network. pip names the cause
// only if it retries.
func offlineEnv() map[string]string {
	return map[string]string{
		"npm_config_fetch_retries": "0", "npm_config_prefer_offline": "true", "npm_config_audit": "false",
		"npm_config_fund": "false", "npm_config_update_notifier": "false", "YARN_ENABLE_NETWORK": "0",
		"PIP_RETRIES": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "UV_OFFLINE": "1", "POETRY_REQUESTS_MAX_RETRIES": "0",
		"CARGO_NET_OFFLINE": "true", "GOPROXY": "off", "MAVEN_ARGS": "--offline",
	}
}

// Published is a port of a sandbox that is reached from this host, while the worker runs. What
// connects when nothing listens there is disconnected at once.
type Published struct {
	// Listener gets the connections; the worker closes it.
	Listener net.Listener
	// Sandbox is whose Port it is.
	Sandbox string
	Port    uint16
	// Listens is called, once or again, when something listens there.
	Listens func()
}

// Bounds of a published port.
const (
	maxPublished = 256 // connections at once; further ones wait
	listenPeriod = 250 * time.Millisecond
)

// publish forwards connections into sandboxes until stop, which waits for the last one.
func (w *Worker) publish(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	for _, p := range w.options.Publish {
		context.AfterFunc(ctx, func() { _ = p.Listener.Close() })
		all.Go(func() {
			pause.Accept(ctx, p.Listener, maxPublished, func(client net.Conn) { w.connect(ctx, client, p) })
		})
		all.Go(func() { w.awaitServer(ctx, p) })
	}
	return func() {
		cancel()
		all.Wait()
	}
}

// awaitServer calls Listens when something listens in the sandbox.
func (w *Worker) awaitServer(ctx context.Context, p Published) {
	for pause.For(ctx, listenPeriod) {
		if dialer := w.dialer(p); dialer != nil && dialer.Listens(p.Port) {
			p.Listens()
			return
		}
	}
}

// connect connects a client with the server in the sandbox.
func (w *Worker) connect(ctx context.Context, client net.Conn, p Published) {
	var server net.Conn
	err := sandbox.ErrClosed
	if dialer := w.dialer(p); dialer != nil {
		server, err = dialer.Dial(ctx, p.Port)
	}
	if err != nil {
		if tcp, ok := client.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // reset, so that clients do not take it for an empty answer
		}
		_ = client.Close()
		return
	}
	p.Listens()
	egress.Join(ctx, client, server)
}

// dialer connects into the sandbox of a port; nil if nothing runs there.
func (w *Worker) dialer(p Published) isolation.Dialer {
	return w.env.Sandboxes.Lane(protocol.Lane("sandbox/" + p.Sandbox)).Dialer()
}
