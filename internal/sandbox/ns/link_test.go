//go:build linux

package ns_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/internal/sandbox/egress"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/sandbox/ns"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
	"github.com/toolfleet/toolfleet/test/escapetest"
)

// hosts is a resolver: each look-up of a name takes its next address, and repeats the last.
type hosts struct {
	mu    sync.Mutex
	addrs map[string][]string
}

func (h *hosts) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	addrs := h.addrs[strings.TrimSuffix(host, ".")]
	if len(addrs) == 0 {
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	if len(addrs) > 1 {
		h.addrs[strings.TrimSuffix(host, ".")] = addrs[1:]
	}
	return []netip.Addr{netip.MustParseAddr(addrs[0])}, nil
}

// linked is a network with some hosts, one of which is a site on this machine, and what it has
// refused.
type linked struct {
	network isolation.Network
	port    string // of the site
	log     *strings.Builder
	mu      sync.Mutex
}

// Write implements io.Writer.
func (l *linked) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.log.Write(b)
}

func (l *linked) logged() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.log.String()
}

// link makes a network of one site under some names, "P" in the list standing for its port.
func link(t *testing.T, list string, addrs map[string][]string) *linked {
	t.Helper()
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = fmt.Fprint(w, "a page of "+r.Host+" by "+r.RemoteAddr)
	}))
	t.Cleanup(site.Close)
	l := &linked{log: &strings.Builder{}}
	_, l.port, _ = net.SplitHostPort(site.Listener.Addr().String())
	l.network = serveBy(t, egress.Options{
		Private: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}, Resolver: &hosts{addrs: addrs},
		Logger: slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}, strings.ReplaceAll(list, "P", l.port))
	return l
}

// client is this test as a program that asks for a page, without a proxy.
const client = "/opt/client"

