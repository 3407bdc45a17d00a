//go:build linux

package ns_test

import (
	"context"
	"io"
	"net"
	"net/netip"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// TestDial_ReachesTheSandboxsServers, and nobody else's.
func TestDial_ReachesTheSandboxsServers(t *testing.T) {
	t.Parallel()
	inArms(t, true, testDial)
}

func testDial(t *testing.T) { //nolint:thelper // it is the test
	outside, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = outside.Close() })
	s := openWith(t, isolation.Network{})
	dialer, ok := s.(isolation.Dialer)
	require.True(t, ok)
	_, err = dialer.Dial(t.Context(), netip.MustParseAddrPort(outside.Addr().String()).Port())
	require.ErrorIs(t, err, unix.ECONNREFUSED, "a port of the host is not one of the sandbox")

	for port, address := range map[uint16]string{8001: "127.0.0.1", 8002: "0.0.0.0", 8003: "::1", 8004: "::"} {
		require.False(t, dialer.Listens(port), address)
		stop := listen(t, s, address, port)
		require.True(t, dialer.Listens(port), address)
		conn, err := dialer.Dial(t.Context(), port)
		require.NoError(t, err, address)
		_, err = io.WriteString(conn, "there and ")
		require.NoError(t, err)
		half, ok := conn.(*net.TCPConn)
		require.True(t, ok)
		require.NoError(t, half.CloseWrite())
		all, err := io.ReadAll(conn)
		require.NoError(t, err, address)
		require.Equal(t, "there and back", string(all), address)
		require.NoError(t, conn.Close())

		idle, err := dialer.Dial(t.Context(), port)
		require.NoError(t, err, address)
		stop()
		_, err = idle.Read(make([]byte, 1))
		require.Error(t, err, "the connection ends with the server")
		require.NoError(t, idle.Close())
		_, err = dialer.Dial(t.Context(), port)
		require.ErrorIs(t, err, unix.ECONNREFUSED, address)
	}
	require.NoError(t, s.Close())
	_, err = dialer.Dial(t.Context(), 8001)
	require.ErrorIs(t, err, sandbox.ErrClosed)

	all := openWith(t, isolation.Network{Mode: isolation.NetworkAll})
	dialer, ok = all.(isolation.Dialer)
	require.True(t, ok)
	_, err = dialer.Dial(t.Context(), netip.MustParseAddrPort(outside.Addr().String()).Port())
	require.ErrorIs(t, err, sandbox.ErrUnsupported)
}

// echo answers each connection with what comes, and a word.
const echo = `
use Socket; use IO::Socket::IP;
my $l = IO::Socket::IP->new(LocalHost => $ARGV[0], LocalPort => $ARGV[1], Listen => 5, V6Only => 1) or die "$@ $!";
$| = 1; print "ready\n";
while (my $c = $l->accept) { print $c $_ while read($c, $_, 1); print $c "back"; close $c; }`

// listen starts a server in a sandbox; stop returns when it is gone.
func listen(t *testing.T, s sandbox.Sandbox, address string, port uint16) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ready, ended := make(chan struct{}, 8), make(chan sandbox.Result, 1)
	go func() {
		result, _ := s.Exec(ctx, sandbox.Cmd{
			Argv: []string{"/usr/bin/perl", "-e", echo, address, strconv.Itoa(int(port))},
			Live: func(sandbox.Stream, []byte) { ready <- struct{}{} },
		})
		ended <- result
	}()
	select {
	case <-ready:
	case result := <-ended:
		require.FailNow(t, "no server", "%s: %s", address, result.Combined.Data)
	}
	return func() {
		cancel()
		<-ended
	}
}
