package embedded_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/metrics"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/embedded"
)

// holdData makes this test binary a process that uses a data directory.
const holdData = "TEST_HOLD_DATA"

func TestMain(m *testing.M) {
	if dir := os.Getenv(holdData); dir != "" {
		hold(dir)
		return
	}
	if dir := os.Getenv(passData); dir != "" {
		pass(dir)
		return
	}
	if dir := os.Getenv(fewFilesData); dir != "" {
		exhaust(dir)
		return
	}
	goleak.VerifyTestMain(m)
}

// hold runs a server until its input ends.
func hold(dir string) {
	server, err := embedded.Start(context.Background(), embedded.Options{Data: dir})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	defer server.Close()
	fmt.Println("ready")
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
}

// patient has the client wait for as long as a busy machine takes to answer.
var patient = jetstream.WithDefaultTimeout(time.Minute)

func start(t *testing.T, o embedded.Options) *embedded.Server {
	t.Helper()
	server, err := embedded.Start(t.Context(), o)
	require.NoError(t, err)
	t.Cleanup(server.Close)
	return server
}

func connect(t *testing.T, url, creds string, options ...nats.Option) *nats.Conn {
	t.Helper()
	nc, err := natsio.Connect(t.Context(), url, natsio.ConnectOptions{Name: t.Name(), Creds: creds, Options: options})
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	return nc
}

func TestServer_TokenIsTheOwnersAndStable(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	first := start(t, embedded.Options{Data: data, Listen: "127.0.0.1:0"})
	require.Equal(t, filepath.Join(data, embedded.TokenFile), first.CredentialFile())
	info, err := os.Stat(first.CredentialFile())
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode())
	token, err := os.ReadFile(first.CredentialFile())
	require.NoError(t, err)
	require.Greater(t, len(token), 20)
	first.Close()

	second := start(t, embedded.Options{Data: data, Listen: "127.0.0.1:0"})
	again, err := os.ReadFile(second.CredentialFile())
	require.NoError(t, err)
	require.Equal(t, token, again)
	require.Equal(t, nats.CONNECTED, connect(t, second.URL(), second.CredentialFile()).Status())

	other := start(t, embedded.Options{Data: t.TempDir(), Listen: "127.0.0.1:0"})
	theirs, err := os.ReadFile(other.CredentialFile())
	require.NoError(t, err)
	require.NotEqual(t, token, theirs)
}

func TestServer_TokenFileThatOthersCanReadIsClosed(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	file := filepath.Join(data, embedded.TokenFile)
	require.NoError(t, os.WriteFile(file, []byte("from-a-backup\n"), 0o600))
	require.NoError(t, os.Chmod(file, 0o644))
	server := start(t, embedded.Options{Data: data, Listen: "127.0.0.1:0"})
	info, err := os.Stat(file)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode())
	require.Equal(t, nats.CONNECTED, connect(t, server.URL(), file).Status())
}

func TestServer_RefusesOthers(t *testing.T) {
	t.Parallel()
	server := start(t, embedded.Options{Data: t.TempDir(), Listen: "127.0.0.1:0"})
	wrong := filepath.Join(t.TempDir(), "wrong")
	require.NoError(t, os.WriteFile(wrong, []byte("wrong"), 0o600))
	for name, creds := range map[string]string{"no token": "", "wrong token": wrong} {
		_, err := natsio.Connect(t.Context(), server.URL(), natsio.ConnectOptions{Name: "test", Creds: creds})
		require.ErrorIs(t, err, nats.ErrAuthorization, name)
	}
	require.Equal(t, nats.CONNECTED, connect(t, "", "", server.Options()...).Status(), "connections of this process bring the token")
}

