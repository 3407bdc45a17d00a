//go:build linux

package probes

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/test/escapetest/internal/canary"
)

// networkProbes reach for the network and for the kernel's other protocols.
func networkProbes() map[string]probe {
	all := map[string]probe{
		"network/tcp":            func(h canary.Host) canary.Verdict { return tcpSecret("tcp4", h.TCP, h.Secret) },
		"network/tcp6":           tcp6,
		"network/tcp-mapped":     mapped,
		"network/tcp-zero":       func(h canary.Host) canary.Verdict { return tcpSecret("tcp4", "0.0.0.0:"+port(h.TCP), h.Secret) },
		"network/tcp-fast-open":  fastOpen,
		"network/tcp-outside":    func(canary.Host) canary.Verdict { return reach("tcp", "1.1.1.1:443") },
		"network/tcp6-outside":   func(canary.Host) canary.Verdict { return reach("tcp", "[2606:4700:4700::1111]:443") },
		"network/name":           func(canary.Host) canary.Verdict { return reach("tcp", "example.org:80") },
		"network/by-interface":   byInterface,
		"network/address":        func(canary.Host) canary.Verdict { return interfaceRequest(unix.SIOCSIFADDR) },
		"network/route":          func(canary.Host) canary.Verdict { return interfaceRequest(unix.SIOCADDRT) },
		"network/metadata":       func(canary.Host) canary.Verdict { return reach("tcp", "169.254.169.254:80") },
		"network/udp":            udp,
		"network/udp-outside":    func(canary.Host) canary.Verdict { return sendUDP("8.8.8.8:53") },
		"network/udp6-outside":   func(canary.Host) canary.Verdict { return sendUDP("[2001:4860:4860::8888]:53") },
		"network/udp-mapped":     func(canary.Host) canary.Verdict { return sendMapped() },
		"network/interfaces":     interfaces,
		"network/sockets-listed": socketsListed,
		"network/raw":            func(canary.Host) canary.Verdict { return socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP) },
		"network/raw6":           func(canary.Host) canary.Verdict { return socket(unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_ICMPV6) },
		"network/sctp":           func(canary.Host) canary.Verdict { return socket(unix.AF_INET, unix.SOCK_SEQPACKET, unix.IPPROTO_SCTP) },
		"network/mptcp":          func(canary.Host) canary.Verdict { return socketTo(unix.IPPROTO_MPTCP) },
		"network/other-families": otherFamilies,
		"network/protocols":      protocols,
		"network/netlink":        netlink,
		"network/pairs":          pairs,
		"network/bridge":         func(canary.Host) canary.Verdict { return interfaceRequest(unix.SIOCGIFBR) },
		"network/vlan":           func(canary.Host) canary.Verdict { return interfaceRequest(unix.SIOCGIFVLAN) },
		"network/above-tcp":      func(canary.Host) canary.Verdict { return optionOfTCP(unix.TCP_ULP) },
		"network/key-of-tcp":     func(canary.Host) canary.Verdict { return optionOfTCP(addKey) },
	}
	for name, family := range map[string]int{
		"vsock": unix.AF_VSOCK, "alg": unix.AF_ALG, "packet": unix.AF_PACKET, "key": unix.AF_KEY, "xdp": unix.AF_XDP, "tipc": unix.AF_TIPC,
		"bluetooth": unix.AF_BLUETOOTH, "can": unix.AF_CAN, "rxrpc": unix.AF_RXRPC, "smc": unix.AF_SMC, "rds": unix.AF_RDS,
	} {
		all["network/family-"+name] = func(canary.Host) canary.Verdict { return familyProbe(family) }
	}
	return all
}

func port(address string) string {
	_, port, _ := net.SplitHostPort(address)
	return port
}

// tcpSecret connects to a server of the host, which answers with the secret.
func tcpSecret(network, address, secret string) canary.Verdict {
	conn, err := dial(network, address)
	if err != nil {
		return contained(err)
	}
	return hear(conn, secret)
}

func tcp6(h canary.Host) canary.Verdict {
	if h.TCP6 == "" {
		return unsupported("the host has no IPv6")
	}
	return tcpSecret("tcp6", h.TCP6, h.Secret)
}

