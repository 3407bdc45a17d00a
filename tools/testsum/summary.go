package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// slowest is how many tests are listed that took longest.
const slowest = 10

// event is one line of `go test -json`; see `go doc test2json`.
type event struct {
	Action     string
	Package    string
	ImportPath string // of build events, instead of Package
	Test       string
	Output     string
	Elapsed    float64 // seconds

	command int // that has reported it
}

// test names a test of a command; with an empty name, its package.
type test struct {
	pkg, name string
	command   int
}

// summary collects events of several commands.
type summary struct {
	out   io.Writer
	start time.Time

	mu      sync.Mutex
	outputs map[test][]string // what each test wrote, until it passes
	builds  map[test][]string
	took    map[test]float64 // seconds of tests that are no part of another one

	passed, failedTests        int
	packages, failed, untested []string
	skipped                    map[test]string // and why
}

func newSummary(out io.Writer) *summary {
	return &summary{
		out: out, start: time.Now(), outputs: map[test][]string{}, builds: map[test][]string{}, took: map[test]float64{}, skipped: map[test]string{},
	}
}

// show writes a line that is no event.
func (s *summary) show(line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintln(s.out, line)
}

func (s *summary) add(e event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key, built := test{e.Package, e.Test, e.command}, test{e.ImportPath, "", e.command}
	switch e.Action {
	case "build-output":
		s.builds[built] = append(s.builds[built], e.Output)
	case "build-fail":
		fmt.Fprint(s.out, strings.Join(s.builds[built], ""))
	case "output":
		s.outputs[key] = append(s.outputs[key], e.Output)
	case "pass", "fail", "skip":
		if e.Test == "" {
			s.endPackage(e)
		} else {
			s.endTest(key, e.Action)
			if !strings.Contains(e.Test, "/") {
				s.took[key] = e.Elapsed
			}
		}
		delete(s.outputs, key)
	}
}

func (s *summary) endTest(key test, action string) {
	switch action {
	case "pass":
		s.passed++
	case "skip":
		s.skipped[key] = reason(s.outputs[key])
	case "fail":
		s.failedTests++
		fmt.Fprint(s.out, strings.Join(s.outputs[key], ""))
	}
}

func (s *summary) endPackage(e event) {
	name := short(e.Package)
	switch e.Action {
	case "pass":
		s.packages = append(s.packages, name)
		fmt.Fprintf(s.out, "ok    %s (%.1fs)\n", name, e.Elapsed)
	case "skip":
		s.untested = append(s.untested, name)
	case "fail":
		s.failed = append(s.failed, name)
		s.showUnfinished(test{e.Package, "", e.command})
		fmt.Fprintf(s.out, "FAIL  %s (%.1fs)\n", name, e.Elapsed)
	}
}

// showUnfinished writes what tests of a failed package wrote that never ended: a
// panic or a timeout is attributed to whatever test ran just then.
func (s *summary) showUnfinished(of test) {
	keys := slices.SortedFunc(maps.Keys(s.outputs), func(a, b test) int { return strings.Compare(a.name, b.name) })
	for _, key := range keys {
		if key.pkg == of.pkg && key.command == of.command {
			fmt.Fprint(s.out, strings.Join(s.outputs[key], ""))
			delete(s.outputs, key)
		}
	}
}

func (s *summary) finish() (passed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.skipped) > 0 {
		fmt.Fprintf(s.out, "\nSkipped:\n")
		for _, key := range slices.SortedFunc(maps.Keys(s.skipped), func(a, b test) int {
			return strings.Compare(a.pkg+a.name, b.pkg+b.name)
		}) {
			fmt.Fprintf(s.out, "  %s %s: %s\n", short(key.pkg), key.name, s.skipped[key])
		}
	}
	fmt.Fprintf(s.out, "\nSlowest:\n")
	keys := slices.SortedFunc(maps.Keys(s.took), func(a, b test) int { return cmp.Compare(s.took[b], s.took[a]) })
	for _, key := range keys[:min(slowest, len(keys))] {
		fmt.Fprintf(s.out, "  %6.1fs %s %s\n", s.took[key], short(key.pkg), key.name)
	}
	verdict := "PASS"
	passed = len(s.failed) == 0 && s.failedTests == 0 && len(s.packages) > 0
	if !passed {
		verdict = "FAIL"
	}
	fmt.Fprintf(s.out, "\n%s: %d tests passed, %d failed, %d skipped; %d packages passed, %d failed, %d without tests; %s%s\n",
		verdict, s.passed, s.failedTests, len(s.skipped), len(s.packages), len(s.failed), len(s.untested), time.Since(s.start).Round(100*time.Millisecond), processorTime())
	if len(s.failed) > 0 {
		fmt.Fprintf(s.out, "failed: %s\n", strings.Join(s.failed, " "))
	}
	return passed
}

// reason finds what a skipped test said: the line behind its file and line number.
func reason(output []string) string {
	for _, line := range output {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "===") || strings.HasPrefix(line, "---") {
			continue
		}
		return line
	}
	return "no reason given"
}

// short leaves the module's host and owner out: they are the same on every line.
func short(pkg string) string {
	return strings.TrimPrefix(strings.TrimPrefix(pkg, "github.com/toolfleet/toolfleet"), "/")
}
