package egress_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/channel"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"

	"github.com/toolfleet/toolfleet/internal/sandbox/egress"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
)

// pipeEnd is one end of a line for packets.
type pipeEnd struct {
	in    <-chan []byte
	out   chan<- []byte
	ended chan struct{} // of both
	end   func()
}

func packetPipe() (a, b *pipeEnd) {
	there, back, ended := make(chan []byte), make(chan []byte), make(chan struct{})
	end := sync.OnceFunc(func() { close(ended) })
	return &pipeEnd{in: back, out: there, ended: ended, end: end}, &pipeEnd{in: there, out: back, ended: ended, end: end}
}

func (p *pipeEnd) Read(b []byte) (int, error) {
	select {
	case packet := <-p.in:
		return copy(b, packet), nil
	case <-p.ended:
		return 0, os.ErrClosed
	}
}

func (p *pipeEnd) Write(b []byte) (int, error) {
	select {
	case p.out <- append([]byte(nil), b...):
		return len(b), nil
	case <-p.ended:
		return 0, os.ErrClosed
	}
}

func (p *pipeEnd) Close() error { p.end(); return nil }

// sandboxEnd is the network of a sandbox: an interface with a link behind it.
type sandboxEnd struct{ stack *stack.Stack }

func newSandboxEnd(t *testing.T, packets *pipeEnd) *sandboxEnd {
	t.Helper()
	const nic = 1
	ends := channel.New(64, isolation.LinkMTU, "")
	s := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol, icmp.NewProtocol4},
	})
	require.Nil(t, s.CreateNIC(nic, ends))
	require.Nil(t, s.AddProtocolAddress(nic, tcpip.ProtocolAddress{
		Protocol: ipv4.ProtocolNumber, AddressWithPrefix: tcpip.AddrFrom4(isolation.LinkAddress().As4()).WithPrefix(),
	}, stack.AddressProperties{}))
	s.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: nic}})
	ctx, cancel := context.WithCancel(t.Context())
	var loops sync.WaitGroup
	loops.Go(func() {
		for packet := ends.ReadContext(ctx); packet != nil; packet = ends.ReadContext(ctx) {
			view := packet.ToView()
			_, _ = packets.Write(view.AsSlice())
			packet.DecRef()
		}
	})
	loops.Go(func() {
		buf := make([]byte, isolation.LinkMTU)
		for n, err := packets.Read(buf); err == nil; n, err = packets.Read(buf) {
			packet := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(buf[:n])})
			ends.InjectInbound(ipv4.ProtocolNumber, packet)
			packet.DecRef()
		}
	})
	t.Cleanup(func() {
		cancel()
		_ = packets.Close()
		loops.Wait()
		s.Destroy()
	})
	return &sandboxEnd{stack: s}
}

func full(to netip.AddrPort) tcpip.FullAddress {
	return tcpip.FullAddress{Addr: tcpip.AddrFrom4(to.Addr().As4()), Port: to.Port()}
}

// udp sends datagrams.
func (s *sandboxEnd) udp(to netip.AddrPort) (net.Conn, error) {
	at := full(to)
	return gonet.DialUDP(s.stack, nil, &at, ipv4.ProtocolNumber)
}

// lookUp asks the resolver of the link.
func (s *sandboxEnd) lookUp(ctx context.Context, host string) (netip.Addr, error) {
	resolver := &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		return s.udp(netip.AddrPortFrom(isolation.LinkResolver(), 53))
	}}
	addrs, err := resolver.LookupNetIP(ctx, "ip4", host)
	if err != nil {
		return netip.Addr{}, err
	}
	return addrs[0].Unmap(), nil
}

// dial connects to a host and a port as a program does that knows no proxy.
func (s *sandboxEnd) dial(t *testing.T, target string) (net.Conn, error) {
	t.Helper()
	host, port, err := net.SplitHostPort(target)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	addr, err := netip.ParseAddr(host)
	if err != nil {
		if addr, err = s.lookUp(ctx, host); err != nil {
			return nil, err
		}
	}
	number, err := net.DefaultResolver.LookupPort(ctx, "tcp", port)
	require.NoError(t, err)
	c, err := gonet.DialContextTCP(ctx, s.stack, full(netip.AddrPortFrom(addr, uint16(number))), ipv4.ProtocolNumber)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = c.Close() })
	return c, c.SetDeadline(time.Now().Add(time.Minute))
}

