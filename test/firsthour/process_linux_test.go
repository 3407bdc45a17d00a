package firsthour

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// patience bounds what would hang.
const patience = 5 * time.Minute

var binaries string

func TestMain(m *testing.M) { os.Exit(run(m)) }

// run builds the programs where ordinary users may start them.
func run(m *testing.M) int {
	dir, err := os.MkdirTemp("/tmp", "toolfleet-firsthour-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	cmd := exec.CommandContext(context.Background(), "go", "build", "-trimpath", "-ldflags=-s -w", "-o", dir+"/", "./cmd/coordinator", "./cmd/worker")
	cmd.Dir = "../.."
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0") // as make build has it, so that nothing is compiled twice
	if output, err := cmd.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build: %v\n%s", err, output)
		return 1
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	binaries = dir
	return m.Run()
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

// service starts a program and returns the groups of the line that says that it is ready.
func (who person) service(t *testing.T, ready string, name string, args ...string) []string {
	t.Helper()
	said := &log{pattern: regexp.MustCompile(ready), found: make(chan []string, 1)}
	if !filepath.IsAbs(name) {
		name = filepath.Join(binaries, name)
	}
	cmd := who.command(t, name, args...)
	cmd.Stdout, cmd.Stderr = said, said
	require.NoError(t, cmd.Start())
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		<-ended
	})
	select {
	case match := <-said.found:
		return match
	case <-ended:
	case <-time.After(patience):
	}
	t.Fatalf("%s is not ready: %s", name, said.String())
	return nil
}

// log keeps what a service writes and tells of the first match of a pattern.
type log struct {
	mu      sync.Mutex
	all     bytes.Buffer
	pattern *regexp.Regexp
	found   chan []string
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all.Write(p)
	if l.pattern != nil {
		if match := l.pattern.FindStringSubmatch(l.all.String()); match != nil {
			l.found <- match
			l.pattern = nil
		}
	}
	return len(p), nil
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.String()
}
