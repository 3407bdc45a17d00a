package natsiotest

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/nats-io/nats.go"
)

// Link is the network between a connection and its server. It is safe for concurrent use.
type Link struct {
	dial       func() (net.Conn, error) // to the server
	maxPayload int                      // what its client believes that the server has; 0 is as it has

	deaf   atomic.Bool
	writes writes

	mu    sync.Mutex
	cut   bool
	conns []net.Conn
}

var _ nats.InProcessConnProvider = (*Link)(nil)

func newLink(options []nats.Option) *Link {
	var o nats.Options
	for _, option := range options {
		if err := option(&o); err != nil {
			panic(err) // the server's own options
		}
	}
	if o.InProcessServer != nil {
		return &Link{dial: o.InProcessServer.InProcessConn}
	}
	return &Link{dial: func() (net.Conn, error) { return o.CustomDialer.Dial("tcp", "") }}
}

var errCut = errors.New("the link is cut")

// InProcessConn implements [nats.InProcessConnProvider].
func (l *Link) InProcessConn() (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut {
		return nil, errCut
	}
	made, err := l.dial()
	if err != nil {
		return nil, err
	}
	l.conns = append(l.conns, made)
	return &conn{Conn: made, link: l}, nil
}

// Deafen loses whatever the server says from now on, until [Link.Mend]: requests
// arrive, answers do not. The server must be at rest, or half a message is lost.
func (l *Link) Deafen() { l.deaf.Store(true) }

// Cut ends the connection, and lets none be made until [Link.Mend].
func (l *Link) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = true
	for _, conn := range l.conns {
		_ = conn.Close() // whatever is left of it
	}
	l.conns = nil
}

// Mend lets answers through, and connections be made, again.
func (l *Link) Mend() {
	l.deaf.Store(false)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = false
}

// Fate is what becomes of a message that a client publishes.
type Fate int

// The ways in which a write can end, for [Link.OnWrite].
const (
	Passes     Fate = iota
	Lost            // the server does not get it, and the client gets no answer
	Unanswered      // the server gets it, and the client gets no answer
	Held            // the server gets it by [Link.Release] or [Link.ReleaseBy]
	Refused         // the server does not get it, and the answer says that JetStream is unavailable
	Made            // the server gets it, and the answer says that JetStream is unavailable
)

// unavailable is what a server without a leader answers.
const unavailable = `{"error":{"code":503,"err_code":10008,"description":"JetStream system temporarily unavailable"}}`

// OnWrite has decide say what becomes of each message that the client publishes; nil lets all pass.
// decide must not use the link.
func (l *Link) OnWrite(decide func(subject string) Fate) {
	l.writes.mu.Lock()
	defer l.writes.mu.Unlock()
	l.writes.decide = decide
}

// HoldWrites holds the messages that match until release is called.
func (l *Link) HoldWrites(match func(subject string) bool) (release func()) {
	l.OnWrite(func(subject string) Fate {
		if match(subject) {
			return Held
		}
		return Passes
	})
	return sync.OnceFunc(l.Release)
}

// LoseMessages loses what the server sends on subjects that match; nil loses nothing.
func (l *Link) LoseMessages(match func(subject string) bool) {
	l.writes.mu.Lock()
	defer l.writes.mu.Unlock()
	l.writes.lose = match
}

// Held is how many messages are held.
func (l *Link) Held() int {
	l.writes.mu.Lock()
	defer l.writes.mu.Unlock()
	return len(l.writes.held)
}

// Release lets all messages pass from now on, and those that are held.
func (l *Link) Release() {
	l.writes.mu.Lock()
	held := l.writes.held
	l.writes.held, l.writes.decide = nil, nil
	l.writes.mu.Unlock()
	for _, h := range held {
		_ = h.to.write(h.whole) // fails only if the connection has ended
	}
}

// ReleaseBy publishes the held messages by another connection, as a network does that was slow:
// also when the client that published them has ended, which gets no answers.
func (l *Link) ReleaseBy(nc *nats.Conn) error {
	l.writes.mu.Lock()
	held := l.writes.held
	l.writes.held = nil
	l.writes.mu.Unlock()
	for _, h := range held {
		msg := nats.NewMsg(h.subject)
		msg.Data = h.body[h.headers:]
		if h.headers > 0 {
			header, err := nats.DecodeHeadersMsg(h.body[:h.headers])
			if err != nil {
				return err
			}
			msg.Header = header
		}
		if err := nc.PublishMsg(msg); err != nil {
			return err
		}
	}
	return nc.Flush()
}

// writes is what happens to the messages of a link.
type writes struct {
	mu     sync.Mutex
	decide func(subject string) Fate // nil: all pass
	lose   func(subject string) bool // nil: nothing is lost
	muted  map[string]bool           // subjects of answers that are lost
	wrong  map[string]bool           // subjects of answers that are replaced by unavailable
	held   []held
}

