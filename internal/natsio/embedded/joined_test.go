package embedded_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/embedded"
	"github.com/toolfleet/toolfleet/internal/natsio/join"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// joinable is a server as it is on a network, with its tokens.
type joinable struct {
	*embedded.Server

	t     *testing.T
	store join.Store
}

func newJoinable(t *testing.T, o embedded.Options) *joinable {
	t.Helper()
	if o.Data == "" {
		o.Data = t.TempDir()
	}
	o.Listen, o.TLS = "127.0.0.1:0", !o.Plain
	return &joinable{start(t, o), t, join.Store{Dir: o.Data}}
}

// token makes a token.
func (j *joinable) token(e join.Entry) (join.Token, join.Entry) {
	j.t.Helper()
	e.Fleet, e.Pool = protocol.DefaultFleet, protocol.DefaultPool
	added, secret, err := j.store.Add(j.t.Context(), e)
	require.NoError(j.t, err)
	token := join.Token{Addresses: j.Joinable().Addresses, Secret: secret, Role: e.Role, Fleet: e.Fleet, Pool: e.Pool}
	if !j.Joinable().Plain {
		token.Authority, err = join.FingerprintIn(j.store.Dir)
		require.NoError(j.t, err)
	}
	return token, added
}

func joined(ctx context.Context, token join.Token, options ...nats.Option) (*nats.Conn, error) {
	return natsio.Connect(ctx, token.URL(), natsio.ConnectOptions{Name: "test", TLS: natsio.TLS{Authority: token.Authority}, Options: options})
}

func (j *joinable) join(token join.Token, options ...nats.Option) *nats.Conn {
	j.t.Helper()
	nc, err := joined(j.t.Context(), token, options...)
	require.NoError(j.t, err)
	j.t.Cleanup(nc.Close)
	return nc
}

// TestJoin_NoOneWithoutAToken: on a network nothing connects without TLS, nor without a token.
func TestJoin_NoOneWithoutAToken(t *testing.T) {
	t.Parallel()
	j := newJoinable(t, embedded.Options{})
	token, entry := j.token(join.Entry{Role: join.RoleWorker})
	require.Equal(t, nats.CONNECTED, j.join(token).Status())
	for name, change := range map[string]func(*join.Token){
		"no secret":      func(t *join.Token) { t.Secret = "" },
		"its id":         func(t *join.Token) { t.Secret = entry.ID },
		"the digest":     func(t *join.Token) { t.Secret = entry.ID + "." + entry.Digest },
		"another secret": func(t *join.Token) { t.Secret += "x" },
	} {
		other := token
		change(&other)
		_, err := joined(t.Context(), other)
		require.ErrorIs(t, err, nats.ErrAuthorization, name)
	}
	for name, option := range map[string]nats.Option{
		"an nkey": nats.Nkey("UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4", func([]byte) ([]byte, error) { return nil, nil }),
		"a user":  nats.UserInfo("worker", ""),
		"a token": nats.Token("x"),
	} {
		_, err := nats.Connect(j.URL(), nats.Secure(join.Trust(token.Authority)), option)
		require.Error(t, err, name)
	}
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", j.Address())
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	owner, err := os.ReadFile(j.CredentialFile())
	require.NoError(t, err)
	_, err = conn.Write([]byte(`CONNECT {"auth_token":"` + string(bytes.TrimSpace(owner)) + `"}` + "\r\nPING\r\n"))
	require.NoError(t, err)
	said := make([]byte, 1<<16)
	for n := 0; err == nil; n, err = conn.Read(said) {
		require.NotContains(t, string(said[:n]), "PONG", "without TLS")
	}

	_, other := newJoinable(t, embedded.Options{}).token(join.Entry{Role: join.RoleWorker})
	require.NotEqual(t, entry.ID, other.ID)
	strange, _ := newJoinable(t, embedded.Options{}).token(join.Entry{Role: join.RoleWorker})
	strange.Addresses = token.Addresses
	_, err = joined(t.Context(), strange)
	require.ErrorIs(t, err, join.ErrAuthority)
	require.ErrorContains(t, err, "is the token of another fleet")
	strange.Authority = token.Authority
	_, err = joined(t.Context(), strange)
	require.ErrorIs(t, err, nats.ErrAuthorization)

	ca, err := natsio.Connect(t.Context(), j.URL(), natsio.ConnectOptions{Name: "test", Creds: j.CredentialFile(), TLS: natsio.TLS{CA: j.Certificates()}})
	require.NoError(t, err, "commands of this machine")
	ca.Close()
	state := func() (state tls.ConnectionState) {
		state, err := j.join(token).TLSConnectionState()
		require.NoError(t, err)
		return state
	}()
	require.Equal(t, uint16(tls.VersionTLS13), state.Version)
}

