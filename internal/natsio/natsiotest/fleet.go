// Package natsiotest gives tests a fleet of their own: an embedded server
// with the streams of a fleet, and connections whose network can be cut.
package natsiotest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"flag"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/embedded"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Fleet is a server with the streams of one fleet. It ends with its test.
type Fleet struct {
	Name   protocol.Fleet
	Server *embedded.Server
	// NC and JS are the connection of the test itself.
	NC *nats.Conn
	JS jetstream.JetStream
	// Logger shows warnings when tests are verbose, and nothing otherwise.
	Logger *slog.Logger
	// MaxPayload is the size of messages that clients of [Fleet.ConnectVia] believe to be allowed,
	// so that small contents need several; 0 is that of the server.
	MaxPayload int

	tb testing.TB
}

const (
	// patience is how long making the streams may take: a busy machine needs more than the 5 s that
	// the client gives each.
	patience = time.Minute
	// answerWait is how long a test waits for the answer to one question, for the same reason.
	answerWait = time.Minute
	// deafWait is how long a new connection waits for the server behind a deaf link.
	deafWait = 5 * time.Second
)

// New starts a server with the streams of topology, whose zero value is the default.
func New(tb testing.TB, topology natsio.Topology) *Fleet {
	tb.Helper()
	return start(tb, topology, embedded.Options{Data: tb.TempDir()})
}

// Listening is New for a server that listens on loopback, for [Fleet.ConnectTCP].
func Listening(tb testing.TB, topology natsio.Topology) *Fleet {
	tb.Helper()
	return start(tb, topology, embedded.Options{Data: tb.TempDir(), Listen: "127.0.0.1:0"})
}

func start(tb testing.TB, topology natsio.Topology, o embedded.Options) *Fleet {
	tb.Helper()
	server, err := embedded.Start(tb.Context(), o)
	require.NoError(tb, err)
	tb.Cleanup(server.Close)
	if topology.Fleet == "" {
		topology.Fleet = protocol.DefaultFleet
	}
	f := &Fleet{Name: topology.Fleet, Server: server, Logger: slog.New(slog.DiscardHandler), tb: tb}
	if testing.Verbose() {
		f.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	f.NC = f.Connect()
	f.JS, err = jetstream.New(f.NC, jetstream.WithDefaultTimeout(answerWait))
	require.NoError(tb, err)
	ctx, cancel := context.WithTimeout(tb.Context(), patience)
	defer cancel()
	require.NoError(tb, natsio.Ensure(ctx, f.JS, topology))
	return f
}

// In is the fleet for a test within the fleet's own: connections end with that one.
func (f *Fleet) In(tb testing.TB) *Fleet {
	tb.Helper()
	of := *f
	of.tb = tb
	return &of
}

// Connect makes one more connection, as another process would.
func (f *Fleet) Connect() *nats.Conn {
	f.tb.Helper()
	return f.connect("", "", f.Server.Options()...)
}

// ConnectTCP makes a connection through the network; the fleet must be a [Listening] one.
func (f *Fleet) ConnectTCP() *nats.Conn {
	f.tb.Helper()
	return f.connect(f.Server.URL(), f.Server.CredentialFile())
}

// ConnectVia makes a connection whose network is the link.
func (f *Fleet) ConnectVia() (*nats.Conn, *Link) {
	f.tb.Helper()
	link := newLink(f.Server.Options())
	link.maxPayload = f.MaxPayload
	f.tb.Cleanup(link.Cut)
	return f.connect("", "", append(f.Server.Options(), nats.InProcessServer(link), nats.Timeout(deafWait))...), link
}

func (f *Fleet) connect(url, creds string, options ...nats.Option) *nats.Conn {
	f.tb.Helper()
	// The connection outlives the test's context: its users are stopped in a cleanup.
	ctx := context.WithoutCancel(f.tb.Context())
	nc, err := natsio.Connect(ctx, url, natsio.ConnectOptions{
		Name: f.tb.Name(), Creds: creds, Options: append([]nats.Option{nats.Timeout(patience)}, options...), Logger: f.Logger,
	})
	require.NoError(f.tb, err)
	f.tb.Cleanup(nc.Close)
	return nc
}

// atOnce is how many tests run at once where there are fewer cores.
const atOnce = 4

// Overlap is called by a TestMain whose tests wait more than they compute: on a machine with
// few cores it lets four of those that are marked as parallel run at once, unless -parallel
// says another number.
func Overlap() {
	flag.Parse()
	parallel := flag.Lookup("test.parallel")
	if parallel.Value.String() == parallel.DefValue && runtime.GOMAXPROCS(0) < atOnce {
		_ = flag.Set(parallel.Name, strconv.Itoa(atOnce)) // a number is a valid value
	}
}

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
