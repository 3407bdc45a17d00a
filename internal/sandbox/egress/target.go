package egress

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
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
