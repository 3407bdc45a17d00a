package processtest

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"testing"
)

// Authorized is a URL with the path of another one, whose requests go there with the token of a
// file, for clients that send none. It is there until the test ends.
func Authorized(tb testing.TB, at, tokenFile string) string {
	tb.Helper()
	token, err := os.ReadFile(tokenFile)
	if err != nil {
		tb.Fatal(err)
	}
	target, err := url.Parse(at)
	if err != nil {
		tb.Fatal(err)
	}
	path := target.Path
	target.Path = ""
	own := &http.Transport{} // closing a test server closes connections of the default one
	forward := &httputil.ReverseProxy{Transport: own, FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		r.Out.Host = target.Host
		r.Out.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	}, ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) }}
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// An answer that begins closes the body; where that is still being sent, the answer breaks.
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // the client has gone
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		forward.ServeHTTP(w, r)
	}))
	tb.Cleanup(func() {
		proxy.CloseClientConnections() // streams of clients that only listen
		proxy.Close()
		own.CloseIdleConnections()
	})
	return proxy.URL + path
}
