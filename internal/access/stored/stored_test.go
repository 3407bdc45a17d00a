package stored_test

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/toolfleet/toolfleet/internal/access"
	"github.com/toolfleet/toolfleet/internal/access/stored"
	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/internal/wire/signing"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// generous is what a busy machine meets.
const generous = 20 * time.Second

// watch starts a server that knows the tokens of a fleet.
func watch(t *testing.T, store stored.Store, logger *slog.Logger) *stored.Watch {
	t.Helper()
	w := stored.NewWatch(store, logger)
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { w.Run(ctx) })
	t.Cleanup(func() { stop(); running.Wait() })
	require.Eventually(t, func() bool {
		_, err := w.Verify(t.Context(), "unknown")
		return err == access.ErrUnknown //nolint:errorlint // and not that the tokens are not read yet
	}, generous, time.Millisecond)
	return w
}

// Law: a token lets in at every server of the fleet within a second, until it is removed: then what
// it has opened ends.
func TestTokens_LetInAndEndAtEveryServer(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	store := stored.Store{JS: f.JS, Fleet: "tf"}
	js, err := jetstream.New(f.Connect())
	require.NoError(t, err)
	servers := []*stored.Watch{watch(t, store, slog.New(slog.DiscardHandler)), watch(t, stored.Store{JS: js, Fleet: "tf"}, slog.New(slog.DiscardHandler))}
	_, err = stored.NewWatch(store, nil).Verify(t.Context(), "any")
	require.Error(t, err)
	require.NotErrorIs(t, err, access.ErrUnknown, "before the tokens are read none is known to be wrong")

	made, secret, err := store.Add(t.Context(), stored.Token{Name: "ann", Role: "run", Tenant: "acme"})
	require.NoError(t, err)
	require.InDelta(t, stored.DefaultAge, time.Until(made.Expires), float64(time.Minute))
	again, other, err := store.Add(t.Context(), stored.Token{Name: "ann", Role: "run", Tenant: "acme"})
	require.NoError(t, err, "a new token of a client, before its old one is removed")
	require.NotEqual(t, secret, other)
	grants := make([]access.Grant, len(servers))
	for i, server := range servers {
		require.Eventually(t, func() (known bool) {
			grants[i], err = server.Verify(t.Context(), secret)
			return err == nil
		}, generous, time.Millisecond)
		require.Equal(t,
			judge.Principal{Known: judge.ByToken, Name: "ann", Role: judge.RoleRun, Tenant: "acme", Expires: made.Expires, Token: access.OfFleet + made.ID},
			grants[i].Principal)
		_, err = server.Verify(t.Context(), secret[:len(secret)-1])
		require.ErrorIs(t, err, access.ErrUnknown)
	}
	list, err := store.List(t.Context())
	require.NoError(t, err)
	require.Equal(t, []stored.Token{made, again}, list)
	bucket, err := f.JS.KeyValue(t.Context(), wire.PlacesBucket("tf"))
	require.NoError(t, err)
	record, err := bucket.Get(t.Context(), wire.TokensKey)
	require.NoError(t, err)
	require.NotContains(t, string(record.Value()), secret)

	require.ErrorIs(t, store.Remove(t.Context(), made.ID, "none"), codes.ErrNotFound)
	require.NoError(t, grants[0].Live.Err(), "nothing was removed")
	require.NoError(t, store.Remove(t.Context(), made.ID))
	for i, server := range servers {
		ctx, end := grants[i].Until(t.Context())
		defer end()
		select {
		case <-ctx.Done():
			require.ErrorIs(t, context.Cause(ctx), access.ErrUnknown)
		case <-time.After(generous):
			t.Fatal("a request with a removed token does not end")
		}
		_, err = server.Verify(t.Context(), secret)
		require.ErrorIs(t, err, access.ErrUnknown)
		_, err = server.Verify(t.Context(), other)
		require.NoError(t, err, "the other token of the client stays")
	}
	require.NoError(t, bucket.Delete(t.Context(), wire.TokensKey))
	require.Eventually(t, func() bool {
		_, err := servers[0].Verify(t.Context(), other)
		return err != nil
	}, generous, time.Millisecond, "a record that is gone lets no client in")
}