// viaLink gets a page without a proxy.
func viaLink(t *testing.T, r *rig, target string) answer {
	t.Helper()
	host, _, err := net.SplitHostPort(target)
	require.NoError(t, err)
	if addr, err := netip.ParseAddr(host); err == nil && addr.IsLoopback() {
		return answer{false, "the sandbox's own loopback leads to no link"}
	}
	began := time.Now()
	c, err := r.link.dial(t, target)
	if err != nil {
		require.Less(t, time.Since(began), time.Minute, "it is refused, and not left waiting")
		return answer{false, err.Error()}
	}
	return answer{true, page(t, c, bufio.NewReader(c))}
}

// heard is a log that tells of refusals.
type heard struct {
	slog.Handler

	refusals chan string
}

func (h heard) Enabled(context.Context, slog.Level) bool { return true }

func (h heard) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "request refused" {
		text := ""
		r.Attrs(func(a slog.Attr) bool { text += a.Value.String() + " "; return true })
		h.refusals <- text
	}
	return nil
}

// TestLink_RefusalsAreLogged: whatever is refused is told at once to who asked, and to the log with
// the reason.
func TestLink_RefusalsAreLogged(t *testing.T) {
	t.Parallel()
	log := heard{slog.DiscardHandler, make(chan string, 1)}
	r := start(t, egress.Options{
		Allow: allow(t, "good.example:443,lan.example,gone.example,192.0.2.1:80"), Private: loopback(), Logger: slog.New(log),
		Resolver: &names{answers: map[string][]string{"good.example": {"127.0.0.1"}, "lan.example": {"192.168.1.1"}}},
	})
	for target, want := range map[string]string{
		"evil.example:443": "DNS evil.example must not be reached: it is not listed (an operator can allow it with --allow-net evil.example)",
		"gone.example:443": "DNS resolve gone.example: lookup gone.example: no such host",
		"good.example:80":  "TCP good.example:80 must not be reached: it is not listed",
		"good.example:443": "TCP connect to good.example:443: dial tcp 127.0.0.1:443: connect: connection refused",
		"lan.example:443":  "TCP lan.example:443 must not be reached: its address 192.168.1.1 is not on the public Internet",
		"1.1.1.1:443":      "TCP 1.1.1.1:443 must not be reached: it is not listed",
		"192.0.2.1:80":     "TCP 192.0.2.1:80 must not be reached: its address 192.0.2.1 is not on the public Internet",
		"198.18.0.99:443":  "TCP 198.18.0.99:443 must not be reached: it is not listed",
	} {
		got := viaLink(t, r, target)
		require.False(t, got.allowed, target)
		if want[:3] == "DNS" {
			require.Contains(t, got.text, "no such host", target)
		} else {
			require.Contains(t, got.text, "connection was refused", target)
		}
		require.Contains(t, <-log.refusals, want)
	}
	for _, kind := range []dnsmessage.Type{dnsmessage.TypeAAAA, dnsmessage.TypeA} { // as programs ask for a name
		r.link.question(t, "evil.example.", kind, dnsmessage.ClassINET)
	}
	require.Contains(t, <-log.refusals, "DNS evil.example")
	require.Empty(t, log.refusals, "it is told once")
}

// question asks the resolver of a link in its own words.
func (s *sandboxEnd) question(t *testing.T, name string, kind dnsmessage.Type, class dnsmessage.Class) dnsmessage.Message {
	t.Helper()
	c, err := s.udp(netip.AddrPortFrom(isolation.LinkResolver(), 53))
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.SetDeadline(time.Now().Add(time.Minute)))
	asked := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: 8, Response: true},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: kind, Class: class}},
	}
	response, err := asked.Pack()
	require.NoError(t, err)
	asked.Header = dnsmessage.Header{ID: 7, RecursionDesired: true}
	packed, err := asked.Pack()
	require.NoError(t, err)
	for _, packet := range [][]byte{{}, []byte("no question"), response, packed} { // the last one gets an answer
		_, err = c.Write(packet)
		require.NoError(t, err)
	}
	buf := make([]byte, 512)
	n, err := c.Read(buf)
	require.NoError(t, err)
	var reply dnsmessage.Message
	require.NoError(t, reply.Unpack(buf[:n]))
	require.True(t, reply.Response && reply.RecursionAvailable)
	require.Equal(t, uint16(7), reply.ID)
	return reply
}

