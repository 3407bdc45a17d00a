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
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio"
)

// pair is files of a certificate and its key.
type pair struct{ cert, key string }

// authority makes a certificate that signs itself, for servers and clients on this machine.
func authority(t *testing.T) pair {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	return pair{
		write(t, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}))),
		write(t, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))),
	}
}

// secure starts a server that speaks nothing but TLS, and asks for a certificate of its own
// authority.
func secure(t *testing.T, p pair) string {
	t.Helper()
	config, err := server.GenTLSConfig(&server.TLSConfigOpts{CertFile: p.cert, KeyFile: p.key, CaFile: p.cert, Verify: true})
	require.NoError(t, err)
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, TLSConfig: config, TLSTimeout: 5, NoSigs: true, NoLog: true})
	require.NoError(t, err)
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	require.True(t, s.ReadyForConnections(20*time.Second))
	return "nats://" + s.Addr().String()
}

func TestConnect_TLS(t *testing.T) {
	t.Parallel()
	ours, others := authority(t), authority(t)
	url := secure(t, ours)
	for name, test := range map[string]struct {
		tls  natsio.TLS
		want string
	}{
		"authority and certificate": {natsio.TLS{CA: ours.cert, Cert: ours.cert, Key: ours.key}, ""},
		"the system's authorities":  {natsio.TLS{}, "--tls-ca names the authorities"},
		"another authority":         {natsio.TLS{CA: others.cert, Cert: ours.cert, Key: ours.key}, "--tls-ca names the authorities"},
		"another certificate":       {natsio.TLS{CA: ours.cert, Cert: others.cert, Key: others.key}, "--tls-cert and --tls-key"},
		"no certificate":            {natsio.TLS{CA: ours.cert}, "--tls-cert and --tls-key"},
		"no file":                   {natsio.TLS{CA: "nowhere.pem"}, "open nowhere.pem: no such file"},
		"a key that is another's":   {natsio.TLS{CA: ours.cert, Cert: ours.cert, Key: others.key}, "private key does not match"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
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

// Whoever names an authority does not speak to a server without TLS.
func TestConnect_TLSIsNotGivenUp(t *testing.T) {
	t.Parallel()
	server := listen(t, t.TempDir(), "127.0.0.1:0")
	_, err := natsio.Connect(t.Context(), server.URL(), natsio.ConnectOptions{
		Name: "test", Creds: server.CredentialFile(), TLS: natsio.TLS{CA: authority(t).cert},
	})
	require.ErrorContains(t, err, "the server speaks no TLS")
}
