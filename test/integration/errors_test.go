package integration

import (
	"net"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

// commands are all that connect to a fleet, by name, with what they need beside it.
func commands(tb testing.TB) map[string]struct {
	binary string
	args   []string
} {
	tb.Helper()
	model := script(tb, say("never"))
	return map[string]struct {
		binary string
		args   []string
	}{
		"run":    {coordinator, []string{"run", "--model", model, "do it"}},
		"call":   {coordinator, []string{"call", "list"}},
		"serve":  {coordinator, []string{"serve", "--model", model}},
		"submit": {coordinator, []string{"submit", "do it"}},
		"ping":   {coordinator, []string{"ping"}},
		"worker": {worker, []string{"--sandbox", "process", "--data", tb.TempDir()}},
	}
}

// TestErrors_NobodyListens: the error names the URL, without its secrets, at once.
func TestErrors_NobodyListens(t *testing.T) {
	t.Parallel()
	const address = "127.0.0.1:1" // no port that the system gives to anybody
	for name, c := range commands(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := execute(t, c.binary, launch{args: append(c.args, "--nats", "nats://somebody:s3cret@"+address)})
			require.Equal(t, 1, got.code, got.stderr)
			require.Contains(t, got.stderr, address)
			require.Contains(t, got.stderr, "connect to NATS")
			require.NotContains(t, got.stderr, "s3cret")
			require.Empty(t, got.stdout)
		})
	}
}

// TestErrors_WrongCredentials: refused is not the same as not there.
func TestErrors_WrongCredentials(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	for name, c := range commands(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := execute(t, c.binary, launch{args: append(c.args, "--nats", b.server.URL())})
			require.Equal(t, 1, got.code, got.stderr)
			require.Contains(t, got.stderr, strings.TrimPrefix(b.server.URL(), "nats://"))
			require.Contains(t, got.stderr, "Authorization Violation")
		})
	}
}

// TestErrors_OtherStream: a stream with another configuration is an error that names the
// difference, and stays as it is.
func TestErrors_OtherStream(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	js := b.jetStream(t)
	_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "TF_CALLS", Subjects: []string{"tf.call.>", "tf.ready.>"}, Retention: jetstream.WorkQueuePolicy,
	})
	require.NoError(t, err)
	for name, c := range commands(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := execute(t, c.binary, launch{args: append(c.args, b.flags...)})
			require.Equal(t, 1, got.code, got.stderr)
			for _, part := range []string{"TF_CALLS", "retention is WorkQueue, must be Limits", "max_msgs_per_subject is -1, must be 1"} {
				require.Contains(t, got.stderr, part)
			}
		})
	}
	stream, err := js.Stream(t.Context(), "TF_CALLS")
	require.NoError(t, err)
	require.Equal(t, jetstream.WorkQueuePolicy, stream.CachedInfo().Config.Retention)

	t.Run("another fleet name helps", func(t *testing.T) {
		t.Parallel()
		ping := launch{args: append([]string{"ping", "--fleet", "other"}, b.flags...)}
		got := execute(t, coordinator, ping)
		require.Equal(t, 1, got.code)
		require.Contains(t, got.stderr, "there is no fleet other")
		got = execute(t, coordinator, launch{args: append([]string{"bench", "--fleet", "other", "--calls", "10", "--baseline", "0s"}, b.flags...)})
		require.Equal(t, 0, got.code, got.stderr)
		require.Equal(t, 0, execute(t, coordinator, ping).code)
	})
}

// TestErrors_DataInUse: two embedded servers cannot have one directory.
func TestErrors_DataInUse(t *testing.T) {
	t.Parallel()
	hold, data := newGate(t), t.TempDir()
	flags := []string{"--data", data, "--sandbox", "process"}
	p := start(t, coordinator, launch{args: append([]string{"run", "--model", script(t, say("", bash("c1", hold.pass())), say("Done.")), "do it"}, flags...)})
	p.waitFor(t, `\[1\.1 bash\] +. running on`)
	for name, args := range map[string][]string{
		"run":   append([]string{"run", "--model", script(t, say("never")), "do it"}, flags...),
		"call":  append([]string{"call", "list"}, flags...),
		"serve": {"serve", "--model", script(t, say("never")), "--listen", "127.0.0.1:0", "--data", data},
	} {
		got := execute(t, coordinator, launch{args: args})
		require.Equal(t, 1, got.code, name)
		require.Contains(t, got.stderr, data)
		require.Contains(t, got.stderr, "in use by another process")
		require.Contains(t, got.stderr, "--data")
	}
	hold.open(t)
	require.Equal(t, 0, p.wait(t))
}

// TestErrors_PortInUse: the address is named, at once.
func TestErrors_PortInUse(t *testing.T) {
	t.Parallel()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	address := listener.Addr().String()
	got := execute(t, coordinator, launch{args: []string{"serve", "--model", script(t, say("never")), "--data", t.TempDir(), "--listen", address}})
	require.Equal(t, 1, got.code, got.stderr)
	require.Contains(t, got.stderr, address)
	require.Contains(t, got.stderr, "address already in use")
}

// TestErrors_ListenIsLoopbackOnly: the embedded server is for this machine.
func TestErrors_ListenIsLoopbackOnly(t *testing.T) {
	t.Parallel()
	got := execute(t, coordinator, launch{args: []string{"serve", "--model", script(t, say("never")), "--data", t.TempDir(), "--listen", "0.0.0.0:0"}})
	require.Contains(t, []int{1, 2}, got.code, got.stderr)
	require.Contains(t, got.stderr, "loopback")
}
