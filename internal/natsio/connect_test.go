package natsio_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/embedded"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/wire"
)

// A server that is closed while it makes a stream leaves the file store of that stream open.
func TestMain(m *testing.M) {
	const server = "github.com/nats-io/nats-server/v2/server"
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction(server+".(*fileStore).flushStreamStateLoop"), goleak.IgnoreTopFunction(server+"/ats.Register.func1"))
}

// listen starts a server that other processes could reach.
func listen(t *testing.T, data, address string) *embedded.Server {
	t.Helper()
	server, err := embedded.Start(t.Context(), embedded.Options{Data: data, Listen: address})
	require.NoError(t, err)
	t.Cleanup(server.Close)
	return server
}

func write(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "creds")
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

func TestConnect_ErrorsNameTheURLAndNoSecret(t *testing.T) {
	t.Parallel()
	const address, secret = "127.0.0.1:1", "s3cret" // nobody listens there
	for name, test := range map[string]struct{ url, want string }{
		"nobody listens":             {"nats://" + address, address},
		"user and password":          {"nats://bob:" + secret + "@" + address, address},
		"token":                      {"nats://" + secret + "@" + address, address},
		"several servers":            {"nats://bob:" + secret + "@" + address + ", nats://" + secret + "@" + address, address},
		"nothing":                    {"", "not a server URL"},
		"nothing but commas":         {" ,", "not a server URL"},
		"another scheme":             {"http://" + address, "http://" + address + "\": not a server URL, which is nats://"},
		"not a URL":                  {"nats://bob:" + secret + "@bad host:4222", "bad host:4222"},
		"password with bad escape":   {"nats://bob:" + secret + "%zz@" + address, address},
		"password with a comma":      {"nats://bob:" + secret + ",x@" + address, address},
		"password with an at sign":   {"bob:" + secret + "@" + secret + "@" + address + "/%zz", address},
		"port that is not a number":  {"nats://127.0.0.1:" + secret, "not a server URL"},
		"nothing but a control byte": {"nats://" + secret + "\x7f@" + address, address},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			nc, err := natsio.Connect(t.Context(), test.url, natsio.ConnectOptions{Name: "test"})
			require.ErrorContains(t, err, test.want)
			require.NotContains(t, err.Error(), secret)
			require.Nil(t, nc)
		})
	}
}

// A server that says nothing keeps nobody from giving up; a connection that is there stays.
func TestConnect_EndsWithItsContext(t *testing.T) {
	t.Parallel()
	silent, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, silent.Close()) })
	server := listen(t, t.TempDir(), "127.0.0.1:0")
	ctx, cancel := context.WithCancel(t.Context())
	nc, err := natsio.Connect(ctx, server.URL(), natsio.ConnectOptions{Name: "test", Creds: server.CredentialFile()})
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	accepted := make(chan net.Conn, 2) // one a server
	go func() {
		for range 2 {
			conn, err := silent.Accept()
			if err != nil {
				break
			}
			accepted <- conn
			cancel()
		}
	}()
	url := "nats://" + silent.Addr().String()
	_, err = natsio.Connect(ctx, url+","+url, natsio.ConnectOptions{Name: "test"})
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, (<-accepted).Close())
	require.NoError(t, nc.Flush())
	require.Equal(t, nats.CONNECTED, nc.Status())
}

