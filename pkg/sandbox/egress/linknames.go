package egress

import (
	"net/netip"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// maxNames is how many names a sandbox may have asked for.
const maxNames = 8 << 10

// linkNames gives names addresses that mean something in one sandbox only: a connection is to a
// name, with the addresses that the name had when the sandbox asked for it.
type linkNames struct {
	listed map[netip.Addr]bool // addresses that stand for themselves

	mu   sync.Mutex
	all  map[netip.Addr]*linkName
	of   map[string]netip.Addr
	last netip.Addr
}

// linkName is what an address stands for.
type linkName struct {
	host  string
	addrs []netip.Addr
	until time.Time // when addrs are out of date
}

func newLinkNames(allow Allow) *linkNames {
	n := &linkNames{
		listed: map[netip.Addr]bool{},
		all:    map[netip.Addr]*linkName{}, of: map[string]netip.Addr{}, last: sandbox.LinkResolver(),
	}
	for _, addr := range allow.Addresses() {
		n.listed[addr] = true
	}
	return n
}

// address returns what stands for a name that has these addresses; not ok when there are too many
// names.
func (n *linkNames) address(host string, addrs []netip.Addr) (addr netip.Addr, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	addr, ok = n.of[host]
	if !ok {
		if len(n.of) >= maxNames {
			return addr, false
		}
		addr = n.last.Next()
		for n.listed[addr] {
			addr = addr.Next()
		}
		n.last, n.of[host] = addr, addr
	}
	n.all[addr] = &linkName{host: host, addrs: addrs, until: time.Now().Add(answerLife)}
	return addr, true
}

// target is what a connection to an address is meant for, and the addresses of that if they are
// known.
func (n *linkNames) target(addr netip.Addr, port uint16) (Target, []netip.Addr) {
	n.mu.Lock()
	defer n.mu.Unlock()
	name := n.all[addr]
	switch {
	case name == nil:
		return Target{Host: addr.String(), Addr: addr, Port: port}, nil
	case time.Now().After(name.until):
		return Target{Host: name.host, Port: port}, nil
	default:
		return Target{Host: name.host, Port: port}, name.addrs
	}
}