func TestProxyClient(t *testing.T) {
	t.Parallel()
	address := os.Getenv("TOOLFLEET_TEST_ADDRESS")
	if address == "" {
		t.Skip("it is a program for other tests")
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
	require.NoError(t, err)
	response, err := (&http.Client{Transport: &http.Transport{}}).Do(request)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	fmt.Println(string(body), err)
}

// programs ask for the page of $1:$2, and know no proxy, or are told to use none.
func programs() map[string]string {
	return map[string]string{
		"curl":   `curl -sS --noproxy "*" http://$1:$2/`,
		"node":   `node -e "fetch('http://$1:$2/').then(r=>r.text()).then(console.log,e=>console.log(e.cause.code))"`,
		"python": `python3 -c "import urllib.request as u; print(u.build_opener(u.ProxyHandler({})).open('http://$1:$2/').read())"`,
		"socket": `python3 -c "
import socket
s = socket.create_connection(('$1', $2))
s.sendall(b'GET / HTTP/1.0\r\nHost: $1\r\n\r\n')
print(s.recv(9999))"`,
		"bash": `exec 3<>/dev/tcp/$1/$2; printf 'GET / HTTP/1.0\r\nHost: '$1'\r\n\r\n' >&3; cat <&3`,
		"go":   `TOOLFLEET_TEST_ADDRESS=http://$1:$2/ ` + client + ` -test.run "^TestProxyClient$" -test.v`,
	}
}

// TestProxy_ProgramsThatKnowNoProxy: every program reaches a host that is listed, and is told at
// once that it does not reach another one, in its own words.
func TestProxy_ProgramsThatKnowNoProxy(t *testing.T) {
	t.Parallel()
	inArms(t, true, testPrograms)
}

func testPrograms(t *testing.T) { //nolint:thelper // it is the test
	l := link(t, "good.example:P,*.sub.example:*,lan.example:P,gone.example,10.9.8.7:P", map[string][]string{
		"good.example": {"127.0.0.1"}, "a.sub.example": {"127.0.0.1"}, "lan.example": {"10.0.0.1"}, "evil.example": {"127.0.0.1"},
	})
	self, err := os.Executable()
	require.NoError(t, err)
	s := openWith(t, l.network, isolation.Mount{Host: self, Guest: client})
	const unknown = "(?i)not resolve host|ENOTFOUND|Name or service not known|no such host"
	const refused = "(?i)Failed to connect|ECONNREFUSED|Connection refused"
	const unreachable = "(?i)Failed to connect|ENETUNREACH|Network is unreachable"
	for name, script := range programs() {
		if program, _, _ := strings.Cut(script, " "); name != "go" && name != "bash" {
			if _, err := exec.LookPath(program); err != nil {
				t.Logf("UNSUPPORTED: %s is not installed", program)
				continue
			}
		}
		tests := []struct{ host, port, want string }{
			{"good.example", l.port, "a page of good.example"},
			{"evil.example", l.port, unknown},
			{"good.example", "2", refused},
			{"lan.example", l.port, refused},
			{"1.1.1.1", "80", unreachable},
			// These are not for every program.
			{"a.sub.example", l.port, "a page of a.sub.example"},
			{"gone.example", "80", unknown},
			{"sub.example", l.port, unknown},
			{"a.sub.example", "2", refused},
			{"10.9.8.7", l.port, refused},
			{"169.254.169.254", "80", unreachable},
			{"10.9.8.6", l.port, unreachable},
		}
		if name != "curl" {
			tests = tests[:5]
		}
		for _, test := range tests {
			began := time.Now()
			said := sh(t, s, fmt.Sprintf("exec 2>&1; set -- %s %s; %s; true", test.host, test.port, script))
			require.Regexp(t, test.want, said, "%s %s:%s", name, test.host, test.port)
			require.Less(t, time.Since(began), time.Minute, "%s %s:%s", name, test.host, test.port)
		}
	}
	for _, refusal := range []string{
		"method=DNS error=\"evil.example must not be reached: it is not listed", "good.example:2 must not be reached: it is not listed",
		"lan.example:" + l.port + " must not be reached: its address 10.0.0.1 is not on the public Internet",
		"10.9.8.7:" + l.port + " must not be reached: its address 10.9.8.7 is not on the public Internet",
	} {
		require.Contains(t, l.logged(), refusal)
	}
}

// TestProxy_LinkLeadsToWhatIsListed: from inside, nothing gets past the list by the link: other
// name servers, datagrams, an interface that is chosen, a name that changes, another network.
func TestProxy_LinkLeadsToWhatIsListed(t *testing.T) {
	t.Parallel()
	inArms(t, true, testLinkDetours)
}

func testLinkDetours(t *testing.T) { //nolint:thelper // it is the test
	l := link(t, "good.example:P,turns.example:P,local.example:P", map[string][]string{
		"good.example": {"127.0.0.1"}, "turns.example": {"192.168.0.1", "127.0.0.1"}, "local.example": {"127.0.0.2"},
	})
	s := openWith(t, l.network)
	page := func(options, host string) string {
		return sh(t, s, fmt.Sprintf(`exec 2>&1; curl -sS --max-time 20 --noproxy "*" %s http://%s:%s/; true`, options, host, l.port))
	}
	require.Contains(t, page("", "good.example"), "a page")
	require.Contains(t, page("", "local.example"), "Failed to connect", "another address of this host")
	// What was asked for is what is judged, and connected: not what the name is a moment later.
	require.Contains(t, page("", "turns.example"), "Failed to connect")
	require.Contains(t, l.logged(), "turns.example:"+l.port+" must not be reached: its address 192.168.0.1 is not")
	require.Contains(t, page("", "turns.example"), "a page")
	// By an interface that is chosen, the kernel takes everybody for a neighbour.
	require.Contains(t, page("--interface eth0", "good.example"), "a page")
	require.Contains(t, page("--interface eth0", "1.1.1.1"), "Failed to connect")
	require.Contains(t, l.logged(), "1.1.1.1:"+l.port+" must not be reached: it is not listed")
	for _, way := range []string{"eth0", "worker", "lo"} {
		require.NotContains(t, page("--max-time 2 --interface "+way, "127.0.0.1"), "a page", way)
		require.NotContains(t, page("--max-time 2 --interface "+way, "192.168.0.1"), "a page", way)
	}
	require.NotContains(t, page("", "[::ffff:127.0.0.1]"), "a page")
	require.Contains(t, page("", "[2606:4700:4700::1111]"), "Failed to connect")

	datagram := func(to string) string {
		return sh(t, s, `exec 2>&1; python3 -c "
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(20)
s.connect((`+to+`)); s.send(b'x'); s.recv(9)"; true`)
	}
	require.Contains(t, datagram("'8.8.8.8', 53"), "Network is unreachable")
	require.Contains(t, datagram("'198.18.0.3', 53"), "Connection refused", "the address of a name is no name server")
	require.Contains(t, datagram("'198.18.0.3', 443"), "Connection refused")
	for what, call := range map[string]string{
		"raw":     "socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP)",
		"ping":    "socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)",
		"packet":  "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
		"address": "fcntl.ioctl(socket.socket(socket.AF_INET, socket.SOCK_DGRAM), 0x8916, struct.pack('16sHH4s8x', b'eth0', 2, 0, bytes([10,0,0,1])))",
		"route":   "fcntl.ioctl(socket.socket(socket.AF_INET, socket.SOCK_DGRAM), 0x890b, bytes(120))",
		"flags":   "fcntl.ioctl(socket.socket(socket.AF_INET, socket.SOCK_DGRAM), 0x8914, struct.pack('16sH14x', b'eth0', 0))",
		"forward": "open('/proc/sys/net/ipv4/ip_forward', 'w').write('1')",
	} {
		require.Regexp(t, "not permitted|not supported|Permission denied|Read-only", sh(t, s, `exec 2>&1; python3 -c "
import fcntl, socket, struct
`+call+`; print('done')"; true`), what)
	}
	require.Contains(t, page("", "good.example"), "a page", "it is as it was")
}

// TestProxy_WithoutALinkThereIsTheProxy: where no link can be made, a probe finds that out, says
// so, and sandboxes work with what is left.
func TestProxy_WithoutALinkThereIsTheProxy(t *testing.T) {
	t.Parallel()
	escapetest.InArms(t, true, func(t *testing.T) {
		t.Helper()
		noPacketSockets(t)
		driver := ns.New(nil)
		caps, err := driver.Probe(t.Context())
		require.NoError(t, err)
		require.False(t, caps.Link)
		require.Contains(t, strings.Join(caps.Warnings, "\n"),
			"links are not used, for one cannot be made: probe: sandbox level not reached: link: address family not supported")
		require.Contains(t, strings.Join(caps.Warnings, "\n"), "reached by programs that use the proxy")
		l := link(t, "good.example:P", map[string][]string{"good.example": {"127.0.0.1"}})
		s, err := driver.Open(t.Context(), isolation.Spec{
			ID: "unlinked", Workspace: t.TempDir(), Scratch: t.TempDir(), Env: map[string]string{"PATH": os.Getenv("PATH")}, Network: l.network,
		})
		require.NoError(t, err)
		defer s.Close()
		require.Contains(t, ask(t, s, "http://good.example:"+l.port+"/"), "a page")
		require.Contains(t, sh(t, s, "cat /proc/net/dev; ls /etc/resolv.conf; true"), "lo:")
		require.NotContains(t, sh(t, s, "cat /proc/net/dev"), "eth0")
	})
}

// noPacketSockets has the kernel have none for this process and those that it starts.
func noPacketSockets(t *testing.T) {
	t.Helper()
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_SOCKET, Jf: 3},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 16},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.AF_PACKET, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EAFNOSUPPORT)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	require.NoError(t, unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&program)))
	require.Zero(t, errno)
}

