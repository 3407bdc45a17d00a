package natsio_test

import (
	"crypto/tls"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
)

// secure starts a server that speaks nothing but TLS, and asks for certificates of an authority.
func secure(t *testing.T, ca *natsiotest.Authority, own natsiotest.Pair) *server.Server {
	t.Helper()
	s, err := server.NewServer(secureOptions(t, ca, own, server.RANDOM_PORT))
	require.NoError(t, err)
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	require.True(t, s.ReadyForConnections(time.Minute))
	return s
}

func secureOptions(t *testing.T, ca *natsiotest.Authority, own natsiotest.Pair, port int) *server.Options {
	t.Helper()
	config, err := server.GenTLSConfig(&server.TLSConfigOpts{CertFile: own.Cert, KeyFile: own.Key, CaFile: ca.Cert, Verify: true})
	require.NoError(t, err)
	return &server.Options{Host: "127.0.0.1", Port: port, TLSConfig: config, TLSTimeout: 60, NoSigs: true, NoLog: true}
}

func TestConnect_TLS(t *testing.T) {
	t.Parallel()
	ca, others := natsiotest.NewAuthority(t), natsiotest.NewAuthority(t)
	valid, expired, of := time.Now().Add(time.Hour), time.Now().Add(-time.Hour), others.Leaf(time.Now().Add(time.Hour))
	ours := ca.Leaf(valid)
	over, early := ca.Leaf(expired), ca.Leaf(time.Now().Add(4*time.Hour))
	for name, test := range map[string]struct {
		server natsiotest.Pair
		tls    natsio.TLS
		want   string
	}{
		"authority and certificate":        {ours, natsio.TLS{CA: ca.Cert, Cert: ours.Cert, Key: ours.Key}, ""},
		"the system's authorities":         {ours, natsio.TLS{}, "--tls-ca names the trusted authorities"},
		"another authority":                {ours, natsio.TLS{CA: others.Cert, Cert: ours.Cert, Key: ours.Key}, "--tls-ca names the trusted authorities"},
		"another certificate":              {ours, natsio.TLS{CA: ca.Cert, Cert: of.Cert, Key: of.Key}, "--tls-cert and --tls-key"},
		"no certificate":                   {ours, natsio.TLS{CA: ca.Cert}, "--tls-cert and --tls-key"},
		"no file":                          {ours, natsio.TLS{CA: "nowhere.pem"}, "open nowhere.pem: no such file"},
		"a key that is another's":          {ours, natsio.TLS{CA: ca.Cert, Cert: ours.Cert, Key: of.Key}, "private key does not match"},
		"an expired certificate":           {ours, natsio.TLS{CA: ca.Cert, Cert: over.Cert, Key: over.Key}, "the certificate of --tls-cert has expired"},
		"the server's has expired":         {over, natsio.TLS{CA: ca.Cert, Cert: ours.Cert, Key: ours.Key}, "the server's certificate has expired"},
		"the server's is not valid by now": {early, natsio.TLS{CA: ca.Cert, Cert: ours.Cert, Key: ours.Key}, "is not valid yet"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := "nats://" + secure(t, ca, test.server).Addr().String()
			nc, err := natsio.Connect(t.Context(), url, natsio.ConnectOptions{Name: "test", TLS: test.tls})
			if test.want != "" {
				require.ErrorContains(t, err, test.want)
				return
			}
			require.NoError(t, err)
			defer nc.Close()
			state, err := nc.TLSConnectionState()
			require.NoError(t, err)
			require.GreaterOrEqual(t, state.Version, uint16(tls.VersionTLS12))
		})
	}
}

// Certificates are renewed without a restart: the server's by its reload, the process's by its
// file.
func TestConnect_RenewedCertificates(t *testing.T) {
	t.Parallel()
	ca := natsiotest.NewAuthority(t)
	first, renewed := ca.Leaf(time.Now().Add(time.Hour)), ca.Leaf(time.Now().Add(90*time.Minute))
	s := secure(t, ca, first)
	shown := natsio.TLS{CA: ca.Cert, Cert: filepath.Join(t.TempDir(), "cert"), Key: filepath.Join(t.TempDir(), "key")}
	show := func(p natsiotest.Pair) {
		for from, to := range map[string]string{p.Cert: shown.Cert, p.Key: shown.Key} {
			content, err := os.ReadFile(from)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(to, content, 0o600))
		}
	}
	show(first)
	nc, err := natsio.Connect(t.Context(), "nats://"+s.Addr().String(), natsio.ConnectOptions{Name: "test", TLS: shown})
	require.NoError(t, err)
	defer nc.Close()
	address, is := s.Addr().(*net.TCPAddr)
	require.True(t, is)
	require.NoError(t, s.ReloadOptions(secureOptions(t, ca, renewed, address.Port)))
	require.NoError(t, nc.FlushTimeout(time.Minute), "connections that are there stay")
	show(renewed)
	require.NoError(t, nc.ForceReconnect())
	require.Eventually(t, func() bool { return nc.Stats().Reconnects > 0 }, time.Minute, time.Millisecond)
	require.NoError(t, nc.FlushTimeout(time.Minute)) // the reconnect is over
	state, err := nc.TLSConnectionState()
	require.NoError(t, err)
	require.Greater(t, time.Until(state.PeerCertificates[0].NotAfter), time.Hour)
}

// Whoever names an authority does not speak to a server without TLS.
func TestConnect_TLSIsNotGivenUp(t *testing.T) {
	t.Parallel()
	server := listen(t, t.TempDir(), "127.0.0.1:0")
	_, err := natsio.Connect(t.Context(), server.URL(), natsio.ConnectOptions{
		Name: "test", Creds: server.CredentialFile(), TLS: natsio.TLS{CA: natsiotest.NewAuthority(t).Cert},
	})
	require.ErrorContains(t, err, "the server speaks no TLS")
}
