//go:build linux

package chaos

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/toolfleet/toolfleet/internal/natsio/embedded"
)

// serverRole is a server: the embedded one, or one of several.
type serverRole struct {
	Name, Data  string
	Port        int
	ClusterPort int      // 0 is the embedded one
	Routes      []string // cluster addresses of the others, or of the cables to them
	Cabled      bool     // the others are reached through cables only
	Log         string   // of the embedded one: when the machine kept it from running
	HealthPort  int      // where it says over HTTP whether it has all that the others have
}

var errNotReady = errors.New("not ready in time")

func (s *serverRole) run(ctx context.Context) error {
	if s.ClusterPort == 0 {
		log, err := openJournal(s.Log)
		if err != nil {
			return err
		}
		running, err := embedded.Start(ctx, embedded.Options{Data: s.Data, Listen: fmt.Sprintf("127.0.0.1:%d", s.Port)})
		if err != nil {
			return err
		}
		log.watch(ctx)
		running.Close()
		return nil
	}
	o := &server.Options{
		ServerName: s.Name, Host: "127.0.0.1", Port: s.Port, NoSigs: true, JetStream: true, StoreDir: s.Data,
		Debug: true, Logtime: true, LogtimeUTC: true, // who led what and when: without it no violation can be explained
		HTTPHost: "127.0.0.1", HTTPPort: s.HealthPort,
		Cluster: server.ClusterOpts{Name: "toolfleet-chaos", Host: "127.0.0.1", Port: s.ClusterPort},
	}
	if s.Cabled {
		o.Cluster.Advertise = "127.0.0.1:1" // nobody finds a way around the cables
	}
	for _, route := range s.Routes {
		o.Routes = append(o.Routes, &url.URL{Scheme: "nats", Host: route})
	}
	running, err := server.NewServer(o)
	if err != nil {
		return err
	}
	running.ConfigureLogger()
	running.Start()
	if !running.ReadyForConnections(time.Minute) {
		return errNotReady
	}
	<-ctx.Done()
	running.Shutdown()
	running.WaitForShutdown()
	return nil
}
