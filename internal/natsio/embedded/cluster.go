package embedded

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/system/pause"
)

// clusterReady bounds the time in which the servers of a cluster find each other and choose a
// leader.
const clusterReady = 30 * time.Second

// Cluster is several servers on loopback, as a fleet with replicas has them on several machines. It
// is for measuring and trying: all are lost together with the process.
type Cluster struct {
	token   string
	servers []*server.Server
	urls    []string
}

// StartCluster starts a number of servers and returns when they take streams with so many replicas.
// Of o, Data and SyncAlways count. The caller closes the cluster.
func StartCluster(ctx context.Context, servers int, o Options) (_ *Cluster, err error) {
	c := &Cluster{token: rand.Text()}
	defer func() {
		if err != nil {
			c.Close()
		}
	}()
	ports, err := FreePorts(ctx, 2*servers)
	if err != nil {
		return nil, err
	}
	for i := range servers {
		options := c.options(i, ports[:servers], ports[servers:], o)
		s, err := server.NewServer(options)
		if err != nil {
			return nil, fmt.Errorf("start server %s: %w", options.ServerName, err)
		}
		c.servers, c.urls = append(c.servers, s), append(c.urls, "nats://"+net.JoinHostPort(options.Host, strconv.Itoa(options.Port)))
		s.Start()
	}
	return c, c.ready(ctx)
}

func (c *Cluster) options(i int, ports, routes []int, o Options) *server.Options {
	name := "n" + strconv.Itoa(i+1)
	options := &server.Options{
		ServerName: name, Host: "127.0.0.1", Port: ports[i], Authorization: c.token,
		JetStream: true, StoreDir: filepath.Join(o.Data, name), SyncAlways: o.SyncAlways, NoSigs: true, NoLog: true, DisableJetStreamBanner: true,
		MaxPayload: maxPayload, MaxPending: maxPending,
		Cluster: server.ClusterOpts{Name: "toolfleet", Host: "127.0.0.1", Port: routes[i], Username: "toolfleet", Password: c.token},
	}
	for n, port := range routes {
		if n != i {
			options.Routes = append(options.Routes, &url.URL{
				Scheme: "nats", User: url.UserPassword("toolfleet", c.token), Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)),
			})
		}
	}
	return options
}

// ready waits until all servers are connected and have a leader.
func (c *Cluster) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, clusterReady, fmt.Errorf("the %d servers of the cluster found no leader within %s", len(c.servers), clusterReady))
	defer cancel()
	var err error
	if pause.Until(ctx, pause.Retry, func() bool { err = c.probe(ctx); return err == nil }) {
		return nil
	}
	return errors.Join(context.Cause(ctx), err)
}

// probe makes a stream on all servers, and removes it. Without a leader there is no answer.
func (c *Cluster) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	nc, err := nats.Connect(c.URL(), c.Options()...)
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	const name = "TOOLFLEET_PROBE"
	if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: name, Replicas: len(c.servers), Subjects: []string{"toolfleet.probe"}}); err != nil {
		return err
	}
	return js.DeleteStream(ctx, name)
}

// URL names all servers.
func (c *Cluster) URL() string { return strings.Join(c.urls, ",") }

// Options are what a connection needs in addition to [Cluster.URL].
func (c *Cluster) Options() []nats.Option { return []nats.Option{nats.Token(c.token)} }

// Close stops the servers and returns when they are down.
func (c *Cluster) Close() {
	for _, s := range c.servers {
		s.Shutdown()
		s.WaitForShutdown()
	}
}
