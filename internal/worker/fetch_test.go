package worker_test

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/egress"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// A page is requested under the rules of the network: the host must be listed and its address
// allowed, for every redirect again.
func TestFetch_OnlyWhatTheNetworkAllows(t *testing.T) {
	t.Parallel()
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("an unlisted host was reached") }))
	t.Cleanup(other.Close)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/away":
			http.Redirect(w, r, other.URL, http.StatusFound)
		case "/long":
			_, _ = w.Write([]byte(strings.Repeat("a line of text\n", 10_000)))
		default:
			w.Header().Set("Content-Type", "text/html")
			_, _ = w.Write([]byte("<h1>Hello</h1>"))
		}
	}))
	t.Cleanup(web.Close)
	for name, c := range map[string]struct {
		allow, private, path string
		want                 string // the content, or the refusal
	}{
		"listed":              {strings.TrimPrefix(web.URL, "http://"), "127.0.0.0/8", "", "# Hello"},
		"a redirect":          {strings.TrimPrefix(web.URL, "http://"), "127.0.0.0/8", "/away", "it is not listed"},
		"nothing is listed":   {"", "127.0.0.0/8", "", "--allow-net 127.0.0.1:"},
		"another is listed":   {"example.com", "127.0.0.0/8", "", "it is not listed"},
		"a private address":   {strings.TrimPrefix(web.URL, "http://"), "10.0.0.0/8", "", "its address 127.0.0.1 is not on the public Internet"},
		"all, but not inside": {"all", "10.0.0.0/8", "", "its address 127.0.0.1 is not on the public Internet"},
		"all":                 {"all", "127.0.0.0/8", "", "# Hello"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			o := r.options()
			allow, err := egress.ParseAllow(c.allow)
			require.NoError(t, err)
			o.Allow, o.AllowPrivate = allow, []netip.Prefix{netip.MustParsePrefix(c.private)}
			_, stop := r.work(o)
			defer stop()
			got := r.do(protocol.NewSessionID(), protocol.HTTPFetch{URL: web.URL + c.path})
			if page, ok := got.Value.(protocol.HTTPFetchResult); ok {
				require.Equal(t, c.want, string(page.Content))
				require.Equal(t, protocol.StatusOK, got.Status)
				return
			}
			requireFault(t, got, protocol.StatusRejected, codes.NetworkOff)
			require.Contains(t, got.Error.Message, c.want)
		})
	}
	t.Run("a long page is stored", func(t *testing.T) {
		t.Parallel()
		r := newRig(t)
		o := r.options()
		allow, err := egress.ParseAllow("all")
		require.NoError(t, err)
		o.Allow, o.AllowPrivate = allow, []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
		_, stop := r.work(o)
		defer stop()
		session := protocol.NewSessionID()
		page := r.do(session, protocol.HTTPFetch{URL: web.URL + "/long"})
		require.NotNil(t, page.Kept)
		rest := r.do(session, wire.ResultRead{CallID: page.CallID, Offset: 9_999})
		lines, is := rest.Value.(wire.ResultReadResult)
		require.True(t, is)
		require.Contains(t, string(lines.Content), "a line of text")
	})
}