func TestConnect_CredentialFiles(t *testing.T) {
	t.Parallel()
	server := listen(t, t.TempDir(), "127.0.0.1:0")
	token, err := os.ReadFile(server.CredentialFile())
	require.NoError(t, err)
	const jwt = "-----BEGIN NATS USER JWT-----\nnot.a.jwt\n------END NATS USER JWT------\n"
	for name, test := range map[string]struct{ file, want string }{
		"the server's own":    {server.CredentialFile(), ""},
		"token with spaces":   {write(t, "\n  "+string(token)+"\n\n"), ""},
		"another token":       {write(t, "wrong"), "Authorization Violation"},
		"no credentials":      {"", "Authorization Violation"},
		"JWT without a seed":  {write(t, jwt), "connect to NATS"},
		"several words":       {write(t, "a b"), "neither a NATS credentials file nor a single token"},
		"nothing in the file": {write(t, " \n"), "neither a NATS credentials file nor a single token"},
		"no file":             {filepath.Join(t.TempDir(), "missing"), "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			nc, err := natsio.Connect(t.Context(), server.URL(), natsio.ConnectOptions{Name: "test", Creds: test.file})
			if test.want == "" {
				require.NoError(t, err)
				nc.Close()
				return
			}
			require.ErrorContains(t, err, test.want)
			require.NotContains(t, err.Error(), strings.TrimSpace(string(token)))
			if strings.Contains(test.want, "Authorization") {
				require.ErrorContains(t, err, server.URL())
			}
		})
	}
}

// A server that refuses a process does so until its credentials are right again, here those in the
// file.
func TestConnect_GoesOnWhenCredentialsAreRenewed(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	server := listen(t, data, "127.0.0.1:0")
	token, err := os.ReadFile(server.CredentialFile())
	require.NoError(t, err)
	file := write(t, string(token))
	refused := make(chan struct{}, 16)
	nc, err := natsio.Connect(t.Context(), server.URL(), natsio.ConnectOptions{Name: "test", Creds: file, Options: []nats.Option{
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			if errors.Is(err, nats.ErrAuthorization) {
				refused <- struct{}{}
			}
		}),
	}})
	require.NoError(t, err)
	defer nc.Close()
	up := nc.StatusChanged(nats.CONNECTED)

	server.Close()
	require.NoError(t, os.WriteFile(server.CredentialFile(), []byte("renewed"), 0o600))
	listen(t, data, strings.TrimPrefix(server.URL(), "nats://"))
	for range 3 {
		<-refused
	}
	require.NoError(t, os.WriteFile(file, []byte("renewed\n"), 0o600))
	<-up
	require.NoError(t, nc.Publish("greetings", nil))
}

func TestRedact(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"":                                       "",
		"nats://127.0.0.1:4222":                  "nats://127.0.0.1:4222",
		"localhost":                              "localhost",
		"tls://u:p@host:4222":                    "tls://xxxxx@host:4222",
		"nats://token@host":                      "nats://xxxxx@host",
		"token@host:4222":                        "xxxxx@host:4222",
		"u:p@host:4222":                          "xxxxx@host:4222",
		"nats://u:p@ss@host:4222":                "nats://xxxxx@host:4222",
		"nats://a:4222 , nats://u:p@b:4222,c":    "nats://a:4222,nats://xxxxx@b:4222,c",
		"nats://u:%zz@host":                      "nats://xxxxx@host",
		"nats://u:pa,ss@host:4222":               "xxxxx,xxxxx@host:4222",
		"nats://[::1]:4222":                      "nats://[::1]:4222",
		"wss://host:443/path":                    "wss://host:443/path",
		"nats://user:secret":                     "xxxxx",
		"nats://u:p@h1:1,nats://u:p@h2:2,h3:444": "nats://xxxxx@h1:1,nats://xxxxx@h2:2,h3:444",
	} {
		got := natsio.Redact(in)
		require.Equal(t, want, got, "of %q", in)
		require.Equal(t, got, natsio.Redact(got), "again, of %q", in)
	}
}

// lines passes on what is logged, a line at a time.
type lines struct{ news chan string }

func (w *lines) Write(line []byte) (int, error) {
	w.news <- string(line)
	return len(line), nil
}

