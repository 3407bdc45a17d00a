package firsthour

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/test/processtest"
)

// TestProjects has a model work on each project, in place and over a fleet, or in one of the two
// ways by turns.
func TestProjects(t *testing.T) {
	t.Parallel()
	projects, err := filepath.Glob("testdata/*.txtar")
	require.NoError(t, err)
	require.NotEmpty(t, projects)
	ways := []string{"in place", "over a fleet"}
	for n, path := range projects {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			t.Parallel()
			p := readProject(t, path)
			p.available(t)
			p.flags = slices.Concat(p.flags, reach(t, p.net), serveIndex(t, p.index))
			for _, where := range ways {
				asUsers(t, where, func(t *testing.T, uid int) {
					t.Helper()
					if os.Getenv("TOOLFLEET_FIRSTHOUR") != "all" && (where != cmp.Or(p.only, ways[n%2]) || os.Geteuid() == 0 && (where == "in place") == (uid == 0)) {
						t.Skip("as an ordinary user in place, or as root over a fleet, is enough: make firsthour runs it every way")
					}
					worked(t, p, newPerson(t, uid), where == "in place")
				})
			}
		})
	}
}

// asUsers runs a test as the user that runs the tests, and as an ordinary one if that is root.
func asUsers(t *testing.T, where string, test func(t *testing.T, uid int)) {
	t.Helper()
	users := []int{os.Geteuid()}
	if users[0] == 0 {
		users = append(users, 65534)
	}
	for _, uid := range users {
		t.Run(where+" as "+strconv.Itoa(uid), func(t *testing.T) {
			t.Parallel()
			test(t, uid)
		})
	}
}

// worked lays the project out, has the model work on it, and checks what came of it.
func worked(t *testing.T, p project, who person, here bool) {
	t.Helper()
	p.layOut(t, who)
	model := p.model(t, filepath.Dir(who.home))
	who.own(t)
	for _, line := range p.outside {
		who.shell(t, line)
	}
	work := overAFleet
	if here {
		work = inPlace
	}
	p.check(t, work(t, p, who, model), here)
	for _, line := range p.after {
		who.shell(t, line)
	}
	for _, line := range p.here {
		if here {
			who.shell(t, line)
		}
	}
}

// inPlace is coordinator run in the workspace itself.
func inPlace(t *testing.T, p project, who person, model string) string {
	t.Helper()
	args := append([]string{"run", "--json", "--session", session, "--model", model, "--min-level", "full", "--workspace", who.workspace}, p.flags...)
	stdout, _ := who.coordinator(t, append(args, "do it")...)
	return stdout
}

// overAFleet is a coordinator that serves, a worker, and a copy of the workspace.
func overAFleet(t *testing.T, p project, who person, model string) string {
	t.Helper()
	data := filepath.Join(who.home, "fleet")
	server := who.start(t, "coordinator", "serve", "--model", model, "--listen", "127.0.0.1:0", "--data", filepath.Join(data, "serve"))
	fleet := server.wait(t, server.said, `worker (--nats) (nats://127\.0\.0\.1:\d+) (--creds) (\S+) --call-keys`)[1:]
	worker := who.start(t, "worker", slices.Concat(fleet, p.flags, []string{"--data", filepath.Join(data, "worker")})...)
	worker.wait(t, worker.said, `takes calls of pool default`)
	args := append([]string{"submit", "--json", "--session", session, "--min-level", "full", "--workspace", who.workspace}, fleet...)
	stdout, _ := who.coordinator(t, append(args, "do it")...)
	return stdout
}

// patience bounds what would hang.
const patience = 5 * time.Minute

var binaries string

// TestMain builds the programs where ordinary users may start them.
func TestMain(m *testing.M) {
	os.Exit(processtest.Built("/tmp", false, func(dir string) int {
		binaries = dir
		return m.Run()
	}, "./cmd/coordinator", "./cmd/worker"))
}

// person is somebody with a home directory and a project.
type person struct {
	uid             int
	home, workspace string
	path            string // PATH
	env             []string
}

// newPerson gives a user of the host a directory of their own.
func newPerson(tb testing.TB, uid int) person {
	tb.Helper()
	dir, err := os.MkdirTemp("/tmp", "toolfleet-person-") //nolint:usetesting // where an ordinary user may go
	require.NoError(tb, err)
	tb.Cleanup(func() { _ = exec.CommandContext(context.Background(), "rm", "-rf", dir).Run() })
	who := person{uid: uid, home: filepath.Join(dir, "home"), workspace: filepath.Join(dir, "home", "project"), path: os.Getenv("PATH")}
	if uid != os.Geteuid() { // what root has of its own is not for others
		who.path = "/usr/local/go/bin:/usr/local/bin:/usr/bin:/bin"
	}
	require.NoError(tb, os.MkdirAll(who.workspace, 0o755))
	return who
}

// own hands everything in the person's directory over to them.
func (who person) own(tb testing.TB) {
	tb.Helper()
	require.NoError(tb, filepath.WalkDir(filepath.Dir(who.home), func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, who.uid, who.uid)
	}))
}

