//go:build linux

package escapetest

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
	"github.com/toolfleet/toolfleet/test/escapetest/internal/canary"
	"github.com/toolfleet/toolfleet/test/escapetest/internal/probes"
)

// checkReadOnly has commands that may only read try to change the workspace, beside one that
// may write. What has changed is looked at from outside: the kernel notes the time of every
// change of a file, whatever it is. The same attempts are made by commands that may write: those
// that then change nothing would find nothing.
func (b *bench) checkReadOnly(t *testing.T) {
	t.Helper()
	dir := filepath.Join(b.workspace, canary.ReadOnlyDir)
	names := probes.ReadOnlyNames()
	contained, dead := 0, 0
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(names)) {
		works := names[name] && b.lacks[name] == "" && (name != "read-only/bind" || b.options.Gaps["use/unix-server"] == "")
		if works && b.readOnlyProbe(t, dir, name, false).changed == "" {
			dead++
			t.Errorf("%s is dead: a command that may write changes nothing by it", name)
		}
		found := b.readOnlyProbe(t, dir, name, true)
		switch {
		case b.caps.Landlock < scopedABI && slices.Contains(unscoped, name):
			t.Logf("UNSUPPORTED: %s: Landlock %d of this kernel does not know signals and abstract sockets", name, b.caps.Landlock)
		case found.changed != "":
			t.Errorf("%s: the workspace has changed: %s", name, found.changed)
		case found.verdict.Outcome != canary.Contained && found.verdict.Outcome != canary.Refused:
			t.Errorf("%s: %s (%s)", name, found.verdict.Outcome, found.verdict.Detail)
		default:
			contained++
		}
		fmt.Fprintf(&text, "%-12s %-28s %s\n", found.verdict.Outcome, name, found.verdict.Detail)
	}
	t.Logf("\n%s", text.String())
	t.Logf("read-only commands: %d probes, %d contained, %d dead", len(names), contained, dead)
}

// unscoped are the probes that only a newer Landlock contains.
var unscoped = []string{"read-only/writer-abstract", "read-only/writer-kill-all", "read-only/writer-signal"}

// scopedABI is that version.
const scopedABI = 6

// attempt is what came of one.
type attempt struct {
	verdict canary.Verdict
	changed string
}

// readOnlyProbe makes the directory anew, starts a writer, and runs one probe.
func (b *bench) readOnlyProbe(t *testing.T, dir, name string, readOnly bool) attempt {
	t.Helper()
	b.makeReadOnlyDir(t, dir)
	writer, stop := b.startWriter(t)
	defer stop()
	before := state(t, dir)
	waitForTick(t, filepath.Dir(dir))
	result, err := b.sandbox.Exec(t.Context(), sandbox.Cmd{Argv: append([]string{"./probe", name}, strings.Fields(writer)...), ReadOnly: readOnly})
	require.NoError(t, err, name)
	return attempt{verdict: verdict(t, name, result), changed: difference(before, state(t, dir))}
}

// waitForTick waits until what changes on a file system has another time than what has changed by
// now: some kernels tell it in steps of 10 ms.
func waitForTick(t *testing.T, dir string) {
	t.Helper()
	now := func() time.Time {
		file, err := os.CreateTemp(dir, "tick-")
		require.NoError(t, err)
		defer os.Remove(file.Name())
		defer file.Close()
		info, err := file.Stat()
		require.NoError(t, err)
		return info.ModTime()
	}
	for start := now(); !now().After(start); {
		<-time.After(time.Millisecond)
	}
}

// makeReadOnlyDir makes the directory, as somebody in the sandbox would.
func (b *bench) makeReadOnlyDir(t *testing.T, dir string) {
	t.Helper()
	const script = `rm -rf "$0" && mkdir "$0" "$0/sub" && echo before >"$0/target" && echo other >"$0/other" && ln -s target "$0/link" && mkfifo "$0/fifo"`
	result, err := b.sandbox.Exec(t.Context(), sandbox.Cmd{Argv: []string{"sh", "-c", script, filepath.Base(dir)}})
	require.NoError(t, err)
	require.Zero(t, result.ExitCode, "%s", result.Stderr.Data)
}

// startWriter runs a command that may write, until stop is called, and returns what it says of
// itself.
func (b *bench) startWriter(t *testing.T) (line string, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	lines, done := make(chan string, 1), make(chan sandbox.Result, 1)
	go func() {
		result, _ := b.sandbox.Exec(ctx, sandbox.Cmd{
			Argv: []string{"./probe", "writer"}, Limits: sandbox.Limits{Grace: time.Millisecond},
			Live: func(_ sandbox.Stream, data []byte) {
				select {
				case lines <- string(data):
				default:
				}
			},
		})
		done <- result
	}()
	select {
	case line = <-lines:
	case result := <-done:
		require.FailNow(t, "the writer does not run", "%s", result.Stderr.Data)
	}
	return line, func() {
		cancel()
		result := <-done
		require.Equal(t, sandbox.ReasonCancelled, result.Reason, "the writer was ended by somebody else: %s", result.Signal)
	}
}

// state is what everything in a directory is like, by name.
func state(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st syscall.Stat_t
		if err := syscall.Lstat(path, &st); err != nil {
			return err
		}
		var content []byte
		if entry.Type().IsRegular() {
			if content, err = os.ReadFile(path); err != nil {
				return err
			}
		}
		rel, err := filepath.Rel(dir, path)
		all[rel] = fmt.Sprintf("mode %o, owner %d:%d, inode %d, %d links, %d bytes, modified %v, changed %v: %q",
			st.Mode, st.Uid, st.Gid, st.Ino, st.Nlink, st.Size, st.Mtim, st.Ctim, content)
		return err
	})
	require.NoError(t, err)
	return all
}

// difference names the first thing that two states do not have in common.
func difference(before, after map[string]string) string {
	for name, now := range after {
		if was := before[name]; was != now {
			return fmt.Sprintf("%s: %s, was %s", name, now, was)
		}
	}
	for name := range before {
		if after[name] == "" {
			return name + " is gone"
		}
	}
	return ""
}