// mapped connects to an IPv4 address by an IPv6 socket.
func mapped(h canary.Host) canary.Verdict {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return contained(err)
	}
	to := mappedAddress(h.TCP)
	if err := unix.Connect(fd, to); err != nil {
		_ = unix.Close(fd)
		return contained(err)
	}
	return hearFD(fd, h.Secret)
}

func mappedAddress(address string) *unix.SockaddrInet6 {
	to := &unix.SockaddrInet6{}
	if tcp, err := net.ResolveTCPAddr("tcp4", address); err == nil {
		to.Port = tcp.Port
		copy(to.Addr[:], tcp.IP.To16())
	}
	return to
}

// hearFD reads the secret from a socket.
func hearFD(fd int, secret string) canary.Verdict {
	file := os.NewFile(uintptr(fd), "socket")
	defer file.Close()
	conn, err := net.FileConn(file)
	if err != nil {
		return unsupported(err.Error())
	}
	return hear(conn, secret)
}

// fastOpen connects by sending, without the call connect.
func fastOpen(h canary.Host) canary.Verdict {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return contained(err)
	}
	to := &unix.SockaddrInet4{}
	if tcp, err := net.ResolveTCPAddr("tcp4", h.TCP); err == nil {
		to.Port = tcp.Port
		copy(to.Addr[:], tcp.IP.To4())
	}
	if err := unix.Sendto(fd, []byte("x"), unix.MSG_FASTOPEN, to); err != nil {
		_ = unix.Close(fd)
		return contained(err)
	}
	return hearFD(fd, h.Secret)
}

// reach connects to another host.
func reach(network, address string) canary.Verdict {
	conn, err := dialWithin(outsideWait, network, address)
	if err == nil {
		_ = conn.Close()
	}
	return judge(err)
}

// udp asks a server of the host, which answers with the secret.
func udp(h canary.Host) canary.Verdict {
	conn, err := dial("udp", h.UDP)
	if err != nil {
		return contained(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("x")); err != nil {
		return contained(err)
	}
	_ = conn.SetDeadline(time.Now().Add(answerWait))
	answer := make([]byte, len(h.Secret))
	if _, err := conn.Read(answer); err != nil {
		return contained(err)
	}
	return escape("answered")
}

// sendUDP sends a datagram away; that it could be sent is an escape.
func sendUDP(address string) canary.Verdict {
	conn, err := dial("udp", address)
	if err != nil {
		return contained(err)
	}
	defer conn.Close()
	_, err = conn.Write([]byte("x"))
	return judge(err)
}

func sendMapped() canary.Verdict {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return contained(err)
	}
	defer unix.Close(fd)
	return judge(unix.Sendto(fd, []byte("x"), 0, mappedAddress("8.8.8.8:53")))
}

// interfaces wants a loopback and nothing else.
func interfaces(canary.Host) canary.Verdict {
	all, err := net.Interfaces()
	if err != nil {
		return contained(err)
	}
	for _, i := range all {
		if i.Flags&net.FlagLoopback == 0 && i.Flags&net.FlagUp != 0 {
			return leak(i.Name)
		}
	}
	return contained(fmt.Errorf("%d interfaces", len(all)))
}

// socketsListed looks for the host's server among the sockets in /proc.
func socketsListed(h canary.Host) canary.Verdict {
	tcp, err := net.ResolveTCPAddr("tcp4", h.TCP)
	if err != nil {
		return unsupported(err.Error())
	}
	data, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		return contained(err)
	}
	if strings.Contains(string(data), fmt.Sprintf("0100007F:%04X 00000000:0000", tcp.Port)) {
		return leak("the host's sockets")
	}
	return contained(errors.New("not listed"))
}

// socket makes a socket of some kind, which is an escape.
func socket(family, kind, protocol int) canary.Verdict {
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, protocol)
	if err == nil {
		_ = unix.Close(fd)
	}
	return judge(err)
}

// socketTo makes a stream socket of another protocol and leaves the host by it.
func socketTo(protocol int) canary.Verdict {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
	if err != nil {
		return contained(err)
	}
	defer unix.Close(fd)
	err = unix.Connect(fd, &unix.SockaddrInet4{Port: 443, Addr: [4]byte{1, 1, 1, 1}})
	if errors.Is(err, unix.EINPROGRESS) {
		return escape("on its way")
	}
	return judge(err)
}