func TestServer_ListenAddresses(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		":4222":           "the host is missing",
		"192.0.2.1:4222":  "choose another --listen", // an address of no machine
		"127.0.0.1":       "want host:port",
		"127.0.0.1:x":     "port must be 0 to 65535",
		"127.0.0.1:65536": "port must be 0 to 65535",
		"127.0.0.1:-1":    "port must be 0 to 65535",
	} {
		data := t.TempDir()
		_, err := embedded.Start(t.Context(), embedded.Options{Data: data, Listen: address})
		require.ErrorContains(t, err, want, address)
		require.ErrorContains(t, err, address)
		start(t, embedded.Options{Data: data}).Close() // the failure left the directory free
	}
	server := start(t, embedded.Options{Data: t.TempDir(), Listen: "localhost:0"})
	require.Equal(t, nats.CONNECTED, connect(t, server.URL(), server.CredentialFile()).Status())
}

func TestServer_PortInUse(t *testing.T) {
	t.Parallel()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, listener.Close()) }()
	data := t.TempDir()
	_, err = embedded.Start(t.Context(), embedded.Options{Data: data, Listen: listener.Addr().String()})
	require.ErrorContains(t, err, "address already in use")
	require.ErrorContains(t, err, listener.Addr().String())
	require.ErrorContains(t, err, "--listen")
	start(t, embedded.Options{Data: data})
}

func TestServer_DataInUseByAnotherProcess(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	other := exec.CommandContext(t.Context(), os.Args[0])
	other.Env = append(os.Environ(), holdData+"="+data)
	input, err := other.StdinPipe()
	require.NoError(t, err)
	output, err := other.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, other.Start())
	line, err := bufio.NewReader(output).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "ready\n", line)

	_, err = embedded.Start(t.Context(), embedded.Options{Data: data})
	require.ErrorContains(t, err, "is in use by another process")
	require.ErrorContains(t, err, "choose another --data, or connect to that process with --nats")
	require.ErrorContains(t, err, data)

	require.NoError(t, input.Close())
	require.NoError(t, other.Wait())
	start(t, embedded.Options{Data: data})
}

func TestServer_DataInUseByThisProcess(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	start(t, embedded.Options{Data: data})
	_, err := embedded.Start(t.Context(), embedded.Options{Data: data})
	require.ErrorContains(t, err, "is in use")
}

func TestServer_DataSurvivesARestart(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	first := start(t, embedded.Options{Data: data})
	js, err := jetstream.New(connect(t, "", "", first.Options()...), patient)
	require.NoError(t, err)
	require.NoError(t, natsio.Ensure(t.Context(), js, natsio.Topology{}))
	ack, err := js.Publish(t.Context(), "tf.event.one", []byte("kept"))
	require.NoError(t, err)
	first.Close()

	second := start(t, embedded.Options{Data: data})
	js, err = jetstream.New(connect(t, "", "", second.Options()...), patient)
	require.NoError(t, err)
	require.NoError(t, natsio.Ensure(t.Context(), js, natsio.Topology{}))
	stream, err := js.Stream(t.Context(), "TF_SESSIONS")
	require.NoError(t, err)
	msg, err := stream.GetMsg(t.Context(), ack.Sequence)
	require.NoError(t, err)
	require.Equal(t, "kept", string(msg.Data))
}

// It counts the process's sockets, so it runs alone.
func TestServer_DoesNotListenUnlessAsked(t *testing.T) { //nolint:paralleltest // see above
	if _, err := os.Stat("/proc/self/net/tcp"); err != nil {
		t.Skip("no /proc: the sockets of this process cannot be counted")
	}
	before := listening(t)
	server := start(t, embedded.Options{Data: t.TempDir()})
	require.Empty(t, server.URL())
	require.Empty(t, server.CredentialFile())
	require.Equal(t, before, listening(t))
	require.Equal(t, nats.CONNECTED, connect(t, "", "", server.Options()...).Status())
	require.Equal(t, before, listening(t))

	start(t, embedded.Options{Data: t.TempDir(), Listen: "127.0.0.1:0"})
	require.Equal(t, before+1, listening(t), "this is how one that listens would look")
}

