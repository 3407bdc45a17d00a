package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/natsio"
)

// Who lacks rights is told which, instead of what looks like a fleet that does not answer.
func TestCommands_TellOfMissingRights(t *testing.T) {
	t.Parallel()
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: t.TempDir(), NoSigs: true, NoLog: true,
		Users: []*server.User{{Username: "all", Password: "p"}, {Username: "looks", Password: "p", Permissions: &server.Permissions{
			Publish: &server.SubjectPermission{Allow: []string{"$JS.API.STREAM.INFO.*"}},
		}}},
	})
	require.NoError(t, err)
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	require.True(t, s.ReadyForConnections(time.Minute))
	nc, err := natsio.Connect(t.Context(), "nats://all:p@"+s.Addr().String(), natsio.ConnectOptions{Name: "test"})
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(time.Minute))
	require.NoError(t, err)
	require.NoError(t, natsio.Ensure(t.Context(), js, natsio.Topology{}))
	for _, test := range []struct {
		args  []string
		lacks string
	}{
		{[]string{"session", "ls"}, "publish on $JS.API.STREAM.MSG.GET.TF_SESSIONS"},
		{[]string{"session", "show", "s"}, "publish on $JS.API.STREAM.MSG.GET.OBJ_TF_KEPT"},
		{[]string{"session", "rm", "s"}, "publish on tf.call.default.rights.rights"},
		{[]string{"session", "rm", "s"}, "publish on $JS.API.STREAM.PURGE.TF_SESSIONS"},
		{[]string{"workers"}, "publish on tf.who.default"},
		{[]string{"approve", "s", "c"}, "publish on tf.approval.rights.rights"},
		{[]string{"submit", "go"}, "publish on tf.call.session.rights.rights"},
	} {
		stderr, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
		require.NoError(t, err)
		code := run(cli.Program{
			Name: "coordinator", Args: append(test.args, "--nats", "nats://looks:p@"+s.Addr().String()),
			Stdin: os.Stdin, Stdout: stderr, Stderr: stderr, Getenv: func(string) string { return "" },
		})
		require.NoError(t, stderr.Close())
		text, err := os.ReadFile(stderr.Name())
		require.NoError(t, err)
		require.Equal(t, cli.ExitFailed, code, "%v: %s", test.args, text)
		require.Regexp(t, `(?m)^coordinator: the NATS user has too few rights: it may not `, string(text), test.args)
		require.Contains(t, string(text), test.lacks, test.args)
	}
}
