package hostenv_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/inplace/hostenv"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
)

func TestParseMount(t *testing.T) {
	t.Parallel()
	here, err := os.Getwd()
	require.NoError(t, err)
	for text, want := range map[string]isolation.Mount{
		"/data":            {Host: "/data", Guest: "/data", AsOwner: true},
		"/data/":           {Host: "/data", Guest: "/data", AsOwner: true},
		"/data:ro":         {Host: "/data", Guest: "/data", AsOwner: true},
		"/data:rw":         {Host: "/data", Guest: "/data", Write: true, AsOwner: true},
		"/data:/x/../y":    {Host: "/data", Guest: "/y", AsOwner: true},
		"/data:/x:rw":      {Host: "/data", Guest: "/x", Write: true, AsOwner: true},
		"relative/dir:/in": {Host: filepath.Join(here, "relative/dir"), Guest: "/in", AsOwner: true},
	} {
		m, err := hostenv.ParseMount(text)
		require.NoError(t, err, text)
		require.Equal(t, want, m, text)
	}
	for text, says := range map[string]string{
		"": "want HOST", ":/x": "want HOST", ":ro": "want HOST", "/a:/b:/c": "want HOST", "/a:/b:/c:ro": "want HOST",
		"/a:x": `INSIDE is "x"`, "/a:RW": `INSIDE is "RW"`, "/a:": `INSIDE is ""`, "/a:x:rw": `INSIDE is "x"`,
	} {
		_, err := hostenv.ParseMount(text)
		require.ErrorContains(t, err, says, text)
	}
}

// TestCheck_RefusesWaysOut and says what can be mounted.
func TestCheck_RefusesWaysOut(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("UNSUPPORTED: sandboxes that isolate are for Linux")
	}
	home := home(t)
	tree(t, home, "work/a", "data/x", "data/.cache/y", "sockets/deep/z", "keep/state/sessions/s", "fine/x", "pipes/")
	for i := range 100 {
		tree(t, home, fmt.Sprintf("sockets/a/%d", i))
	}
	require.NoError(t, exec.CommandContext(t.Context(), "mkfifo", filepath.Join(home, "pipes/p")).Run())
	listener, err := new(net.ListenConfig).Listen(t.Context(), "unix", filepath.Join(home, "sockets/deep/agent"))
	require.NoError(t, err)
	defer listener.Close()
	link(t, "/run", filepath.Join(home, "link"))
	limits := hostenv.Limits{
		View: isolated, Home: home, Workspace: filepath.Join(home, "work"), Data: []string{filepath.Join(home, "keep/state"), ""},
	}
	at := func(name string) string { return filepath.Join(home, name) }
	for text, says := range map[string]string{
		"/proc":                           "/proc has devices",
		"/sys/fs:/x":                      "/sys has devices",
		"/dev/null:/x":                    "/dev has devices",
		"/run:/x":                         "/run has devices",
		at("link") + ":/x":                "/run has devices",
		"/:/x":                            "home directory",
		home + ":/x":                      "home directory",
		filepath.Dir(home) + ":/x":        "home directory",
		at("keep") + ":/x":                "stores sessions",
		at("keep/state") + ":/x":          "stores sessions",
		at("keep/state/sessions") + ":/x": "stores sessions",
		at("pipes") + ":/x":               "a FIFO",
		at("sockets") + ":/x":             "agent is a socket",
		at("sockets/deep/agent:/x"):       "agent is a socket",
		at("missing") + ":/x":             "does not exist",
		at("work") + ":/x:rw":             "except protected paths",
		at("work/a") + ":/x:rw":           "except protected paths",
		at("data") + ":/":                 "INSIDE is /",
		at("data") + ":/tmp":              "/tmp belongs to the sandbox",
		at("data") + ":/tmp.host/x":       "/tmp.host belongs to the sandbox",
		at("data") + ":/home":             "/home/sandbox belongs to the sandbox",
		at("data") + ":/workspace/x":      "/workspace belongs to the sandbox",
		at("data") + ":/usr/x":            "/usr belongs to the sandbox",
		at("data") + ":/etc":              "/etc belongs to the sandbox",
	} {
		_, err := limits.CheckAll([]string{text})
		require.ErrorContains(t, err, says, text)
		require.ErrorContains(t, err, text, "it names the value")
	}
	mounts, err := limits.CheckAll([]string{at("data") + ":/a:rw", at("fine/x") + ":/b", at("work/a") + ":/c", at("data") + ":/tmp/x:rw"})
	require.NoError(t, err)
	require.Len(t, mounts, 4)
	_, err = limits.CheckAll([]string{at("data") + ":/a:rw", at("fine") + ":/a"})
	require.ErrorContains(t, err, "two mounts")

	_, err = hostenv.Limits{View: isolated}.CheckAll([]string{"/:/x"})
	require.ErrorContains(t, err, "home directory", "also of somebody without a home")

	limits.View = paths // where things have the place of the host
	_, err = limits.CheckAll([]string{at("data") + ":/a"})
	require.ErrorContains(t, err, "omit INSIDE")
	_, err = limits.CheckAll([]string{at("data") + ":rw"})
	require.NoError(t, err)
}
