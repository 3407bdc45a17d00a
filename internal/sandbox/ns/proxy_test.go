//go:build linux

package ns_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/egress"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/sandbox/ns"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// TestProxy_IsTheOnlyWayOut: a listed host is reached through the proxy, and nothing else
// is, through the proxy or past it.
func TestProxy_IsTheOnlyWayOut(t *testing.T) {
	t.Parallel()
	inArms(t, true, testProxy)
}

func testProxy(t *testing.T) { //nolint:thelper // it is the test
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, "a page") }))
	t.Cleanup(site.Close)
	listed := strings.TrimPrefix(site.URL, "http://")
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, "a secret") }))
	t.Cleanup(other.Close)
	unlisted := strings.TrimPrefix(other.URL, "http://")

	allow, err := egress.ParseAllow(listed)
	require.NoError(t, err)
	p, err := egress.New(egress.Options{Allow: allow, Private: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})
	require.NoError(t, err)
	served := make(chan error, 4)
	s := openWith(t, isolation.Network{Mode: isolation.NetworkProxy, Serve: func(ctx context.Context, l net.Listener) { served <- p.Serve(ctx, l) }})

	require.Contains(t, ask(t, s, "http://"+listed+"/"), "a page")
	require.Contains(t, ask(t, s, "http://"+unlisted+"/"), "403 Forbidden")
	require.Contains(t, ask(t, s, "http://"+unlisted+"/"), "--allow-net "+unlisted)
	require.Contains(t, ask(t, s, "http://169.254.169.254/latest/"), "403 Forbidden")
	require.Contains(t, sh(t, s, "env | grep -i -e _proxy | sort"), "https_proxy=http://127.0.0.1:3128\n")
	for _, direct := range []string{listed, unlisted, "1.1.1.1:80", "169.254.169.254:80"} {
		host, port, _ := net.SplitHostPort(direct)
		require.Contains(t, sh(t, s, fmt.Sprintf("exec 2>&1; (exec 3<>/dev/tcp/%s/%s) && echo connected || echo refused", host, port)), "refused", direct)
	}

	require.NoError(t, s.Close())
	select {
	case err := <-served:
		require.NoError(t, err)
	default:
		require.Fail(t, "the proxy is served after Close")
	}
}

// serveList is a network of what a list says.
func serveList(tb testing.TB, list string) isolation.Network {
	tb.Helper()
	return serveBy(tb, egress.Options{Private: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}}, list)
}

// serveBy is a network of what a list says, with a proxy and a link.
func serveBy(tb testing.TB, o egress.Options, list string) isolation.Network {
	tb.Helper()
	var err error
	o.Allow, err = egress.ParseAllow(list)
	require.NoError(tb, err)
	p, err := egress.New(o)
	require.NoError(tb, err)
	return isolation.Network{
		Mode: isolation.NetworkProxy, Addresses: o.Allow.Addresses(),
		Serve:     func(ctx context.Context, l net.Listener) { _ = p.Serve(ctx, l) },
		ServeLink: func(ctx context.Context, l io.ReadWriteCloser) { _ = p.ServeLink(ctx, l) },
	}
}

// TestProxy_SpellingsAndDetours: from inside, no spelling of an address, no redirect, no tunnel and
// no other protocol leads past the list.
func TestProxy_SpellingsAndDetours(t *testing.T) {
	t.Parallel()
	inArms(t, true, testDetours)
}

