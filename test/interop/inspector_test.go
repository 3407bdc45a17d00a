package interop

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/test/processtest"
)

const inspector = "@modelcontextprotocol/inspector/clients/launcher/build/index.js"

// serve starts a coordinator that serves the protocol over HTTP until the test ends, with a fleet
// of its own.
func serve(t *testing.T, args ...string) (url string) {
	t.Helper()
	url, _ = start(t, append([]string{"--sandbox", "process"}, args...)...)
	return url
}

// start starts a coordinator that serves the protocol over HTTP until the test ends, or kill ends
// it at once.
func start(t *testing.T, args ...string) (url string, kill func()) {
	t.Helper()
	at := slices.Index(args, "--data")
	if at < 0 {
		args, at = append(args, "--data", filepath.Join(t.TempDir(), "data")), len(args)
	}
	data := args[at+1]
	url, kill = startCommand(t, "MCP", append([]string{"mcp", "--listen", "127.0.0.1:0"}, args...)...)
	return processtest.Authorized(t, url, filepath.Join(data, "mcp.token")), kill
}

// startCommand starts a coordinator that says where something is.
func startCommand(t *testing.T, what string, args ...string) (url string, kill func()) {
	t.Helper()
	home := t.TempDir()
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	cmd := exec.CommandContext(ctx, coordinator, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = time.Minute
	cmd.Env = environment(home)
	said, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	ready, ended := make(chan string, 1), make(chan struct{})
	go func() {
		defer close(ended)
		for lines := bufio.NewScanner(said); lines.Scan(); {
			if at := address.FindStringSubmatch(lines.Text()); at != nil && at[1] == what {
				ready <- at[2] // it is said once
			}
		}
		_ = cmd.Wait() // it was asked to end
	}()
	t.Cleanup(func() { stop(); <-ended })
	select {
	case url = <-ready:
	case <-ended:
		t.Fatal("the coordinator ended")
	case <-time.After(patience):
		t.Fatal("the coordinator does not say where its " + what + " is")
	}
	return url, func() { _ = cmd.Process.Kill(); <-ended }
}

var address = regexp.MustCompile(`(MCP|NATS) is at ([^\s;]+)`)

func environment(home string) []string {
	return []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "TMPDIR=" + home, "TOOLFLEET_MIN_LEVEL=none"}
}

// TestInspector has the command line of the official inspector list tools, call one and read a
// file.
func TestInspector(t *testing.T) {
	t.Parallel()
	for name, target := range map[string]func(t *testing.T, workspace string) []string{
		"stdio": func(t *testing.T, workspace string) []string {
			t.Helper()
			home := t.TempDir()
			return []string{
				"-e", "HOME=" + home, "-e", "TMPDIR=" + home, "-e", "TOOLFLEET_MIN_LEVEL=none",
				coordinator, "mcp", "--workspace", workspace, "--sandbox", "process",
			}
		},
		"http": func(t *testing.T, workspace string) []string {
			t.Helper()
			return []string{serve(t, "--workspace", workspace)}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			workspace := t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(workspace, "a.txt"), []byte("alpha\n"), 0o600))
			at := target(t, workspace)
			asks := func(answer any, args ...string) {
				t.Helper()
				output, err := node(t, inspector, append(append([]string{"--cli"}, at...), args...)...)
				require.NoError(t, err, output)
				require.NoError(t, json.Unmarshal([]byte(output), answer), output)
			}
			var listed struct{ Tools []struct{ Name string } }
			asks(&listed, "--method", "tools/list")
			require.Contains(t, listed.Tools, struct{ Name string }{"bash"})
			var called struct {
				Content           []struct{ Text string }
				StructuredContent struct{ Status string }
			}
			asks(&called, "--method", "tools/call", "--tool-name", "bash", "--tool-arg", "command=cat a.txt; echo beta >b.txt")
			require.Equal(t, "ok", called.StructuredContent.Status)
			require.Equal(t, "alpha\n", called.Content[0].Text)
			require.FileExists(t, filepath.Join(workspace, "b.txt"))
			var read struct{ Contents []struct{ Text string } }
			asks(&read, "--method", "resources/read", "--uri", "toolfleet://workspace/b.txt")
			require.Equal(t, "beta\n", read.Contents[0].Text)
		})
	}
}
