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
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const greeting = `{"fixtures":[{"match":{"userMessage":"hello"},"response":{"content":"Hi!"}}]}`

// childMode is set in a process that a test starts from its own binary, and says what
// to do there.
const childMode = "AIMOCKTEST_CHILD"

// child is this test again, in a process of its own.
func child(t *testing.T, mode string, env ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), self, "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(append(os.Environ(), childMode+"="+mode), env...)
	return cmd
}

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
	if os.Getenv(childMode) != "" {
		fmt.Println("base " + Start(t, greeting))
		_, _ = io.Copy(io.Discard, os.Stdin) // until the parent lets go
		os.Exit(3)                           // without any clean-up
	}
	if err := checkNode(t.Context()); err != nil {
		unavailable(t, err)
	}
	cmd := child(t, "die")
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
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(20*time.Second)))
	_, err = conn.Read(make([]byte, 1))
	require.Error(t, err)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "a living server would have kept the connection for a minute")
}

func TestStart_WithoutNode(t *testing.T) {
	t.Parallel()
	if os.Getenv(childMode) != "" {
		Start(t, greeting)
		return
	}
	empty := "PATH=" + t.TempDir()

	output, err := child(t, "skip", empty, "TOOLFLEET_INTEGRATION=").CombinedOutput()
	require.NoError(t, err)
	require.Contains(t, string(output), "*** TestStart_WithoutNode SKIPPED: NO TEST AGAINST A REAL MODEL SERVER")
	require.Contains(t, string(output), "--- SKIP")

	output, err = child(t, "fail", empty, "TOOLFLEET_INTEGRATION=required").CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(output), "TOOLFLEET_INTEGRATION=required, but")
	require.Contains(t, string(output), "--- FAIL")
}

func TestStart_BadFixtures(t *testing.T) {
	t.Parallel()
	if os.Getenv(childMode) != "" {
		Start(t, `{"fixtures": [`)
		return
	}
	output, err := child(t, "fail").CombinedOutput()
	if strings.Contains(string(output), "--- SKIP") {
		t.Skip("the server cannot be had")
	}
	require.Error(t, err)
	require.Contains(t, string(output), "start aimock: fixtures are not JSON")
}

func TestInstall_SeveralAtOnce(t *testing.T) {
	if err := checkNode(t.Context()); err != nil {
		unavailable(t, err)
	}
	cache := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache) // where os.UserCacheDir looks on Linux
	paths := make([]string, 2)
	group, ctx := errgroup.WithContext(t.Context())
	for i := range paths {
		group.Go(func() (err error) {
			paths[i], err = install(ctx)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		unavailable(t, err)
	}
	require.Equal(t, paths[0], paths[1])
	require.FileExists(t, paths[0])
	if strings.HasPrefix(paths[0], cache) {
		rest, err := filepath.Glob(filepath.Join(cache, "toolfleet-test", "installing-*"))
		require.NoError(t, err)
		require.Empty(t, rest, "what was not needed must be gone")
	}
}
