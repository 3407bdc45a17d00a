// Package natsiotest gives tests a fleet of their own: an embedded server
// with the streams of a fleet, and connections whose network can be cut.
package natsiotest

import (
	"context"
	"flag"
	"log/slog"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

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
	nc, err := natsio.Connect(ctx, url, natsio.ConnectOptions{Name: f.tb.Name(), Creds: creds, Options: append([]nats.Option{nats.Timeout(patience)}, options...), Logger: f.Logger})
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
