//go:build linux

package ns

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/initd"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// network is a sandbox's way out, and the handler that serves it.
type network struct {
	listener net.Listener // of the proxy; nil is none
	link     *link        // nil is none
	ends     []io.Closer  // those that there are
	cancel   context.CancelFunc
	serving  sync.WaitGroup
}

// accept takes the listener or the link out of a message, once each.
func (n *network) accept(m *initd.Message) error {
	isLink := m.Kind == initd.KindLink
	if len(m.FDs) != 1 || isLink && n.link != nil || !isLink && n.listener != nil {
		return fmt.Errorf("%w: %d descriptors of kind %d", initd.ErrMalformed, len(m.FDs), m.Kind)
	}
	file := os.NewFile(uintptr(m.FDs[0]), "network")
	m.FDs = nil
	if isLink {
		n.link = &link{file: file}
		n.ends = append(n.ends, n.link)
		return nil
	}
	var err error
	n.listener, err = net.FileListener(file)
	if err = errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("listener of the proxy: %w", err)
	}
	n.ends = append(n.ends, n.listener)
	return nil
}

// serve runs the handler until close.
func (n *network) serve(ctx context.Context, by isolation.Network) {
	ctx, n.cancel = context.WithCancel(context.WithoutCancel(ctx))
	if n.listener != nil {
		n.serving.Go(func() { by.Serve(ctx, n.listener) })
	}
	if n.link != nil {
		n.serving.Go(func() { by.ServeLink(ctx, n.link) })
	}
}

// close ends serving and waits for it.
func (n *network) close() error {
	if n.cancel != nil {
		n.cancel()
	}
	var errs []error
	for _, end := range n.ends {
		if err := end.Close(); !errors.Is(err, net.ErrClosed) && !errors.Is(err, os.ErrClosed) { // by the handler
			errs = append(errs, err)
		}
	}
	n.serving.Wait()
	return errors.Join(errs...)
}

// checkNetwork refuses a network that cannot be made.
func checkNetwork(n isolation.Network) error {
	switch n.Mode {
	case "", isolation.NetworkNone, isolation.NetworkAll:
		return nil
	case isolation.NetworkProxy:
		if n.Serve == nil {
			return errors.New("network: mode proxy requires a handler")
		}
		return nil
	default:
		return fmt.Errorf("%w: there is no network mode %q", sandbox.ErrUnsupported, n.Mode)
	}
}

// proxyEnv returns the proxy variables, in the spellings in use.
func proxyEnv() map[string]string {
	address := fmt.Sprintf("http://127.0.0.1:%d", initd.ProxyPort)
	const direct = "localhost,127.0.0.1,::1"
	return map[string]string{
		"HTTP_PROXY": address, "http_proxy": address, "HTTPS_PROXY": address, "https_proxy": address,
		"ALL_PROXY": address, "all_proxy": address, "NO_PROXY": direct, "no_proxy": direct,
	}
}

// link takes the frames of a sandbox's link for packets. One reads and one writes at a time.
type link struct {
	file    *os.File
	in, out []byte
}

// Read reads a packet, which has to have room in b.
func (l *link) Read(b []byte) (int, error) {
	if need := len(initd.LinkHeader) + len(b); len(l.in) < need {
		l.in = make([]byte, need)
	}
	n, err := l.file.Read(l.in)
	if err != nil {
		return 0, err
	}
	if n < len(initd.LinkHeader) {
		return 0, io.ErrUnexpectedEOF
	}
	return copy(b, l.in[len(initd.LinkHeader):n]), nil
}

// Write sends a packet.
func (l *link) Write(b []byte) (int, error) {
	l.out = append(append(l.out[:0], initd.LinkHeader...), b...)
	n, err := l.file.Write(l.out)
	return max(0, n-len(initd.LinkHeader)), err
}

// Close closes the link.
func (l *link) Close() error { return l.file.Close() }

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
	body, _ := os.ReadFile(table) // a table that cannot be read has no sockets
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
	// A caller that gives up would leave the socket to the collector.
	r, err := i.ask(context.WithoutCancel(ctx), func(id uint64) error {
		return i.conn.Send(id, initd.KindSocket, initd.Socket{Family: family})
	})
	if err != nil {
		return nil, err
	}
	if r.socket == nil {
		var answer initd.Answer[struct{}]
		if err := r.Decode(&answer); err != nil {
			return nil, err
		}
		return nil, errors.New(answer.Error) //nolint:err113 // it comes from another process
	}
	return connect(ctx, r.socket, to)
}

// takeSocket takes the descriptor of an answer that is to have one; nil for any other.
func takeSocket(m *initd.Message) *os.File {
	if m.Kind != initd.KindSocket || len(m.FDs) != 1 || unix.SetNonblock(m.FDs[0], true) != nil {
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
