package sandbox

import (
	"context"
	"net"
)

// NetworkMode says what of the network commands reach.
type NetworkMode string

// The network modes. "" is [NetworkNone].
const (
	// NetworkNone is nothing but a loopback of the sandbox's own.
	NetworkNone NetworkMode = "none"
	// NetworkProxy is a proxy on the sandbox's loopback, and nothing else.
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
}