// TestLink_ResolverAnswersForListedNames: a name that is listed has one address, which is the
// link's; others do not exist.
func TestLink_ResolverAnswersForListedNames(t *testing.T) {
	t.Parallel()
	resolver := &names{answers: map[string][]string{"good.example": {"192.0.2.1 2001:db8::1"}, "a.sub.example": {"192.0.2.2"}, "other.example": {"192.0.2.3"}}}
	r := start(t, egress.Options{Allow: allow(t, "good.example,*.sub.example,gone.example,198.18.0.3:80"), Resolver: resolver})
	reply := r.link.question(t, "Good.example.", dnsmessage.TypeA, dnsmessage.ClassINET)
	require.Equal(t, dnsmessage.RCodeSuccess, reply.RCode)
	require.Len(t, reply.Answers, 1)
	require.Equal(t, "Good.example.", reply.Answers[0].Header.Name.String(), "as it was asked")
	require.Equal(t, &dnsmessage.AResource{A: [4]byte{198, 18, 0, 4}}, reply.Answers[0].Body, "the address before is listed as such")
	require.Equal(t, reply.Answers, r.link.question(t, "Good.example.", dnsmessage.TypeA, dnsmessage.ClassINET).Answers)
	require.Equal(t, &dnsmessage.AResource{A: [4]byte{198, 18, 0, 5}}, r.link.question(t, "a.sub.example.", dnsmessage.TypeA, dnsmessage.ClassINET).Answers[0].Body)
	for _, kind := range []dnsmessage.Type{dnsmessage.TypeAAAA, dnsmessage.TypeTXT, dnsmessage.TypeMX, dnsmessage.TypeALL} {
		reply := r.link.question(t, "good.example.", kind, dnsmessage.ClassINET)
		require.Equal(t, dnsmessage.RCodeSuccess, reply.RCode)
		require.Empty(t, reply.Answers)
		require.Equal(t, dnsmessage.RCodeNameError, r.link.question(t, "other.example.", kind, dnsmessage.ClassINET).RCode)
	}
	require.Empty(t, r.link.question(t, "good.example.", dnsmessage.TypeA, dnsmessage.ClassCHAOS).Answers)
	for _, name := range []string{
		"other.example.", "sub.example.", "gone.example.", "example.", ".", "secret-data.other.example.", "1.2.0.192.in-addr.arpa.", "198.18.0.3.",
	} {
		reply := r.link.question(t, name, dnsmessage.TypeA, dnsmessage.ClassINET)
		require.Equal(t, dnsmessage.RCodeNameError, reply.RCode, name)
		require.Empty(t, reply.Answers)
	}
	require.Zero(t, resolver.count("other.example"), "what is not listed is not asked for")
	require.Zero(t, resolver.count("secret-data.other.example"))
}

// TestLink_DatagramsAreRefused: there is nothing but the resolver that takes them, and who waits
// for an answer is told.
func TestLink_DatagramsAreRefused(t *testing.T) {
	t.Parallel()
	r := start(t, egress.Options{Allow: allow(t, "good.example:*"), Resolver: &names{answers: map[string][]string{"good.example": {"192.0.2.1"}}}})
	good, err := r.link.lookUp(t.Context(), "good.example")
	require.NoError(t, err)
	for _, to := range []netip.AddrPort{
		netip.AddrPortFrom(good, 443), netip.AddrPortFrom(good, 53), netip.AddrPortFrom(isolation.LinkResolver(), 54), netip.MustParseAddrPort("8.8.8.8:53"),
	} {
		c, err := r.link.udp(to)
		require.NoError(t, err)
		_, err = c.Write([]byte("x"))
		require.NoError(t, err)
		require.Eventually(t, func() bool { // this stack wakes no reader for that
			_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
			_, err = c.Read(make([]byte, 1))
			return err != nil && strings.Contains(err.Error(), "connection was refused")
		}, time.Minute, time.Millisecond, to)
		require.NoError(t, c.Close())
	}
}

