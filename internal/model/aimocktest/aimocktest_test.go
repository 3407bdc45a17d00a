package aimocktest

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const greeting = `{"fixtures":[{"match":{"userMessage":"hello"},"response":{"content":"Hi!"}}]}`

// child is set in a process that a test starts from its own binary.
const child = "AIMOCKTEST_CHILD"

func TestStart_RepliesAndStops(t *testing.T) {
	t.Parallel()
	var base string
	t.Run("while the test runs", func(t *testing.T) {
		base = Start(t, greeting)
		body := strings.NewReader(`{"model":"m","messages":[{"role":"user","content":"hello"}]}`)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, base+"/chat/completions", body)
		require.NoError(t, err)
		req.Header.Set("Authorization", "Bearer "+APIKey)
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		resp, err := client.Do(req)
		require.NoError(t, err)
		defer func() { _ = resp.Body.Close() }()
		answer, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.Contains(t, string(answer), `"content":"Hi!"`)
	})
	if base == "" {
		t.Skip("the server cannot be had")
	}
	_, err := new(net.Dialer).DialContext(t.Context(), "tcp", host(t, base))
	require.Error(t, err, "it must be gone with its test")
}

func host(t *testing.T, base string) string {
	t.Helper()
	u, err := url.Parse(base)
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1", u.Hostname(), "it must listen on loopback only")
	return u.Host
}

func TestStart_ServerDiesWithItsProcess(t *testing.T) {
	t.Parallel()
	if os.Getenv(child) != "" {
		fmt.Println("base " + Start(t, greeting))
		_, _ = io.Copy(io.Discard, os.Stdin) // until the parent lets go
		os.Exit(3)                           // without any clean-up
	}
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), self, "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), child+"=1")
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	var base string
	for lines := bufio.NewScanner(stdout); base == "" && lines.Scan(); {
		_, base, _ = strings.Cut(lines.Text(), "base ")
	}
	if base == "" {
		_ = cmd.Wait()
		t.Skip("the server cannot be had")
	}
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", host(t, base))
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()

	require.NoError(t, stdin.Close())
	var exit *exec.ExitError
	require.ErrorAs(t, cmd.Wait(), &exit)
	require.Equal(t, 3, exit.ExitCode())
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(40*time.Second)))
	_, err = conn.Read(make([]byte, 1))
	require.Error(t, err)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "a living server would have kept the connection for a minute")
}