// TestJoin_PlainTextNeedsAnOption: which on loopback is the default.
func TestJoin_PlainTextNeedsAnOption(t *testing.T) {
	t.Parallel()
	j := newJoinable(t, embedded.Options{Plain: true})
	token, _ := j.token(join.Entry{Role: join.RoleWorker})
	require.True(t, j.Joinable().Plain)
	require.Equal(t, nats.CONNECTED, j.join(token).Status())
	require.False(t, j.IsJoined())
	require.Empty(t, j.Certificates())
	require.True(t, newJoinable(t, embedded.Options{}).IsJoined())
}

// closed returns what notes that a connection was lost.
func closed() (nats.Option, <-chan struct{}) {
	lost := make(chan struct{})
	var once sync.Once
	return nats.DisconnectErrHandler(func(*nats.Conn, error) { once.Do(func() { close(lost) }) }), lost
}

func wait(t *testing.T, lost <-chan struct{}) {
	t.Helper()
	select {
	case <-lost:
	case <-time.After(time.Minute):
		require.Fail(t, "the connection stays")
	}
}

// TestJoin_RemovedTokensAreClosed: within a moment, and they cannot come back; others stay.
func TestJoin_RemovedTokensAreClosed(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	j := newJoinable(t, embedded.Options{Data: data})
	token, entry := j.token(join.Entry{Role: join.RoleWorker})
	full, _ := j.token(join.Entry{Role: join.RoleCoordinator})
	option, lost := closed()
	worker, other := j.join(token, option), j.join(full)
	require.NoError(t, j.store.Remove(t.Context(), entry.ID))
	wait(t, lost)
	require.NotEqual(t, nats.CONNECTED, worker.Status())
	_, err := joined(t.Context(), token)
	require.ErrorIs(t, err, nats.ErrAuthorization)
	require.ErrorContains(t, err, "a join token may have expired or been removed")
	require.NoError(t, other.FlushTimeout(time.Minute))

	j.Close()
	j = newJoinable(t, embedded.Options{Data: data})
	full.Addresses, token.Addresses = j.Joinable().Addresses, j.Joinable().Addresses
	require.Equal(t, nats.CONNECTED, j.join(full).Status(), "its authority and its tokens are kept")
	_, err = joined(t.Context(), token)
	require.ErrorIs(t, err, nats.ErrAuthorization)
}

// TestJoin_RemovedTokensAreClosedIfAnotherClientComes: the list is read again for a client that has
// no token, and not for the connections of a removed one alone.
func TestJoin_RemovedTokensAreClosedIfAnotherClientComes(t *testing.T) {
	t.Parallel()
	j := newJoinable(t, embedded.Options{})
	for range 3 {
		token, entry := j.token(join.Entry{Role: join.RoleWorker})
		stranger := token
		stranger.Secret = "stranger.secret"
		option, lost := closed()
		j.join(token, option)
		require.NoError(t, j.store.Remove(t.Context(), entry.ID))
		_, err := joined(t.Context(), stranger)
		require.ErrorIs(t, err, nats.ErrAuthorization)
		wait(t, lost)
	}
}

// TestJoin_TokensExpire: with their connections.
func TestJoin_TokensExpire(t *testing.T) {
	t.Parallel()
	j := newJoinable(t, embedded.Options{})
	token, entry := j.token(join.Entry{Role: join.RoleWorker, Expires: time.Now().Add(5 * time.Second)})
	option, lost := closed()
	nc, err := joined(t.Context(), token, option)
	if err == nil { // a busy machine is slower
		defer nc.Close()
		wait(t, lost)
	}
	require.False(t, time.Now().Before(entry.Expires))
	_, err = joined(t.Context(), token)
	require.ErrorIs(t, err, nats.ErrAuthorization)
}