// TestDial_ReachesTheSandboxsServers, and nobody else's.
func TestDial_ReachesTheSandboxsServers(t *testing.T) {
	t.Parallel()
	inArms(t, true, testDial)
}

func testDial(t *testing.T) { //nolint:thelper // it is the test
	outside, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = outside.Close() })
	s := openWith(t, isolation.Network{})
	dialer, ok := s.(isolation.Dialer)
	require.True(t, ok)
	_, err = dialer.Dial(t.Context(), netip.MustParseAddrPort(outside.Addr().String()).Port())
	require.ErrorIs(t, err, unix.ECONNREFUSED, "a port of the host is not one of the sandbox")

	for port, address := range map[uint16]string{8001: "127.0.0.1", 8002: "0.0.0.0", 8003: "::1", 8004: "::"} {
		require.False(t, dialer.Listens(port), address)
		stop := listen(t, s, address, port)
		require.True(t, dialer.Listens(port), address)
		conn, err := dialer.Dial(t.Context(), port)
		require.NoError(t, err, address)
		_, err = io.WriteString(conn, "there and ")
		require.NoError(t, err)
		half, ok := conn.(*net.TCPConn)
		require.True(t, ok)
		require.NoError(t, half.CloseWrite())
		all, err := io.ReadAll(conn)
		require.NoError(t, err, address)
		require.Equal(t, "there and back", string(all), address)
		require.NoError(t, conn.Close())

		idle, err := dialer.Dial(t.Context(), port)
		require.NoError(t, err, address)
		stop()
		_, err = idle.Read(make([]byte, 1))
		require.Error(t, err, "the connection ends with the server")
		require.NoError(t, idle.Close())
		_, err = dialer.Dial(t.Context(), port)
		require.ErrorIs(t, err, unix.ECONNREFUSED, address)
	}
	require.NoError(t, s.Close())
	_, err = dialer.Dial(t.Context(), 8001)
	require.ErrorIs(t, err, sandbox.ErrClosed)

	all := openWith(t, isolation.Network{Mode: isolation.NetworkAll})
	dialer, ok = all.(isolation.Dialer)
	require.True(t, ok)
	_, err = dialer.Dial(t.Context(), netip.MustParseAddrPort(outside.Addr().String()).Port())
	require.ErrorIs(t, err, sandbox.ErrUnsupported)
}

// echo answers each connection with what comes, and a word.
const echo = `
use Socket; use IO::Socket::IP;
my $l = IO::Socket::IP->new(LocalHost => $ARGV[0], LocalPort => $ARGV[1], Listen => 5, V6Only => 1) or die "$@ $!";
$| = 1; print "ready\n";
while (my $c = $l->accept) { print $c $_ while read($c, $_, 1); print $c "back"; close $c; }`

// listen starts a server in a sandbox; stop returns when it is gone.
func listen(t *testing.T, s sandbox.Sandbox, address string, port uint16) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ready, ended := make(chan struct{}, 8), make(chan sandbox.Result, 1)
	go func() {
		result, _ := s.Exec(ctx, sandbox.Cmd{
			Argv: []string{"/usr/bin/perl", "-e", echo, address, strconv.Itoa(int(port))},
			Live: func(sandbox.Stream, []byte) { ready <- struct{}{} },
		})
		ended <- result
	}()
	select {
	case <-ready:
	case result := <-ended:
		require.FailNow(t, "no server", "%s: %s", address, result.Combined.Data)
	}
	return func() {
		cancel()
		<-ended
	}
}
