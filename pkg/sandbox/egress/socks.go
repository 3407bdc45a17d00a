package egress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"time"
)

// The words of SOCKS5 (RFC 1928).
const (
	socksVersion = 5

	socksNoAuth   = 0
	socksNoMethod = 0xff

	socksConnect = 1

	socksIPv4 = 1
	socksName = 3
	socksIPv6 = 4

	socksOK          = 0
	socksFailure     = 1
	socksNotAllowed  = 2
	socksUnreachable = 4
	socksBadCommand  = 7
	socksBadAddress  = 8
)

// socksError is a fault with the code that tells the client.
type socksError struct {
	code byte
	text string
}

// Error implements the error interface.
func (e *socksError) Error() string { return e.text }

// serveSOCKS serves a client that speaks SOCKS5. The protocol has no place for a
// reason, so the client learns only the kind of a refusal.
func (p *Proxy) serveSOCKS(c *conn) {
	_ = c.SetDeadline(time.Now().Add(greetTimeout))
	if err := greet(c); err != nil {
		return
	}
	t, err := readSOCKS(c)
	var upstream net.Conn
	if err == nil {
		_ = c.SetDeadline(time.Time{})
		upstream, err = p.dial(c.ctx, t)
	}
	if err != nil {
		p.log.DebugContext(c.ctx, "request refused", slog.String("method", "SOCKS5"), slog.Any("error", err))
		_, _ = c.Write(socksReply(socksCode(err)))
		return
	}
	if _, err := c.Write(socksReply(socksOK)); err != nil {
		_ = upstream.Close()
		return
	}
	p.tunnel(c, upstream, nil, t)
}

// greet agrees on no authentication: who can reach the listener may use it.
func greet(c io.ReadWriter) error {
	head := make([]byte, 2)
	if _, err := io.ReadFull(c, head); err != nil {
		return err
	}
	methods := make([]byte, head[1])
	if _, err := io.ReadFull(c, methods); err != nil {
		return err
	}
	if slices.Contains(methods, socksNoAuth) {
		_, err := c.Write([]byte{socksVersion, socksNoAuth})
		return err
	}
	_, _ = c.Write([]byte{socksVersion, socksNoMethod})
	return errors.New("no authentication method in common")
}

// readSOCKS reads a request: version, command, reserved, address type, address, port.
func readSOCKS(r io.Reader) (Target, error) {
	head := make([]byte, 4)
	if _, err := io.ReadFull(r, head); err != nil {
		return Target{}, err
	}
	if head[0] != socksVersion {
		return Target{}, &socksError{socksFailure, fmt.Sprintf("SOCKS version %d", head[0])}
	}
	host, err := readSOCKSHost(r, head[3])
	if err != nil {
		return Target{}, err
	}
	port := make([]byte, 2)
	if _, err := io.ReadFull(r, port); err != nil {
		return Target{}, err
	}
	if head[1] != socksConnect {
		return Target{}, &socksError{socksBadCommand, fmt.Sprintf("SOCKS command %d: only CONNECT is served", head[1])}
	}
	t, err := ParseTarget(host+":"+strconv.Itoa(int(port[0])<<8|int(port[1])), 0)
	if err != nil {
		return Target{}, &socksError{socksNotAllowed, err.Error()}
	}
	return t, nil
}

// readSOCKSHost reads an address of a type, as [ParseTarget] takes it.
func readSOCKSHost(r io.Reader, kind byte) (string, error) {
	size := 0
	switch kind {
	case socksIPv4:
		size = 4
	case socksIPv6:
		size = 16
	case socksName:
		length := make([]byte, 1)
		if _, err := io.ReadFull(r, length); err != nil {
			return "", err
		}
		size = int(length[0])
	default:
		return "", &socksError{socksBadAddress, fmt.Sprintf("SOCKS address type %d", kind)}
	}
	raw := make([]byte, size)
	if _, err := io.ReadFull(r, raw); err != nil {
		return "", err
	}
	addr, isAddr := netip.AddrFromSlice(raw)
	switch {
	case kind == socksIPv6:
		return "[" + addr.String() + "]", nil
	case kind == socksIPv4 && isAddr:
		return addr.String(), nil
	}
	return string(raw), nil
}

// socksCode is the kind of an error in the words of SOCKS.
func socksCode(err error) byte {
	if fault, ok := errors.AsType[*socksError](err); ok {
		return fault.code
	}
	if _, refused := errors.AsType[*Refusal](err); refused {
		return socksNotAllowed
	}
	if _, ok := errors.AsType[net.Error](err); ok || errors.Is(err, context.DeadlineExceeded) {
		return socksUnreachable
	}
	return socksFailure
}

// socksReply is an answer; the bound address that it names is of no use to anybody.
func socksReply(code byte) []byte {
	return []byte{socksVersion, code, 0, socksIPv4, 0, 0, 0, 0, 0, 0}
}
