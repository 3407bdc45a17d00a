package egress

import (
	"errors"
	"net"
	"net/netip"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestLinkNames_AreBounded: a sandbox that asks for ever more names gets no more of them, and keeps
// those that it has.
func TestLinkNames_AreBounded(t *testing.T) {
	t.Parallel()
	n := newLinkNames(Allow{})
	seen := map[netip.Addr]bool{}
	for i := range maxNames {
		addr, ok := n.address(strconv.Itoa(i), nil)
		require.True(t, ok)
		require.False(t, seen[addr])
		seen[addr] = true
	}
	_, ok := n.address("one more", nil)
	require.False(t, ok)
	addr, ok := n.address("7", nil)
	require.True(t, ok)
	target, _ := n.target(addr, 443)
	require.Equal(t, "7:443", target.String())
}

// TestLinkNames_AddressesGoOutOfDate: who keeps an answer for longer than it is good for has the
// name resolved anew.
func TestLinkNames_AddressesGoOutOfDate(t *testing.T) {
	t.Parallel()
	n := newLinkNames(Allow{})
	addrs := []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	addr, ok := n.address("a.example", addrs)
	require.True(t, ok)
	_, known := n.target(addr, 443)
	require.Equal(t, addrs, known)
	n.all[addr].until = time.Now().Add(-time.Second)
	target, known := n.target(addr, 443)
	require.Equal(t, "a.example", target.Host)
	require.Empty(t, known)
}

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