// TestLink_MovesEverythingBothWays: also after one side has said that nothing more comes.
func TestLink_MovesEverythingBothWays(t *testing.T) {
	t.Parallel()
	target := fmt.Sprintf("good.example:%d", echo(t))
	r := start(t, egress.Options{Allow: allow(t, target), Private: loopback(), Resolver: &names{answers: map[string][]string{"good.example": {"127.0.0.1"}}}})
	c, err := r.link.dial(t, target)
	require.NoError(t, err)
	big := strings.Repeat("0123456789abcdef", 256<<10)
	go func() {
		_, _ = io.WriteString(c, big)
		if tcp, ok := c.(*gonet.TCPConn); ok {
			_ = tcp.CloseWrite()
		}
	}()
	all, err := io.ReadAll(c)
	require.NoError(t, err)
	require.Len(t, all, len(big)+len("bye"))
	same := big+"bye" == string(all)
	require.True(t, same, "what came back is something else")
	_, err = r.link.dial(t, target)
	require.NoError(t, err)
	r.stop() // which waits for nobody
}

// TestLink_MoreConnectionsWait: of one sandbox no more are served at once.
func TestLink_MoreConnectionsWait(t *testing.T) {
	t.Parallel()
	port := uint16(echo(t))
	target := fmt.Sprintf("good.example:%d", port)
	r := start(t, egress.Options{Allow: allow(t, target), Private: loopback(), Conns: 1, Resolver: &names{answers: map[string][]string{"good.example": {"127.0.0.1"}}}})
	first, err := r.link.dial(t, target)
	require.NoError(t, err)
	addr, err := r.link.lookUp(t.Context(), "good.example")
	require.NoError(t, err)
	second := make(chan error, 1)
	go func() {
		c, err := gonet.DialContextTCP(t.Context(), r.link.stack, full(netip.AddrPortFrom(addr, port)), ipv4.ProtocolNumber)
		if err == nil {
			err = c.Close()
		}
		second <- err
	}()
	select {
	case err := <-second:
		require.Fail(t, "it was served", "%v", err)
	case <-time.After(200 * time.Millisecond):
	}
	require.NoError(t, first.Close())
	require.NoError(t, <-second)

	_, err = r.link.dial(t, target)
	require.NoError(t, err)
	go func() {
		_, err := gonet.DialContextTCP(t.Context(), r.link.stack, full(netip.AddrPortFrom(addr, port)), ipv4.ProtocolNumber)
		second <- err
	}()
	select {
	case err := <-second:
		require.Fail(t, "it was served", "%v", err)
	case <-time.After(50 * time.Millisecond):
	}
	r.stop() // also who waits
}

// question is one for the address of a name.
func question(t *testing.T, id uint16, name string) []byte {
	t.Helper()
	packed, err := (&dnsmessage.Message{
		Header: dnsmessage.Header{ID: id}, Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}},
	}).Pack()
	require.NoError(t, err)
	return packed
}

// slow is a resolver that answers when it is told to.
type slow struct {
	release chan struct{}
	active  chan struct{}
}

func (s *slow) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	s.active <- struct{}{}
	<-s.release
	<-s.active
	return []netip.Addr{netip.MustParseAddr("192.0.2.1")}, nil
}