// listening is how many TCP sockets this process listens on.
func listening(t *testing.T) int {
	t.Helper()
	mine := map[string]bool{}
	descriptors, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	for _, d := range descriptors {
		target, err := os.Readlink("/proc/self/fd/" + d.Name())
		if inode, isSocket := strings.CutPrefix(target, "socket:["); err == nil && isSocket {
			mine[strings.TrimSuffix(inode, "]")] = true
		}
	}
	const stateListen = "0A"
	n := 0
	for _, table := range []string{"/proc/self/net/tcp", "/proc/self/net/tcp6"} {
		content, err := os.ReadFile(table)
		if err != nil {
			continue // no IPv6 here
		}
		for line := range strings.Lines(string(content)) {
			fields := strings.Fields(line)
			if len(fields) > 9 && fields[3] == stateListen && mine[fields[9]] {
				n++
			}
		}
	}
	return n
}

// TestLoadToken_SeveralAtOnce: processes that start together have the token of the file.
func TestLoadToken_SeveralAtOnce(t *testing.T) {
	t.Parallel()
	for range 50 {
		path := filepath.Join(t.TempDir(), "token")
		tokens := make([]string, 8)
		var group sync.WaitGroup
		for i := range tokens {
			group.Go(func() {
				token, err := embedded.LoadToken(path)
				assert.NoError(t, err)
				tokens[i] = token
			})
		}
		group.Wait()
		stored, err := os.ReadFile(path)
		require.NoError(t, err)
		for _, token := range tokens {
			require.Equal(t, strings.TrimSpace(string(stored)), token)
		}
		left, err := os.ReadDir(filepath.Dir(path))
		require.NoError(t, err)
		require.Len(t, left, 1)
	}
}

func TestCluster_KeepsReplicas(t *testing.T) {
	t.Parallel()
	cluster, err := embedded.StartCluster(t.Context(), 3, embedded.Options{Data: t.TempDir()})
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
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
}

// passData makes this test binary a process whose server passes objects on, over a data directory.
const passData = "TEST_PASS_DATA"

// Memory that workspaces took on their way through a server is given back soon after, also by one
// that is idle then.
func TestServer_GivesMemoryBack(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), passData+"="+t.TempDir(), "GOGC=300")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// pass passes 256 MB through a server, and fails when it keeps the memory.
func pass(dir string) {
	ctx := context.Background()
	server, err := embedded.Start(ctx, embedded.Options{Data: dir})
	must(err)
	defer server.Close()
	nc, err := natsio.Connect(ctx, "", natsio.ConnectOptions{Name: "pass", Options: server.Options()})
	must(err)
	defer nc.Close()
	js, err := jetstream.New(nc, patient)
	must(err)
	objects, err := js.CreateObjectStore(ctx, jetstream.ObjectStoreConfig{Bucket: "passed"})
	must(err)
	most := uint64(0)
	for range 4 {
		_, err := objects.Put(ctx, jetstream.ObjectMeta{Name: "workspace"}, io.LimitReader(zeros{}, 64<<20))
		must(err)
		object, err := objects.Get(ctx, "workspace")
		must(err)
		_, err = io.Copy(io.Discard, object)
		must(err)
		must(objects.Delete(ctx, "workspace"))
		most = max(most, held())
	}
	look := time.NewTicker(100 * time.Millisecond)
	for end := time.After(time.Minute); held() > 128<<20; {
		select {
		case <-look.C:
		case <-end:
			must(fmt.Errorf("%d MB are held, of %d at most", held()>>20, most>>20))
		}
	}
	fmt.Printf("%d MB at the end, %d MB at most\n", held()>>20, most>>20)
}

func must(err error) {
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// held is how much memory the runtime of this process has of the system.
func held() uint64 {
	samples := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(samples)
	return samples[0].Value.Uint64() - samples[1].Value.Uint64()
}
