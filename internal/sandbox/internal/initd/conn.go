//go:build linux

package initd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/fxamacker/cbor/v2"
	"golang.org/x/sys/unix"
)

// Requests of the worker and their answers travel over a SEQPACKET socket pair, the only thing that
// connects a worker and a sandbox.
//
//	frame   = id (8 bytes) | kind (1) | more (1) | payload
//	message = the payloads of the frames of one id and kind, up to the one without more: a packed value
//
// Messages of different ids may be mixed, frame by frame. File descriptors travel with the first
// frame of a message. Everything that comes out of a sandbox is untrusted: sizes are bounded, and
// whatever does not parse ends the connection.

// Kind says what a message is.
type Kind uint8

const (
	headerSize = 10
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
	Body []byte
	FDs  []int // owned by the receiver
}

// Decode parses the message into what v points to, the zero value. Bytes of it are those of the
// message.
func (m *Message) Decode(v any) error { return Unpack(m.Body, v) }

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
	raw  syscall.RawConn // of file

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
	err = unix.SetNonblock(fds[0], true) // otherwise it were unknown to Go's poller
	var ours *Conn
	if err == nil {
		ours, err = OpenConn(fds[0])
	}
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("control socket: %w", err), theirs.Close(), unix.Close(fds[0]))
	}
	return ours, theirs, nil
}

// OpenConn takes over a descriptor. A blocking one has Receive and Send block their threads: that
// is for programs that have little else to do, and are woken faster without Go's poller.
func OpenConn(fd int) (*Conn, error) {
	c := &Conn{
		file:  os.NewFile(uintptr(fd), "control"),
		frame: make([]byte, headerSize+frameSize), received: make([]byte, headerSize+frameSize+1),
		partial: map[uint64]*Message{}, oob: make([]byte, unix.CmsgSpace(4*maxFDs)),
	}
	var err error
	if c.raw, err = c.file.SyscallConn(); err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	return c, nil
}

// Close ends the connection; the other side sees the end of messages.
func (c *Conn) Close() error { return c.file.Close() }

// Send sends a message, a value for [Pack] or nil for none. The descriptors stay the caller's.
func (c *Conn) Send(id uint64, kind Kind, value any, fds ...int) error {
	var packed, rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	if value != nil {
		packed = Pack(value)
	}
	for more := true; more; rights = nil {
		n := min(len(packed), frameSize)
		more = n < len(packed)
		if err := c.sendFrame(id, kind, packed[:n], more, rights); err != nil {
			return err
		}
		packed = packed[n:]
	}
	return nil
}

// sendFrame sends a part of a message, interleaved with those of others.
func (c *Conn) sendFrame(id uint64, kind Kind, payload []byte, more bool, rights []byte) error {
	c.send.Lock()
	defer c.send.Unlock()
	frame := c.frame[:headerSize+copy(c.frame[headerSize:], payload)]
	binary.BigEndian.PutUint64(frame, id)
	frame[8], frame[9] = byte(kind), 0
	if more {
		frame[9] = 1
	}
	var sendErr error
	err := c.raw.Write(func(fd uintptr) bool {
		for {
			sendErr = unix.Sendmsg(int(fd), frame, rights, nil, unix.MSG_NOSIGNAL)
			if !errors.Is(sendErr, unix.EINTR) {
				return !errors.Is(sendErr, unix.EAGAIN)
			}
		}
	})
	return errors.Join(err, sendErr)
}

// Receive returns the next message. It returns io.EOF when the other side is gone, and an
// error that wraps [ErrMalformed] when it broke the protocol; the connection is of no use then.
func (c *Conn) Receive() (m *Message, err error) {
	for m == nil && err == nil {
		waitErr := c.raw.Read(func(fd uintptr) bool {
			m, err = c.receive(int(fd))
			return !errors.Is(err, unix.EAGAIN)
		})
		if waitErr != nil {
			return nil, waitErr
		}
	}
	return m, err
}

// receive receives a frame, and returns the message if it was the last one of it.
func (c *Conn) receive(fd int) (*Message, error) {
	n, fds, err := c.receiveFrame(fd)
	if err != nil {
		return nil, err
	}
	return c.join(c.received[:n], fds)
}

func (c *Conn) receiveFrame(fd int) (n int, fds []int, err error) {
	var oobn, flags int
	for {
		n, oobn, flags, _, err = unix.Recvmsg(fd, c.received, c.oob, unix.MSG_CMSG_CLOEXEC)
		// If the other end closed without reading everything, the kernel reports that first, once;
		// then comes what it sent.
		if !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.ECONNRESET) {
			break
		}
	}
	switch {
	case err != nil:
		return 0, nil, err
	case n == 0:
		return 0, nil, io.EOF
	}
	fds, err = rights(c.oob[:oobn])
	if err == nil && (n < headerSize || flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0) {
		err = fmt.Errorf("%w: a frame of %d bytes, flags %#x", ErrMalformed, n, flags)
	}
	if err != nil {
		(&Message{FDs: fds}).CloseFDs()
	}
	return n, fds, err
}

// rights returns the descriptors in a control message.
func rights(oob []byte) ([]int, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	var fds []int
	for i := range messages {
		more, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			return fds, fmt.Errorf("%w: %w", ErrMalformed, err)
		}
		fds = append(fds, more...)
	}
	return fds, nil
}

// join adds a frame to its message and returns that when it is complete.
func (c *Conn) join(frame []byte, fds []int) (*Message, error) {
	id, kind, more := binary.BigEndian.Uint64(frame), Kind(frame[8]), frame[9] != 0
	m := c.partial[id]
	if m == nil {
		m = &Message{ID: id, Kind: kind}
	}
	m.FDs = append(m.FDs, fds...)
	m.Body = append(m.Body, frame[headerSize:]...)
	if m.Kind != kind || len(m.Body) > maxMessage || len(m.FDs) > maxFDs || len(c.partial) > maxPartial {
		m.CloseFDs()
		return nil, fmt.Errorf("%w: message %d is too big, or mixed", ErrMalformed, id)
	}
	if more {
		c.partial[id] = m
		return nil, nil //nolint:nilnil // it is not complete
	}
	delete(c.partial, id)
	return m, nil
}

// ReceiveUntil has Receive fail after a time; the zero time is none.
func (c *Conn) ReceiveUntil(t time.Time) { _ = c.file.SetReadDeadline(t) } // it is a socket

// maxElements bounds a list: one that is claimed takes memory before it is read.
const maxElements = 1 << 20

// unpacking is how values are read: names of files need not be UTF-8.
var unpacking = sync.OnceValues(cbor.DecOptions{ //nolint:gochecknoglobals // a constant
	UTF8: cbor.UTF8DecodeInvalid, MaxArrayElements: maxElements, ExtraReturnErrors: cbor.ExtraDecErrorUnknownField,
	IndefLength: cbor.IndefLengthForbidden, TagsMd: cbor.TagsForbidden,
}.DecMode)

// Pack returns a value in CBOR. It panics for a value that has no such form.
func Pack(value any) []byte {
	packed, err := cbor.Marshal(value)
	if err != nil {
		panic(fmt.Sprintf("pack: %v", err))
	}
	return packed
}

// Unpack parses what Pack has returned into what value points to, the zero value. The
// error wraps [ErrMalformed].
func Unpack(b []byte, value any) error {
	mode, err := unpacking()
	if err == nil {
		err = mode.Unmarshal(b, value)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	return nil
}