// Who may make, see and remove tokens: the fleet's operator all, a tenant's operator sees and
// removes those of its tenant, and others nothing.
func TestTokens_AreOfTheOperator(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	store := stored.Store{JS: f.JS, Fleet: "tf"}
	as := func(role judge.Role) context.Context {
		return judge.With(t.Context(), judge.Principal{Known: judge.ByToken, Name: "ann", Role: role, Tenant: "acme"})
	}
	acme, _, err := store.Add(t.Context(), stored.Token{Name: "a", Role: "run", Tenant: "acme"})
	require.NoError(t, err)
	usual, _, err := store.Add(t.Context(), stored.Token{Name: "d", Role: "read"})
	require.NoError(t, err)
	require.EqualValues(t, "default", usual.Tenant)
	for _, role := range judge.Roles() {
		_, _, err := store.Add(as(role), stored.Token{Name: "a", Role: "read", Tenant: "acme"})
		require.ErrorIs(t, err, judge.ErrRefused, "a token of role %s makes none, also of its own tenant", role)
		if role != judge.RoleOperate {
			_, err = store.List(as(role))
			require.ErrorIs(t, err, judge.ErrRefused)
			require.ErrorIs(t, store.Remove(as(role), acme.ID), judge.ErrRefused)
		}
	}
	late := judge.With(t.Context(), judge.Principal{Name: "owner", Role: judge.RoleOperate, Expires: time.Now()})
	_, _, err = store.Add(late, stored.Token{Name: "a", Role: "read"})
	require.ErrorIs(t, err, judge.ErrRefused)
	_, err = store.List(late)
	require.ErrorIs(t, err, judge.ErrRefused)
	require.ErrorIs(t, store.Remove(late, acme.ID), judge.ErrRefused)
	list, err := store.List(as(judge.RoleOperate))
	require.NoError(t, err)
	require.Equal(t, []stored.Token{acme}, list)
	require.ErrorIs(t, store.Remove(as(judge.RoleOperate), acme.ID, usual.ID), judge.ErrRefused)
	require.NoError(t, store.Remove(as(judge.RoleOperate), acme.ID))
	list, err = store.List(t.Context())
	require.NoError(t, err)
	require.Equal(t, []stored.Token{usual}, list)
}

func TestTokens_AreBounded(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	store := stored.Store{JS: f.JS, Fleet: "tf"}
	for text, token := range map[string]stored.Token{
		"role \"admin\": must be":       {Name: "a", Role: "admin"},
		"tenant":                        {Name: "a", Role: "run", Tenant: "no tenant"},
		"name \"\": must have 1 to 256": {Role: "run"},
		"name \"a b\": must have":       {Name: "a b", Role: "run"},
		"name \"oidc:a\": must have no": {Name: "oidc:a", Role: "run"},
		"must be in the future":         {Name: "a", Role: "run", Expires: time.Now().Add(-time.Second)},
		"and at most 366 days from now": {Name: "a", Role: "run", Expires: time.Now().Add(stored.MaxAge + time.Minute)},
	} {
		_, _, err := store.Add(t.Context(), token)
		require.ErrorIs(t, err, codes.ErrInvalid)
		require.ErrorContains(t, err, text)
	}
	entries := make([]map[string]any, stored.MaxTokens-1)
	for i := range entries {
		entries[i] = map[string]any{
			"id": "x", "name": strings.Repeat("n", 100), "role": "run", "tenant": "acme",
			"sha256": strings.Repeat("0", 64), "expires": time.Now().Add(time.Hour),
		}
	}
	body, err := json.Marshal(map[string]any{"type": "tokens", "version": wire.Version, "tokens": entries})
	require.NoError(t, err)
	bucket, err := f.JS.KeyValue(t.Context(), wire.PlacesBucket("tf"))
	require.NoError(t, err)
	_, err = bucket.Put(t.Context(), wire.TokensKey, body)
	require.NoError(t, err)
	_, _, err = store.Add(t.Context(), stored.Token{Name: "a", Role: "run", Expires: time.Now().Add(3 * time.Second)})
	require.NoError(t, err)
	_, _, err = store.Add(t.Context(), stored.Token{Name: "b", Role: "run"})
	require.ErrorContains(t, err, "has 1000 tokens, as many as it may have")
	require.Eventually(t, func() bool {
		_, _, err := store.Add(t.Context(), stored.Token{Name: "b", Role: "run"})
		return err == nil
	}, generous, 100*time.Millisecond, "one that has expired leaves room")
}