func TestConnect_ReconnectsForEverAndBuffersNothing(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	server := listen(t, data, "127.0.0.1:0")
	log := &lines{news: make(chan string, 16)}
	logger := slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelWarn})) // as processes log by default
	nc, err := natsio.Connect(t.Context(), server.URL(), natsio.ConnectOptions{Name: "test", Creds: server.CredentialFile(), Logger: logger})
	require.NoError(t, err)
	defer nc.Close()
	subscription, err := nc.SubscribeSync("greetings")
	require.NoError(t, err)
	down, up := nc.StatusChanged(nats.RECONNECTING), nc.StatusChanged(nats.CONNECTED)

	server.Close()
	<-down
	require.ErrorIs(t, nc.Publish("greetings", []byte("lost")), nats.ErrReconnectBufExceeded)
	require.Contains(t, <-log.news, "nats connection lost")

	listen(t, data, strings.TrimPrefix(server.URL(), "nats://"))
	<-up
	require.Contains(t, <-log.news, "nats connection is back")
	require.NoError(t, nc.Publish("greetings", []byte("kept")))
	msg, err := subscription.NextMsg(time.Minute)
	require.NoError(t, err)
	require.Equal(t, "kept", string(msg.Data))
}

// TestConnect_TakesContextsOfTheNatsTool from where that tool keeps them.
func TestConnect_TakesContextsOfTheNatsTool(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", dir)
	server := natsiotest.Serve(t, "listen: \"127.0.0.1:-1\"")
	require.True(t, server.ReadyForConnections(10*time.Second))
	content, err := json.Marshal(map[string]string{"url": server.ClientURL()})
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "nats", "context"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "nats", "context", "my fleet.json"), content, 0o600))
	nc, err := natsio.Connect(t.Context(), natsio.ContextScheme+"my fleet", natsio.ConnectOptions{Name: "test"})
	require.NoError(t, err)
	defer nc.Close()
	require.Equal(t, server.ClientURL(), nc.ConnectedUrl())
	require.Equal(t, "test", nc.Opts.Name)
	require.NotNil(t, nc.Opts.CustomDialer, "what a lost holder has not sent yet must not arrive later")
	_, err = natsio.Connect(t.Context(), natsio.ContextScheme+"other", natsio.ConnectOptions{})
	require.ErrorContains(t, err, `connect to NATS at nats-context://other: unknown context "other"`)
}

// Nothing is kept for a connection that is lost, so nobody waits for it to come back: not for an
// hour.
func TestFlush_LostConnection(t *testing.T) {
	t.Parallel()
	f := natsiotest.Listening(t, natsio.Topology{})
	nc, link := f.ConnectVia()
	require.NoError(t, natsio.Flush(t.Context(), nc, time.Hour))
	lost := nc.StatusChanged(nats.RECONNECTING)
	link.Cut()
	<-lost
	require.ErrorIs(t, natsio.Flush(t.Context(), nc, time.Hour), nats.ErrDisconnected)
	nc.Close()
	require.ErrorIs(t, natsio.Flush(t.Context(), nc, time.Hour), nats.ErrDisconnected)
}

// dated is a way to a server that says another version, as long as its own.
type dated struct{ version string }

func (d dated) Dial(network, address string) (net.Conn, error) {
	conn, err := net.DialTimeout(network, address, time.Minute) //nolint:noctx // the interface passes no context
	return &datedConn{conn, d.version}, err
}

type datedConn struct {
	net.Conn

	version string
}

func (c *datedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	copy(p, bytes.Replace(p[:n], []byte(`"version":"`+server.VERSION), []byte(`"version":"`+c.version), 1))
	return n, err
}

