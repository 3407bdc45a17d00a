// Package processtest is what tests of real processes share: it builds the binaries that they
// start, collects what a process writes, and says loudly what a machine lacks.
package processtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// Built builds programs as [Build] does, calls run with the directory that has them, which
// everybody can read, and returns what that does; processes that the tests have left are a failure.
// The directory is below parent, by default that of temporary files.
func Built(parent string, race bool, run func(dir string) int, programs ...string) int {
	dir, err := os.MkdirTemp(parent, "toolfleet-test-")
	if err == nil {
		defer func() { _ = os.RemoveAll(dir) }()
		err = errors.Join(os.Chmod(dir, 0o755), Build(dir, race, programs...))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := run(dir)
	if left := Left(dir); len(left) > 0 && code == 0 {
		fmt.Fprintf(os.Stderr, "the tests have left processes:\n%s\n", strings.Join(left, "\n"))
		return 1
	}
	return code
}

// Build puts programs, given as paths from the root of the repository, into a directory. They are
// built as make build does, so that nothing is compiled twice, or else with the race detector.
// Those that make test has linked before, in the directory TOOLFLEET_LINKED, are copied.
func Build(dir string, race bool, programs ...string) error {
	kind, env, linked := "-trimpath", append(os.Environ(), "CGO_ENABLED=0"), os.Getenv("TOOLFLEET_LINKED")
	if race {
		kind, env, linked = "-race", os.Environ(), ""
	}
	args := []string{"build", kind, "-ldflags=-s -w", "-o", dir + string(filepath.Separator)}
	missing := false
	for _, program := range programs {
		// By a process of its own: a file that this one writes may be busy when it is to be
		// started.
		if linked == "" || exec.CommandContext(context.Background(), "cp", filepath.Join(linked, filepath.Base(program)), dir).Run() != nil {
			args, missing = append(args, path.Join("github.com/toolfleet/toolfleet", program)), true
		}
	}
	if !missing {
		return nil
	}
	cmd := exec.CommandContext(context.Background(), "go", args...)
	cmd.Env = env
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go %v: %w\n%s", args, err, output)
	}
	return nil
}

// Leakless runs the tests, and fails when they leave goroutines.
func Leakless(m *testing.M) int {
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return code
}

// Unavailable ends a test that this machine cannot run: it is skipped, loudly, or fails with
// TOOLFLEET_INTEGRATION=required.
func Unavailable(tb testing.TB, reason string) {
	tb.Helper()
	if os.Getenv("TOOLFLEET_INTEGRATION") == "required" {
		tb.Fatalf("TOOLFLEET_INTEGRATION=required, but %s", reason)
	}
	_, _ = fmt.Fprintf(os.Stderr, "\n*** %s SKIPPED: %s ***\n\n", tb.Name(), reason)
	tb.Skip(reason)
}

// Output is what a process has written so far. It is safe for concurrent use; the zero value is
// ready to use.
type Output struct {
	mu      sync.Mutex
	text    strings.Builder
	changed chan struct{} // closed at the next write; nil when nobody waits
}

// Write implements [io.Writer].
func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text.Write(p)
	if o.changed != nil {
		close(o.changed)
		o.changed = nil
	}
	return len(p), nil
}

// String is everything that was written.
func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// find looks for a pattern; without a match it returns a channel that is closed when there is more
// to look at.
func (o *Output) find(pattern *regexp.Regexp) (match []string, changed <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.changed == nil {
		o.changed = make(chan struct{})
	}
	return pattern.FindStringSubmatch(o.text.String()), o.changed
}

// Wait returns the first match of a pattern with its groups, as soon as it is written. It returns
// nil when the writer has ended without one, or patience is over.
func (o *Output) Wait(pattern string, ended <-chan struct{}, patience time.Duration) []string {
	expression := regexp.MustCompile(pattern)
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for {
		match, changed := o.find(expression)
		if match != nil || ended == nil {
			return match
		}
		select {
		case <-changed:
		case <-ended:
			ended = nil // a last look: everything is written now
		case <-timer.C:
			return nil
		}
	}
}

// WriteProgram writes a file that tests start. No process is forked meanwhile: it would inherit the
// open file, and while that is open for writing it cannot be started ("text file busy").
func WriteProgram(tb testing.TB, path string, content []byte) {
	tb.Helper()
	syscall.ForkLock.RLock()
	err := os.WriteFile(path, content, 0o755)
	syscall.ForkLock.RUnlock()
	if err != nil {
		tb.Fatal(err)
	}
}