// command is a program that the person starts in the workspace.
func (who person) command(tb testing.TB, name string, args ...string) *exec.Cmd {
	tb.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(tb.Context()), name, args...)
	cmd.Dir = who.workspace
	cmd.Env = []string{"PATH=" + who.path, "HOME=" + who.home, "USER=someone", "TERM=dumb", "LANG=C.UTF-8"}
	cmd.Env = append(cmd.Env, who.env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if who.uid != os.Geteuid() {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(who.uid), Gid: uint32(who.uid)}
	}
	cmd.WaitDelay = patience
	return cmd
}

// shell runs a line of shell to its end, which must be a good one.
func (who person) shell(t *testing.T, line string) {
	t.Helper()
	output, err := who.command(t, "sh", "-ec", line).CombinedOutput()
	require.NoError(t, err, "%s: %s", line, output)
}

// coordinator runs it to its end and returns what it wrote.
func (who person) coordinator(tb testing.TB, args ...string) (stdout, stderr string) {
	tb.Helper()
	var out, said bytes.Buffer
	cmd := who.command(tb, filepath.Join(binaries, "coordinator"), args...)
	cmd.Stdout, cmd.Stderr = &out, &said
	err := cmd.Run()
	require.NoError(tb, err, "coordinator %s\n%s\n%s", strings.Join(args, " "), out.String(), said.String())
	return out.String(), said.String()
}

// running is a program that runs; it is stopped when the test ends.
type running struct {
	out, said *processtest.Output
	ended     chan struct{}
	err       error // of waiting for it, once ended is closed
}

func (r *running) String() string { return r.out.String() + r.said.String() }

// start starts a program; binaries has those without a directory.
func (who person) start(t *testing.T, name string, args ...string) *running {
	t.Helper()
	if !filepath.IsAbs(name) {
		name = filepath.Join(binaries, name)
	}
	r := &running{out: &processtest.Output{}, said: &processtest.Output{}, ended: make(chan struct{})}
	cmd := who.command(t, name, args...)
	cmd.Stdout, cmd.Stderr = r.out, r.said
	require.NoError(t, cmd.Start())
	go func() {
		r.err = cmd.Wait()
		close(r.ended)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		<-r.ended
	})
	return r
}

// wait waits for a line on stdout or, said, on stderr, and returns its groups.
func (r *running) wait(t *testing.T, from *processtest.Output, pattern string) []string {
	t.Helper()
	match := from.Wait(pattern, r.ended, patience)
	require.NotNil(t, match, "%s", r)
	return match
}

// end waits for a good end, and returns what was on stdout.
func (r *running) end(t *testing.T) string {
	t.Helper()
	select {
	case <-r.ended:
		require.NoError(t, r.err, "%s", r)
	case <-time.After(patience):
		require.FailNow(t, "it does not end", "%s", r)
	}
	return r.out.String()
}

// probes are an address in each set of hosts that a project may name.
var probes = map[string]string{
	"go":  "https://proxy.golang.org/golang.org/x/mod/@v/v0.42.0.info",
	"npm": "https://registry.npmjs.org/ms/2.1.3",
}

// passed are variables by which a machine says how registries are reached, for the sandbox, too.
var passed = []string{
	"HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy", "GOSUMDB", "SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS",
}

// reach are the flags by which sandboxes reach sets of hosts: directly, or by the proxy that the
// environment names, and also where these have no public addresses. It skips the test where this
// process reaches them neither way.
func reach(t *testing.T, sets []string) []string {
	t.Helper()
	if len(sets) == 0 {
		return nil
	}
	allow, private := append([]string(nil), sets...), []string(nil)
	for _, set := range sets {
		address, err := url.Parse(probes[set])
		require.NoError(t, err)
		fetch(t, address)
		host := address.Hostname()
		if proxy, err := http.ProxyFromEnvironment(&http.Request{URL: address}); err == nil && proxy != nil {
			host = proxy.Hostname()
			allow = append(allow, host+":"+proxy.Port())
		}
		addresses, err := net.DefaultResolver.LookupNetIP(t.Context(), "ip4", host)
		require.NoError(t, err)
		for _, a := range addresses {
			if a.IsLoopback() {
				processtest.Unavailable(t, host+" is a proxy of this host's own, which no sandbox reaches")
			}
			private = append(private, a.Unmap().String()+"/32")
		}
	}
	flags := []string{"--allow-net", strings.Join(allow, ","), "--allow-net-private", strings.Join(private, ",")}
	for _, name := range passed {
		if value := os.Getenv(name); value != "" {
			flags = append(flags, "--env", name+"="+value)
		}
	}
	return flags
}

// fetch skips the test unless an address can be fetched.
func fetch(t *testing.T, address *url.URL) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address.String(), nil)
	require.NoError(t, err)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		processtest.Unavailable(t, "there is no network: "+err.Error())
	}
	defer response.Body.Close()
	_, _ = io.Copy(io.Discard, response.Body)
	require.Equal(t, http.StatusOK, response.StatusCode, address)
}
