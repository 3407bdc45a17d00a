package hostenv_test

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/toolfleet/toolfleet/internal/inplace/hostenv"
	"github.com/toolfleet/toolfleet/internal/sandbox/egress"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/test/processtest"
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

// TestGitCredentials_AnswersWhatIsAskedForOneHost: whatever talks to the door, and in which words.
func TestGitCredentials_AnswersWhatIsAskedForOneHost(t *testing.T) {
	dir := t.TempDir()
	asked, settings := filepath.Join(dir, "asked"), filepath.Join(dir, "gitconfig")
	helper := "!f() { cat >>'" + asked + "'; echo username=ada; echo password=secret; echo password_expiry_utc=9999999999; }; f"
	require.NoError(t, os.WriteFile(settings, []byte("[credential]\n\thelper = \""+helper+"\"\n"), 0o600))
	t.Setenv("GIT_CONFIG_GLOBAL", settings)
	t.Setenv("GIT_CONFIG_NOSYSTEM", "1")
	doors, err := hostenv.OpenDoors(hostenv.View{})
	require.NoError(t, err)
	defer func() { require.NoError(t, doors.Close()) }()
	require.NoError(t, doors.GitCredentials(t.Context(), []string{"git.example"}))
	ask := func(question string) string {
		conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: filepath.Join(doors.Mount().Host, "git-credentials")})
		require.NoError(t, err)
		defer conn.Close()
		_, err = io.WriteString(conn, question)
		require.NoError(t, err)
		require.NoError(t, conn.CloseWrite())
		answer, err := io.ReadAll(conn)
		require.NoError(t, err)
		return string(answer)
	}
	for _, question := range []string{
		"", "action=get\n", "action=get\nprotocol=https\n", "action=get\nhost=git.example\n", "protocol=https\nhost=git.example\n",
		"action=store\nprotocol=https\nhost=git.example\nusername=x\npassword=y\n", "action=erase\nprotocol=https\nhost=git.example\n",
		"action=get\nprotocol=http\nhost=git.example\n", "action=get\nprotocol=https\nhost=other.example\n", "action=get\nprotocol=https\nhost=git.example:8443\n",
		"action=get\nprotocol=https\nhost=git.example\nhost=other.example\n", "action=get\nprotocol=https\nurl=https://git.example\n",
	} {
		require.Empty(t, ask(question), question)
		require.NoFileExists(t, asked, question)
	}
	const answer = "username=ada\npassword=secret\n"
	require.Equal(t, answer, ask("action=get\ntimeout=900\nprotocol=https\nhost=git.example\npath=a/b\nurl=https://other.example\n"))
	require.Equal(t, answer, ask("action=get\nprotocol=https\nhost=GIT.example\n"))
	question, err := os.ReadFile(asked)
	require.NoError(t, err)
	const one = "protocol=https\nhost=git.example\n"
	require.Equal(t, one+one, string(question), "nothing of the question reaches the helper")
}

func TestParseCredentialHost(t *testing.T) {
	t.Parallel()
	allow, err := egress.ParseAllow("github.com,git.example:8443")
	require.NoError(t, err)
	for text, want := range map[string]string{
		"github.com": "github.com", "GitHub.com.": "github.com", "github.com:443": "github.com", "git.example:8443": "git.example:8443",
	} {
		host, err := hostenv.ParseCredentialHost(text, allow)
		require.NoError(t, err, text)
		require.Equal(t, want, host)
	}
	for text, says := range map[string]string{
		"git.example": "--allow-net does not list git.example:443; list it, as in --allow-net git.example:443",
		"github.com:": `port ""`, "https://github.com": "github.com", "": `""`,
	} {
		_, err := hostenv.ParseCredentialHost(text, allow)
		require.ErrorContains(t, err, says, text)
	}
}

