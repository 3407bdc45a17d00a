package natsio_test

import (
	"crypto/tls"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/wire"
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

// TestCheckRights_HasNoEffect: each stream has what was published before and afterwards.
func TestCheckRights_HasNoEffect(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(t *testing.T) jetstream.JetStream{
		"one server":    func(t *testing.T) jetstream.JetStream { t.Helper(); return natsiotest.New(t, natsio.Topology{}).JS },
		"three servers": func(t *testing.T) jetstream.JetStream { t.Helper(); return natsiotest.NewCluster(t).JS },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			js := start(t)
			require.NoError(t, natsio.Ensure(t.Context(), js, natsio.Topology{}))
			pool, _, err := natsio.EnsurePool(t.Context(), js, tf, "default", 0)
			require.NoError(t, err)
			for _, subject := range []string{wire.EventSubject(tf, "kept"), wire.ResultSubject(tf, "kept", "call"), "$O.TF_KEPT.C.kept", "$O.TF_BLOBS.C.kept"} {
				_, err := js.Publish(t.Context(), subject, nil)
				require.NoError(t, err, subject)
			}
			require.NoError(t, natsio.CheckRights(t.Context(), js.Conn(), slices.Concat(
				natsio.SessionRights(tf), natsio.JournalRights(tf), natsio.ApprovalRights(tf, "default"), natsio.RemoveRights(tf), []natsio.Rights{
					natsio.CallRights(tf, "default"), natsio.LaneRights(tf, "default"), natsio.LaneChangeRights(tf, "default"), natsio.WorkersRights(tf, "default"),
					natsio.WorkspaceListRights(tf, "default"), natsio.PoolsRights(tf),
				},
			)...))
			for _, name := range []string{
				wire.SessionsStream(tf), wire.WorkspacesStream(tf), natsio.ObjectStream(wire.KeptBucket(tf)), natsio.ObjectStream(wire.BlobsBucket(tf)),
			} {
				stream := mustStream(t, js, name)
				require.Zero(t, stream.CachedInfo().State.Consumers, name)
			}
			for subject, messages := range map[string]uint64{
				wire.ReadySubject(tf, "default", "lane"): 1, wire.ResultSubject(tf, "session", "call"): 2, wire.EventSubject(tf, "session"): 2,
				"$KV.TF_PLACES.key": 1, "$O.TF_BLOBS.C.chunk": 2, "$O.TF_KEPT.C.chunk": 2,
			} {
				ack, err := js.Publish(t.Context(), subject, nil)
				require.NoError(t, err, subject)
				require.Equal(t, messages, ack.Sequence, subject)
				stream := mustStream(t, js, ack.Stream)
				require.Equal(t, messages, stream.CachedInfo().State.Msgs, "what was there is there: %s", subject)
			}
			batch, err := pool.Fetch(1)
			require.NoError(t, err)
			msg, ok := <-batch.Messages()
			require.True(t, ok, "nobody else has taken it")
			require.Equal(t, wire.ReadySubject(tf, "default", "lane"), msg.Subject())
		})
	}
}
