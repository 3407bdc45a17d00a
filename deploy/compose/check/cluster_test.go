package check

import (
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/types"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func cluster(t *testing.T) *types.Project {
	t.Helper()
	loaded, err := loadFiles(t.Context(), []string{composeFile, clusterFile}, environ()...)
	require.NoError(t, err)
	return loaded
}

// TestCluster_ServersAreLikeTheOne: what is more is where they keep things, and how they find
// each other.
func TestCluster_ServersAreLikeTheOne(t *testing.T) {
	t.Parallel()
	services := cluster(t).Services
	data := map[string]bool{}
	for _, name := range []string{"nats", "nats-2", "nats-3"} {
		s := services[name]
		require.Len(t, s.Volumes, 1)
		data[s.Volumes[0].Source] = true
		one := services["nats"]
		one.Name, one.Command, one.Volumes = s.Name, s.Command, s.Volumes
		require.Equal(t, one, s)
		require.Equal(t, types.ServiceConditionHealthy, services["coordinator"].DependsOn[name].Condition)
	}
	require.Len(t, data, 3, "each has a volume of its own")
	require.Equal(t, strings.ReplaceAll(*services["coordinator"].Environment["TOOLFLEET_NATS"], "fleet:", "fleet_default:"),
		strings.TrimPrefix(*services["coordinator"].Environment["TOOLFLEET_POOL_NATS"], "default="))
	for name, user := range map[string]string{"coordinator": "fleet:tf-secret", "worker": "worker:tf-lesser"} {
		require.Equal(t, fmt.Sprintf("nats://%[1]s@nats:4222,nats://%[1]s@nats-2:4222,nats://%[1]s@nats-3:4222", user), *services[name].Environment["TOOLFLEET_NATS"])
		require.Equal(t, "3", *services[name].Environment["TOOLFLEET_REPLICAS"])
	}
}

// TestCluster_KeepsWhatItIsToldOnThree starts real servers with the command lines of the services,
// moved to free loopback ports and temporary directories.
func TestCluster_KeepsWhatItIsToldOnThree(t *testing.T) {
	t.Setenv("FLEET_PASSWORD", "tf-secret")
	t.Setenv("WORKER_PASSWORD", "tf-lesser")
	t.Setenv("READER_PASSWORD", "tf-least")
	services, servers := cluster(t).Services, map[string]*server.Server{}
	for _, name := range []string{"nats", "nats-2", "nats-3"} {
		options := commandLine(t, services[name].Command)
		require.Equal(t, name, options.ServerName)
		for _, route := range options.Routes {
			require.Equal(t, "fleet:tf-secret@"+route.Hostname()+":6222", route.User.String()+"@"+route.Host)
			require.Contains(t, services, route.Hostname())
		}
		require.Len(t, options.Routes, 3)
		for _, route := range options.Routes {
			known := servers[route.Hostname()]
			route.Host = "127.0.0.1:1" // nobody yet: the later one finds the earlier one
			if known != nil {
				route.Host = known.ClusterAddr().String()
			}
		}
		servers[name] = start(t, options)
		require.Eventually(t, func() bool { return servers[name].ClusterAddr() != nil }, time.Minute, 20*time.Millisecond)
	}
	for name, broker := range servers {
		require.True(t, broker.ReadyForConnections(2*time.Minute), name)
	}
	js := user(t, servers["nats-2"], "fleet", "tf-secret")
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "TF_SESSIONS", Subjects: []string{"tf.event.>"}, Replicas: 3})
		require.NoError(c, err)
	}, 2*time.Minute, 200*time.Millisecond)
	servers["nats"].Shutdown()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		_, err := js.Publish(t.Context(), "tf.event.session", nil)
		require.NoError(c, err)
	}, 2*time.Minute, 200*time.Millisecond)
}

// commandLine is what a server makes of the image's command line and more arguments.
func commandLine(t *testing.T, args []string) *server.Options {
	t.Helper()
	flags := flag.NewFlagSet("nats-server", flag.ContinueOnError)
	options, err := server.ConfigureOptions(flags, append([]string{"--config", configuration(t)}, args...), nil, nil, nil)
	require.NoError(t, err)
	return options
}

// start starts a server on free loopback ports, with a directory of its own.
func start(t *testing.T, options *server.Options) *server.Server {
	t.Helper()
	options.Host, options.Port, options.HTTPPort = "127.0.0.1", server.RANDOM_PORT, 0
	options.StoreDir, options.NoSigs, options.NoLog = t.TempDir(), true, true
	if options.Cluster.Port != 0 {
		options.Cluster.Host, options.Cluster.Port = "127.0.0.1", server.RANDOM_PORT
	}
	broker, err := server.NewServer(options)
	require.NoError(t, err)
	broker.Start()
	t.Cleanup(func() { broker.Shutdown(); broker.WaitForShutdown() })
	return broker
}
