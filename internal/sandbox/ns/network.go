//go:build linux

package ns

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/initd"
	"github.com/toolfleet/toolfleet/internal/sandbox/internal/wire"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// network is a sandbox's way out, and the handler that serves it.
type network struct {
	listener net.Listener // of the proxy; nil is none
	link     *link        // nil is none
	cancel   context.CancelFunc
	serving  sync.WaitGroup
}

// take takes the listener or the link out of a message, once each.
func (n *network) take(m *wire.Message) error {
	isLink := m.Kind == wire.KindLink
	if len(m.FDs) != 1 || isLink && n.link != nil || !isLink && n.listener != nil {
		return fmt.Errorf("%w: %d descriptors of kind %d", wire.ErrMalformed, len(m.FDs), m.Kind)
	}
	file := os.NewFile(uintptr(m.FDs[0]), "network")
	m.FDs = nil
	if isLink {
		n.link = &link{file: file}
		return nil
	}
	var err error
	n.listener, err = net.FileListener(file)
	if err = errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("listener of the proxy: %w", err)
	}
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
	var ends []io.Closer
	if n.listener != nil {
		ends = append(ends, n.listener)
	}
	if n.link != nil {
		ends = append(ends, n.link)
	}
	var errs []error
	for _, end := range ends {
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
