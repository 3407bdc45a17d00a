package embedded

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"strconv"

	"github.com/nats-io/nats-server/v2/server"
)

// member is what the process of one server is told. It travels by its standard input, because it
// holds secrets.
type member struct {
	Name       string `json:"name"`
	Data       string `json:"data"`
	Port       int    `json:"port"`
	Route      int    `json:"route"`  // the port for other servers
	Routes     []int  `json:"routes"` // those of the others
	Token      string `json:"token"`  // of clients, and of servers among each other
	SyncAlways bool   `json:"sync_always"`
}

// ServeMember is what the process of one server of a [Cluster] runs: it reads from in which one it
// is, and serves until in or ctx ends.
func ServeMember(ctx context.Context, in io.Reader, logger *slog.Logger) error {
	var m member
	if err := json.NewDecoder(in).Decode(&m); err != nil {
		return fmt.Errorf("settings of a server: %w", err)
	}
	s, err := server.NewServer(m.options())
	if err != nil {
		return fmt.Errorf("server %s: %w", m.Name, err)
	}
	if logger.Enabled(ctx, slog.LevelDebug) { // while they look for each other, servers complain of what is to be expected
		s.SetLoggerV2(serverLog{ctx: context.WithoutCancel(ctx), logger: logger}, false, false, false)
	}
	s.Start()
	defer func() {
		s.Shutdown()
		s.WaitForShutdown()
	}()
	ended := make(chan struct{})
	go func() { // ends with the process at the latest: a read cannot be called off
		_, _ = io.Copy(io.Discard, in)
		close(ended)
	}()
	select {
	case <-ended:
	case <-ctx.Done():
	}
	return nil
}

func (m member) options() *server.Options {
	o := &server.Options{
		ServerName: m.Name, Host: "127.0.0.1", Port: m.Port, Authorization: m.Token,
		JetStream: true, StoreDir: m.Data, SyncAlways: m.SyncAlways, NoSigs: true, NoLog: true, DisableJetStreamBanner: true,
		MaxPayload: maxPayload, MaxPending: maxPending,
		Cluster: server.ClusterOpts{Name: "toolfleet", Host: "127.0.0.1", Port: m.Route, Username: "toolfleet", Password: m.Token},
	}
	for _, port := range m.Routes {
		if port != m.Route {
			o.Routes = append(o.Routes, &url.URL{Scheme: "nats", User: url.UserPassword("toolfleet", m.Token), Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(port))})
		}
	}
	return o
}
