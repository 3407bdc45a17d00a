package embedded_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio/embedded"
)

// serveMember makes this test binary a server of a cluster.
const serveMember = "TEST_SERVE_MEMBER"

func member() {
	if err := embedded.ServeMember(context.Background(), os.Stdin, slog.New(slog.DiscardHandler)); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// members returns how a server is started, and the commands that were.
func members(t *testing.T) (start func() *exec.Cmd, started func() []*exec.Cmd) {
	t.Helper()
	var all []*exec.Cmd
	start = func() *exec.Cmd {
		cmd := exec.CommandContext(context.WithoutCancel(t.Context()), os.Args[0])
		cmd.Env = append(os.Environ(), serveMember+"=1")
		all = append(all, cmd)
		return cmd
	}
	return start, func() []*exec.Cmd { return all }
}

func TestCluster_KeepsReplicasAndEndsWithItsOwner(t *testing.T) {
	t.Parallel()
	start, started := members(t)
	cluster, err := embedded.StartCluster(t.Context(), 3, start, embedded.Options{Data: t.TempDir()})
	require.NoError(t, err)
	closed := false
	defer func() {
		if !closed {
			cluster.Close()
		}
	}()
	nc := connect(t, cluster.URL(), "", cluster.Options()...)
	js, err := jetstream.New(nc, patient)
	require.NoError(t, err)
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}, Replicas: 3})
	require.NoError(t, err)
	_, err = js.Publish(t.Context(), "s", []byte("kept"))
	require.NoError(t, err)
	info, err := stream.Info(t.Context())
	require.NoError(t, err)
	require.Len(t, info.Cluster.Replicas, 2, "beside the leader")

	for address := range strings.SplitSeq(cluster.URL(), ",") {
		parsed, err := url.Parse(address)
		require.NoError(t, err)
		require.Equal(t, "127.0.0.1", parsed.Hostname())
		_, err = nats.Connect(address, nats.Token("guessed"), nats.Timeout(time.Minute))
		require.ErrorIs(t, err, nats.ErrAuthorization, "others of this machine get in")
	}

	cluster.Close()
	closed = true
	require.Len(t, started(), 3)
	for _, cmd := range started() {
		require.True(t, cmd.ProcessState.Success(), "%s: ends when its standard input does", cmd.ProcessState)
	}
}

func TestCluster_ServerThatCannotStart(t *testing.T) {
	t.Parallel()
	_, err := embedded.StartCluster(t.Context(), 3, func() *exec.Cmd {
		return exec.CommandContext(t.Context(), "/nonexistent/coordinator")
	}, embedded.Options{Data: t.TempDir()})
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, "start server n1")
}

func TestServeMember_SettingsThatAreNone(t *testing.T) {
	t.Parallel()
	require.ErrorContains(t, embedded.ServeMember(t.Context(), strings.NewReader("n1"), slog.New(slog.DiscardHandler)), "settings of a server")
}
