package egress

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"strings"
)

// maxResponseHeader bounds what a host sends before its answer.
const maxResponseHeader = 256 << 10

// web answers HTTP requests to the proxy: CONNECT and absolute "http:" addresses.
type web struct {
	proxy     *Proxy
	transport *http.Transport
	forward   *httputil.ReverseProxy
	hijacked  func() // called when a connection that was taken from the server has been served
}

func newWeb(p *Proxy, hijacked func()) *web {
	w := &web{proxy: p, hijacked: hijacked, transport: &http.Transport{
		Proxy: nil,
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			t, err := ParseTarget(addr, 0)
			if err != nil {
				return nil, err
			}
			return p.dial(ctx, t)
		},
		DisableCompression:     true,
		MaxIdleConns:           8,
		IdleConnTimeout:        p.idle,
		ResponseHeaderTimeout:  p.idle,
		MaxResponseHeaderBytes: maxResponseHeader,
	}}
	w.forward = &httputil.ReverseProxy{
		Transport: w.transport,
		// Nothing that names the client is added, and the query stays as it is.
		Rewrite:  func(r *httputil.ProxyRequest) { r.Out.URL.RawQuery = r.In.URL.RawQuery },
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug),
		ErrorHandler: func(rw http.ResponseWriter, r *http.Request, err error) {
			w.refuse(rw, r, dialStatus(err), err)
		},
		FlushInterval: -1,
	}
	return w
}

func (w *web) close() { w.transport.CloseIdleConnections() }

// response is an answer that notes whether the connection was taken from the server: for a tunnel,
// or because a host has answered by another protocol.
type response struct {
	http.ResponseWriter

	hijacked bool
}

// Unwrap is for [http.ResponseController].
func (r *response) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// Hijack implements [http.Hijacker].
func (r *response) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, buffered, err := http.NewResponseController(r.ResponseWriter).Hijack()
	r.hijacked = err == nil
	return c, buffered, err
}

// ServeHTTP implements [http.Handler].
func (w *web) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	to := &response{ResponseWriter: rw}
	defer func() {
		if to.hijacked {
			w.hijacked()
		}
	}()
	w.serve(to, r)
}

func (w *web) serve(rw http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodConnect {
		w.connect(rw, r)
		return
	}
	t, err := webTarget(r)
	if err != nil {
		w.refuse(rw, r, http.StatusBadRequest, err)
		return
	}
	out := r.Clone(r.Context())
	out.URL.Host, out.URL.User, out.Host = t.String(), nil, t.String()
	if t.Port == httpPort {
		out.Host = hostOnly(t)
	}
	w.forward.ServeHTTP(rw, out)
}

const httpPort = 80

func hostOnly(t Target) string {
	if t.Addr.Is6() {
		return "[" + t.Host + "]"
	}
	return t.Host
}

// errRequest is the error of a request that no proxy answers.
var errRequest = errors.New("this is a proxy: send CONNECT host:port, or an absolute http:// address")

// webTarget is the target of a request with an absolute address.
func webTarget(r *http.Request) (Target, error) {
	if r.URL.Scheme != "http" || r.URL.Host == "" {
		return Target{}, errRequest
	}
	if r.URL.User != nil {
		return Target{}, errors.New("user names in addresses are not allowed; send an Authorization header")
	}
	return ParseTarget(r.URL.Host, httpPort)
}

// connect opens a tunnel.
func (w *web) connect(rw http.ResponseWriter, r *http.Request) {
	t, err := ParseTarget(r.RequestURI, 0)
	if err != nil {
		w.refuse(rw, r, http.StatusBadRequest, err)
		return
	}
	upstream, err := w.proxy.dial(r.Context(), t)
	if err != nil {
		w.refuseTunnel(rw, r, err)
		return
	}
	raw, early, err := http.NewResponseController(rw).Hijack()
	if err != nil { // the client is gone
		_ = upstream.Close()
		return
	}
	client := raw.(*conn) //nolint:errcheck,forcetypeassert // every connection is one of clients
	defer client.Close()
	if _, err := io.WriteString(client, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		_ = upstream.Close()
		return
	}
	sent, _ := early.Peek(early.Reader.Buffered()) // what is buffered is there
	w.proxy.tunnel(client, upstream, sent, t)
}

// dialStatus is the status of a target that was not reached.
func dialStatus(err error) int {
	if _, refused := errors.AsType[*Refusal](err); refused {
		return http.StatusForbidden
	}
	return http.StatusBadGateway
}

// refuseTunnel answers with the reason in the status line, too: of an answer to CONNECT, programs
// show that at most.
func (w *web) refuseTunnel(rw http.ResponseWriter, r *http.Request, err error) {
	w.logRefusal(r, err)
	client, _, hijackErr := http.NewResponseController(rw).Hijack()
	if hijackErr != nil { // the client is gone
		return
	}
	defer client.Close()
	reason := "network: " + strings.ReplaceAll(err.Error(), "\n", "; ")
	_, _ = fmt.Fprintf(client, "HTTP/1.1 %d %s\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n%s\n", dialStatus(err), reason, reason)
}

func (w *web) logRefusal(r *http.Request, err error) {
	w.proxy.log.DebugContext(r.Context(), "request refused", slog.String("method", r.Method), slog.Any("error", err))
}

// refuse answers with the reason.
func (w *web) refuse(rw http.ResponseWriter, r *http.Request, status int, err error) {
	w.logRefusal(r, err)
	rw.Header().Set("Content-Type", "text/plain; charset=utf-8")
	rw.Header().Set("X-Content-Type-Options", "nosniff")
	rw.Header().Set("Connection", "close")
	rw.WriteHeader(status)
	_, _ = fmt.Fprintf(rw, "network: %v\n", err)
}
