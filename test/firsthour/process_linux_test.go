package firsthour

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/test/processtest"
)

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
