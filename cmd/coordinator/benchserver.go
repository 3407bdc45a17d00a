package main

import (
	"context"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"

	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/embedded"
)

// benchServerCommand is one server of the cluster that bench starts. It is told on its standard
// input what to do, and ends with it.
type benchServerCommand struct{}

func (*benchServerCommand) run(ctx context.Context, p program) error {
	signal.Ignore(os.Interrupt) // a terminal sends it to all processes; bench ends its servers when it is done
	return embedded.ServeMember(ctx, p.Stdin, p.common.Logger(p.Program))
}

// cluster starts as many servers as there are to be replicas, each a process of its own.
func (c *benchCommand) cluster(ctx context.Context, p program, dir string, logger *slog.Logger) (connect func(string) (*nats.Conn, error), stop func(), err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	command := func() *exec.Cmd {
		cmd := exec.Command(self, "bench-server", "--log-level", p.common.LogLevel, "--log-format", p.common.LogFormat) //nolint:noctx,gosec // this program; it ends with its standard input, after the bench has stopped
		cmd.Stderr = p.Stderr
		return cmd
	}
	cluster, err := embedded.StartCluster(ctx, c.Replicas, command, embedded.Options{Data: dir, SyncAlways: c.Fsync})
	if err != nil {
		return nil, nil, err
	}
	connect = func(name string) (*nats.Conn, error) {
		return natsio.Connect(ctx, cluster.URL(), natsio.ConnectOptions{Name: name, Options: cluster.Options(), Logger: logger})
	}
	return connect, cluster.Close, nil
}
