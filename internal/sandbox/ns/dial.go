//go:build linux

package ns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/wire"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

var _ isolation.Dialer = (*Sandbox)(nil)

// Dial implements [isolation.Dialer].
func (s *Sandbox) Dial(ctx context.Context, port uint16) (net.Conn, error) {
	if s.spec.Network.Mode == isolation.NetworkAll {
		return nil, fmt.Errorf("dial into sandbox %s: %w: its network is the host's", s.spec.ID, sandbox.ErrUnsupported)
	}
	i := s.serving()
	if i == nil {
		return nil, fmt.Errorf("dial into sandbox %s: %w", s.spec.ID, sandbox.ErrClosed)
	}
	conn, err := i.dial(ctx, unix.AF_INET, &unix.SockaddrInet4{Port: int(port), Addr: [4]byte{127, 0, 0, 1}})
	if errors.Is(err, unix.ECONNREFUSED) { // some servers listen on what localhost is first
		conn, err = i.dial(ctx, unix.AF_INET6, &unix.SockaddrInet6{Port: int(port), Addr: [16]byte{15: 1}})
	}
	if err != nil {
		return nil, fmt.Errorf("dial port %d of sandbox %s: %w", port, s.spec.ID, err)
	}
	return conn, nil
}

// serving is the first process that operations go to now; nil when there is none.
func (s *Sandbox) serving() (i *instance) {
	s.gate.Locked(func(closed, _ bool) {
		if !closed {
			i = s.current
		}
	})
	return i
}

// Listens implements [isolation.Dialer].
func (s *Sandbox) Listens(port uint16) bool {
	i := s.serving()
	if i == nil || s.spec.Network.Mode == isolation.NetworkAll {
		return false
	}
	net := fmt.Sprintf("/proc/%d/net/", i.process.Pid) // a network that is the same for all of its processes
	return listed(net+"tcp", port) || listed(net+"tcp6", port)
}

// listed reports whether a table of the kernel's has a socket that listens on a port.
func listed(table string, port uint16) bool {
	body, _ := os.ReadFile(table) // one that cannot be read has none
	local := fmt.Sprintf(":%04X", port)
	for line := range strings.Lines(string(body)) {
		if f := strings.Fields(line); len(f) > 3 && strings.HasSuffix(f[1], local) && f[3] == "0A" {
			return true
		}
	}
	return false
}

// dial connects a socket that the first process has made.
func (i *instance) dial(ctx context.Context, family int, to unix.Sockaddr) (net.Conn, error) {
	// One that gives up would leave the socket to the collector.
	r, err := i.ask(context.WithoutCancel(ctx), func(id uint64) error {
		return i.conn.Send(id, wire.KindSocket, wire.Socket{Family: family})
	})
	if err != nil {
		return nil, err
	}
	if r.socket == nil {
		var answer wire.Answer[struct{}]
		if err := r.Decode(&answer); err != nil {
			return nil, err
		}
		return nil, errors.New(answer.Error) //nolint:err113 // it comes from another process
	}
	return connect(ctx, r.socket, to)
}

// takeSocket takes the descriptor of an answer that is to have one; nil for any other.
func takeSocket(m *wire.Message) *os.File {
	if m.Kind != wire.KindSocket || len(m.FDs) != 1 || unix.SetNonblock(m.FDs[0], true) != nil {
		return nil
	}
	file := os.NewFile(uintptr(m.FDs[0]), "socket")
	m.FDs = nil
	return file
}

// connect connects a socket of any network, and closes the file.
func connect(ctx context.Context, socket *os.File, to unix.Sockaddr) (net.Conn, error) {
	defer socket.Close()
	raw, err := socket.SyscallConn()
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = socket.SetWriteDeadline(time.Unix(1, 0)) })
	defer stop()
	var failure error
	err = raw.Write(func(fd uintptr) bool {
		failure = unix.Connect(int(fd), to)
		return !errors.Is(failure, unix.EINPROGRESS) && !errors.Is(failure, unix.EALREADY) && !errors.Is(failure, unix.EINTR)
	})
	if errors.Is(failure, unix.EISCONN) { // since the last try
		failure = nil
	}
	if err = errors.Join(err, failure); err != nil {
		return nil, err
	}
	return net.FileConn(socket)
}
