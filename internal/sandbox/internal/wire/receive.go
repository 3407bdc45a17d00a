//go:build linux

package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sys/unix"
)

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
		// Of one that has ended without reading everything the kernel tells that first, once; what
		// it has said comes after that.
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
