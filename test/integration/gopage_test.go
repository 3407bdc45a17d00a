package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
)

// TestGo_FifteenMinutes runs docs/go.md word for word: its files and its commands, in an empty
// folder. Only the module is that of this repository, and ports are those that are free. Go
// compiles this repository once more, as a dependency, which takes minutes.
func TestGo_FifteenMinutes(t *testing.T) {
	t.Parallel()
	const bound = 15 * time.Minute
	if os.Getenv("TOOLFLEET_INTEGRATION") != "required" {
		t.Skip("it compiles this repository once more: make http-clients runs it")
	}
	page, err := os.ReadFile(filepath.Join(module, "docs", "go.md"))
	require.NoError(t, err)
	blocks := []string{"set -euo pipefail; set -m", "trap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT"}
	for _, block := range regexp.MustCompile("(?ms)^```([a-z]+)\n(.*?)^```$").FindAllStringSubmatch(string(page), -1) {
		if block[1] == "sh" {
			blocks = append(blocks, block[2])
			continue
		}
		name := regexp.MustCompile(`\A(?://|#) (\S+)\n`).FindStringSubmatch(block[2])
		require.NotNil(t, name, "a file without a name: %s", block[2])
		blocks = append(blocks, fmt.Sprintf("cat >%s <<'END_OF_FILE'\n%sEND_OF_FILE", name[1], block[2]))
	}
	text := strings.ReplaceAll(strings.Join(blocks, "\n"), "127.0.0.1:4222", fmt.Sprintf("127.0.0.1:%d", natsiotest.FreePorts(t, 1)[0]))

	root, err := filepath.Abs(module)
	require.NoError(t, err)
	compiler, err := exec.LookPath("go")
	require.NoError(t, err)
	bin := t.TempDir()
	require.NoError(t, os.Symlink(coordinator, filepath.Join(bin, "coordinator")))
	wrapper := fmt.Sprintf(`#!/bin/sh
case "$*" in
"get github.com/toolfleet/toolfleet/pkg/fleet@latest github.com/toolfleet/toolfleet/pkg/worker@latest")
	cp %[2]s/go.sum . && exec %[1]s mod edit -require github.com/toolfleet/toolfleet@v0.0.0 -replace github.com/toolfleet/toolfleet=%[2]s ;;
*) exec %[1]s "$@" ;;
esac
`, compiler, root)
	require.NoError(t, os.WriteFile(filepath.Join(bin, "go"), []byte(wrapper), 0o700))
	env := []string{"PATH=" + bin + ":" + os.Getenv("PATH"), "GOFLAGS=-mod=mod -trimpath -buildvcs=false", "CGO_ENABLED=0", "GOWORK=off"}
	for _, name := range []string{"GOCACHE", "GOMODCACHE", "GOPROXY", "GOTOOLCHAIN"} {
		value, err := exec.CommandContext(t.Context(), compiler, "env", name).Output()
		require.NoError(t, err)
		env = append(env, name+"="+strings.TrimSpace(string(value)))
	}
	folder := filepath.Join(t.TempDir(), "shop")
	require.NoError(t, os.Mkdir(folder, 0o700))
	run := start(t, "bash", launch{args: []string{"-c", "cd " + folder + "\n" + text}, env: env, group: true})
	select {
	case <-run.exited:
	case <-time.After(bound):
	}
	require.Zero(t, run.wait(t), run)
	for _, line := range []string{"ok hi", "250 cents paid back to account 7", "a call ended: ok", "The money is paid back."} {
		require.Contains(t, run.stdout.String(), line)
	}
}
