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
func (c *Conn) Receive() (*Message, error) {
	for {
		n, fds, err := c.receiveFrame()
		if err != nil {
			return nil, err
		}
		m, err := c.join(c.received[:n], fds)
		if m != nil || err != nil {
			return m, err
		}
	}
}

func (c *Conn) receiveFrame() (n int, fds []int, err error) {
	var oobn, flags int
	var recvErr error
	spin := c.spin
	c.spin = 0
	err = c.raw.Read(func(fd uintptr) bool {
		for end := time.Now().Add(spin); spin > 0 && time.Now().Before(end); {
			n, oobn, flags, _, recvErr = unix.Recvmsg(int(fd), c.received, c.oob, unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
			if recvErr == nil {
				return true
			}
		}
		for {
			n, oobn, flags, _, recvErr = unix.Recvmsg(int(fd), c.received, c.oob, unix.MSG_CMSG_CLOEXEC)
			// Of one that has ended without reading everything the kernel tells that first, once; what it
			// has said comes after that.
			if !errors.Is(recvErr, unix.EINTR) && !errors.Is(recvErr, unix.ECONNRESET) {
				return !errors.Is(recvErr, unix.EAGAIN)
			}
		}
	})
	switch {
	case err != nil:
		return 0, nil, err
	case recvErr == nil && n == 0:
		return 0, nil, io.EOF
	case recvErr != nil:
		return 0, nil, recvErr
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

// Spin has the next Receive look for a message again and again for a time before it sleeps. For one that comes so soon
// that is sooner than to be woken.
func (c *Conn) Spin(most time.Duration) { c.spin = most }

// ReceiveUntil has Receive fail after a time; the zero time is none.
func (c *Conn) ReceiveUntil(t time.Time) { _ = c.file.SetReadDeadline(t) } // it is a socket
