package egress

import (
	"net"
	"net/netip"
	"slices"
)

// special4 are the IPv4 ranges that are not hosts of the public Internet, and the
// address at which Azure gives credentials to its machines.
func special4() []netip.Prefix {
	return prefixes("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "168.63.129.16/32", "169.254.0.0/16",
		"172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15",
		"198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4")
}

// special6 are the ranges within global unicast that are no plain hosts; some of them
// carry IPv4 addresses (Teredo, 6to4).
func special6() []netip.Prefix {
	return prefixes("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")
}

func prefixes(texts ...string) []netip.Prefix {
	all := make([]netip.Prefix, len(texts))
	for i, text := range texts {
		all[i] = netip.MustParsePrefix(text)
	}
	return all
}

// judge decides which addresses may be reached.
type judge struct {
	special4, special6 []netip.Prefix
	global6            netip.Prefix
	private            []netip.Prefix
	deny               func(netip.AddrPort) bool
	own                func() ([]net.Addr, error)
}

func newJudge(o Options) *judge {
	return &judge{
		special4: special4(), special6: special6(), global6: netip.MustParsePrefix("2000::/3"),
		private: o.Private, deny: o.Deny, own: net.InterfaceAddrs,
	}
}

// notPublic is the objection to an address of a private network, among others.
const notPublic = "is not on the public Internet"

// objection says why an address must not be reached; "" when it may.
func (j *judge) objection(to netip.AddrPort) string {
	addr := to.Addr().Unmap()
	if j.deny != nil && j.deny(netip.AddrPortFrom(addr, to.Port())) {
		return "belongs to the fleet itself"
	}
	if contains(j.private, addr) {
		return ""
	}
	switch {
	case addr.Zone() != "":
		return "has a zone"
	case addr.Is4() && contains(j.special4, addr),
		addr.Is6() && (!j.global6.Contains(addr) || contains(j.special6, addr)):
		return notPublic
	case j.isOwn(addr):
		return "is this host's own"
	}
	return ""
}

func contains(all []netip.Prefix, addr netip.Addr) bool {
	return slices.ContainsFunc(all, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// isOwn reports whether an address is one of this host's. When that cannot be
// known, it is taken for one.
func (j *judge) isOwn(addr netip.Addr) bool {
	own, err := j.own()
	if err != nil {
		return true
	}
	return slices.ContainsFunc(own, func(a net.Addr) bool {
		prefix, err := netip.ParsePrefix(a.String())
		return err == nil && prefix.Addr().Unmap() == addr
	})
}
