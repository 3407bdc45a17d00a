package natsiotest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"
)

// Pair is files of a certificate and its key.
type Pair struct{ Cert, Key string }

// Authority signs certificates for servers and clients on this machine.
type Authority struct {
	Pair

	tb       testing.TB
	template *x509.Certificate
	private  *ecdsa.PrivateKey
}

// NewAuthority makes one that is valid for an hour.
func NewAuthority(tb testing.TB) *Authority {
	tb.Helper()
	a := &Authority{tb: tb, template: &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}}
	a.Pair, a.private = a.sign(a.template, nil)
	return a
}

// Leaf is a certificate that is valid until a time.
func (a *Authority) Leaf(until time.Time) Pair {
	a.tb.Helper()
	p, _ := a.sign(&x509.Certificate{
		SerialNumber: big.NewInt(until.UnixNano()), Subject: pkix.Name{CommonName: "leaf"}, NotBefore: until.Add(-2 * time.Hour), NotAfter: until,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, a.private)
	return p
}

// sign makes a key and its certificate; without a signer it signs itself.
func (a *Authority) sign(template *x509.Certificate, signer *ecdsa.PrivateKey) (Pair, *ecdsa.PrivateKey) {
	a.tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(a.tb, err)
	if signer == nil {
		signer = key
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, a.template, key.Public(), signer)
	require.NoError(a.tb, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(a.tb, err)
	return Pair{
		a.write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})),
		a.write(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})),
	}, key
}

func (a *Authority) write(content []byte) string {
	a.tb.Helper()
	path := filepath.Join(a.tb.TempDir(), "pem")
	require.NoError(a.tb, os.WriteFile(path, content, 0o600))
	return path
}

// Accounts is deploy/nats/accounts.conf with the password "secret" for every user, for packages two
// folders below that of the module.
func Accounts(tb testing.TB) string {
	tb.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "deploy", "nats", "accounts.conf"))
	require.NoError(tb, err)
	return strings.NewReplacer("$FLEET_PASSWORD", "secret", "$WORKER_PASSWORD", "secret", "$READER_PASSWORD", "secret").Replace(string(text))
}

// Alone is the configuration of one server on a free loopback port, with what JetStream has in
// addition to its directory, as in "max_file_store: 1GB", and accounts.
func Alone(tb testing.TB, jetStream, accounts string) string {
	tb.Helper()
	return "listen: \"127.0.0.1:-1\"\njetstream { store_dir: \"" + tb.TempDir() + "\"\n" + jetStream + " }\n" + accounts
}

// Serve starts a server with a configuration; one that waits for others is not ready when it
// returns.
func Serve(tb testing.TB, text string) *server.Server {
	tb.Helper()
	config := filepath.Join(tb.TempDir(), "nats.conf")
	require.NoError(tb, os.WriteFile(config, []byte(text), 0o600))
	options, err := server.ProcessConfigFile(config)
	require.NoError(tb, err)
	options.NoSigs, options.NoLog = true, true
	s, err := server.NewServer(options)
	require.NoError(tb, err)
	s.Start()
	tb.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	return s
}
