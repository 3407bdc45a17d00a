package natsiotest

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
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

// Cable is the network on the way to a server: a proxy whose connections can be cut, made
// deaf and made slow. It ends with its test, and is safe for concurrent use.
type Cable struct {
	server   string
	listener net.Listener
	group    sync.WaitGroup

	mu     sync.Mutex
	cut    bool
	deaf   bool          // what the server says is lost
	delay  time.Duration // of everything, in both directions
	match  func(said []byte) bool
	before func() // nil when nothing is waited for
	conns  map[net.Conn]struct{}
	closed bool
}

// NewCable lays a cable to the address of a server.
func NewCable(tb testing.TB, server string) *Cable {
	tb.Helper()
	listener, err := (&net.ListenConfig{}).Listen(tb.Context(), "tcp", "127.0.0.1:0")
	require.NoError(tb, err)
	c := &Cable{server: server, listener: listener, conns: map[net.Conn]struct{}{}}
	c.group.Go(c.accept)
	tb.Cleanup(func() {
		_ = listener.Close() // ends accept
		c.mu.Lock()
		c.closed = true
		c.drop()
		c.mu.Unlock()
		c.group.Wait()
	})
	return c
}

// Address is where the near end of the cable is.
func (c *Cable) Address() string { return c.listener.Addr().String() }

func (c *Cable) accept() {
	for {
		near, err := c.listener.Accept()
		if err != nil {
			return
		}
		c.mu.Lock()
		if c.cut || c.closed {
			_ = near.Close() // refused
			c.mu.Unlock()
			continue
		}
		c.mu.Unlock()
		far, err := (&net.Dialer{Timeout: time.Second}).DialContext(context.Background(), "tcp", c.server)
		if err != nil {
			_ = near.Close() // the server is not there
			continue
		}
		c.mu.Lock()
		c.conns[near], c.conns[far] = struct{}{}, struct{}{}
		if c.cut || c.closed {
			c.drop()
		}
		c.mu.Unlock()
		c.group.Go(func() { c.carry(near, far, false) })
		c.group.Go(func() { c.carry(far, near, true) })
	}
}

// carry copies one direction until either end is closed.
func (c *Cable) carry(from, to net.Conn, toClient bool) {
	defer c.forget(from, to)
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		c.mu.Lock()
		lose, delay := c.deaf && toClient, c.delay
		c.mu.Unlock()
		if delay > 0 {
			<-time.After(delay)
		}
		if lose {
			continue
		}
		if !toClient {
			c.await(buffer[:n])
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// Before has f called once, before something that a client says and match is true of is passed on.
// What is said at the same time may come in one piece.
func (c *Cable) Before(match func(said []byte) bool, f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.match, c.before = match, f
}

// await calls what [Cable.Before] was given when it is time.
func (c *Cable) await(said []byte) {
	c.mu.Lock()
	f := c.before
	if f == nil || !c.match(said) {
		c.mu.Unlock()
		return
	}
	c.match, c.before = nil, nil
	c.mu.Unlock()
	f()
}

func (c *Cable) forget(conns ...net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range conns {
		_ = conn.Close() // it may be closed
		delete(c.conns, conn)
	}
}

// drop ends all connections. The lock is held.
func (c *Cable) drop() {
	for conn := range c.conns {
		_ = conn.Close() // whatever is left of it
	}
	clear(c.conns)
}

// Sever ends the connection, and lets none be made until [Cable.Mend].
func (c *Cable) Sever() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut = true
	c.drop()
}

// Deafen loses whatever the server says, until [Cable.Mend].
func (c *Cable) Deafen() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deaf = true
}

// Slow delays everything, until [Cable.Mend].
func (c *Cable) Slow(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.delay = d
}

// Mend makes the network good again. A connection that has lost something is ended.
func (c *Cable) Mend() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.deaf {
		c.drop()
	}
	c.cut, c.deaf, c.delay = false, false, 0
}
