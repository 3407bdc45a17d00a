package browsers_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/toolfleet/toolfleet/internal/access"
	"github.com/toolfleet/toolfleet/internal/access/browsers"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const token = "token-of-the-operator"

// book opens the book of a fleet, as a server does.
func book(t *testing.T, f *natsiotest.Fleet) *browsers.Book {
	t.Helper()
	b, err := browsers.Open(t.Context(), f.JS, f.Name, slog.New(slog.NewTextHandler(t.Output(), nil)))
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { b.Run(ctx) })
	t.Cleanup(func() { stop(); running.Wait() })
	return b
}

func request() *http.Request {
	return httptest.NewRequestWithContext(context.Background(), http.MethodGet, "/ui/", http.NoBody)
}

// A browser stays signed in when its server ends and another one takes over, and is signed out at
// each of them, with each copy of its cookie.
func TestBook_IsThatOfTheFleet(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	first := book(t, f)
	cookie, err := first.SignIn(request(), token)
	require.NoError(t, err)
	require.NotContains(t, cookie, token)
	other, err := first.SignIn(request(), token)
	require.NoError(t, err)
	require.NotEqual(t, cookie, other)
	second := book(t, f) // of another process, or of this one after kill -9
	s, err := second.Open(request(), cookie)
	require.NoError(t, err)
	require.Equal(t, token, s.Bearer)
	require.WithinDuration(t, time.Now().Add(browsers.Life), s.Until, time.Minute)

	ctx, end := first.Until(t.Context(), s)
	defer end()
	require.NoError(t, second.SignOut(t.Context(), s))
	_, err = second.Open(request(), cookie)
	require.ErrorIs(t, err, access.ErrUnknown, "at once where it signed out")
	select { // a stream, at another server
	case <-ctx.Done():
		require.ErrorIs(t, context.Cause(ctx), access.ErrUnknown)
	case <-time.After(time.Minute):
		require.Fail(t, "the stream of a browser that signed out continues")
	}
	_, err = first.Open(request(), cookie)
	require.ErrorIs(t, err, access.ErrUnknown)
	_, err = book(t, f).Open(request(), cookie)
	require.ErrorIs(t, err, access.ErrUnknown, "also after a start")
	_, err = first.Open(request(), other)
	require.NoError(t, err, "another browser of the same token stays")

	bucket, err := f.JS.KeyValue(t.Context(), wire.PlacesBucket(f.Name))
	require.NoError(t, err)
	stored, err := bucket.Get(t.Context(), wire.BrowsersKey)
	require.NoError(t, err)
	require.NotContains(t, string(stored.Value()), token)
}

// A record that was read before a browser has signed out, and comes after that, signs it not in.
func TestBook_ALateReadSignsNoneIn(t *testing.T) {
	t.Parallel()
	b := browsers.InMemory()
	cookie, err := b.SignIn(nil, token)
	require.NoError(t, err)
	s, err := b.Open(request(), cookie)
	require.NoError(t, err)
	late := b.Read()
	require.NoError(t, b.SignOut(t.Context(), s))
	late()
	_, err = b.Open(request(), cookie)
	require.ErrorIs(t, err, access.ErrUnknown)
}

// What is not a cookie of this fleet is nothing.
func TestBook_OpensItsOwnCookies(t *testing.T) {
	t.Parallel()
	b := browsers.InMemory()
	cookie, err := b.SignIn(request(), token)
	require.NoError(t, err)
	for _, wrong := range []string{"", token, cookie[:len(cookie)-1], cookie + "A", "A" + cookie[1:], "!", strings.ToLower(cookie)} {
		_, err := b.Open(request(), wrong)
		require.ErrorIs(t, err, access.ErrUnknown, wrong)
	}
	_, err = browsers.InMemory().Open(request(), cookie)
	require.ErrorIs(t, err, access.ErrUnknown, "of another server")
	_, err = b.SignIn(request(), strings.Repeat("x", 4000))
	require.ErrorIs(t, err, browsers.ErrTooLong)
}

// However many browsers sign out, what is stored of them is bounded, and none of them comes back.
func TestBook_IsBounded(t *testing.T) {
	t.Parallel()
	b := browsers.InMemory()
	stays, err := b.SignIn(request(), token)
	require.NoError(t, err)
	var ended []string
	for n := range 4097 {
		cookie, err := b.SignIn(request(), fmt.Sprint(token, n))
		require.NoError(t, err)
		s, err := b.Open(request(), cookie)
		require.NoError(t, err)
		if n == 4096 {
			_, err = b.Open(request(), stays)
			require.NoError(t, err)
		}
		require.NoError(t, b.SignOut(t.Context(), s))
		ended = append(ended, cookie)
	}
	for _, cookie := range append(ended, stays) { // one more than the bound ends all
		_, err := b.Open(request(), cookie)
		require.ErrorIs(t, err, access.ErrUnknown)
	}
	again, err := b.SignIn(request(), token)
	require.NoError(t, err)
	_, err = b.Open(request(), again)
	require.NoError(t, err)
}