// TestLink_SomeQuestionsAtOnce: further ones wait, and all are answered.
func TestLink_SomeQuestionsAtOnce(t *testing.T) {
	t.Parallel()
	const atOnce, all = 16, 40
	resolver := &slow{release: make(chan struct{}), active: make(chan struct{}, all)}
	r := start(t, egress.Options{Allow: allow(t, "*.example"), Resolver: resolver})
	c, err := r.link.udp(netip.AddrPortFrom(isolation.LinkResolver(), 53))
	require.NoError(t, err)
	defer c.Close()
	for i := range all {
		_, err = c.Write(question(t, uint16(i), fmt.Sprintf("%d.example.", i)))
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool { return len(resolver.active) >= atOnce }, time.Minute, time.Millisecond)
	require.NoError(t, c.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
	_, err = c.Read(make([]byte, 512))
	require.Error(t, err)
	require.Len(t, resolver.active, atOnce)
	close(resolver.release)
	require.NoError(t, c.SetReadDeadline(time.Now().Add(time.Minute)))
	for range all {
		_, err := c.Read(make([]byte, 512))
		require.NoError(t, err)
	}
}

// TestLink_ItsEndWaitsForWhatRuns: nothing is done for a sandbox that is gone.
func TestLink_ItsEndWaitsForWhatRuns(t *testing.T) {
	t.Parallel()
	resolver := &slow{release: make(chan struct{}), active: make(chan struct{}, 1)}
	r := start(t, egress.Options{Allow: allow(t, "*.example"), Resolver: resolver})
	c, err := r.link.udp(netip.AddrPortFrom(isolation.LinkResolver(), 53))
	require.NoError(t, err)
	defer c.Close()
	_, err = c.Write(question(t, 1, "a.example."))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return len(resolver.active) == 1 }, time.Minute, time.Millisecond)
	stopped := make(chan struct{})
	go func() {
		r.stop()
		close(stopped)
	}()
	select {
	case <-stopped:
		require.Fail(t, "it has ended")
	case <-time.After(50 * time.Millisecond):
	}
	close(resolver.release)
	<-stopped
}

// halfOpen is a line on which the sandbox begins connections and completes none.
type halfOpen struct {
	*pipeEnd

	begun chan struct{}
}

func (h halfOpen) Read(b []byte) (int, error) {
	for {
		n, err := h.pipeEnd.Read(b)
		const flagACK = 0x10
		if tcp := int(b[0]&0xf) * 4; err != nil || b[9] != 6 || b[tcp+13]&flagACK == 0 {
			return n, err
		}
		select {
		case h.begun <- struct{}{}: // it answers what the link has answered
		default:
		}
	}
}

// TestLink_EndsWithConnectionsThatHaveBegun: no client is waited for.
func TestLink_EndsWithConnectionsThatHaveBegun(t *testing.T) {
	t.Parallel()
	target := fmt.Sprintf("good.example:%d", echo(t))
	p, err := egress.New(egress.Options{Allow: allow(t, target), Private: loopback(), Resolver: &names{answers: map[string][]string{"good.example": {"127.0.0.1"}}}})
	require.NoError(t, err)
	ours, theirs := packetPipe()
	line := halfOpen{theirs, make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- p.ServeLink(ctx, line) }()
	end := newSandboxEnd(t, ours)
	c, err := end.dial(t, target)
	require.NoError(t, err, "for this side there is a connection")
	defer c.Close()
	<-line.begun
	cancel()
	select {
	case err := <-served:
		require.NoError(t, err)
	case <-time.After(time.Minute):
		require.Fail(t, "it waits for the client")
	}
}

// broken is a line that breaks at once.
type broken struct {
	*pipeEnd

	closed atomic.Bool
}

func (b *broken) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

func (b *broken) Close() error {
	b.closed.Store(true)
	return b.pipeEnd.Close()
}

// TestLink_ThatBreaksEnds and says so.
func TestLink_ThatBreaksEnds(t *testing.T) {
	t.Parallel()
	p, err := egress.New(egress.Options{Allow: allow(t, "good.example")})
	require.NoError(t, err)
	end, _ := packetPipe()
	line := &broken{pipeEnd: end}
	require.ErrorIs(t, p.ServeLink(t.Context(), line), io.ErrUnexpectedEOF)
	require.True(t, line.closed.Load())
}

// panicking is packets of which one takes the stack down.
type panicking struct{ *pipeEnd }

func (panicking) Read([]byte) (int, error) { panic("out of sequence") }

// A panic ends the link, not the process that has others.
func TestLink_APanicIsItsEndOnly(t *testing.T) {
	t.Parallel()
	p, err := egress.New(egress.Options{Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	ours, _ := packetPipe()
	require.ErrorContains(t, p.ServeLink(t.Context(), panicking{ours}), "the network stack panicked")
	select {
	case <-ours.ended:
	default:
		require.Fail(t, "the packets are not closed")
	}
}
