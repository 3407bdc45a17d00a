//go:build linux

package initd

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/confine"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
)

// StepLink is the step that fails if the kernel lacks the interfaces of a link.
const StepLink = "link"

// A link is a pair of interfaces in the sandbox's network. What is sent by one arrives at the
// other, which has no address, and a socket that takes whole frames. That socket is made while
// there are rights to, given to the worker, and closed here.
const (
	linkName, linkPeer = "eth0", "worker"
	// Not the next free numbers: some kernels have more interfaces in each network.
	linkIndex, peerIndex = 1000, 1001
)

// LinkHeader begins every frame of a link, in both directions: without address resolution, the
// card sends to its own address.
var LinkHeader = []byte{0x02, 0, 0, 0, 0, 1, 0x02, 0, 0, 0, 0, 1, unix.ETH_P_IP >> 8, unix.ETH_P_IP & 0xff} //nolint:gochecknoglobals // a constant

// link makes a link, and sends the worker the socket at its other end.
func link(l *confine.List, config Config) {
	netlink := l.Do(unix.SYS_SOCKET, unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	request := linkRequest(config)
	l.Do(unix.SYS_SENDTO, netlink, request, len(request), 0, 0, 0) // testLink sees what it has done
	l.Do(unix.SYS_CLOSE, netlink)

	packets := l.Do(unix.SYS_SOCKET, unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	rights := unix.UnixRights(-1)
	l.Store((*int32)(unsafe.Pointer(&rights[unix.CmsgLen(0)])))
	filter := linkFilter()
	program := &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]} //nolint:gosec // ten
	l.Do(unix.SYS_SETSOCKOPT, packets, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, unsafe.Pointer(program), unsafe.Sizeof(*program))
	at := &unix.RawSockaddrLinklayer{Family: unix.AF_PACKET, Protocol: networkOrder(unix.ETH_P_IP), Ifindex: peerIndex}
	l.Do(unix.SYS_BIND, packets, unsafe.Pointer(at), unsafe.Sizeof(*at)) // fails if there is no peer

	frame := head(KindLink)
	part := &unix.Iovec{Base: &frame[0], Len: uint64(len(frame))}
	message := &unix.Msghdr{Iov: part, Iovlen: 1, Control: &rights[0], Controllen: uint64(len(rights))}
	l.Do(unix.SYS_SENDMSG, fdControl, unsafe.Pointer(message), unix.MSG_NOSIGNAL)
	l.Do(unix.SYS_CLOSE, packets)
}

func networkOrder(n uint16) uint16 { return n<<8 | n>>8 }

// linkFilter passes whole packets of TCP and UDP without options, so that nothing else has to be
// parsed.
func linkFilter() []unix.SockFilter {
	const (
		load = unix.BPF_LD | unix.BPF_ABS
		jump = unix.BPF_JMP | unix.BPF_K
	)
	return []unix.SockFilter{
		{Code: load | unix.BPF_B, K: 14}, // version and length of the header
		{Code: jump | unix.BPF_JEQ, K: 0x45, Jf: 6},
		{Code: load | unix.BPF_H, K: 20}, // is it a fragment
		{Code: jump | unix.BPF_JSET, K: 0x3fff, Jt: 4},
		{Code: load | unix.BPF_B, K: 23}, // the protocol
		{Code: jump | unix.BPF_JEQ, K: unix.IPPROTO_TCP, Jt: 1},
		{Code: jump | unix.BPF_JEQ, K: unix.IPPROTO_UDP, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 1 << 20},
		{Code: unix.BPF_RET | unix.BPF_K},
	}
}

