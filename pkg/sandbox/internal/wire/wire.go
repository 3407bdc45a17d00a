//go:build linux

// Package wire carries requests from a worker into a sandbox and answers back, over a
// SEQPACKET socket pair, the only thing that connects the two.
//
//	frame   = id (8 bytes) | kind (1) | more (1) | length of head (4) | payload
//	message = the payloads of the frames of one id and kind, up to the one without more
//	payload = head, which is JSON, and body, which is bytes as they are, or a packed value
//
// Messages of different ids may be mixed, frame by frame. File descriptors travel with the
// first frame of a message. Everything that comes out of a sandbox is untrusted: sizes are
// bounded, and whatever does not parse ends the connection.
package wire

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Kind says what a message is.
type Kind uint8

const (
	headerSize = 14
	frameSize  = 60 << 10 // fits the default send buffer several times
	// maxMessage bounds a message: a file of the largest size, and its surroundings.
	maxMessage = 40 << 20
	// maxPartial bounds the messages that are under way at once.
	maxPartial = 256
	// maxFDs bounds the descriptors of a message.
	maxFDs = 8
)

// ErrMalformed says that the other side broke the protocol.
var ErrMalformed = errors.New("malformed message")

// Message is a request or an answer.
type Message struct {
	ID   uint64
	Kind Kind
	Head []byte // JSON
	Body []byte
	FDs  []int // owned by the receiver
}

// Decode parses the head into v.
func (m *Message) Decode(v any) error {
	if err := json.Unmarshal(m.Head, v); err != nil {
		return fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	return nil
}

// CloseFDs closes the descriptors that came with the message.
func (m *Message) CloseFDs() {
	for _, fd := range m.FDs {
		_ = unix.Close(fd) // nothing was done with it
	}
	m.FDs = nil
}

// Conn is one end of a connection. Send may be called by many, Receive by one at a time.
type Conn struct {
	file *os.File

	send  sync.Mutex
	frame []byte

	received []byte
	partial  map[uint64]*Message
	oob      []byte
}

// Pair returns the two ends of a new connection: one for this process and one to be
// inherited by another.
func Pair() (*Conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("control socket: %w", err)
	}
	theirs := os.NewFile(uintptr(fds[1]), "control")
	ours, err := Open(fds[0])
	if err != nil {
		return nil, nil, errors.Join(err, theirs.Close(), unix.Close(fds[0]))
	}
	return ours, theirs, nil
}

// Open takes over a descriptor.
func Open(fd int) (*Conn, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	c := &Conn{
		file:  os.NewFile(uintptr(fd), "control"),
		frame: make([]byte, headerSize+frameSize), received: make([]byte, headerSize+frameSize+1),
		partial: map[uint64]*Message{}, oob: make([]byte, unix.CmsgSpace(4*maxFDs)),
	}
	return c, nil
}

// Close ends the connection; the other side sees the end of messages.
func (c *Conn) Close() error { return c.file.Close() }

// Send sends a message with head, unless that is nil, as JSON. The descriptors stay the caller's.
func (c *Conn) Send(id uint64, kind Kind, head any, body []byte, fds ...int) error {
	var encoded, rights []byte
	if head != nil {
		var err error
		if encoded, err = json.Marshal(head); err != nil {
			return fmt.Errorf("encode message: %w", err)
		}
	}
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	parts := payload{encoded, body}
	for first := true; first || parts.len() > 0; first = false {
		if err := c.sendFrame(id, kind, len(encoded), &parts, rights); err != nil {
			return err
		}
		rights = nil
	}
	return nil
}

// SendPacked sends a message whose body is a packed value, for [Unpack].
func (c *Conn) SendPacked(id uint64, kind Kind, v any) error {
	return c.Send(id, kind, nil, Pack(nil, v))
}

// payload is what is left of a message to send.
type payload [2][]byte

func (p *payload) len() int { return len(p[0]) + len(p[1]) }

func (p *payload) take(into []byte) int {
	n := copy(into, p[0])
	p[0] = p[0][n:]
	m := copy(into[n:], p[1])
	p[1] = p[1][m:]
	return n + m
}

func (c *Conn) sendFrame(id uint64, kind Kind, headLen int, parts *payload, rights []byte) error {
	c.send.Lock()
	defer c.send.Unlock()
	n := parts.take(c.frame[headerSize:])
	binary.BigEndian.PutUint64(c.frame, id)
	c.frame[8], c.frame[9] = byte(kind), 0
	if parts.len() > 0 {
		c.frame[9] = 1
	}
	binary.BigEndian.PutUint32(c.frame[10:], uint32(headLen)) //nolint:gosec // bounded by maxMessage
	raw, err := c.file.SyscallConn()
	if err != nil {
		return err
	}
	var sendErr error
	err = raw.Write(func(fd uintptr) bool {
		for {
			sendErr = unix.Sendmsg(int(fd), c.frame[:headerSize+n], rights, nil, unix.MSG_NOSIGNAL)
			if !errors.Is(sendErr, unix.EINTR) {
				return !errors.Is(sendErr, unix.EAGAIN)
			}
		}
	})
	return errors.Join(err, sendErr)
}
