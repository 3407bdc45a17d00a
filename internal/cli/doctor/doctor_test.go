package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/inplace/hostenv"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
)

// files is a host that lacks nothing, with some files changed; "-" removes one.
func files(changes map[string]string) fstest.MapFS {
	all := map[string]string{
		"proc/sys/kernel/osrelease": "6.18.0\n", "proc/sys/user/max_user_namespaces": "1000\n",
		"proc/sys/kernel/seccomp/actions_avail": "kill_process kill_thread errno allow\n",
		"usr/bin/bwrap":                         "x",
	}
	maps.Copy(all, changes)
	fs := fstest.MapFS{}
	for name, content := range all {
		if content != "-" {
			fs[name] = &fstest.MapFile{Data: []byte(content)}
		}
	}
	return fs
}

func TestHost_SaysWhatIsMissingAndWhatToDo(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		change   func(h *host)
		files    map[string]string
		proven   isolation.Level
		check    string
		state    State
		found    string
		advice   string
		noAdvice bool
	}{
		"everything": {proven: isolation.LevelFull, check: "user namespaces", state: OK, found: "allowed", noAdvice: true},
		"no namespaces at all": {
			files: map[string]string{"proc/sys/user/max_user_namespaces": "0"}, check: "user namespaces",
			state: Missing, found: "is 0", advice: "sysctl -w user.max_user_namespaces",
		},
		"none for ordinary users": {
			files: map[string]string{"proc/sys/kernel/unprivileged_userns_clone": "0"}, check: "user namespaces",
			state: Missing, advice: "sysctl -w kernel.unprivileged_userns_clone=1",
		},
		"which root does not mind": {
			files: map[string]string{"proc/sys/kernel/unprivileged_userns_clone": "0"}, change: func(h *host) { h.root = true },
			proven: isolation.LevelFull, check: "user namespaces", state: OK, noAdvice: true,
		},
		"AppArmor": {
			files: map[string]string{"proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1"},
			check: "user namespaces", state: Limited, found: "AppArmor", advice: "apt install bubblewrap",
		},
		"AppArmor, bwrap works": {
			files:  map[string]string{"proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1"},
			proven: isolation.LevelFull, check: "user namespaces", state: Limited, noAdvice: true,
		},
		"another reason": {check: "user namespaces", state: OK, advice: "driver ns does not work for the reason above"},
		"bubblewrap":     {files: map[string]string{"usr/bin/bwrap": "-"}, check: "bubblewrap", state: Missing, advice: "install it"},
		"bubblewrap not needed": {
			files: map[string]string{"usr/bin/bwrap": "-"}, proven: isolation.LevelFull, check: "bubblewrap", state: OK, found: "not needed", noAdvice: true,
		},
		"Landlock": {
			change: func(h *host) { h.landlock = 0 }, files: map[string]string{"sys/kernel/security/lsm": "capability,yama"},
			check: "Landlock", state: Missing, found: "capability,yama", advice: "lsm=",
		},
		"old Landlock": {change: func(h *host) { h.landlock = 4 }, check: "Landlock", state: Limited, found: "ABI 4", advice: "6.12"},
		"seccomp":      {files: map[string]string{"proc/sys/kernel/seccomp/actions_avail": "-"}, check: "seccomp", state: Missing, advice: "CONFIG_SECCOMP_FILTER"},
		"cgroup v1": {change: func(h *host) {
			h.groups = func() (string, error) {
				return "", &isolation.UnusableError{Found: "version 2 is not mounted", Advice: "boot with this"}
			}
		}, check: "cgroup v2", state: Limited, found: "version 2 is not mounted; memory is checked", advice: "boot with this"},
		"cgroup":    {check: "cgroup v2", state: OK, found: "/sys/fs/cgroup/worker.service", noAdvice: true},
		"much disk": {check: "disk space", state: OK, found: "1048576 MiB free in /data", noAdvice: true},
		"some disk": {
			change: func(h *host) { h.free = freeOf(900 << 20) }, check: "disk space", state: Limited,
			found: "900 MiB free in /data; with 1520 MiB", advice: "--data DIR",
		},
		"little disk": {
			change: func(h *host) { h.free = freeOf(100 << 20) }, check: "disk space", state: Missing,
			found: "100 MiB free in /data; run and serve --listen need 240 MiB", advice: "--data DIR",
		},
		"few open files": {
			files: map[string]string{"proc/sys/fs/file-max": "800000\n"}, check: "open files",
			state: Limited, found: "is 800000", advice: "sysctl -w fs.file-max",
		},
		"many open files":        {files: map[string]string{"proc/sys/fs/file-max": "9223372036854775807\n"}, check: "open files", state: OK, noAdvice: true},
		"container":              {files: map[string]string{".dockerenv": ""}, check: "container", state: Limited, advice: "seccomp"},
		"container of podman":    {change: func(h *host) { h.engine = true }, check: "container", state: Limited, advice: "systempaths=unconfined"},
		"container that lets us": {files: map[string]string{".dockerenv": ""}, proven: isolation.LevelFull, check: "container", state: OK, noAdvice: true},
		"another system":         {change: func(h *host) { h.system = "darwin" }, check: "system", state: Missing, found: "darwin", advice: "virtual machine"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := host{
				system: "linux", files: files(test.files), landlock: 7,
				groups: func() (string, error) { return "/sys/fs/cgroup/worker.service/toolfleet-x", nil },
				free:   func() (string, int64, error) { return "/data", 1 << 40, nil },
			}
			if test.change != nil {
				test.change(&h)
			}
			for _, c := range h.checks(test.proven) {
				if c.Name != test.check {
					continue
				}
				require.Equal(t, test.state, c.State)
				require.Contains(t, c.Found, test.found)
				require.Contains(t, c.Advice, test.advice)
				require.Equal(t, test.noAdvice, c.Advice == "", c.Advice)
				return
			}
			require.Fail(t, "no such check")
		})
	}
}