// linkRequest asks for the two interfaces, and an address and routes for one of them.
func linkRequest(config Config) []byte {
	const (
		vethPeer  = 1 // VETH_INFO_PEER
		noAddress = 1 // IN6_ADDR_GEN_MODE_NONE
		whole     = 32
		up        = unix.IFF_UP | unix.IFF_NOARP // so no addresses are resolved
	)
	mtu := attribute(unix.IFLA_MTU, word(isolation.LinkMTU))
	peer := slices.Concat(device(peerIndex, 0), attribute(unix.IFLA_IFNAME, []byte(linkPeer)), mtu)
	quiet := attribute(unix.IFLA_AF_SPEC, attribute(unix.AF_INET6, attribute(unix.IFLA_INET6_ADDR_GEN_MODE, []byte{noAddress})))
	request := netlinkMessage(unix.RTM_NEWLINK,
		device(linkIndex, 0), attribute(unix.IFLA_IFNAME, []byte(linkName)), mtu, attribute(unix.IFLA_ADDRESS, LinkHeader[:6]),
		attribute(unix.IFLA_LINKINFO, attribute(unix.IFLA_INFO_KIND, []byte("veth")), attribute(unix.IFLA_INFO_DATA, attribute(vethPeer, peer))))
	// Each of them refuses to be up before it has the other.
	for _, index := range []uint32{linkIndex, peerIndex} {
		request = append(request, netlinkMessage(unix.RTM_SETLINK, device(index, 0), quiet)...)
		request = append(request, netlinkMessage(unix.RTM_SETLINK, device(index, up))...)
	}
	own := isolation.LinkAddress().AsSlice()
	request = append(request, netlinkMessage(unix.RTM_NEWADDR,
		[]byte{unix.AF_INET, whole, 0, unix.RT_SCOPE_UNIVERSE}, word(linkIndex),
		attribute(unix.IFA_LOCAL, own), attribute(unix.IFA_ADDRESS, own))...)
	for _, to := range routes(config) {
		head := []byte{unix.AF_INET, byte(to.Bits()), 0, 0, unix.RT_TABLE_MAIN, unix.RTPROT_STATIC, unix.RT_SCOPE_LINK, unix.RTN_UNICAST} //nolint:gosec // at most 32
		request = append(request, netlinkMessage(unix.RTM_NEWROUTE,
			head, word(0), attribute(unix.RTA_DST, to.Addr().AsSlice()), attribute(unix.RTA_OIF, word(linkIndex)))...)
	}
	return request
}

// routes are what leads to the link.
func routes(config Config) []netip.Prefix {
	all := []netip.Prefix{isolation.LinkNames()}
	for _, text := range config.Addresses {
		if addr, err := netip.ParseAddr(text); err == nil && addr.Is4() {
			all = append(all, netip.PrefixFrom(addr, addr.BitLen()))
		}
	}
	return all
}

// device is the head of a message about an interface, which gets these flags.
func device(index, flags uint32) []byte {
	return slices.Concat(word(0), word(index), word(flags), word(flags))
}

// netlinkMessage is a message of parts that are aligned already.
func netlinkMessage(kind uint16, parts ...[]byte) []byte {
	body := slices.Concat(parts...)
	head := word(uint32(unix.NLMSG_HDRLEN + len(body))) //nolint:gosec // some hundred
	head = binary.NativeEndian.AppendUint16(head, kind)
	head = binary.NativeEndian.AppendUint16(head, unix.NLM_F_REQUEST|unix.NLM_F_CREATE|unix.NLM_F_EXCL)
	return slices.Concat(head, word(0), word(0), body)
}

func attribute(kind uint16, parts ...[]byte) []byte {
	body := slices.Concat(parts...)
	b := binary.NativeEndian.AppendUint16(nil, uint16(unix.SizeofRtAttr+len(body))) //nolint:gosec // some hundred
	b = append(binary.NativeEndian.AppendUint16(b, kind), body...)
	for len(b)%unix.NLMSG_ALIGNTO != 0 {
		b = append(b, 0)
	}
	return b
}

func word(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }

// testLink wants the resolver to be reached by the link, and by the sandbox's address there.
func testLink() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Connect(fd, &unix.SockaddrInet4{Port: 53, Addr: isolation.LinkResolver().As4()}); err != nil {
		return err
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		return err
	}
	if own, ok := name.(*unix.SockaddrInet4); !ok || own.Addr != isolation.LinkAddress().As4() {
		return errors.New("the address is another")
	}
	return nil
}
