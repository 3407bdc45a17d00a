package egress

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/idna"
)

// Target is a host and a port in their one spelling.
type Target struct {
	// Host is a name in lower case ASCII without a trailing dot, or an address.
	Host string
	// Addr is the address when Host is one; IPv4 is never in its IPv6 form.
	Addr netip.Addr
	Port uint16
}

// String returns "host:port", with brackets around IPv6 addresses.
func (t Target) String() string {
	return net.JoinHostPort(t.Host, strconv.Itoa(int(t.Port)))
}

// Bounds of names, from the rules of DNS.
const (
	maxName  = 253
	maxLabel = 63
)

// ParseTarget parses "host:port", or "host" when there is a default port. The host is
// a name in any script, an IPv4 address, or an IPv6 address in brackets. User names,
// paths, spaces, zones and the odd spellings of addresses ("127.1", "0x7f000001") are errors.
func ParseTarget(s string, defaultPort uint16) (Target, error) {
	host, port, err := splitPort(s, defaultPort)
	if err != nil {
		return Target{}, fmt.Errorf("target %q: %w", s, err)
	}
	t := Target{Port: port}
	if t.Host, t.Addr, err = canonicalHost(host); err != nil {
		return Target{}, fmt.Errorf("target %q: %w", s, err)
	}
	return t, nil
}

// splitPort splits a target at its port. Brackets stay, as they say what the host is.
func splitPort(s string, defaultPort uint16) (host string, port uint16, err error) {
	end := strings.LastIndexByte(s, ':')
	if end < strings.LastIndexByte(s, ']') {
		end = -1 // within the brackets
	}
	if end < 0 {
		if defaultPort == 0 {
			return "", 0, errors.New("no port; want host:port")
		}
		return s, defaultPort, nil
	}
	port, err = parsePort(s[end+1:])
	return s[:end], port, err
}

func parsePort(s string) (uint16, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 || s[0] == '+' {
		return 0, fmt.Errorf("port %q: must be 1 to 65535", s)
	}
	return uint16(n), nil
}

// canonicalHost brings a host into its one spelling; the address is valid when it is one.
func canonicalHost(host string) (string, netip.Addr, error) {
	if inner, found := strings.CutPrefix(host, "["); found {
		inner, closed := strings.CutSuffix(inner, "]")
		addr, err := netip.ParseAddr(inner)
		if !closed || err != nil || !addr.Is6() || addr.Zone() != "" {
			return "", netip.Addr{}, fmt.Errorf("%q is no IPv6 address without a zone in brackets", host)
		}
		addr = addr.Unmap()
		return addr.String(), addr, nil
	}
	name, err := asciiName(host)
	if err != nil {
		return "", netip.Addr{}, err
	}
	if addr, err := netip.ParseAddr(name); err == nil && addr.Is4() {
		return addr.String(), addr, nil
	}
	if err := checkName(name); err != nil {
		return "", netip.Addr{}, err
	}
	return name, netip.Addr{}, nil
}

// asciiName maps a name to lower case ASCII and drops the trailing dot.
func asciiName(host string) (string, error) {
	name := strings.ToLower(host)
	if strings.Contains(name, "xn--") || !isASCII(name) {
		mapped, err := idna.Lookup.ToASCII(name)
		if err != nil {
			return "", fmt.Errorf("host %q is no international name: %w", host, err)
		}
		name = mapped
	}
	return strings.TrimSuffix(name, "."), nil
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= 0x80 {
			return false
		}
	}
	return true
}

// checkName says what is wrong with a name in lower case.
func checkName(name string) error {
	if len(name) > maxName {
		return fmt.Errorf("host of %d bytes: must be at most %d", len(name), maxName)
	}
	labels := strings.Split(name, ".")
	for _, label := range labels {
		if label == "" || len(label) > maxLabel {
			return fmt.Errorf("host %q: labels have 1 to %d bytes", name, maxLabel)
		}
		if strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			return fmt.Errorf("host %q: only letters, digits, '-', '_' and '.' are allowed", name)
		}
	}
	if last := labels[len(labels)-1]; isNumber(last) {
		return fmt.Errorf("host %q is no address that can be used: write IPv4 addresses as four decimal numbers", name)
	}
	return nil
}

// isNumber reports whether resolvers could take a last label for a part of an IPv4 address.
func isNumber(label string) bool {
	if hex, found := strings.CutPrefix(label, "0x"); found {
		return strings.Trim(hex, "0123456789abcdef") == ""
	}
	return strings.Trim(label, "0123456789") == ""
}

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
