package embedded

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// clusterReady bounds the time in which the servers of a cluster find each other and choose a
	// leader.
	clusterReady = 30 * time.Second
	clusterLook  = 50 * time.Millisecond
	// clusterAnswer is how long one question of that time waits.
	clusterAnswer = time.Second
	// memberEnd is how long a server may take to stop before it is killed.
	memberEnd = 10 * time.Second
)

// Cluster is several servers on loopback, each in a process of its own, as a fleet with replicas
// has them on several machines. It is for measuring and trying: all are lost together with the
// machine.
type Cluster struct {
	token     string
	members   []member
	processes []*process // of the members that were started
}

// process is that of a member. It ends when its standard input does, and so with this process at
// the latest.
type process struct {
	cmd   *exec.Cmd
	stdin io.Closer
}

// StartCluster starts a number of servers, each by a command that calls [ServeMember], and returns
// when they take streams with so many replicas. Of o, Data and SyncAlways count. The caller closes
// the cluster.
func StartCluster(ctx context.Context, servers int, command func() *exec.Cmd, o Options) (_ *Cluster, err error) {
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
		name := "n" + strconv.Itoa(i+1)
		c.members = append(c.members, member{
			Name: name, Data: filepath.Join(o.Data, name), Port: ports[i], Route: ports[servers+i],
			Routes: ports[servers:], Token: c.token, SyncAlways: o.SyncAlways,
		})
	}
	for _, m := range c.members {
		started, err := startMember(command(), m)
		if err != nil {
			return nil, fmt.Errorf("start server %s: %w", m.Name, err)
		}
		c.processes = append(c.processes, started)
	}
	return c, c.ready(ctx)
}

func startMember(cmd *exec.Cmd, m member) (*process, error) {
	settings, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, stdin: stdin}
	if _, err := stdin.Write(append(settings, '\n')); err != nil {
		p.end()
		return nil, err
	}
	return p, nil
}

// end stops the process and waits for it.
func (p *process) end() {
	_ = p.stdin.Close() // tells it to end; if it has, there is nobody to tell
	late := time.AfterFunc(memberEnd, func() { _ = p.cmd.Process.Kill() })
	defer late.Stop()
	_ = p.cmd.Wait() // how it ended changes nothing
}

// ready waits until all servers are there and one of them leads.
func (c *Cluster) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, clusterReady, fmt.Errorf("the %d servers of the cluster found no leader within %s; --log-level debug shows what they say", len(c.members), clusterReady))
	defer cancel()
	var last error
	tick := time.NewTicker(clusterLook)
	defer tick.Stop()
	for {
		if last = c.probe(ctx); last == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), last)
		case <-tick.C:
		}
	}
}

// probe makes a stream on all servers, and removes it. Where nobody leads yet, nobody answers.
func (c *Cluster) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, clusterAnswer)
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
	if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: name, Replicas: len(c.members), Subjects: []string{"toolfleet.probe"}}); err != nil {
		return err
	}
	return js.DeleteStream(ctx, name)
}

// URL names all servers.
func (c *Cluster) URL() string {
	urls := make([]string, len(c.members))
	for i, m := range c.members {
		urls[i] = "nats://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(m.Port))
	}
	return strings.Join(urls, ",")
}

// Options are what a connection needs beside [Cluster.URL].
func (c *Cluster) Options() []nats.Option { return []nats.Option{nats.Token(c.token)} }

// Close stops the servers and returns when they are down.
func (c *Cluster) Close() {
	for _, p := range c.processes {
		_ = p.stdin.Close() // all at once; each is waited for below
	}
	for _, p := range c.processes {
		p.end()
	}
}
