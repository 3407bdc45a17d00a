package worker

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/internal/sandbox/egress"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/internal/worker/kinds"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// network returns what the options allow.
func (o Options) network(nc *nats.Conn) (kinds.Network, error) {
	own := &servers{list: func() []string { return append(nc.Servers(), nc.DiscoveredServers()...) }, resolve: net.DefaultResolver.LookupNetIP}
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
	serversKept = time.Minute
	serversWait = 2 * time.Second
)

// servers are the addresses of the fleet's own servers, which no sandbox may reach: what
// can talk to them could act for the fleet.
type servers struct {
	list    func() []string // URLs
	resolve func(ctx context.Context, network, host string) ([]netip.Addr, error)

	mu    sync.Mutex
	known map[netip.AddrPort]bool
	ports map[uint16]bool // of servers whose addresses could not be found
	until time.Time
}

// deny reports whether an address is one of a server. While the address of a server is
// not known, every address with its port is.
func (s *servers) deny(to netip.AddrPort) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := time.Now(); now.After(s.until) {
		s.look()
		s.until = now.Add(serversKept)
	}
	return s.known[to] || s.ports[to.Port()]
}

// look finds the addresses again.
func (s *servers) look() {
	ctx, cancel := context.WithTimeout(context.Background(), serversWait) //nolint:forbidigo // asked for by connections of their own life
	defer cancel()
	s.known, s.ports = map[netip.AddrPort]bool{}, map[uint16]bool{}
	for _, text := range s.list() {
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

// hostPort is where a NATS URL leads; not ok for one that leads nowhere, as that of a
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
