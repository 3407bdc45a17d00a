package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
)

// Bounds of reaching a target.
const (
	dialTimeout = 10 * time.Second // for resolving and connecting together
	maxDials    = 3                // addresses of a name that are tried
)

// Refusal says that a target must not be reached. Its text is for the one who tried.
type Refusal struct { //nolint:errname // a refusal is what it is
	Target Target
	Reason string
}

// Error implements the error interface.
func (r *Refusal) Error() string {
	return fmt.Sprintf("%s must not be reached: %s", r.Target, r.Reason)
}

// ErrorType is the word for it in traces and logs.
func (r *Refusal) ErrorType() string { return "network_refused" }

// DialContext connects to "host:port" under the rules of the proxy, for requests that are made for
// a sandbox outside of it. What must not be reached is a *[Refusal].
func (p *Proxy) DialContext(ctx context.Context, _, address string) (net.Conn, error) {
	target, err := ParseTarget(address, 0)
	if err != nil {
		return nil, err
	}
	return p.dial(ctx, target)
}

// dial connects to a target that is listed and whose address may be reached. Otherwise
// the error is a *[Refusal].
func (p *Proxy) dial(ctx context.Context, t Target) (net.Conn, error) { return p.dialAt(ctx, t, nil) }

// dialAt is dial for a target whose name has been resolved already, unless addrs are none.
func (p *Proxy) dialAt(ctx context.Context, t Target, addrs []netip.Addr) (net.Conn, error) {
	if !p.allow.Match(t) {
		return nil, &Refusal{Target: t, Reason: p.unlisted(t.String())}
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	if len(addrs) == 0 {
		var err error
		if addrs, err = p.resolve(ctx, t); err != nil {
			return nil, err
		}
	}
	addrs, err := p.passed(t, addrs)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, addr := range addrs[:min(len(addrs), maxDials)] {
		conn, err := p.dialer.DialContext(ctx, "tcp", netip.AddrPortFrom(addr, t.Port).String())
		if err == nil {
			return conn, nil
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("connect to %s: %w", t, errors.Join(errs...))
}

// unlisted says what an operator can do about a target that is not listed.
func (p *Proxy) unlisted(target string) string {
	if p.allow.Empty() {
		return fmt.Sprintf("this sandbox may not reach any host (an operator can allow it with --allow-net %s)", target)
	}
	return fmt.Sprintf("it is not listed (an operator can allow it with --allow-net %s); listed are: %s", target, p.listed)
}

// resolve returns the addresses of a target.
func (p *Proxy) resolve(ctx context.Context, t Target) ([]netip.Addr, error) {
	if t.Addr.IsValid() {
		return []netip.Addr{t.Addr}, nil
	}
	// With the dot no search domains of this host are added.
	addrs, err := p.resolver.LookupNetIP(ctx, "ip", t.Host+".")
	if err != nil {
		return nil, fmt.Errorf("resolve %s: %w", t.Host, err)
	}
	return addrs, nil
}

// passed returns those addresses of a target that may be reached.
func (p *Proxy) passed(t Target, addrs []netip.Addr) ([]netip.Addr, error) {
	var passed []netip.Addr
	reason := "it has no address"
	for _, addr := range addrs {
		addr = addr.Unmap()
		objection := p.judge.objection(netip.AddrPortFrom(addr, t.Port))
		if objection == "" {
			passed = append(passed, addr)
			continue
		}
		reason = fmt.Sprintf("its address %s %s", addr, objection)
		if objection == notPublic && addr.IsPrivate() {
			setting := "--allow-net-private " + netip.PrefixFrom(addr, addr.BitLen()).String()
			if p.setting != "" {
				setting = p.setting + " " + netip.AddrPortFrom(addr, t.Port).String()
			}
			reason += fmt.Sprintf(" (an operator can allow it with %s)", setting)
		}
	}
	if len(passed) == 0 {
		return nil, &Refusal{Target: t, Reason: reason}
	}
	return passed, nil
}

// conn is a client's connection. It is closed when no byte moved for the idle time, and
// its context ends when it is closed.
type conn struct {
	net.Conn

	ctx    context.Context //nolint:containedctx // the life of the connection
	cancel context.CancelFunc
	idle   time.Duration
	timer  *time.Timer
	closed func()
	once   sync.Once
}

// newConn wraps a connection that lives no longer than ctx; closed is called once at its end.
func newConn(ctx context.Context, raw net.Conn, idle time.Duration, closed func()) *conn {
	c := &conn{Conn: raw, idle: idle, closed: closed}
	c.ctx, c.cancel = context.WithCancel(ctx)
	c.timer = time.AfterFunc(idle, c.cancel)
	context.AfterFunc(c.ctx, func() { _ = c.Close() }) //nolint:contextcheck // it is ctx's child
	return c
}

// Read implements [net.Conn].
func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.moved(n)
	return n, err
}

// Write implements [net.Conn].
func (c *conn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.moved(n)
	return n, err
}

// moved restarts the idle timer, unless it has expired.
func (c *conn) moved(n int) {
	if n > 0 && c.timer.Stop() {
		c.timer.Reset(c.idle)
	}
}

// CloseWrite signals end of stream to the client.
func (c *conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// Close implements [net.Conn]. It may be called again.
func (c *conn) Close() error {
	var err error
	c.once.Do(func() {
		c.timer.Stop()
		err = c.Conn.Close()
		c.cancel()
		c.closed()
	})
	return err
}

// Bounds of questions for names.
const (
	maxQuestions = 16 // at once
	answerLife   = time.Minute
)

// answer answers questions for names until the socket is closed.
func (l *link) answer(ctx context.Context, socket net.PacketConn) {
	slots := make(chan struct{}, maxQuestions)
	for {
		buf := make([]byte, maxQuestion)
		n, from, err := socket.ReadFrom(buf)
		if err != nil {
			return
		}
		slots <- struct{}{}
		l.work.Go(func() {
			defer func() { <-slots }()
			l.contained(func() {
				if reply := l.reply(ctx, buf[:n]); reply != nil {
					_, _ = socket.WriteTo(reply, from)
				}
			})
		})
	}
}

// reply answers a question; nil when there is none in a message.
func (l *link) reply(ctx context.Context, message []byte) []byte {
	var parser dnsmessage.Parser
	head, err := parser.Start(message)
	if err != nil || head.Response {
		return nil
	}
	question, err := parser.Question()
	if err != nil {
		return nil
	}
	reply := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: head.ID, Response: true, RecursionDesired: head.RecursionDesired, RecursionAvailable: true},
		Questions: []dnsmessage.Question{question},
	}
	addr, code := l.lookUp(ctx, question)
	reply.RCode = code
	if addr != nil {
		reply.Answers = []dnsmessage.Resource{{
			Header: dnsmessage.ResourceHeader{Name: question.Name, Class: dnsmessage.ClassINET, TTL: uint32(answerLife.Seconds())}, Body: addr,
		}}
	}
	packed, err := reply.Pack()
	if err != nil {
		return nil
	}
	return packed
}

// lookUp finds the address of a name that is listed. For others there is no such name: programs
// ask again, or wait, after every other answer.
func (l *link) lookUp(ctx context.Context, question dnsmessage.Question) (*dnsmessage.AResource, dnsmessage.RCode) {
	name, _, err := canonicalHost(question.Name.String())
	if err != nil {
		return nil, dnsmessage.RCodeNameError
	}
	if !l.proxy.allow.Names(name) {
		if question.Type != dnsmessage.TypeAAAA { // programs ask for both
			l.refused(ctx, "DNS", fmt.Errorf("%s must not be reached: %s", name, l.proxy.unlisted(name)))
		}
		return nil, dnsmessage.RCodeNameError
	}
	if question.Type != dnsmessage.TypeA || question.Class != dnsmessage.ClassINET {
		return nil, dnsmessage.RCodeSuccess
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	addrs, err := l.proxy.resolve(ctx, Target{Host: name})
	if err != nil {
		l.refused(ctx, "DNS", err)
		if failure, ok := errors.AsType[*net.DNSError](err); ok && failure.IsNotFound {
			return nil, dnsmessage.RCodeNameError
		}
		return nil, dnsmessage.RCodeServerFailure
	}
	addr, ok := l.names.address(name, addrs)
	if !ok {
		l.refused(ctx, "DNS", fmt.Errorf("%s: this sandbox has asked for %d names already", name, maxNames))
		return nil, dnsmessage.RCodeServerFailure
	}
	return &dnsmessage.AResource{A: addr.As4()}, dnsmessage.RCodeSuccess
}

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
		all:    map[netip.Addr]*linkName{}, of: map[string]netip.Addr{}, last: isolation.LinkResolver(),
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
