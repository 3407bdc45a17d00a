package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/net/dns/dnsmessage"
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
		if fault, ok := errors.AsType[*net.DNSError](err); ok && fault.IsNotFound {
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