func testDetours(t *testing.T) { //nolint:thelper // it is the test
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, "a secret") }))
	t.Cleanup(other.Close)
	_, closed, err := net.SplitHostPort(strings.TrimPrefix(other.URL, "http://"))
	require.NoError(t, err)
	site := httptest.NewServer(http.RedirectHandler(other.URL+"/", http.StatusFound))
	t.Cleanup(site.Close)
	_, open, err := net.SplitHostPort(strings.TrimPrefix(site.URL, "http://"))
	require.NoError(t, err)
	s := openWith(t, serveList(t, "127.0.0.1:"+open+",localhost:"+open))

	require.Contains(t, ask(t, s, "http://127.0.0.1:"+open+"/"), "302 Found", "the listed site is reached")
	for _, host := range []string{
		"127.0.0.1", "localhost", "LOCALHOST", "localhost.", "127.1", "127.0.1", "2130706433", "0x7f000001", "0x7f.0.0.1", "0177.0.0.1", "017700000001",
		"0", "0.0.0.0", "[::]", "[::1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::127.0.0.1]", "[0:0:0:0:0:ffff:127.0.0.1]", "[64:ff9b::7f00:1]",
		"127.0.0.2", "127.255.255.254", "127。0。0。1", "①②⑦.0.0.1",
	} {
		target := host + ":" + closed
		require.NotContains(t, ask(t, s, "http://"+target+"/"), "a secret", target)
		require.Regexp(t, "HTTP/1.1 4[0-9][0-9] ", connect(t, s, target), target)
	}
	for _, target := range []string{
		"169.254.169.254:80", "[fd00:ec2::254]:80", "metadata.google.internal:80", "100.100.100.200:80", "168.63.129.16:80", "10.0.0.1:80", "172.16.0.1:80", "192.168.0.1:80",
		"100.64.0.1:80", "[fe80::1]:80", "[fc00::1]:80", "255.255.255.255:80", "224.0.0.1:80", "0.0.0.0:" + open, "127.0.0.2:" + open, "[::1]:" + open, "127.1:" + open,
		"127.0.0.1:22", "127.0.0.1:4222", "127.0.0.1:0", "127.0.0.1:" + open + "0", "127.0.0.1@" + open,
		"127.0.0.1:" + open + "@127.0.0.1:" + closed, "localhost:" + closed, "unix:/run/x.sock", "/run/x.sock",
	} {
		require.Regexp(t, "HTTP/1.1 4[0-9][0-9] ", connect(t, s, target), target)
	}
	// A tunnel to a listed host is one to this host: what is asked for in it does not matter to the
	// way.
	require.NotContains(t, tunnel(t, s, "127.0.0.1:"+open, other.URL+"/"), "a secret")
	for name, request := range map[string]string{
		"SOCKS":               `\005\001\000\005\003\000\001\177\000\000\001` + octalPort(t, open),
		"SOCKS 4":             `\004\001` + octalPort(t, closed) + `\177\000\000\001\000`,
		"two hosts":           `GET http://127.0.0.1:` + open + `/ HTTP/1.1\r\nHost: 127.0.0.1:` + closed + `\r\nHost: x\r\n\r\n`,
		"another host header": `GET http://127.0.0.1:` + open + `/ HTTP/1.1\r\nHost: 127.0.0.1:` + closed + `\r\nConnection: close\r\n\r\n`,
		"a request in another": `POST http://127.0.0.1:` + open +
			`/ HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET http://127.0.0.1:` + closed +
			`/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n`,
		"an upgrade": `GET http://127.0.0.1:` + open +
			`/ HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\nGET http://127.0.0.1:` + closed +
			`/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n`,
		"HTTP/2": `PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n`,
	} {
		require.NotContains(t, say(t, s, request), "a secret", name)
	}
	// The listener is the proxy's alone: nobody inside can be it, or give it away.
	require.Contains(t, sh(t, s, `exec 2>&1; cat /proc/net/tcp | grep -c ":0C38 00000000:0000 0A"`), "1\n")
	require.Contains(t, sh(t, s, `exec 2>&1; ls -l /proc/[0-9]*/fd | grep -c socket:; true`), "0\n", "no process shows a socket")
}

// octalPort is a port as two bytes for printf.
func octalPort(t *testing.T, port string) string {
	t.Helper()
	n, err := strconv.Atoi(port)
	require.NoError(t, err)
	return fmt.Sprintf(`\%03o\%03o`, n>>8, n&0xff)
}

// say sends bytes, written for printf, to the proxy, and returns what it answers in two seconds.
func say(t *testing.T, s sandbox.Sandbox, text string) string {
	t.Helper()
	return sh(t, s, fmt.Sprintf(`trap "" PIPE; exec 2>&1; exec 3<>/dev/tcp/127.0.0.1/3128 && printf '%s' >&3 && timeout 2 cat <&3; true`, text))
}

func connect(t *testing.T, s sandbox.Sandbox, target string) string {
	t.Helper()
	return sh(t, s,
		fmt.Sprintf(`trap "" PIPE; exec 2>&1; exec 3<>/dev/tcp/127.0.0.1/3128 && printf 'CONNECT %s HTTP/1.1\r\nHost: x\r\n\r\n' >&3 && head -n 1 <&3; true`, target))
}