// familyProbe tries every kind of socket of a family.
func familyProbe(family int) canary.Verdict {
	var last canary.Verdict
	for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_DGRAM, unix.SOCK_RAW, unix.SOCK_SEQPACKET} {
		protocol := 0
		if family == unix.AF_KEY {
			protocol = 2
		}
		if last = socket(family, kind, protocol); last.Outcome == canary.Escape {
			return last
		}
	}
	return last
}

// otherFamilies tries the families that have no probe of their own.
func otherFamilies(canary.Host) canary.Verdict {
	for family := range 64 {
		switch family {
		case unix.AF_UNSPEC, unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK:
			continue
		}
		if familyProbe(family).Outcome == canary.Escape {
			return escape(fmt.Sprintf("family %d", family))
		}
	}
	return contained(unix.EAFNOSUPPORT)
}

// protocols tries those for which the kernel would load modules, and others.
func protocols(canary.Host) canary.Verdict {
	for protocol := range 256 {
		switch protocol {
		case unix.IPPROTO_IP, unix.IPPROTO_ICMP, unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_ICMPV6:
			continue
		}
		for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
			if familyProtocol(family, protocol).Outcome == canary.Escape {
				return escape(fmt.Sprintf("family %d, protocol %d", family, protocol))
			}
		}
	}
	return contained(unix.EPROTONOSUPPORT)
}

// netlink tries the parts of the kernel that can be talked to, but that for addresses and routes.
func netlink(canary.Host) canary.Verdict {
	for protocol := 1; protocol < 32; protocol++ {
		if socket(unix.AF_NETLINK, unix.SOCK_RAW, protocol).Outcome == canary.Escape {
			return escape(fmt.Sprintf("protocol %d", protocol))
		}
	}
	return contained(unix.EPROTONOSUPPORT)
}

func familyProtocol(family, protocol int) canary.Verdict {
	var last canary.Verdict
	for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_DGRAM, unix.SOCK_SEQPACKET} {
		if last = socket(family, kind, protocol); last.Outcome == canary.Escape {
			return last
		}
	}
	return last
}

// pairs asks for pairs of sockets of every family but that of Unix: the kernel would load the
// family to find that it has none.
func pairs(canary.Host) canary.Verdict {
	for family := unix.AF_UNIX + 1; family < 64; family++ {
		switch _, err := unix.Socketpair(family, unix.SOCK_STREAM, 0); {
		case err == nil:
			return escape(fmt.Sprintf("family %d", family))
		case !errors.Is(err, unix.EAFNOSUPPORT):
			return leak(fmt.Sprintf("family %d reached the kernel: %v", family, err))
		}
	}
	return contained(unix.EAFNOSUPPORT)
}

// byInterface connects by each interface: the kernel then takes everybody for a neighbour there,
// whatever the routes are.
func byInterface(canary.Host) canary.Verdict {
	all, err := net.Interfaces()
	if err != nil {
		return contained(err)
	}
	last := contained(errors.New("no interfaces"))
	for _, i := range all {
		bound := net.Dialer{Timeout: outsideWait, Control: func(_, _ string, raw syscall.RawConn) error {
			return raw.Control(func(fd uintptr) { _ = unix.BindToDevice(int(fd), i.Name) })
		}}
		conn, dialErr := bound.DialContext(context.Background(), "tcp", "1.1.1.1:443")
		if dialErr == nil {
			_ = conn.Close()
		}
		if last = judge(dialErr); last.Outcome == canary.Escape {
			return last
		}
	}
	return last
}

// interfaceRequest asks a socket for what the kernel would load a module for.
func interfaceRequest(request uintptr) canary.Verdict {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return contained(err)
	}
	defer unix.Close(fd)
	var arguments [64]byte
	return denied(call(unix.SYS_IOCTL, uintptr(fd), request, uintptr(unsafe.Pointer(&arguments))))
}

const addKey = 38 // TCP_AO_ADD_KEY

// optionOfTCP sets an option to something that does not exist.
func optionOfTCP(option int) canary.Verdict {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return contained(err)
	}
	defer unix.Close(fd)
	err = unix.SetsockoptString(fd, unix.IPPROTO_TCP, option, "toolfleet")
	if err == nil || errors.Is(err, unix.ENOPROTOOPT) {
		return judge(err)
	}
	return leak("reached the kernel: " + errnoName(err))
}
