package worker

import (
	"net"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/worker/kinds"
	"github.com/toolfleet/toolfleet/internal/worker/sandboxes"
)

// TestPublish_NothingListens: who connects is disconnected at once, and refused once the worker has
// ended.
func TestPublish_NothingListens(t *testing.T) {
	t.Parallel()
	w := &Worker{env: &kinds.Env{Sandboxes: &sandboxes.Manager{}}}
	for range 2 {
		l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
		require.NoError(t, err)
		w.options.Publish = append(w.options.Publish, Published{Listener: l, Sandbox: "none", Port: 3000})
	}
	stop := w.publish(t.Context())
	for _, p := range w.options.Publish {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", p.Listener.Addr().String())
		if err == nil { // it may be told as early as this
			_, err = conn.Read(make([]byte, 1))
			_ = conn.Close()
		}
		require.ErrorIs(t, err, syscall.ECONNRESET)
	}
	stop()
	for _, p := range w.options.Publish {
		_, err := new(net.Dialer).DialContext(t.Context(), "tcp", p.Listener.Addr().String())
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
	}
}