// Where calls are signed, writing to the fleet's store lets no client in.
func TestTokens_AreSigned(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	own, err := signing.Make(t.TempDir())
	require.NoError(t, err)
	other, err := signing.Make(t.TempDir())
	require.NoError(t, err)
	var log bytes.Buffer
	server := watch(t, stored.Store{JS: f.JS, Fleet: "tf", Signer: own}, slog.New(slog.NewTextHandler(&log, nil)))
	_, good, err := stored.Store{JS: f.JS, Fleet: "tf", Signer: own}.Add(t.Context(), stored.Token{Name: "good", Role: "read"})
	require.NoError(t, err)
	var bad []string
	for _, signer := range []*signing.Signer{nil, other} {
		_, secret, err := stored.Store{JS: f.JS, Fleet: "tf", Signer: signer}.Add(t.Context(), stored.Token{Name: "bad", Role: "operate"})
		require.NoError(t, err)
		bad = append(bad, secret)
	}
	_, last, err := stored.Store{JS: f.JS, Fleet: "tf", Signer: own}.Add(t.Context(), stored.Token{Name: "last", Role: "read"})
	require.NoError(t, err)
	verifies := func(secret string) bool { _, err := server.Verify(t.Context(), secret); return err == nil }
	require.Eventually(t, func() bool { return verifies(last) }, generous, time.Millisecond)
	require.True(t, verifies(good))
	for _, secret := range bad {
		require.False(t, verifies(secret))
	}
	bucket, err := f.JS.KeyValue(t.Context(), wire.PlacesBucket("tf"))
	require.NoError(t, err)
	record, err := bucket.Get(t.Context(), wire.TokensKey)
	require.NoError(t, err)
	_, err = bucket.Put(t.Context(), wire.TokensKey, bytes.ReplaceAll(record.Value(), []byte(`"role":"read"`), []byte(`"role":"operate"`)))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return !verifies(last) && !verifies(good) }, generous, time.Millisecond, "the role is signed")
}

// An approval for a session counts as long as the token of its giver does.
func TestTokens_StandForWhatTheirClientsApproved(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	store := stored.Store{JS: f.JS, Fleet: "tf"}
	made, _, err := store.Add(t.Context(), stored.Token{Name: "ann", Role: "operate", Tenant: "acme"})
	require.NoError(t, err)
	short, _, err := store.Add(t.Context(), stored.Token{Name: "eve", Role: "operate", Tenant: "acme", Expires: time.Now().Add(2 * time.Second)})
	require.NoError(t, err)
	giver := protocol.Giver{Token: access.OfFleet + made.ID, Until: made.Expires}
	stands := func(token string) bool {
		return store.GiverValid(t.Context(), protocol.Giver{Token: token}, func(file string) bool { return file == access.OfFile+"1" })
	}
	require.True(t, store.GiverValid(t.Context(), giver, nil))
	require.True(t, stands(access.OfFile+"1"))
	for _, token := range []string{"", access.OfFleet, access.OfFleet + "other", made.ID, access.OfFile + "2", access.OfIssuer} {
		require.False(t, stands(token), token)
	}
	require.True(t, store.GiverValid(t.Context(), protocol.Giver{Token: access.OfIssuer, Until: time.Now().Add(time.Hour)}, nil), "it is known when it expires")
	require.Eventually(t, func() bool { return !stands(access.OfFleet + short.ID) }, generous, 10*time.Millisecond, "it expired")
	require.NoError(t, store.Remove(t.Context(), made.ID))
	require.False(t, store.GiverValid(t.Context(), giver, nil), "it was removed")
	signer, err := signing.Make(t.TempDir())
	require.NoError(t, err)
	require.False(t, stored.Store{JS: f.JS, Fleet: "tf", Signer: signer}.GiverValid(t.Context(), protocol.Giver{Token: access.OfFleet + short.ID}, nil), "not signed")
}
