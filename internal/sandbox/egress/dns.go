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
