package hostenv

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
)

// Publication is a port of a sandbox that the host reaches.
type Publication struct {
	Host     netip.Addr
	HostPort uint16 // 0 is any that is free
	Port     uint16 // of the sandbox
}

// ParsePublication reads [[HOST:]HOSTPORT:]PORT. HOST is the loopback where it is left out, and
// HOSTPORT the same as PORT.
func ParsePublication(text string) (Publication, error) {
	p := Publication{Host: netip.AddrFrom4([4]byte{127, 0, 0, 1})}
	host, port, more := cutLast(text)
	var err error
	if p.Port, err = parsePort("PORT", port, 1); err != nil {
		return p, err
	}
	if p.HostPort = p.Port; !more {
		return p, nil
	}
	host, port, more = cutLast(host)
	if p.HostPort, err = parsePort("HOSTPORT", port, 0); err != nil || !more {
		return p, err
	}
	if host == "localhost" {
		return p, nil
	}
	if p.Host, err = netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")); err != nil {
		return p, fmt.Errorf("HOST is %q: must be an address of this host, such as 127.0.0.1, 0.0.0.0 or [::1]", host)
	}
	return p, nil
}

// cutLast cuts a text at its last colon; without one all of it is after.
func cutLast(text string) (before, after string, found bool) {
	at := strings.LastIndexByte(text, ':')
	return text[:max(at, 0)], text[at+1:], at >= 0
}

func parsePort(what, text string, least uint64) (uint16, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n < least {
		return 0, fmt.Errorf("want [[HOST:]HOSTPORT:]PORT, as in 3000, 8080:3000 or 0:3000; %s is %q: must be %d to 65535", what, text, least)
	}
	return uint16(n), nil
}

// Listen takes the port of the host.
func (p Publication) Listen(ctx context.Context) (net.Listener, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", netip.AddrPortFrom(p.Host, p.HostPort).String())
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("port %d of %s is taken; choose another one, or 0 for any that is free, as in 0:%d", p.HostPort, p.Host, p.Port)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("port %d of %s is not for ordinary users; choose one from 1024 on, or 0 for any that is free, as in 0:%d", p.HostPort, p.Host, p.Port)
	case err != nil:
		return nil, err
	}
	return l, nil
}

// URL is where a browser on this host finds what is listened for.
func URL(l net.Listener) string {
	at, err := netip.ParseAddrPort(l.Addr().String())
	if err == nil && at.Addr().IsUnspecified() {
		at = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), at.Port())
	}
	return "http://" + at.String()
}
