//go:build linux

package escapetest

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
	"github.com/toolfleet/toolfleet/test/escapetest/internal/canary"
	"github.com/toolfleet/toolfleet/test/escapetest/internal/probes"
	"github.com/toolfleet/toolfleet/test/sandboxtest"
)

// Run holds a driver to its promises, as root and as an ordinary user. It has to be called
// by a test function itself, not by a subtest, and that function may do nothing else.
func Run(t *testing.T, o Options) {
	t.Helper()
	InArms(t, !o.NotAsRoot, func(t *testing.T) {
		t.Helper()
		run(t, o)
	})
}

func run(t *testing.T, o Options) {
	t.Helper()
	b := open(t, o)
	found := b.probeAll(t)
	b.report(t, found)
	for _, name := range slices.Sorted(maps.Keys(found)) {
		b.check(t, name, found[name])
	}
	if o.Network == nil { // it changes nothing about these
		b.checkLife(t)
	}
	b.checkVictim(t)
}

// Control runs the probes without isolation, unprivileged, where those of mustEscape have
// to get out: otherwise they would find nothing anywhere.
func Control(t *testing.T, o Options, mustEscape []string) {
	t.Helper()
	InArms(t, false, func(t *testing.T) {
		t.Helper()
		require.NotZero(t, os.Geteuid(), "without isolation nothing runs as root")
		control(t, o, mustEscape)
	})
}

func control(t *testing.T, o Options, mustEscape []string) {
	t.Helper()
	b := open(t, o)
	found := b.probeAll(t)
	b.report(t, found)
	for _, name := range mustEscape {
		verdict, known := found[name]
		if !known {
			t.Errorf("no probe is called %q", name)
			continue
		}
		switch verdict.Outcome {
		case canary.Escape, canary.Leak, canary.Refused, canary.Unsupported:
		default:
			t.Errorf("%s is dead: without isolation it is %s (%s)", name, verdict.Outcome, verdict.Detail)
		}
	}
}

// bench is a sandbox under test and the host around it.
type bench struct {
	options   Options
	caps      isolation.Caps
	host      canary.Host
	sandbox   sandbox.Sandbox
	workspace string
	program   string
	lacks     map[string]string // probes that can find nothing on this host, and why
}

func open(t *testing.T, o Options) *bench {
	t.Helper()
	b := &bench{options: o, program: os.Getenv(probeVariable)}
	d := o.New(t)
	var err error
	sandboxtest.Require(t, d)
	b.caps, err = d.Probe(t.Context())
	require.NoError(t, err)
	t.Logf("driver %s %s, level %s, Landlock %d, seccomp %t, user of the host's own %t, limits %v",
		b.caps.Driver, b.caps.Launcher, b.caps.Level, b.caps.Landlock, b.caps.Seccomp, b.caps.HostUID, b.caps.Limits.Words())
	b.host = newHost(t, b.program)
	b.host.Isolated = b.caps.Level >= isolation.LevelFull
	b.lacks = lacks(t, b.host, b.program)
	b.openNeighbour(t, d)
	b.workspace = directory(t)
	install(t, b.program, filepath.Join(b.workspace, "probe"))
	network := isolation.Network{}
	if o.Network != nil {
		network = o.Network(t)
	}
	b.sandbox = b.openAt(t, d, "probe", b.workspace, network)
	return b
}

// directory makes a directory that any user may enter.
func directory(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "workspace")
	require.NoError(t, os.Mkdir(dir, 0o755))
	return dir
}

