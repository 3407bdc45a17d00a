package natsio_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio"
)

// pair is files of a certificate and its key.
type pair struct{ cert, key string }

// authority signs certificates for servers and clients on this machine.
type authority struct {
	pair

	t        *testing.T
	template *x509.Certificate
	private  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t, template: &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}}
	a.pair, a.private = a.sign(a.template, nil)
	return a
}

// leaf is a certificate that is valid until a time.
func (a *authority) leaf(until time.Time) pair {
	a.t.Helper()
	p, _ := a.sign(&x509.Certificate{
		SerialNumber: big.NewInt(until.UnixNano()), Subject: pkix.Name{CommonName: "leaf"}, NotBefore: until.Add(-2 * time.Hour), NotAfter: until,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, a.private)
	return p
}

// sign makes a key and its certificate; without a signer it signs itself.
func (a *authority) sign(template *x509.Certificate, signer *ecdsa.PrivateKey) (pair, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(a.t, err)
	if signer == nil {
		signer = key
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, a.template, key.Public(), signer)
	require.NoError(a.t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(a.t, err)
	return pair{
		write(a.t, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}))),
		write(a.t, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))),
	}, key
}

// secure starts a server that speaks nothing but TLS, and asks for certificates of an authority.
func secure(t *testing.T, ca *authority, own pair) *server.Server {
	t.Helper()
	s, err := server.NewServer(secureOptions(t, ca, own, server.RANDOM_PORT))
	require.NoError(t, err)
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	require.True(t, s.ReadyForConnections(20*time.Second))
	return s
}

func secureOptions(t *testing.T, ca *authority, own pair, port int) *server.Options {
	t.Helper()
	config, err := server.GenTLSConfig(&server.TLSConfigOpts{CertFile: own.cert, KeyFile: own.key, CaFile: ca.cert, Verify: true})
	require.NoError(t, err)
	return &server.Options{Host: "127.0.0.1", Port: port, TLSConfig: config, TLSTimeout: 5, NoSigs: true, NoLog: true}
}

func TestConnect_TLS(t *testing.T) {
	t.Parallel()
	ca, others := newAuthority(t), newAuthority(t)
	valid, expired, of := time.Now().Add(time.Hour), time.Now().Add(-time.Hour), others.leaf(time.Now().Add(time.Hour))
	ours := ca.leaf(valid)
	over, early := ca.leaf(expired), ca.leaf(time.Now().Add(4*time.Hour))
	for name, test := range map[string]struct {
		server pair
		tls    natsio.TLS
		want   string
	}{
		"authority and certificate":        {ours, natsio.TLS{CA: ca.cert, Cert: ours.cert, Key: ours.key}, ""},
		"the system's authorities":         {ours, natsio.TLS{}, "--tls-ca names the authorities"},
		"another authority":                {ours, natsio.TLS{CA: others.cert, Cert: ours.cert, Key: ours.key}, "--tls-ca names the authorities"},
		"another certificate":              {ours, natsio.TLS{CA: ca.cert, Cert: of.cert, Key: of.key}, "--tls-cert and --tls-key"},
		"no certificate":                   {ours, natsio.TLS{CA: ca.cert}, "--tls-cert and --tls-key"},
		"no file":                          {ours, natsio.TLS{CA: "nowhere.pem"}, "open nowhere.pem: no such file"},
		"a key that is another's":          {ours, natsio.TLS{CA: ca.cert, Cert: ours.cert, Key: of.key}, "private key does not match"},
		"an expired certificate":           {ours, natsio.TLS{CA: ca.cert, Cert: over.cert, Key: over.key}, "the certificate of --tls-cert has expired"},
		"the server's has expired":         {over, natsio.TLS{CA: ca.cert, Cert: ours.cert, Key: ours.key}, "the server's certificate has expired"},
		"the server's is not valid by now": {early, natsio.TLS{CA: ca.cert, Cert: ours.cert, Key: ours.key}, "is not valid yet"},
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
	ca := newAuthority(t)
	first, renewed := ca.leaf(time.Now().Add(time.Hour)), ca.leaf(time.Now().Add(90*time.Minute))
	s := secure(t, ca, first)
	shown := natsio.TLS{CA: ca.cert, Cert: filepath.Join(t.TempDir(), "cert"), Key: filepath.Join(t.TempDir(), "key")}
	show := func(p pair) {
		for from, to := range map[string]string{p.cert: shown.Cert, p.key: shown.Key} {
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
		Name: "test", Creds: server.CredentialFile(), TLS: natsio.TLS{CA: newAuthority(t).cert},
	})
	require.ErrorContains(t, err, "the server speaks no TLS")
}