func TestEnsure_RefusesServersThatAreTooOld(t *testing.T) {
	t.Parallel()
	f := natsiotest.Listening(t, natsio.Topology{})
	for version, taken := range map[string]bool{
		"2.9.": false, "2.11.": false, "1.99.": false, "2.12.": true, "3.0.": true, "later": true,
	} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			version += strings.Repeat("9", len(server.VERSION)-len(version))
			nc, err := natsio.Connect(t.Context(), f.Server.URL(), natsio.ConnectOptions{
				Creds: f.Server.CredentialFile(), Options: []nats.Option{nats.SetCustomDialer(dated{version})},
			})
			require.NoError(t, err)
			t.Cleanup(nc.Close)
			require.Equal(t, version, nc.ConnectedServerVersion())
			js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(time.Minute))
			require.NoError(t, err)
			ensured, checked := natsio.Ensure(t.Context(), js, natsio.Topology{}), natsio.Check(t.Context(), js, natsio.Topology{})
			if taken {
				require.NoError(t, ensured)
				require.NoError(t, checked)
				return
			}
			require.ErrorIs(t, ensured, natsio.ErrServer)
			require.ErrorIs(t, checked, natsio.ErrServer)
			require.ErrorContains(t, checked, "it is version "+version+", must be 2.12 or later")
		})
	}
}

func TestEnsure_SaysThatTheServerRunsWithoutJetStream(t *testing.T) {
	t.Parallel()
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, NoSigs: true, NoLog: true})
	require.NoError(t, err)
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	require.True(t, s.ReadyForConnections(time.Minute))
	nc, err := natsio.Connect(t.Context(), s.ClientURL(), natsio.ConnectOptions{})
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(time.Minute))
	require.NoError(t, err)
	for _, err := range []error{natsio.Ensure(t.Context(), js, natsio.Topology{}), natsio.Check(t.Context(), js, natsio.Topology{})} {
		require.ErrorContains(t, err, "the server must run with JetStream (nats-server -js)")
	}
}

// silent answers nothing until some time has passed.
func silent(until time.Time, err error) func(context.Context, string) (string, error) {
	return func(ctx context.Context, name string) (string, error) {
		if time.Now().Before(until) {
			<-ctx.Done()
			return "", ctx.Err()
		}
		return name, err
	}
}

func TestOpen_AsksAgainWhileNobodyAnswers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		got, err := natsio.Open(t.Context(), silent(time.Now().Add(12*time.Second), nil), "it")
		require.NoError(t, err)
		require.Equal(t, "it", got)
	})
}

func TestOpen_EndsWithItsContextWithPatienceOrWithAnAnswer(t *testing.T) {
	t.Parallel()
	refused := errors.New("refused")
	for name, c := range map[string]struct {
		silence, limit, took time.Duration
		answer, want         error
	}{
		"context":  {silence: time.Hour, limit: 7 * time.Second, took: 7 * time.Second, want: context.DeadlineExceeded},
		"patience": {silence: time.Hour, limit: time.Hour, took: 30 * time.Second, want: context.DeadlineExceeded},
		"answer":   {limit: time.Hour, answer: refused, want: refused},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), c.limit)
				defer cancel()
				_, err := natsio.Open(ctx, silent(began.Add(c.silence), c.answer), "it")
				require.ErrorIs(t, err, c.want)
				require.Equal(t, c.took, time.Since(began))
			})
		})
	}
}

// A list waits while a cluster has no leader.
func TestEachLast_WaitsForALeader(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	require.NoError(t, f.NC.Publish(wire.EventSubject(f.Name, "s"), []byte("[]")))
	nc, link := f.ConnectVia()
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	stream := mustStream(t, js, wire.SessionsStream(f.Name))
	refused := 0
	link.OnWrite(func(subject string) natsiotest.Fate {
		if !strings.HasPrefix(subject, "$JS.API.CONSUMER.CREATE.") || strings.Contains(subject, "rights") || refused == 2 {
			return natsiotest.Passes
		}
		refused++
		return natsiotest.Refused
	})
	told := 0
	require.NoError(t, natsio.EachLast(t.Context(), js, stream, wire.SessionsSubjects(f.Name), true, func(jetstream.Msg) error {
		told++
		return nil
	}))
	require.Equal(t, []int{2, 1}, []int{refused, told})
}
