package crash

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
)

// scene is the test of one case. All cases run in one bubble of [testing/synctest], where a test
// has no subtests, and are reported as subtests behind it.
type scene struct {
	testing.TB // that of the bubble

	name string
	ctx  context.Context //nolint:containedctx // that of a test, as testing.TB has one

	mu       sync.Mutex
	failed   bool
	log      strings.Builder
	cleanups []func()
}

// Name implements [testing.TB], as the methods below.
func (s *scene) Name() string { return s.name }

// Helper has nothing to do: the log has no lines of code.
func (s *scene) Helper() {}

// Context ends before the cleanups.
func (s *scene) Context() context.Context { return s.ctx }

// Log notes what is shown if the case fails.
func (s *scene) Log(args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, _ = fmt.Fprintln(&s.log, args...)
}

// Logf is [scene.Log] with a format.
func (s *scene) Logf(format string, args ...any) { s.Log(fmt.Sprintf(format, args...)) }

// Errorf notes a failure.
func (s *scene) Errorf(format string, args ...any) {
	s.Logf(format, args...)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed = true
}

// FailNow ends the goroutine.
func (s *scene) FailNow() {
	s.mu.Lock()
	s.failed = true
	s.mu.Unlock()
	runtime.Goexit()
}

// Failed reports whether there was a failure.
func (s *scene) Failed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

// Cleanup has f called at the end.
func (s *scene) Cleanup(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cleanups = append(s.cleanups, f)
}

// TempDir is a directory that is removed at the end.
func (s *scene) TempDir() string {
	dir, err := os.MkdirTemp(s.TB.TempDir(), "")
	if err != nil {
		s.Errorf("no directory: %v", err)
		s.FailNow()
	}
	s.Cleanup(func() { _ = os.RemoveAll(dir) }) // the bubble's end removes what is left
	return dir
}

// run runs the case, then its cleanups, the last one first.
func (s *scene) run(play func(tb testing.TB)) {
	ctx, cancel := context.WithCancel(s.TB.Context())
	s.ctx = ctx
	apart := func(f func()) { // FailNow ends only its goroutine
		var done sync.WaitGroup
		done.Go(f)
		done.Wait()
	}
	apart(func() { play(s) })
	cancel()
	s.mu.Lock()
	cleanups := slices.Clone(s.cleanups)
	s.mu.Unlock()
	for _, f := range slices.Backward(cleanups) {
		apart(f)
	}
}
