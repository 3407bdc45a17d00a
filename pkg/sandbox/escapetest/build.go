//go:build linux

package escapetest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// probePackage is the program that the suite runs in sandboxes.
const probePackage = "github.com/toolfleet/toolfleet/pkg/sandbox/escapetest/probe"

// programVariable names a probe that was built before, for machines without Go.
const programVariable = "TOOLFLEET_ESCAPE_PROGRAM"

// build builds the probe into dir, as a static program.
func build(t *testing.T, dir string) string {
	t.Helper()
	path := filepath.Join(dir, "probe")
	if built := os.Getenv(programVariable); built != "" {
		install(t, built, path)
		return path
	}
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags=-s -w", "-o", path, probePackage)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "go build: %s", out)
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