// openAt opens a sandbox with a description of the host in its workspace.
func (b *bench) openAt(t *testing.T, d isolation.Driver, id, workspace string, network isolation.Network) sandbox.Sandbox {
	t.Helper()
	describe(t, b.host, workspace)
	scratch := filepath.Join(t.TempDir(), "scratch")
	require.NoError(t, os.Mkdir(scratch, 0o755))
	s, err := d.Open(t.Context(), isolation.Spec{
		ID: id, Workspace: workspace, Scratch: scratch,
		Env: map[string]string{"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "LANG": "C"}, Network: network,
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// probeAll runs every probe, each as a command of its own.
func (b *bench) probeAll(t *testing.T) map[string]canary.Verdict {
	t.Helper()
	found := map[string]canary.Verdict{}
	for _, name := range probes.Names() {
		result, err := b.sandbox.Exec(t.Context(), sandbox.Cmd{Argv: []string{"./probe", name}})
		require.NoError(t, err, name)
		found[name] = b.here(name, verdict(t, name, result))
	}
	return found
}

// here calls a verdict unsupported if nothing was found of what this host lacks.
func (b *bench) here(name string, v canary.Verdict) canary.Verdict {
	if reason := b.lacks[name]; reason != "" && v.Outcome == canary.Contained {
		return canary.Verdict{Outcome: canary.Unsupported, Detail: v.Detail + "; this host lacks " + reason}
	}
	return v
}

// verdict reads what a probe has found. A signal that ends it is an answer, too.
func verdict(t *testing.T, name string, r sandbox.Result) canary.Verdict {
	t.Helper()
	if r.Reason == sandbox.ReasonSignaled {
		return canary.Verdict{Outcome: canary.Refused, Detail: "killed by " + r.Signal}
	}
	var v canary.Verdict
	err := json.Unmarshal(r.Stdout.Data, &v)
	require.NoError(t, err, "%s: %s, exit code %d: %s%s", name, r.Reason, r.ExitCode, r.Stdout.Data, r.Stderr.Data)
	return v
}

// report prints every verdict and how many there are of each kind.
func (b *bench) report(t *testing.T, found map[string]canary.Verdict) {
	t.Helper()
	count := map[canary.Outcome]int{}
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(found)) {
		v := found[name]
		count[v.Outcome]++
		fmt.Fprintf(&text, "%-12s %-28s %s\n", v.Outcome, name, v.Detail)
	}
	t.Logf("\n%s", text.String())
	t.Logf("%s as user %d: %d probes: %d contained, %d escape, %d leak, %d refused, %d unsupported; %d works, %d broken", b.caps.Driver, os.Geteuid(), len(found),
		count[canary.Contained], count[canary.Escape], count[canary.Leak], count[canary.Refused], count[canary.Unsupported], count[canary.Works], count[canary.Broken])
}

// check compares a verdict with what the driver promises.
func (b *bench) check(t *testing.T, name string, v canary.Verdict) {
	t.Helper()
	want := canary.Contained
	if strings.HasPrefix(name, "use/") {
		want = canary.Works
	}
	gap, isGap := b.options.Gaps[name]
	switch {
	case v.Outcome == canary.Unsupported, v.Outcome == canary.Refused && want == canary.Contained, v.Outcome == want && !isGap, isGap && v.Outcome == gap,
		b.options.Known[name] != "" && (v.Outcome == b.options.Known[name] || v.Outcome == want):
	case isGap && v.Outcome == want && os.Geteuid() == 0 && slices.Contains(b.options.AsRoot, name):
	case isGap && v.Outcome == want:
		t.Errorf("%s: the gap is closed (%s): take it off the list", name, v.Detail)
	default:
		t.Errorf("%s: %s (%s)", name, v.Outcome, v.Detail)
	}
}

// checkVictim looks whether the host's file is as it was.
func (b *bench) checkVictim(t *testing.T) {
	t.Helper()
	for probe, name := range map[string]string{"file/write": "victim", "file/unlink": "to-unlink", "file/rename": "to-rename", "file/read-0600": "private"} {
		data, err := os.ReadFile(filepath.Join(b.host.Dir, name))
		if b.options.Gaps[probe] == "" {
			require.NoError(t, err)
			require.Equal(t, b.host.Secret, string(data), name)
		}
	}
	if b.options.Gaps["file/create"] == "" {
		require.NoFileExists(t, filepath.Join(b.host.Dir, "created"))
	}
	if b.options.Gaps["file/chmod"] == "" {
		info, err := os.Stat(filepath.Join(b.host.Dir, "victim"))
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o644), info.Mode().Perm())
	}
}
