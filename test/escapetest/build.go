//go:build linux

package escapetest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// probePackage is the program that the suite runs in sandboxes.
const probePackage = "github.com/toolfleet/toolfleet/test/escapetest/probe"

// programVariable names a probe that was built before, for machines without Go.
const programVariable = "TOOLFLEET_ESCAPE_PROGRAM"

// built is the probe, a static program, which is built once for all tests of a binary.
var built = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "toolfleet-probe-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }() // the system cleans its temporary files
	path := filepath.Join(dir, "probe")
	cmd := exec.CommandContext(context.Background(), "go", "build", "-trimpath", "-ldflags=-s -w", "-o", path, probePackage)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("go build: %w: %s", err, out)
	}
	return os.ReadFile(path)
})

// build puts the probe into dir.
func build(t *testing.T, dir string) string {
	t.Helper()
	path := filepath.Join(dir, "probe")
	if built := os.Getenv(programVariable); built != "" {
		install(t, built, path)
		return path
	}
	program, err := built()
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, program, 0o755))
	require.NoError(t, os.Chmod(path, 0o755))
	return path
}

// install copies a file to another place.
func install(t *testing.T, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(to, data, 0o755))
	require.NoError(t, os.Chmod(to, 0o755))
}
