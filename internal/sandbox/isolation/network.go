package isolation

import (
	"context"
	"io"
	"net"
	"net/netip"
)

// NetworkMode says what of the network commands reach.
type NetworkMode string

// The network modes. "" is [NetworkNone].
const (
	// NetworkNone is nothing but a loopback of the sandbox's own.
	NetworkNone NetworkMode = "none"
	// NetworkProxy is a proxy on the sandbox's loopback, a link where there is one, and nothing
	// else.
	NetworkProxy NetworkMode = "proxy"
	// NetworkAll is the host's network.
	NetworkAll NetworkMode = "all"
)

// Network is what of the network commands reach; the zero value is nothing.
type Network struct {
	Mode NetworkMode
	// Serve is the proxy of [NetworkProxy]. It is called once for a sandbox, in a
	// goroutine of its own, with a listener that commands of this sandbox alone reach. It
	// must return when the listener is closed or ctx ends, which is when the sandbox
	// closes: Close waits for it. The driver sets HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and
	// their lower-case forms to http://<address> where Spec.Env does not, and NO_PROXY to
	// the loopback.
	Serve func(ctx context.Context, listener net.Listener)
	// ServeLink is the network of programs that know no proxy; nil is none. It is called as Serve
	// is, by drivers that can ([Caps].Link), with the other end of a network interface in the
	// sandbox: each Read is one IPv4 packet of it, each Write one for it, of up to [LinkMTU] bytes.
	// The sandbox has [LinkAddress] there, sends to [LinkNames] and Addresses, and asks
	// [LinkResolver] for names.
	ServeLink func(ctx context.Context, link io.ReadWriteCloser)
	// Addresses are of IPv4, and lead to the link as they are.
	Addresses []netip.Addr
}

// LinkMTU is the size of the largest packet of a link, in bytes.
const LinkMTU = 16 << 10

// LinkNames are the addresses of a link. They are set aside for measurements (RFC 2544), and so
// nobody's.
func LinkNames() netip.Prefix { return netip.MustParsePrefix("198.18.0.0/15") }

// LinkAddress is the address of a sandbox at its link.
func LinkAddress() netip.Addr { return netip.AddrFrom4([4]byte{198, 18, 0, 1}) }

// LinkResolver is whom a sandbox asks for names.
func LinkResolver() netip.Addr { return netip.AddrFrom4([4]byte{198, 18, 0, 2}) }