// held is a message on its way to the server.
type held struct {
	operation

	to *conn
}

// operation is one operation of the protocol of NATS; without a subject if it is no message.
type operation struct {
	whole, body    []byte
	headers        int // bytes of the body
	subject, reply string
	subscription   string // of what the server sends
}

// nextOperation cuts the first whole operation off; ok is false if there is none.
func nextOperation(data []byte) (o operation, rest []byte, ok bool) {
	end := bytes.Index(data, []byte("\r\n"))
	if end < 0 {
		return o, data, false
	}
	fields, size := bytes.Fields(data[:end]), end+2
	if len(fields) > 0 {
		sizes := 0 // the last fields are sizes
		switch string(bytes.ToUpper(fields[0])) {
		case "PUB", "MSG":
			sizes = 1
		case "HPUB", "HMSG":
			sizes = 2
		}
		if sizes > 0 {
			names := fields[1 : len(fields)-sizes]
			n, _ := strconv.Atoi(string(fields[len(fields)-1])) // the client and the server write numbers
			if sizes == 2 {                                     //nolint:mnd // as above
				o.headers, _ = strconv.Atoi(string(fields[len(fields)-2]))
			}
			if len(data) < size+n+2 {
				return o, data, false
			}
			o.subject, o.body = string(names[0]), data[size:size+n]
			switch sent := fields[0][len(fields[0])-3] == 'P'; { // PUB; else MSG
			case sent && len(names) > 1:
				o.reply = string(names[1])
			case !sent:
				o.subscription = string(names[1])
			}
			size += n + 2
		}
	}
	o.whole = data[:size]
	return o, data[size:], true
}

var maxPayload = regexp.MustCompile(`"max_payload":\d+`)

// conn is a client's end of a link.
type conn struct {
	net.Conn

	link     *Link
	out      sync.Mutex
	sending  []byte // of an operation that is not whole
	received []byte // the same
	ready    []byte // what the client has not read
}

// Write implements [net.Conn]. The client does not call it concurrently.
func (c *conn) Write(p []byte) (int, error) {
	c.sending = append(c.sending, p...)
	var pass []byte
	w := &c.link.writes
	w.mu.Lock()
	for {
		o, rest, ok := nextOperation(c.sending)
		if !ok {
			break
		}
		c.sending = rest
		fate := Passes
		if w.decide != nil && o.subject != "" {
			fate = w.decide(o.subject)
		}
		switch fate {
		case Held:
			o.whole, o.body = bytes.Clone(o.whole), bytes.Clone(o.body)
			w.held = append(w.held, held{o, c})
		case Unanswered:
			if w.muted == nil {
				w.muted = map[string]bool{}
			}
			w.muted[o.reply] = true
			pass = append(pass, o.whole...)
		case Refused, Made:
			if w.wrong == nil {
				w.wrong = map[string]bool{}
			}
			w.wrong[o.reply] = o.reply != ""
			if fate == Made {
				pass = append(pass, o.whole...)
			} else if o.reply != "" { // a question, whose answer is replaced
				pass = fmt.Appendf(pass, "PUB $JS.API.INFO %s 0\r\n\r\n", o.reply)
			}
		case Passes:
			pass = append(pass, o.whole...)
		case Lost:
		}
	}
	w.mu.Unlock()
	if err := c.write(pass); err != nil {
		return 0, err
	}
	return len(p), nil
}

// write sends whole operations to the server.
func (c *conn) write(operations []byte) error {
	c.out.Lock()
	defer c.out.Unlock()
	_, err := c.Conn.Write(operations)
	return err
}

// Read implements [net.Conn].
func (c *conn) Read(p []byte) (int, error) {
	for len(c.ready) == 0 {
		buffer := make([]byte, max(len(p), 32<<10))
		n, err := c.Conn.Read(buffer)
		if err != nil {
			return 0, err
		}
		if c.link.deaf.Load() {
			continue
		}
		c.received = append(c.received, buffer[:n]...)
		w := &c.link.writes
		w.mu.Lock()
		for {
			o, rest, ok := nextOperation(c.received)
			if !ok {
				break
			}
			switch c.received = rest; {
			case bytes.HasPrefix(o.whole, []byte("INFO ")) && c.link.maxPayload > 0:
				c.ready = append(c.ready, maxPayload.ReplaceAll(o.whole, fmt.Appendf(nil, `"max_payload":%d`, c.link.maxPayload))...)
			case w.wrong[o.subject]:
				c.ready = fmt.Appendf(c.ready, "MSG %s %s %d\r\n%s\r\n", o.subject, o.subscription, len(unavailable), unavailable)
			case o.subject == "" || !w.muted[o.subject] && (w.lose == nil || !w.lose(o.subject)):
				c.ready = append(c.ready, o.whole...)
			}
		}
		w.mu.Unlock()
	}
	n := copy(p, c.ready)
	c.ready = c.ready[n:]
	return n, nil
}
