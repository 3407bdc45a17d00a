package egress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"runtime/debug"
	"sync"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/channel"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
)

// Bounds of a link. What a connection has in memory is at most two buffers.
const (
	nic         = 1
	linkQueue   = 512        // packets on their way to the sandbox; further ones are lost, and sent again
	linkWindow  = 256 << 10  // what a connection's other end may send before it is read
	linkBuffer  = 1 << 20    // of a connection, in each direction
	maxPacket   = 64<<10 - 1 // of IPv4
	dnsPort     = 53
	maxQuestion = 512 // bytes
)

// link is a network stack that the packets of one sandbox end in.
type link struct {
	proxy    *Proxy
	packets  io.ReadWriteCloser
	ends     *channel.Endpoint
	stack    *stack.Stack
	names    *linkNames
	requests chan *tcp.ForwarderRequest
	slots    chan struct{}
	work     sync.WaitGroup    // connections
	broken   func(failure any) // ends the link
}

var errPanicked = errors.New("the network stack panicked")

// contained has a panic end the link, not the process. Goroutines that the stack itself starts are
// beyond that: a panic there ends the process.
func (l *link) contained(do func()) {
	defer func() {
		if failure := recover(); failure != nil {
			l.broken(failure)
		}
	}()
	do()
}

// ServeLink is the other end of a sandbox's network interface: each Read of packets is an IPv4
// packet of the sandbox, each Write one for it. It answers questions for names at
// [isolation.LinkResolver], and connects what is sent to the addresses that it has answered, under
// the rules of [Proxy.Serve]: a connection is accepted once the target has, and refused otherwise.
// It ends, and closes packets, when ctx ends or packets cannot be read, and returns when no
// connection is left; nil unless the link broke.
func (p *Proxy) ServeLink(ctx context.Context, packets io.ReadWriteCloser) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	l, questions, err := newLink(p, packets)
	if err != nil {
		return fmt.Errorf("egress link: %w", errors.Join(err, packets.Close()))
	}
	forwarder := tcp.NewForwarder(l.stack, linkWindow, p.conns, func(r *tcp.ForwarderRequest) {
		select {
		case l.requests <- r:
		case <-ctx.Done():
			r.Complete(true)
		}
	})
	l.stack.SetTransportProtocolHandler(tcp.ProtocolNumber, forwarder.HandlePacket)
	var loops sync.WaitGroup
	l.broken = func(failure any) {
		p.log.ErrorContext(ctx, "network stack panicked", slog.Any("panic", failure), slog.String("stack", string(debug.Stack())))
		cancel(errPanicked)
	}
	loops.Go(func() { l.contained(func() { l.write(ctx) }) })
	loops.Go(func() { l.contained(func() { l.accept(ctx) }) })
	loops.Go(func() { l.contained(func() { l.answer(ctx, questions) }) })
	context.AfterFunc(ctx, func() { _ = packets.Close() })
	l.contained(func() { err = l.read() })
	if errors.Is(context.Cause(ctx), errPanicked) {
		err = errPanicked
	}
	ended := ctx.Err() != nil && !errors.Is(err, errPanicked)
	cancel(nil)
	_ = packets.Close()
	_ = questions.Close()
	loops.Wait()
	l.stack.Close() // so no goroutine waits for a client that no longer answers
	l.work.Wait()
	l.stack.Destroy()
	if !ended {
		return fmt.Errorf("egress link: %w", err)
	}
	return nil
}

// quiet keeps the stack from writing to the standard errors of this process what it thinks of
// packets.
var quiet = sync.OnceFunc(func() { //nolint:gochecknoglobals // as what it sets
	log.SetLevel(log.Warning) // of loggers that keep their target
	log.SetTarget(&log.Writer{Next: io.Discard})
})

