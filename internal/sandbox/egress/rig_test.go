package egress_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/toolfleet/toolfleet/internal/sandbox/egress"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// names is a resolver: each look-up of a name takes its next answer, and repeats the last.
type names struct {
	mu      sync.Mutex
	answers map[string][]string // addresses separated by spaces
	asked   map[string]int
}

func (n *names) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	host = strings.TrimSuffix(host, ".")
	answers := n.answers[host]
	if n.asked == nil {
		n.asked = map[string]int{}
	}
	at := min(n.asked[host], len(answers)-1)
	n.asked[host]++
	if at < 0 {
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	var addrs []netip.Addr
	for text := range strings.FieldsSeq(answers[at]) {
		addrs = append(addrs, netip.MustParseAddr(text))
	}
	return addrs, nil
}

func (n *names) count(host string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.asked[host]
}

// rig is a proxy that is served, as a listener and as a link, and its end.
type rig struct {
	addr string
	link *sandboxEnd
	stop func() // ends serving and waits for it
}

// start serves a proxy until the test ends.
func start(t *testing.T, o egress.Options) *rig {
	t.Helper()
	p, err := egress.New(o)
	require.NoError(t, err)
	l := listen(t, "127.0.0.1:0")
	ctx, cancel := context.WithCancel(t.Context())
	ours, theirs := packetPipe()
	done := make(chan error, 2)
	go func() { done <- p.Serve(ctx, l) }()
	go func() { done <- p.ServeLink(ctx, theirs) }()
	stop := sync.OnceFunc(func() {
		cancel()
		for range cap(done) {
			select {
			case err := <-done:
				require.NoError(t, err)
			case <-time.After(time.Minute):
				t.Error("serving does not end")
			}
		}
	})
	t.Cleanup(stop)
	return &rig{addr: l.Addr().String(), link: newSandboxEnd(t, ours), stop: stop}
}

func allow(t *testing.T, list string) egress.Allow {
	t.Helper()
	a, err := egress.ParseAllow(list)
	require.NoError(t, err)
	return a
}

// loopback lets tests reach servers of their own.
func loopback() []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")} }

// listen listens; whoever accepts closes.
func listen(t *testing.T, addr string) net.Listener {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", addr)
	require.NoError(t, err)
	return l
}

// site is a web server that says its name; port is its port.
func site(t *testing.T, addr, name string) (port int) {
	t.Helper()
	l := listen(t, addr)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, _ = fmt.Fprintf(w, "%s %s %s %s %s", name, r.Method, r.Host, r.URL, body)
	}))
	_ = server.Listener.Close()
	server.Listener = l
	server.Start()
	t.Cleanup(server.Close)
	tcp, ok := l.Addr().(*net.TCPAddr)
	require.True(t, ok)
	return tcp.Port
}

// dialProxy connects to the proxy for a test.
func (r *rig) dialProxy(t *testing.T) net.Conn {
	t.Helper()
	c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", r.addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(time.Minute)))
	return c
}

// answer is what came through a door.
type answer struct {
	allowed bool
	text    string
}

// doors are the ways to ask for a page of a target ("host:port").
func doors() map[string]func(t *testing.T, r *rig, target string) answer {
	return map[string]func(*testing.T, *rig, string) answer{"connect": viaConnect, "absolute": viaAbsolute, "link": viaLink}
}

// raw sends a request and reads an HTTP response.
func (r *rig) raw(t *testing.T, request string) (int, string) {
	t.Helper()
	c := r.dialProxy(t)
	_, err := io.WriteString(c, request)
	require.NoError(t, err)
	response, err := http.ReadResponse(bufio.NewReader(c), nil)
	require.NoError(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, string(body)
}

func viaAbsolute(t *testing.T, r *rig, target string) answer {
	t.Helper()
	status, body := r.raw(t, "GET http://"+target+"/page?a;b HTTP/1.1\r\nHost: whatever.example\r\nConnection: close\r\n\r\n")
	return answer{status == http.StatusOK, strconv.Itoa(status) + " " + body}
}

func viaConnect(t *testing.T, r *rig, target string) answer {
	t.Helper()
	c := r.dialProxy(t)
	_, err := io.WriteString(c, "CONNECT "+target+" HTTP/1.1\r\nHost: whatever.example\r\n\r\n")
	require.NoError(t, err)
	reader := bufio.NewReader(c)
	response, err := http.ReadResponse(reader, &http.Request{Method: http.MethodConnect})
	require.NoError(t, err)
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		body, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		return answer{false, strconv.Itoa(response.StatusCode) + " " + string(body)}
	}
	return answer{true, page(t, c, reader)}
}

// page gets a page through a tunnel.
func page(t *testing.T, c net.Conn, reader *bufio.Reader) string {
	t.Helper()
	_, err := io.WriteString(c, "GET /page HTTP/1.1\r\nHost: inside.example\r\nConnection: close\r\n\r\n")
	require.NoError(t, err)
	response, err := http.ReadResponse(reader, nil)
	require.NoError(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return string(body)
}
