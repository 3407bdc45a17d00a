package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCheck(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, content := range map[string]string{
		"go.mod":         "module example.com/a\n\ngo 1.26.0\n",
		"a.go":           "package a\n\nimport _ \"example.com/a/b\"\n",
		"b/b.go":         "package b\n",
		"b/b_test.go":    "package b\n\nimport \"syscall\"\n\nvar _ = syscall.Kill\n",
		"c/c_linux.go":   "package c\n",
		"d/d_windows.go": "package d\n\nimport _ \"example.com/a/c\"\n",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for system, says := range map[string][]string{
		"linux/amd64":   nil,
		"windows/amd64": {"undefined: syscall.Kill", "build constraints exclude all Go files"},
	} {
		t.Run(system, func(t *testing.T) {
			t.Parallel()
			var out strings.Builder
			wrong, err := check(&out, dir, system)
			if err != nil || wrong < len(says) || wrong > 0 && says == nil {
				t.Errorf("%d faults, error %v:\n%s", wrong, err, out.String())
			}
			for _, says := range says {
				if !strings.Contains(out.String(), system+": ") || !strings.Contains(out.String(), says) {
					t.Errorf("does not say %q:\n%s", says, out.String())
				}
			}
		})
	}
}

func TestCheck_AsksForAProcessor(t *testing.T) {
	t.Parallel()
	if _, err := check(os.Stderr, t.TempDir(), "windows"); err == nil {
		t.Error("windows alone is taken")
	}
}