// newLink makes the stack, and what gets the questions for names.
func newLink(p *Proxy, packets io.ReadWriteCloser) (*link, *gonet.UDPConn, error) {
	quiet()
	l := &link{
		proxy: p, packets: packets, ends: channel.New(linkQueue, isolation.LinkMTU, ""),
		names: newLinkNames(p.allow), requests: make(chan *tcp.ForwarderRequest), slots: make(chan struct{}, p.conns),
		stack: stack.New(stack.Options{
			NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol},
			TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol},
		}),
	}
	// The packets come from a kernel on this machine, which leaves sums to cards that have none.
	l.ends.LinkEPCapabilities = stack.CapabilityRXChecksumOffload
	if err := l.configure(); err != nil {
		l.stack.Destroy()
		return nil, nil, err
	}
	at := fullAddress(isolation.LinkResolver(), dnsPort)
	questions, err := gonet.DialUDP(l.stack, &at, nil, ipv4.ProtocolNumber)
	if err != nil {
		l.stack.Destroy()
		return nil, nil, err
	}
	return l, questions, nil
}

// configure has the stack take packets for any address.
func (l *link) configure() error {
	resolver := tcpip.ProtocolAddress{Protocol: ipv4.ProtocolNumber, AddressWithPrefix: fullAddress(isolation.LinkResolver(), 0).Addr.WithPrefix()}
	sack := tcpip.TCPSACKEnabled(true)
	receive := tcpip.TCPReceiveBufferSizeRangeOption{Min: tcp.MinBufferSize, Default: linkWindow, Max: linkBuffer}
	send := tcpip.TCPSendBufferSizeRangeOption{Min: tcp.MinBufferSize, Default: linkBuffer, Max: linkBuffer}
	for _, failure := range []tcpip.Error{
		l.stack.SetTransportProtocolOption(tcp.ProtocolNumber, &sack),
		l.stack.SetTransportProtocolOption(tcp.ProtocolNumber, &receive),
		l.stack.SetTransportProtocolOption(tcp.ProtocolNumber, &send),
		l.stack.CreateNIC(nic, l.ends),
		l.stack.AddProtocolAddress(nic, resolver, stack.AddressProperties{}),
		l.stack.SetPromiscuousMode(nic, true),
		l.stack.SetSpoofing(nic, true),
	} {
		if failure != nil {
			return errors.New(failure.String())
		}
	}
	l.stack.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: nic}})
	return nil
}

func fullAddress(addr netip.Addr, port uint16) tcpip.FullAddress {
	return tcpip.FullAddress{NIC: nic, Addr: tcpip.AddrFrom4(addr.As4()), Port: port}
}

// read takes packets of the sandbox until that fails.
func (l *link) read() error {
	buf := make([]byte, maxPacket)
	for {
		n, err := l.packets.Read(buf)
		if err != nil {
			return err
		}
		packet := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(buf[:n])})
		l.ends.InjectInbound(ipv4.ProtocolNumber, packet)
		packet.DecRef()
	}
}

// write sends packets to the sandbox until ctx ends. A packet that cannot be sent is lost.
func (l *link) write(ctx context.Context) {
	for {
		packet := l.ends.ReadContext(ctx)
		if packet == nil {
			return
		}
		view := packet.ToView()
		_, _ = l.packets.Write(view.AsSlice())
		view.Release()
		packet.DecRef()
	}
}

// accept serves connections until ctx ends, some at once.
func (l *link) accept(ctx context.Context) {
	for {
		select {
		case l.slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		select {
		case r := <-l.requests:
			l.work.Go(func() {
				defer func() { <-l.slots }()
				l.contained(func() { l.connect(ctx, r) })
			})
		case <-ctx.Done():
			return
		}
	}
}

// connect connects a target, and only then the client.
func (l *link) connect(ctx context.Context, r *tcp.ForwarderRequest) {
	id := r.ID()
	t, addrs := l.names.target(netip.AddrFrom4(id.LocalAddress.As4()), id.LocalPort)
	upstream, err := l.proxy.dialAt(ctx, t, addrs)
	if err != nil {
		l.refused(ctx, "TCP", err)
		r.Complete(true)
		return
	}
	var queue waiter.Queue
	end, failure := r.CreateEndpoint(&queue)
	r.Complete(failure != nil)
	if failure != nil { // the client is gone
		_ = upstream.Close()
		return
	}
	client := newConn(ctx, gonet.NewTCPConn(&queue, end), l.proxy.idle, func() {})
	l.proxy.tunnel(client, upstream, nil, t)
	_ = client.Close()
}

func (l *link) refused(ctx context.Context, method string, err error) {
	l.proxy.log.DebugContext(ctx, "request refused", slog.String("method", method), slog.Any("error", err))
}
