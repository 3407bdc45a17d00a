//go:build linux

package ns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
	"github.com/toolfleet/toolfleet/pkg/sandbox/internal/initd"
	"github.com/toolfleet/toolfleet/pkg/sandbox/internal/wire"
)

// proxy is the listener of a sandbox's proxy and whoever serves it.
type proxy struct {
	listener net.Listener
	cancel   context.CancelFunc
	serving  sync.WaitGroup
}

// newProxy takes the listener out of a message.
func newProxy(m *wire.Message) (*proxy, error) {
	if len(m.FDs) != 1 {
		return nil, fmt.Errorf("%w: %d descriptors instead of a listener", wire.ErrMalformed, len(m.FDs))
	}
	file := os.NewFile(uintptr(m.FDs[0]), "proxy")
	m.FDs = nil
	listener, err := net.FileListener(file)
	if err = errors.Join(err, file.Close()); err != nil {
		return nil, fmt.Errorf("listener of the proxy: %w", err)
	}
	return &proxy{listener: listener, cancel: func() {}}, nil
}

// serve lets somebody serve the listener until close.
func (p *proxy) serve(ctx context.Context, serve func(context.Context, net.Listener)) {
	if p == nil {
		return
	}
	ctx, p.cancel = context.WithCancel(context.WithoutCancel(ctx))
	p.serving.Go(func() { serve(ctx, p.listener) })
}

// close ends serving and waits for it.
func (p *proxy) close() error {
	if p == nil {
		return nil
	}
	p.cancel()
	err := p.listener.Close()
	p.serving.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil // by whoever served it
	}
	return err
}

// checkNetwork refuses a network that cannot be made.
func checkNetwork(n sandbox.Network) error {
	switch n.Mode {
	case "", sandbox.NetworkNone, sandbox.NetworkAll:
		return nil
	case sandbox.NetworkProxy:
		if n.Serve == nil {
			return errors.New("network: the mode proxy needs somebody who serves it")
		}
		return nil
	default:
		return fmt.Errorf("%w: there is no network mode %q", sandbox.ErrUnsupported, n.Mode)
	}
}

// proxyEnv tells programs of the proxy, in the spellings in use.
func proxyEnv() map[string]string {
	address := fmt.Sprintf("http://127.0.0.1:%d", initd.ProxyPort)
	const direct = "localhost,127.0.0.1,::1"
	return map[string]string{
		"HTTP_PROXY": address, "http_proxy": address, "HTTPS_PROXY": address, "https_proxy": address,
		"ALL_PROXY": address, "all_proxy": address, "NO_PROXY": direct, "no_proxy": direct,
	}
}
