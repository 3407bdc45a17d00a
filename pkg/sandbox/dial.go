package sandbox

import (
	"context"
	"net"
)

// Dialer is a [Sandbox] whose servers can be reached from without.
type Dialer interface {
	// Dial connects to what listens on a TCP port of the sandbox's own loopback. It fails at once
	// when nothing does, with [ErrClosed] when the sandbox was closed, and with [ErrUnsupported]
	// when the sandbox has no network of its own. The connection does not end with ctx.
	Dial(ctx context.Context, port uint16) (net.Conn, error)
	// Listens reports whether something listens there, without connecting; false when that is not
	// known.
	Listens(port uint16) bool
}
