package natsio_test

import (
	"bytes"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
)

// dated is a way to a server that says another version, as long as its own.
type dated struct{ version string }

func (d dated) Dial(network, address string) (net.Conn, error) {
	conn, err := net.DialTimeout(network, address, time.Minute) //nolint:noctx // the interface passes no context
	return &datedConn{conn, d.version}, err
}

type datedConn struct {
	net.Conn

	version string
}

func (c *datedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	copy(p, bytes.Replace(p[:n], []byte(`"version":"`+server.VERSION), []byte(`"version":"`+c.version), 1))
	return n, err
}

func TestEnsure_RefusesServersThatAreTooOld(t *testing.T) {
	t.Parallel()
	f := natsiotest.Listening(t, natsio.Topology{})
	for version, taken := range map[string]bool{
		"2.9.": false, "2.11.": false, "1.99.": false, "2.12.": true, "3.0.": true, "later": true,
	} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			version += strings.Repeat("9", len(server.VERSION)-len(version))
			nc, err := natsio.Connect(t.Context(), f.Server.URL(), natsio.ConnectOptions{
				Creds: f.Server.CredentialFile(), Options: []nats.Option{nats.SetCustomDialer(dated{version})},
			})
			require.NoError(t, err)
			t.Cleanup(nc.Close)
			require.Equal(t, version, nc.ConnectedServerVersion())
			js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(time.Minute))
			require.NoError(t, err)
			ensured, checked := natsio.Ensure(t.Context(), js, natsio.Topology{}), natsio.Check(t.Context(), js, natsio.Topology{})
			if taken {
				require.NoError(t, ensured)
				require.NoError(t, checked)
				return
			}
			require.ErrorIs(t, ensured, natsio.ErrServer)
			require.ErrorIs(t, checked, natsio.ErrServer)
			require.ErrorContains(t, checked, "it is version "+version+", must be 2.12 or later")
		})
	}
}

func TestEnsure_SaysThatTheServerRunsWithoutJetStream(t *testing.T) {
	t.Parallel()
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, NoSigs: true, NoLog: true})
	require.NoError(t, err)
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	require.True(t, s.ReadyForConnections(time.Minute))
	nc, err := natsio.Connect(t.Context(), s.ClientURL(), natsio.ConnectOptions{})
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(time.Minute))
	require.NoError(t, err)
	for _, err := range []error{natsio.Ensure(t.Context(), js, natsio.Topology{}), natsio.Check(t.Context(), js, natsio.Topology{})} {
		require.ErrorContains(t, err, "the server must run with JetStream (nats-server -js)")
	}
}
