package natsiotest

import (
	"fmt"
	"net/url"
	"path/filepath"
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

// Cluster is three servers with the streams of one fleet on all of them. It ends
// with its test.
type Cluster struct {
	Name    protocol.Fleet
	Servers [3]*server.Server
	NC      *nats.Conn
	JS      jetstream.JetStream

	options [3]*server.Options
	cables  map[[2]int]*Cable // from one server to another, where they can be cut
	tb      testing.TB
}

// clusterReady bounds the start of a cluster and its choice of leaders.
const clusterReady = 60 * time.Second

// NewCluster starts three servers on loopback, and the streams of a fleet with three replicas.
func NewCluster(tb testing.TB) *Cluster {
	tb.Helper()
	return newCluster(tb, false, 0)
}

// NewRoomyCluster is [NewCluster] of servers that have so many bytes for files.
func NewRoomyCluster(tb testing.TB, room int64) *Cluster {
	tb.Helper()
	return newCluster(tb, false, room)
}

// NewPartableCluster is [NewCluster] of servers that can be cut off from each other.
func NewPartableCluster(tb testing.TB) *Cluster {
	tb.Helper()
	return newCluster(tb, true, 0)
}

func newCluster(tb testing.TB, partable bool, room int64) *Cluster {
	tb.Helper()
	c := &Cluster{Name: protocol.DefaultFleet, tb: tb, cables: map[[2]int]*Cable{}}
	dir := tb.TempDir()
	ports := FreePorts(tb, 2*len(c.Servers))
	for i := range c.Servers {
		c.options[i] = &server.Options{
			ServerName: fmt.Sprintf("n%d", i+1), Host: "127.0.0.1", Port: ports[2*i], NoSigs: true, NoLog: true,
			JetStream: true, StoreDir: filepath.Join(dir, strconv.Itoa(i)), JetStreamMaxStore: room,
			Cluster: server.ClusterOpts{Name: "toolfleet-test", Host: "127.0.0.1", Port: ports[2*i+1]},
		}
	}
	if partable {
		c.layCables()
	}
	for i := range c.Servers {
		c.launch(i)
		tb.Cleanup(func() { c.Stop(i) })
	}
	for _, s := range c.Servers { // only together are they ready
		require.True(tb, s.ReadyForConnections(clusterReady))
	}
	c.NC = c.Connect()
	var err error
	c.JS, err = jetstream.New(c.NC, jetstream.WithDefaultTimeout(answerWait))
	require.NoError(tb, err)
	require.Eventually(tb, func() bool {
		return natsio.Ensure(tb.Context(), c.JS, natsio.Topology{Fleet: c.Name, Storage: natsio.Storage{Replicas: 3}}) == nil
	}, clusterReady, 50*time.Millisecond, "the cluster makes no streams")
	return c
}

// FreePorts finds ports without a listener, below the ephemeral ones. Another process may take one
// before it is used; the server's start fails then.
func FreePorts(tb testing.TB, n int) []int {
	tb.Helper()
	ports, err := embedded.FreePorts(tb.Context(), n)
	require.NoError(tb, err)
	return ports
}

// launch starts a server, with the data that it had, and does not wait for it.
func (c *Cluster) launch(i int) {
	c.tb.Helper()
	o := *c.options[i]
	for n, other := range c.options {
		host := fmt.Sprintf("127.0.0.1:%d", other.Cluster.Port)
		if cable := c.cables[[2]int{i, n}]; cable != nil {
			host = cable.Address()
		}
		if n != i {
			o.Routes = append(o.Routes, &url.URL{Scheme: "nats", Host: host})
		}
	}
	s, err := server.NewServer(&o)
	require.NoError(c.tb, err)
	s.Start()
	c.Servers[i] = s
}

// layCables has all that servers say to each other go through cables.
func (c *Cluster) layCables() {
	for i := range c.options {
		c.options[i].Cluster.Advertise = "127.0.0.1:1" // so that all traffic passes them
		for n, other := range c.options {
			if n != i {
				c.cables[[2]int{i, n}] = NewCable(c.tb, fmt.Sprintf("127.0.0.1:%d", other.Cluster.Port))
			}
		}
	}
}

// Part cuts a server off from the others, or joins it to them again. Clients keep their
// connections.
func (c *Cluster) Part(i int, off bool) {
	for ends, cable := range c.cables {
		switch {
		case ends[0] != i && ends[1] != i:
		case off:
			cable.Sever()
		default:
			cable.Mend()
		}
	}
}

// Slow delays all that a server of a partable cluster and the others say to each other.
func (c *Cluster) Slow(i int, d time.Duration) {
	for ends, cable := range c.cables {
		if ends[0] == i || ends[1] == i {
			cable.Slow(d)
		}
	}
}

// URL names all servers.
func (c *Cluster) URL() string {
	urls := make([]string, len(c.options))
	for i, o := range c.options {
		urls[i] = fmt.Sprintf("nats://%s:%d", o.Host, o.Port)
	}
	return strings.Join(urls, ",")
}

// Connect makes one more connection, to any of the servers.
func (c *Cluster) Connect() *nats.Conn {
	c.tb.Helper()
	return c.connect(c.URL())
}

// ConnectTo makes one more connection, to one of the servers.
func (c *Cluster) ConnectTo(i int) *nats.Conn {
	c.tb.Helper()
	return c.connect(fmt.Sprintf("nats://%s:%d", c.options[i].Host, c.options[i].Port))
}

func (c *Cluster) connect(url string) *nats.Conn {
	c.tb.Helper()
	nc, err := natsio.Connect(c.tb.Context(), url, natsio.ConnectOptions{Name: c.tb.Name(), Options: []nats.Option{nats.Timeout(patience)}})
	require.NoError(c.tb, err)
	c.tb.Cleanup(nc.Close)
	return nc
}

// Leader is the index of the server that leads a stream; -1 while none does.
func (c *Cluster) Leader(stream string) int {
	for i, s := range c.Servers {
		if s.Running() && s.JetStreamIsStreamLeader(server.DEFAULT_GLOBAL_ACCOUNT, stream) {
			return i
		}
	}
	return -1
}

// ConsumerLeader is the index of the server that leads a consumer; -1 while none does.
func (c *Cluster) ConsumerLeader(stream, consumer string) int {
	for i, s := range c.Servers {
		if s.Running() && s.JetStreamIsConsumerLeader(server.DEFAULT_GLOBAL_ACCOUNT, stream, consumer) {
			return i
		}
	}
	return -1
}

// Stop shuts a server down.
func (c *Cluster) Stop(i int) {
	c.tb.Helper()
	c.Servers[i].Shutdown()
	c.Servers[i].WaitForShutdown()
}

// Start starts a server that was stopped, with the data that it had.
func (c *Cluster) Start(i int) {
	c.tb.Helper()
	c.launch(i)
	require.True(c.tb, c.Servers[i].ReadyForConnections(clusterReady))
}
