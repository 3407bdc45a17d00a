package egress

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// All is the word for the whole network, without a proxy.
const All = "all"

// maxRules is how many entries a list may have.
const maxRules = 1000

// defaultPorts are the ports of an entry without one.
func defaultPorts() []uint16 { return []uint16{80, 443} }

// Allow is what may be reached. The zero value is nothing.
type Allow struct {
	all   bool
	rules []rule
}

// rule is one entry of a list.
type rule struct {
	host   string // in its one spelling; a suffix begins with "."
	suffix bool
	addr   netip.Addr
	port   uint16 // 0 is every port
}

// ParseAllow parses a list, separated by commas: "host", "host:port", "*.suffix" and
// addresses, each with or without a port, the names of [Sets], or the one word [All]. An entry
// without a port means ports 80 and 443, "host:*" means every port. "*.suffix" means every name
// below the suffix and not the suffix itself. A host without a dot has a port. An empty list is
// nothing.
func ParseAllow(list string) (Allow, error) {
	var a Allow
	if strings.TrimSpace(list) == "" {
		return a, nil
	}
	entries := strings.Split(list, ",")
	if len(entries) > maxRules {
		return a, fmt.Errorf("%d entries: must be at most %d", len(entries), maxRules)
	}
	var errs []error
	for _, entry := range entries {
		entry = strings.TrimSpace(entry)
		if strings.EqualFold(entry, All) {
			a.all = true
			continue
		}
		for host := range strings.SplitSeq(hostsOf(entry), ",") {
			rules, err := parseRules(host)
			errs = append(errs, err)
			a.rules = append(a.rules, rules...)
		}
	}
	if a.all && len(entries) > 1 {
		errs = append(errs, fmt.Errorf("%q is the whole network and stands alone", All))
	}
	if err := errors.Join(errs...); err != nil {
		return Allow{}, err
	}
	slices.SortFunc(a.rules, func(x, y rule) int { return strings.Compare(x.String(), y.String()) })
	a.rules = slices.Compact(a.rules)
	return a, nil
}

// parseRules parses an entry; one without a port is a rule for each default port.
func parseRules(entry string) ([]rule, error) {
	if entry == "*" {
		return nil, fmt.Errorf("entry %q: for the whole network write %q", entry, All)
	}
	if failure := noSet(entry); failure != "" {
		return nil, fmt.Errorf("entry %q: %s", entry, failure)
	}
	if strings.Contains(entry, "/") {
		return nil, fmt.Errorf("entry %q: a host or address is wanted, without a scheme, path or length of a prefix", entry)
	}
	if addr, err := netip.ParseAddr(entry); err == nil && addr.Is6() {
		return nil, fmt.Errorf("entry %q: an IPv6 address is written in brackets, \"[%s]\"", entry, entry)
	}
	r := rule{}
	host, ports, err := splitPorts(entry)
	if err != nil {
		return nil, fmt.Errorf("entry %q: %w", entry, err)
	}
	if host, r.suffix = strings.CutPrefix(host, "*."); r.suffix && host == "" {
		return nil, fmt.Errorf("entry %q: a suffix is wanted after \"*.\"", entry)
	}
	if r.host, r.addr, err = canonicalHost(host); err != nil {
		return nil, fmt.Errorf("entry %q: %w", entry, err)
	}
	if r.suffix {
		if r.addr.IsValid() {
			return nil, fmt.Errorf("entry %q: an address has no suffix", entry)
		}
		r.host = "." + r.host
	}
	rules := make([]rule, 0, len(ports))
	for _, r.port = range ports {
		rules = append(rules, r)
	}
	return rules, nil
}

// splitPorts splits an entry at its port.
func splitPorts(entry string) (host string, ports []uint16, err error) {
	if host, every := strings.CutSuffix(entry, ":*"); every {
		return host, []uint16{0}, nil
	}
	host, port, err := splitPort(entry, 1)
	if host == entry {
		return host, defaultPorts(), err
	}
	return host, []uint16{port}, err
}

// All reports whether the whole network is allowed, without a proxy.
func (a Allow) All() bool { return a.all }

// Empty reports whether nothing is allowed.
func (a Allow) Empty() bool { return !a.all && len(a.rules) == 0 }

// Names reports whether a host may be reached on some port, as far as the list says.
func (a Allow) Names(host string) bool {
	name, addr, err := canonicalHost(host)
	if err != nil {
		return false
	}
	return a.all || slices.ContainsFunc(a.rules, func(r rule) bool {
		return r.match(Target{Host: name, Addr: addr, Port: r.port})
	})
}

// Targets returns the hosts that are listed by name or address, not by a suffix, with their ports;
// 0 is every port.
func (a Allow) Targets() []Target {
	var all []Target
	for _, r := range a.rules {
		if !r.suffix {
			all = append(all, Target{Host: r.host, Addr: r.addr, Port: r.port})
		}
	}
	return all
}

// Addresses returns the IPv4 addresses that are listed as such, each once.
func (a Allow) Addresses() []netip.Addr {
	var all []netip.Addr
	for _, r := range a.rules {
		if r.addr.Is4() && !slices.Contains(all, r.addr) {
			all = append(all, r.addr)
		}
	}
	return all
}

// Match reports whether a target is listed. Whether its address may be reached is
// another question, which [Proxy] asks after resolving it.
func (a Allow) Match(t Target) bool {
	return a.all || slices.ContainsFunc(a.rules, func(r rule) bool { return r.match(t) })
}

func (r rule) match(t Target) bool {
	switch {
	case r.port != 0 && r.port != t.Port:
		return false
	case r.addr.IsValid() || t.Addr.IsValid():
		return r.addr == t.Addr
	case r.suffix:
		return len(t.Host) > len(r.host) && strings.HasSuffix(t.Host, r.host)
	default:
		return r.host == t.Host
	}
}

// String returns the list in one spelling, which [ParseAllow] takes.
func (a Allow) String() string {
	if a.all {
		return All
	}
	words := make([]string, len(a.rules))
	for i, r := range a.rules {
		words[i] = r.String()
	}
	return strings.Join(words, ",")
}

func (r rule) String() string {
	host, port := r.host, "*"
	if r.suffix {
		host = "*" + host
	}
	if r.addr.Is6() {
		host = "[" + host + "]"
	}
	if r.port != 0 {
		port = strconv.Itoa(int(r.port))
	}
	return host + ":" + port
}

// sets are hosts that are wanted together, by the name of their set.
func sets() map[string]string {
	return map[string]string{
		"debian": "deb.debian.org,security.debian.org",
		"github": "github.com,github.com:22,api.github.com,codeload.github.com,raw.githubusercontent.com," +
			"objects.githubusercontent.com,release-assets.githubusercontent.com",
		"go":   "proxy.golang.org,sum.golang.org,storage.googleapis.com", // big modules are there
		"npm":  "registry.npmjs.org",
		"pypi": "pypi.org,files.pythonhosted.org",
	}
}

// Sets returns the names of the sets of hosts that [ParseAllow] knows, in order.
func Sets() []string { return slices.Sorted(maps.Keys(sets())) }

// hostsOf are the hosts of a set, or else the entry itself.
func hostsOf(entry string) string { return cmp.Or(sets()[strings.ToLower(entry)], entry) }

// noSet is the error for a word that looks like a set but is none; "" for any other entry.
func noSet(entry string) string {
	if entry == "" || strings.Trim(strings.ToLower(entry), "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
		return ""
	}
	return fmt.Sprintf("no set of hosts has this name; want one of %s, a name with a dot, or a port, as in \"%s:443\"",
		strings.Join(Sets(), ", "), entry)
}