// TestJoin_APoolHasAnAccountOfItsOwn: with streams of its own, which are kept over restarts.
// Coordinators reach it by the token of the pool, or by their own; a worker gets no more by its
// name.
func TestJoin_APoolHasAnAccountOfItsOwn(t *testing.T) {
	t.Parallel()
	const gpu, fleet = "gpu", protocol.DefaultFleet
	data := t.TempDir()
	j := newJoinable(t, embedded.Options{Data: data})
	full, entry := j.token(join.Entry{Role: join.RoleCoordinator})
	worker, _ := j.token(join.Entry{Role: join.RoleWorker})
	dial := func(url string, options ...nats.Option) (*nats.Conn, error) {
		return natsio.Connect(t.Context(), url, natsio.ConnectOptions{Name: "test", TLS: natsio.TLS{Authority: full.Authority}, Options: options})
	}
	_, err := dial(full.PoolURL(gpu))
	require.ErrorIs(t, err, nats.ErrAuthorization, "there is none yet")
	_, err = embedded.LoadToken(embedded.PoolTokenFile(data, fleet, gpu))
	require.NoError(t, err)
	for _, strange := range []protocol.Pool{"other", "../x", ""} {
		_, err = dial(full.PoolURL(strange))
		require.ErrorIs(t, err, nats.ErrAuthorization, strange)
	}
	option, lost := closed()
	nc, err := dial(full.PoolURL(gpu), option)
	require.NoError(t, err)
	defer nc.Close()
	stored := func(nc *nats.Conn) (uint64, error) {
		js, err := jetstream.New(nc)
		require.NoError(t, err)
		stream, err := js.Stream(t.Context(), "S")
		if err != nil {
			return 0, err
		}
		return stream.CachedInfo().State.Msgs, nil
	}
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}})
	require.NoError(t, err)
	_, err = js.Publish(t.Context(), "s", nil)
	require.NoError(t, err)
	_, err = stored(j.join(full))
	require.ErrorIs(t, err, jetstream.ErrStreamNotFound, "the account of the fleet is another one")
	named, err := dial(worker.PoolURL(gpu))
	require.NoError(t, err)
	defer named.Close()
	require.NoError(t, named.Publish("$JS.API.STREAM.INFO.S", nil))
	require.NoError(t, named.Publish("$JS.API.STREAM.DELETE.S", nil))
	require.NoError(t, named.FlushTimeout(time.Minute))
	require.ErrorIs(t, named.LastError(), nats.ErrPermissionViolation)
	require.NoError(t, j.store.Remove(t.Context(), entry.ID))
	wait(t, lost)

	_, _, err = j.store.Add(t.Context(), join.Entry{Role: join.RoleWorker, Fleet: fleet, Pool: "early"})
	require.NoError(t, err)
	j.Close()
	j = newJoinable(t, embedded.Options{Data: data})
	pools, err := j.OwnPools(fleet)
	require.NoError(t, err)
	require.Equal(t, []protocol.Pool{"early", gpu}, pools)
	options, err := j.PoolOptions(fleet, gpu)
	require.NoError(t, err)
	again, err := dial("", options...)
	require.NoError(t, err)
	defer again.Close()
	n, err := stored(again)
	require.NoError(t, err)
	require.EqualValues(t, 1, n)
}

// TestJoin_ShowsWhoIsThere: when a process with a token was connected last.
func TestJoin_ShowsWhoIsThere(t *testing.T) {
	t.Parallel()
	j := newJoinable(t, embedded.Options{})
	used, entry := j.token(join.Entry{Role: join.RoleWorker})
	j.token(join.Entry{Role: join.RoleWorker})
	j.join(used)
	require.Eventually(t, func() bool {
		seen, err := j.store.Seen()
		return err == nil && len(seen) == 1 && time.Since(seen[entry.ID]) < time.Minute
	}, time.Minute, 10*time.Millisecond)
	require.NoError(t, j.store.Remove(t.Context(), entry.ID))
}

// TestJoin_AListThatCannotBeReadChangesNothing: nothing joins by it, and nothing is closed.
func TestJoin_AListThatCannotBeReadChangesNothing(t *testing.T) {
	t.Parallel()
	log := &safe{}
	data := t.TempDir()
	j := newJoinable(t, embedded.Options{Data: data, Logger: slog.New(slog.NewTextHandler(log, nil))})
	token, _ := j.token(join.Entry{Role: join.RoleWorker})
	nc := j.join(token)
	require.NoError(t, os.WriteFile(j.store.File(), []byte("{"), 0o600))
	require.Eventually(t, func() bool { return bytes.Contains(log.bytes(), []byte("the last one stays")) }, time.Minute, 10*time.Millisecond)
	require.NoError(t, nc.FlushTimeout(time.Minute))
	j.join(token)
	j.Close()
	_, err := embedded.Start(t.Context(), embedded.Options{Data: data, Listen: "127.0.0.1:0"})
	require.ErrorContains(t, err, j.store.File())
}

type safe struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *safe) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *safe) bytes() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return bytes.Clone(s.text.Bytes())
}