// TestExamine_TakesWhatIsProven: the level is the best that a driver has proven, and the
// exit code follows it.
func TestExamine_TakesWhatIsProven(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		levels map[string]isolation.Level
		level  string
		code   int
	}{
		"full":          {map[string]isolation.Level{"ns": isolation.LevelFull, "landlock": isolation.LevelPaths}, "full", 0},
		"paths":         {map[string]isolation.Level{"landlock": isolation.LevelPaths}, "paths", ExitDegraded},
		"none":          {nil, "none", cli.ExitFailed},
		"never process": {map[string]isolation.Level{"process": isolation.LevelKernel, "auto": isolation.LevelKernel}, "none", cli.ExitFailed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			report := examine(t.Context(), []string{"auto", "landlock", "ns", "process"}, func(_ context.Context, name string) (isolation.Caps, error) {
				level, works := test.levels[name]
				if !works {
					return isolation.Caps{}, errors.New("uid_map: operation not permitted")
				}
				return isolation.Caps{Driver: name, Level: level, Networks: []isolation.NetworkMode{isolation.NetworkNone}, Warnings: []string{"mind this"}}, nil
			}, host{
				system: "linux", files: files(nil), landlock: 7,
				groups: func() (string, error) { return "", errors.New("no groups") },
				free:   func() (string, int64, error) { return "/data", 1 << 40, nil },
			})
			require.Equal(t, test.level, report.Level)
			require.Len(t, report.Drivers, 2)
			require.Equal(t, test.code, code(report.Err()))
			var text strings.Builder
			require.NoError(t, report.Write(&text))
			require.Contains(t, text.String(), "sandboxes: level "+test.level)
			for _, d := range report.Drivers {
				if d.Error != "" {
					require.Contains(t, text.String(), d.Name+strings.Repeat(" ", 10-len(d.Name))+"does not work: uid_map")
				}
			}
			require.Equal(t, len(report.Drivers) > 0 && report.Driver != "", strings.Contains(text.String(), "mind this"))
			_, err := json.Marshal(report)
			require.NoError(t, err)
		})
	}
}

func code(err error) int {
	if exit, ok := errors.AsType[*cli.ExitError](err); ok {
		return exit.Code
	}
	return 0
}

// TestExamine_ThisHost runs what operators run.
func TestExamine_ThisHost(t *testing.T) {
	t.Parallel()
	report := Examine(t.Context(), t.TempDir())
	require.NotEmpty(t, report.Host)
	_, err := isolation.ParseLevel(report.Level)
	require.NoError(t, err)
}

// What was not tried to its end is not reported as missing.
func TestRun_EndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out bytes.Buffer
	require.ErrorIs(t, Run(ctx, "", false, &out, false), context.Canceled)
	require.Empty(t, out.String())
}

// TestWrite_TellsToolchains and what is left out, only where it was looked for.
func TestWrite_TellsToolchains(t *testing.T) {
	t.Parallel()
	var with, without strings.Builder
	require.NoError(t, Report{Level: "full"}.Write(&without))
	require.NotContains(t, without.String(), "toolchains")
	require.NoError(t, Report{Level: "full", InPlace: &hostenv.Found{
		Toolchains: []hostenv.Toolchain{{Name: "rust", Root: "/home/ada/.cargo"}},
		LeftOut:    []hostenv.LeftOut{{Entry: "/tmp/bin", Why: "is below /tmp, which sandboxes have of their own"}},
	}}.Write(&with))
	require.Contains(t, with.String(), "  rust      /home/ada/.cargo\n  left out  /tmp/bin is below /tmp")
}

// TestRun_LooksForToolchains where it is asked to.
func TestRun_LooksForToolchains(t *testing.T) {
	home := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(home, "tool/bin"), 0o755))
	t.Setenv("HOME", home)
	t.Setenv("PATH", "/usr/bin:"+filepath.Join(home, "tool/bin"))
	found := Report{Level: "paths", Driver: "landlock"}.toolchains()
	require.Len(t, found.Toolchains, 1)
	require.Equal(t, filepath.Join(home, "tool"), found.Toolchains[0].Root)
}

// TestAdvice_IsAboutTheLevel: what would only make limits harder is left out.
func TestAdvice_IsAboutTheLevel(t *testing.T) {
	t.Parallel()
	h := host{system: "linux", engine: true, files: files(map[string]string{"proc/sys/user/max_user_namespaces": "0", "proc/sys/fs/file-max": "1"})}
	text := strings.Join(h.advice(), "\n")
	require.Contains(t, text, "user namespaces: user.max_user_namespaces is 0; allow them")
	require.Contains(t, text, "container: this process runs in one; containers forbid")
	require.NotContains(t, text, "open files")
}

func freeOf(bytes int64) func() (string, int64, error) {
	return func() (string, int64, error) { return "/data", bytes, nil }
}

func TestFreeBytes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	found, free, err := freeBytes(filepath.Join(dir, "not", "there"))
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip("NOT TESTED: this system is not Linux")
	}
	require.NoError(t, err)
	require.Equal(t, dir, found)
	require.Positive(t, free)
}
