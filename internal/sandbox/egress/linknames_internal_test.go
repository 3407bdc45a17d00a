package egress

import (
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
