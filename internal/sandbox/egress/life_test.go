package egress_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/egress"
)

// echo is a server that sends back what it gets; when the client has said that nothing
// more comes, it says "bye".
func echo(t *testing.T) (port int) {
	t.Helper()
	l := listen(t, "127.0.0.1:0")
	done := make(chan struct{})
	t.Cleanup(func() { _ = l.Close(); <-done })
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				if _, err := io.Copy(c, c); err == nil {
					_, _ = io.WriteString(c, "bye")
				}
			}()
		}
	}()
	tcp, ok := l.Addr().(*net.TCPAddr)
	require.True(t, ok)
	return tcp.Port
}

// tunnel opens a tunnel by CONNECT with some bytes sent in the same breath.
func (r *rig) tunnel(t *testing.T, port int, early string) (net.Conn, *bufio.Reader) {
	t.Helper()
	c := r.dialProxy(t)
	_, err := fmt.Fprintf(c, "CONNECT 127.0.0.1:%d HTTP/1.1\r\nHost: x\r\n\r\n%s", port, early)
	require.NoError(t, err)
	reader := bufio.NewReader(c)
	response, err := http.ReadResponse(reader, &http.Request{Method: http.MethodConnect})
	require.NoError(t, err)
	_ = response.Body.Close()
	require.Equal(t, http.StatusOK, response.StatusCode)
	return c, reader
}

func TestProxy_TunnelMovesEverythingBothWays(t *testing.T) {
	t.Parallel()
	port := echo(t)
	r := start(t, egress.Options{Allow: allow(t, "127.0.0.1:*"), Private: loopback()})
	c, reader := r.tunnel(t, port, "early ")
	big := strings.Repeat("0123456789abcdef", 64<<10)
	go func() {
		_, _ = io.WriteString(c, big)
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.CloseWrite()
		}
	}()
	all, err := io.ReadAll(reader)
	require.NoError(t, err)
	require.Equal(t, "early "+big+"bye", string(all))
}

func TestProxy_RequestsOnOneConnectionAreJudgedOneByOne(t *testing.T) {
	t.Parallel()
	port := site(t, "127.0.0.1:0", "site")
	r := start(t, egress.Options{Allow: allow(t, fmt.Sprintf("127.0.0.1:%d", port)), Private: loopback()})
	c := r.dialProxy(t)
	reader := bufio.NewReader(c)
	ask := func(target string) int {
		_, err := fmt.Fprintf(c, "POST http://%s/p HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nab", target)
		require.NoError(t, err)
		response, err := http.ReadResponse(reader, nil)
		require.NoError(t, err)
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		if response.StatusCode == http.StatusOK {
			require.Equal(t, fmt.Sprintf("site POST 127.0.0.1:%d /p ab", port), string(body))
		}
		return response.StatusCode
	}
	require.Equal(t, 200, ask(fmt.Sprintf("127.0.0.1:%d", port)))
	require.Equal(t, 200, ask(fmt.Sprintf("127.0.0.1:%d", port)))
	require.Equal(t, 403, ask("127.0.0.1:1"))
}

// briefly is an idle time that is waited for, in which a tunnel is opened also on a busy machine.
const briefly = 5 * time.Second

func TestProxy_IdleConnectionsAreClosed(t *testing.T) {
	t.Parallel()
	port := echo(t)
	r := start(t, egress.Options{Allow: allow(t, "127.0.0.1:*"), Private: loopback(), Idle: briefly})
	_, reader := r.tunnel(t, port, "")
	silent := r.dialProxy(t)
	_, err := reader.ReadByte()
	require.ErrorIs(t, err, io.EOF)
	_, err = silent.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
}

func TestProxy_MoreConnectionsWait(t *testing.T) {
	t.Parallel()
	port := echo(t)
	r := start(t, egress.Options{Allow: allow(t, "127.0.0.1:*"), Private: loopback(), Conns: 1})
	first, _ := r.tunnel(t, port, "")
	second := r.dialProxy(t)
	_, err := fmt.Fprintf(second, "CONNECT 127.0.0.1:%d HTTP/1.1\r\nHost: x\r\n\r\n", port)
	require.NoError(t, err)
	require.NoError(t, second.SetReadDeadline(time.Now().Add(100*time.Millisecond)))
	_, err = second.Read(make([]byte, 1))
	require.ErrorContains(t, err, "timeout")
	require.NoError(t, first.Close())
	require.NoError(t, second.SetReadDeadline(time.Now().Add(time.Minute)))
	response, err := http.ReadResponse(bufio.NewReader(second), &http.Request{Method: http.MethodConnect})
	require.NoError(t, err)
	_ = response.Body.Close()
	require.Equal(t, http.StatusOK, response.StatusCode)
}

func TestProxy_EndClosesWhatRuns(t *testing.T) {
	t.Parallel()
	port := echo(t)
	r := start(t, egress.Options{Allow: allow(t, "127.0.0.1:*"), Private: loopback()})
	_, reader := r.tunnel(t, port, "x")
	_, err := reader.ReadByte()
	require.NoError(t, err)
	silent := r.dialProxy(t)
	r.stop()
	_, err = reader.ReadByte()
	require.Error(t, err)
	_, err = silent.Read(make([]byte, 1))
	require.Error(t, err)
}

// TestProxy_ASwitchOfProtocolsIsATunnel: a host may answer a request by another protocol, and
// serving ends also where that goes on.
func TestProxy_ASwitchOfProtocolsIsATunnel(t *testing.T) {
	t.Parallel()
	l := listen(t, "127.0.0.1:0")
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		c, client, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		_, _ = io.Copy(c, client)
	})}
	go func() { _ = server.Serve(l) }()
	defer server.Close()
	r := start(t, egress.Options{Allow: allow(t, "127.0.0.1:*"), Private: loopback()})
	c := r.dialProxy(t)
	_, err := fmt.Fprintf(c, "GET http://%s/ HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n", l.Addr())
	require.NoError(t, err)
	reader := bufio.NewReader(c)
	response, err := http.ReadResponse(reader, nil)
	require.NoError(t, err)
	_ = response.Body.Close()
	require.Equal(t, http.StatusSwitchingProtocols, response.StatusCode)
	_, err = io.WriteString(c, "there and back\n")
	require.NoError(t, err)
	line, err := reader.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "there and back\n", line)
	r.stop()
	_, err = reader.ReadByte()
	require.Error(t, err)
}

// TestProxy_BlockedUpstreamEndsWithTheClient: a host that reads nothing holds nobody.
func TestProxy_BlockedUpstreamEndsWithTheClient(t *testing.T) {
	t.Parallel()
	l := listen(t, "127.0.0.1:0")
	defer l.Close()
	accepted := make(chan net.Conn, 1)
	go func() {
		if c, err := l.Accept(); err == nil {
			accepted <- c
		}
	}()
	tcp, ok := l.Addr().(*net.TCPAddr)
	require.True(t, ok)
	r := start(t, egress.Options{Allow: allow(t, "127.0.0.1:*"), Private: loopback(), Idle: briefly})
	c, reader := r.tunnel(t, tcp.Port, "")
	upstream := <-accepted
	defer upstream.Close()
	go func() { // until the proxy gives up
		for {
			if _, err := c.Write(make([]byte, 64<<10)); err != nil {
				return
			}
		}
	}()
	_, err := reader.ReadByte()
	require.Error(t, err)
	r.stop()
}
