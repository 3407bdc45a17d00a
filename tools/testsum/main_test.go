package main

import (
	"strings"
	"testing"
)

func TestRun(t *testing.T) {
	t.Parallel()
	const pass = `{"Action":"pass","Package":"github.com/toolfleet/toolfleet/pkg/a","Test":"TestOne"}
{"Action":"pass","Package":"github.com/toolfleet/toolfleet/pkg/a","Elapsed":1.25}
`
	for name, c := range map[string]struct {
		in     string
		passed bool
		says   []string
		hides  string
	}{
		"all pass": {
			in: `{"Action":"output","Package":"p","Test":"TestOne","Output":"noise\n"}
` + pass,
			passed: true,
			says:   []string{"ok    pkg/a (1.2s)", "PASS: 1 tests passed, 0 failed, 0 skipped; 1 packages passed"},
			hides:  "noise",
		},
		"a failing test shows its output": {
			in: `{"Action":"output","Package":"p","Test":"TestTwo","Output":"    got 1, want 2\n"}
{"Action":"fail","Package":"p","Test":"TestTwo"}
{"Action":"fail","Package":"p","Elapsed":0.1}
` + pass,
			says: []string{"got 1, want 2", "FAIL  p (0.1s)", "FAIL: 1 tests passed, 1 failed", "failed: p"},
		},
		"a panic is shown though its test never ended": {
			in: `{"Action":"output","Package":"p","Test":"TestTwo","Output":"panic: oh\n"}
{"Action":"fail","Package":"p"}
`,
			says: []string{"panic: oh", "FAIL: 0 tests passed, 0 failed"},
		},
		"a package that does not build": {
			in: `{"Action":"build-output","ImportPath":"p","Output":"p.go:1: syntax error\n"}
{"Action":"build-fail","ImportPath":"p"}
{"Action":"fail","Package":"p","FailedBuild":"p"}
`,
			says: []string{"syntax error", "FAIL: 0 tests passed"},
		},
		"skips say why": {
			in: `{"Action":"output","Package":"p","Test":"TestNode","Output":"=== RUN   TestNode\n"}
{"Action":"output","Package":"p","Test":"TestNode","Output":"    a_test.go:7: node is not installed\n"}
{"Action":"skip","Package":"p","Test":"TestNode"}
` + pass,
			passed: true,
			says:   []string{"Skipped:", "p TestNode: a_test.go:7: node is not installed", "1 skipped"},
		},
		"the slowest come first": {
			in: `{"Action":"pass","Package":"p","Test":"TestQuick","Elapsed":1}
{"Action":"pass","Package":"p","Test":"TestSlow","Elapsed":2}
` + pass,
			passed: true,
			says:   []string{"Slowest:\n     2.0s p TestSlow\n     1.0s p TestQuick\n"},
		},
		"nothing tested is a failure": {
			in:   `{"Action":"skip","Package":"p"}`,
			says: []string{"FAIL: 0 tests passed", "1 without tests"},
		},
		"other lines pass through": {
			in:     "go: downloading x\n" + pass,
			passed: true,
			says:   []string{"go: downloading x"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out strings.Builder
			sum := newSummary(&out)
			err := sum.read(0, strings.NewReader(c.in))
			passed := sum.finish()
			if err != nil || passed != c.passed {
				t.Errorf("passed %t, error %v; want %t", passed, err, c.passed)
			}
			for _, says := range c.says {
				if !strings.Contains(out.String(), says) {
					t.Errorf("does not say %q:\n%s", says, out.String())
				}
			}
			if c.hides != "" && strings.Contains(out.String(), c.hides) {
				t.Errorf("says %q:\n%s", c.hides, out.String())
			}
		})
	}
}