// TestIdentity is the name and the address that git has in a directory, and nothing else.
func TestIdentity(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("UNSUPPORTED: git is not installed")
	}
	global := filepath.Join(t.TempDir(), "gitconfig")
	t.Setenv("GIT_CONFIG_GLOBAL", global)
	t.Setenv("GIT_CONFIG_NOSYSTEM", "1")
	dir := t.TempDir()
	set := func(args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "git", append([]string{"-C", dir}, args...)...)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, string(out))
	}
	requireIdentity(t, dir, "", "")
	set("config", "--global", "user.name", "Ada Lovelace")
	set("config", "--global", "user.email", "ada@example.com")
	set("config", "--global", "user.signingkey", "secret")
	requireIdentity(t, dir, "Ada Lovelace", "ada@example.com")

	set("init", "-q")
	set("config", "user.email", "ada@work.example")
	requireIdentity(t, dir, "Ada Lovelace", "ada@work.example", "the workspace's counts more")

	set("config", "user.name", "Eve\nGIT_SSH=evil")
	set("config", "user.email", "<eve>")
	requireIdentity(t, dir, "", "", "what cannot be in a commit is left out")
	set("config", "user.name", strings.Repeat("x", 257))
	requireIdentity(t, dir, "", "")
}

func requireIdentity(t *testing.T, dir, name, email string, why ...any) {
	t.Helper()
	gotName, gotEmail := hostenv.Identity(t.Context(), dir)
	require.Equal(t, [2]string{name, email}, [2]string{gotName, gotEmail}, why...)
}

func TestParsePublication(t *testing.T) {
	t.Parallel()
	loopback := netip.MustParseAddr("127.0.0.1")
	for text, want := range map[string]hostenv.Publication{
		"3000":                {Host: loopback, HostPort: 3000, Port: 3000},
		"8080:3000":           {Host: loopback, HostPort: 8080, Port: 3000},
		"0:3000":              {Host: loopback, Port: 3000},
		"localhost:8080:3000": {Host: loopback, HostPort: 8080, Port: 3000},
		"0.0.0.0:8080:3000":   {Host: netip.IPv4Unspecified(), HostPort: 8080, Port: 3000},
		"[::1]:8080:3000":     {Host: netip.IPv6Loopback(), HostPort: 8080, Port: 3000},
	} {
		p, err := hostenv.ParsePublication(text)
		require.NoError(t, err, text)
		require.Equal(t, want, p, text)
	}
	for text, says := range map[string]string{
		"": `PORT is "": must be 1 to 65535`, "0": `PORT is "0"`, "http": `PORT is "http"`, "65536": `PORT is "65536"`, "8080:": `PORT is ""`,
		":3000": `HOSTPORT is "": must be 0 to 65535`, "127.0.0.1:3000": `HOSTPORT is "127.0.0.1"`, "[::1]:3000": `HOSTPORT is "1]"`,
		"host:1:2": `HOST is "host": must be an address`, ":1:2": `HOST is ""`, "1.2.3:1:2": `HOST is "1.2.3"`,
	} {
		_, err := hostenv.ParsePublication(text)
		require.ErrorContains(t, err, says, text)
	}
}

func TestListen_SaysWhatIsTaken(t *testing.T) {
	t.Parallel()
	free, err := hostenv.ParsePublication("0:3000")
	require.NoError(t, err)
	l, err := free.Listen(t.Context())
	require.NoError(t, err)
	defer l.Close()
	require.Equal(t, "http://"+l.Addr().String(), hostenv.URL(l))
	_, port, err := net.SplitHostPort(l.Addr().String())
	require.NoError(t, err)
	taken, err := hostenv.ParsePublication(port + ":3000")
	require.NoError(t, err)
	require.Equal(t, port, strconv.Itoa(int(taken.HostPort)))
	_, err = taken.Listen(t.Context())
	require.ErrorContains(t, err, "port "+port+" of 127.0.0.1 is taken; choose another one, or 0 for any that is free, as in 0:3000")
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// tree makes files below a directory: a name that ends in a slash is a directory, and "a -> b" is a
// link to b.
func tree(t *testing.T, root string, names ...string) {
	t.Helper()
	for _, name := range names {
		path := filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		if name[len(name)-1] == '/' {
			require.NoError(t, os.MkdirAll(path, 0o755))
			continue
		}
		processtest.WriteProgram(t, path, []byte("#!/bin/sh\necho "+name+"\n"))
	}
}

func link(t *testing.T, to, at string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(at), 0o755))
	require.NoError(t, os.Symlink(to, at))
}

// home is a home directory without symbolic links in its path.
func home(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	return dir
}