// tunnel asks for an address through a tunnel.
func tunnel(t *testing.T, s sandbox.Sandbox, target, address string) string {
	t.Helper()
	return sh(t, s, fmt.Sprintf(`trap "" PIPE; exec 2>&1; exec 3<>/dev/tcp/127.0.0.1/3128 && printf 'CONNECT %s HTTP/1.1\r\nHost: x\r\n\r\nGET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n' >&3 && timeout 60 cat <&3; true`, target, address))
}

// TestProxy_DeadMeansNothing: when nobody serves the proxy, nothing is reached.
func TestProxy_DeadMeansNothing(t *testing.T) {
	t.Parallel()
	inArms(t, true, func(t *testing.T) {
		t.Helper()
		gone := make(chan struct{})
		s := openWith(t, isolation.Network{Mode: isolation.NetworkProxy, Serve: func(_ context.Context, l net.Listener) {
			_ = l.Close()
			close(gone)
		}})
		<-gone
		require.Contains(t, ask(t, s, "http://127.0.0.1/"), "Connection refused")
	})
}

func openWith(t *testing.T, network isolation.Network, mounts ...isolation.Mount) sandbox.Sandbox {
	t.Helper()
	workspace, scratch := t.TempDir(), t.TempDir()
	require.NoError(t, os.Chmod(workspace, 0o755))
	s, err := ns.New(nil).Open(t.Context(), isolation.Spec{
		ID: "proxy", Workspace: workspace, Scratch: scratch, Env: map[string]string{"PATH": os.Getenv("PATH")},
		Limits: sandbox.Limits{Wall: time.Minute}, Network: network, Mounts: mounts,
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func sh(t *testing.T, s sandbox.Sandbox, script string) string {
	t.Helper()
	result := mustExec(t, s, sandbox.Cmd{Argv: []string{"bash", "-c", script}})
	require.Equal(t, sandbox.ReasonExited, result.Reason, "%s: %s: %s", script, result.Signal, result.Combined.Data)
	return string(result.Combined.Data)
}

// ask asks the proxy for an address.
func ask(t *testing.T, s sandbox.Sandbox, address string) string {
	t.Helper()
	return sh(t, s,
		fmt.Sprintf(`trap "" PIPE; exec 2>&1; exec 3<>/dev/tcp/127.0.0.1/3128 && printf 'GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n' >&3 && cat <&3`, address))
}

// TestFiles_EverybodyGetsHisOwnReply beside the ends of commands.
func TestFiles_EverybodyGetsHisOwnReply(t *testing.T) {
	t.Parallel()
	s := open(t)
	var all sync.WaitGroup
	for n := range 4 {
		name := fmt.Sprintf("file %d", n)
		all.Go(func() {
			if _, err := s.FS().Write(t.Context(), protocol.FilesWrite{Path: name, Content: []byte(name)}); err != nil {
				t.Errorf("write %s: %v", name, err)
			}
			for range 300 {
				got, err := s.FS().Read(t.Context(), protocol.FilesRead{Path: name})
				if err != nil || string(got.Content) != name {
					t.Errorf("read %s: %q, %v", name, got.Content, err)
				}
			}
		})
	}
	all.Go(func() {
		for n := range 30 {
			word := fmt.Sprint("word ", n)
			result, err := s.Exec(t.Context(), sandbox.Cmd{Argv: []string{"echo", "-n", word}})
			if err != nil || string(result.Stdout.Data) != word {
				t.Errorf("echo %s: %q, %v", word, result.Stdout.Data, err)
			}
		}
	})
	all.Wait()
}

// TestReset_LeavesNothingInMemory: of what commands have left nothing but the workspace is there.
func TestReset_LeavesNothingInMemory(t *testing.T) {
	t.Parallel()
	s := limited(t, sandbox.Limits{})
	const list = "ls -A /dev/shm /tmp ~ | grep left; cat file"
	require.Equal(t, "left\nleft\nleft\nkept", string(run(t, s, "touch /dev/shm/left /tmp/left ~/left; echo -n kept >file; "+list).Stdout.Data))
	require.NoError(t, s.Reset(t.Context()))
	require.Equal(t, "kept", string(run(t, s, list).Stdout.Data))
}
