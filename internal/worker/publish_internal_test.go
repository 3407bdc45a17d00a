package worker

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/sandbox/egress"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/internal/worker/kinds"
	"github.com/toolfleet/toolfleet/internal/worker/sandboxes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// TestPublish_NothingListens: who connects is disconnected at once, and refused once the worker has
// ended.
func TestPublish_NothingListens(t *testing.T) {
	t.Parallel()
	w := &Worker{env: &kinds.Env{Sandboxes: &sandboxes.Manager{}}}
	for range 2 {
		l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
		require.NoError(t, err)
		w.options.Publish = append(w.options.Publish, Published{Listener: l, Sandbox: "none", Port: 3000})
	}
	stop := w.publish(t.Context())
	for _, p := range w.options.Publish {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", p.Listener.Addr().String())
		if err == nil { // it may be told as early as this
			_, err = conn.Read(make([]byte, 1))
			_ = conn.Close()
		}
		require.ErrorIs(t, err, syscall.ECONNRESET)
	}
	stop()
	for _, p := range w.options.Publish {
		_, err := new(net.Dialer).DialContext(t.Context(), "tcp", p.Listener.Addr().String())
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
	}
}

func TestServers_AreDenied(t *testing.T) {
	t.Parallel()
	s := &servers{
		connected: func() string { return "" },
		list: func() []string {
			return []string{"nats://user:pass@a.example", "tls://b.example:4333", "nats://[2001:db8::7]:4444", "nats://gone.example:4555", "::", "nats://127.0.0.1:4222"}
		},
		resolve: func(_ context.Context, _, host string) ([]netip.Addr, error) {
			if addr, err := netip.ParseAddr(host); err == nil {
				return []netip.Addr{addr}, nil
			}
			switch host {
			case "a.example":
				return []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("::ffff:192.0.2.2")}, nil
			case "b.example":
				return []netip.Addr{netip.MustParseAddr("192.0.2.3")}, nil
			}
			return nil, errors.New("no such host")
		},
	}
	for _, denied := range []string{"192.0.2.1:4222", "192.0.2.2:4222", "192.0.2.3:4333", "[2001:db8::7]:4444", "127.0.0.1:4222", "198.51.100.1:4555"} {
		require.True(t, s.deny(netip.MustParseAddrPort(denied)), denied)
	}
	for _, allowed := range []string{"192.0.2.1:443", "192.0.2.3:4222", "198.51.100.1:443"} {
		require.False(t, s.deny(netip.MustParseAddrPort(allowed)), allowed)
	}
}

// movable dials wherever the server is now, as names in DNS and local fleets do.
type movable struct{ address atomic.Value }

func (m *movable) Dial(network, _ string) (net.Conn, error) {
	address, _ := m.address.Load().(string)
	return (&net.Dialer{}).DialContext(context.Background(), network, address)
}

// TestNetwork_AServerThatMovesIsDeniedAtOnce: the URL of the server stays, its address does not.
func TestNetwork_AServerThatMovesIsDeniedAtOnce(t *testing.T) {
	t.Parallel()
	before, after := natsiotest.Serve(t, `listen: "127.0.0.1:-1"`), natsiotest.Serve(t, `listen: "127.0.0.1:-1"`)
	server, back := &movable{}, make(chan struct{}, 1)
	from, to := before.Addr().String(), after.Addr().String()
	server.address.Store(from)
	nc, err := nats.Connect("nats://fleet.example:4222", nats.SetCustomDialer(server), nats.MaxReconnects(-1), nats.ReconnectWait(0),
		nats.ReconnectHandler(func(*nats.Conn) { back <- struct{}{} }))
	require.NoError(t, err)
	defer nc.Close()
	allow, err := egress.ParseAllow("127.0.0.1:*")
	require.NoError(t, err)
	network, err := Options{
		Allow: allow, AllowPrivate: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
	}.network(nc)
	require.NoError(t, err)
	denied := func(address string) bool {
		conn, err := network.Pages.DialContext(t.Context(), "tcp", address)
		if err == nil {
			require.NoError(t, conn.Close())
			return false
		}
		fault, is := errors.AsType[*protocol.Error](err)
		require.True(t, is, err)
		require.Equal(t, codes.NetworkOff, fault.Code)
		require.Contains(t, fault.Message, "belongs to the fleet itself")
		return true
	}
	require.True(t, denied(from))
	require.False(t, denied(to), "it is not the fleet's yet")
	server.address.Store(to)
	before.Shutdown()
	<-back
	require.True(t, denied(to))
	after.Shutdown()
	after.WaitForShutdown()
	require.True(t, denied(to), "it may come back there")
}
