package egress

import (
	"errors"
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestJudge_ThisHostIsNoTarget(t *testing.T) {
	t.Parallel()
	j := newJudge(Options{})
	j.own = func() ([]net.Addr, error) {
		return []net.Addr{&net.IPNet{IP: net.ParseIP("8.8.4.4"), Mask: net.CIDRMask(24, 32)}}, nil
	}
	require.Equal(t, "is this host's own", j.objection(netip.MustParseAddrPort("8.8.4.4:443")))
	require.Empty(t, j.objection(netip.MustParseAddrPort("8.8.4.5:443")), "its neighbour is not the host")
	require.Empty(t, j.objection(netip.MustParseAddrPort("[2606:4700::1111]:443")))
	require.Equal(t, "has a zone", j.objection(netip.MustParseAddrPort("[2606:4700::1111%eth0]:443")))
	j.own = func() ([]net.Addr, error) { return nil, errors.New("no") }
	require.NotEmpty(t, j.objection(netip.MustParseAddrPort("8.8.4.5:443")), "what cannot be known is refused")
	j.private = []netip.Prefix{netip.MustParsePrefix("8.8.4.5/32")}
	require.Empty(t, j.objection(netip.MustParseAddrPort("8.8.4.5:443")))
	j.deny = func(to netip.AddrPort) bool { return to.Port() == 4222 }
	require.Equal(t, "belongs to the fleet itself", j.objection(netip.MustParseAddrPort("8.8.4.5:4222")), "denying wins")
}
