//go:build linux

package escapetest

import (
	"context"
	"crypto/rand"
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
)

// The environment of an arm.
const (
	armVariable    = "TOOLFLEET_ESCAPE_ARM"
	probeVariable  = "TOOLFLEET_ESCAPE_PROBE"
	secretVariable = "NATS_CREDS" // as a worker's environment may have it
)

// nobody is the ordinary user of arms that are started by root.
const nobody = 65534

// armTimeout bounds an arm, of which the longest take a minute on a machine that is not busy.
const armTimeout = 20 * time.Minute

// InArms runs a test as root, if that is asked for and root has started it, and beside that as an
// ordinary user: each in a process of its own, with mounts, processes, IPC and a host name of its
// own when root has started it. It has to be called by a test function itself.
func InArms(t *testing.T, root bool, test func(t *testing.T)) {
	t.Helper()
	if os.Getenv(armVariable) != "" {
		test(t)
		return
	}
	dir, err := os.MkdirTemp("/tmp", "toolfleet-escape-") //nolint:usetesting // where an ordinary user may go
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o755))
	a := arms{program: filepath.Join(dir, "arm.test"), probe: build(t, dir), dir: dir}
	self, err := os.Executable()
	require.NoError(t, err)
	install(t, self, a.program)
	asRoot := os.Geteuid() == 0
	if asRoot {
		a.apart = apart(t)
	}
	t.Run("as", func(t *testing.T) { // it ends when both have
		t.Run("root", func(t *testing.T) {
			t.Parallel()
			switch {
			case !root:
				t.Skip("without isolation nothing runs as root")
			case !asRoot:
				t.Skip("UNSUPPORTED: only root can run the arm as root")
			case a.apart == nil:
				t.Skip("UNSUPPORTED: root may not make namespaces here, as in a container: the arm as root would run beside the machine's own processes")
			}
			a.run(t, 0)
		})
		t.Run("user", func(t *testing.T) {
			t.Parallel()
			uid := os.Geteuid()
			if asRoot {
				uid = nobody
			}
			a.run(t, uid)
		})
	})
}

// arms is what arms have in common.
type arms struct {
	program, probe, dir string
	apart               []string // the program, with arguments, that has what root starts in namespaces of its own
}

// apart returns the program by which root makes namespaces, nil if it may make none.
func apart(t *testing.T) []string {
	t.Helper()
	argv := []string{"unshare", "-mpfui", "--mount-proc", "--propagation", "private", "--kill-child"}
	if out, err := exec.CommandContext(t.Context(), argv[0], append(argv[1:len(argv):len(argv)], "true")...).CombinedOutput(); err != nil {
		t.Logf("UNSUPPORTED: unshare: %v: %s", err, out)
		return nil
	}
	return argv
}

// run runs the calling test, which is two levels up, as a user.
func (a arms) run(t *testing.T, uid int) {
	t.Helper()
	test, _, _ := strings.Cut(t.Name(), "/")
	home := filepath.Join(a.dir, strconv.Itoa(uid))
	require.NoError(t, os.Mkdir(home, 0o755))
	argv := []string{a.program, "-test.run", "^" + test + "$", "-test.v", "-test.timeout", armTimeout.String()}
	if os.Geteuid() == 0 {
		require.NoError(t, os.Chown(home, uid, uid))
		become := []string{}
		if uid != 0 {
			id := strconv.Itoa(uid)
			become = []string{"setpriv", "--reuid", id, "--regid", id, "--clear-groups"}
		}
		argv = slices.Concat(a.apart, become, argv)
	}
	ctx, cancel := context.WithTimeout(t.Context(), armTimeout+10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir = home
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + home, "TMPDIR=" + home,
		"GORACE=" + os.Getenv("GORACE"), "TOOLFLEET_INTEGRATION=" + os.Getenv("TOOLFLEET_INTEGRATION"),
		armVariable + "=" + strconv.Itoa(uid), probeVariable + "=" + a.probe, secretVariable + "=secret-" + rand.Text(),
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	require.NoError(t, err, "the arm failed")
}
