package toolserver

import (
	"context"
	"io"
	"net/http"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolfleet/toolfleet/internal/mcp/login"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// remote is the transport of a server that has a URL; its requests end with alive.
func remote(alive context.Context, at Surroundings, spec protocol.MCPServer) (mcp.Transport, error) {
	client := &http.Client{
		Transport: &tripper{alive: alive, base: at.HTTP, headers: spec.Headers},
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse // another host must not get the headers
		},
	}
	transport := &mcp.StreamableClientTransport{Endpoint: spec.URL, HTTPClient: client}
	var err error
	switch {
	case spec.Client != nil:
		transport.OAuthHandler, err = login.Machine(alive, at.HTTP, spec.Name, *spec.Client)
	case !authorizes(spec.Headers):
		client.Transport = &login.Transport{Login: at.Logins.Of(spec.Name, spec.URL), Server: client.Transport, Authority: at.HTTP}
	}
	return transport, err
}

// authorizes reports whether headers say who comes.
func authorizes(headers map[string]string) bool {
	for name := range headers {
		if http.CanonicalHeaderKey(name) == "Authorization" {
			return true
		}
	}
	return false
}

// follow waits for the end of a connection, and notifies the server.
func (s *Servers) follow(l *live, endRequests context.CancelFunc, ended func(error)) {
	s.join(func() {
		err := l.session.Wait()       // the call reports it
		if l.Context().Err() != nil { // it was to end
			err = nil
		}
		ended(err)
		l.End(nil)
	})
	s.join(func() {
		l.Run(func(ctx context.Context) {
			<-ctx.Done()
			late := time.AfterFunc(stopGrace, endRequests)
			defer late.Stop()
			defer endRequests()
			_ = l.session.Close() // if it fails, the server forgets the session later
		})
	})
}

// tripper adds the headers of a server, and ends requests with its connection.
type tripper struct {
	alive   context.Context //nolint:containedctx // the life of the connection is no request's
	base    http.RoundTripper
	headers map[string]string
}

// RoundTrip implements [http.RoundTripper].
func (t *tripper) RoundTrip(request *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(request.Context())
	stop := context.AfterFunc(t.alive, cancel) //nolint:contextcheck // a request ends with its connection, too
	request = request.Clone(ctx)
	for name, value := range t.headers {
		request.Header.Set(name, value)
	}
	response, err := t.base.RoundTrip(request)
	if err != nil {
		stop()
		cancel()
		return nil, err
	}
	adaptResponse(response)
	response.Body = &body{ReadCloser: response.Body, end: func() { stop(); cancel() }}
	return response, nil
}

// body ends what a response has kept.
type body struct {
	io.ReadCloser

	end func()
}

// Close implements [io.Closer].
func (b *body) Close() error {
	defer b.end()
	return b.ReadCloser.Close()
}
