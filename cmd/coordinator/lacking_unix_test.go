//go:build unix

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Whoever looks at a call that no worker may take is told what it needs and who lacks it; and at
// any width the view says so too.
func TestLacking_ItIsTold(t *testing.T) {
	t.Parallel()
	fleet := served(t, script(t, `{"tool_calls": [{"name": "bash", "arguments": {"command": "true"}}]}, {"text": "Done."}`))
	m := inTmux(t, 40, nil, append([]string{"submit", "--min-level", "paths", "--session", "s-1", "Go."}, fleet...)...)
	screen := m.shows("waits for: 1 worker", "no worker can run it, ")
	require.Regexp(t, `none\s+offers\s+level\s+paths`, screen)

	executable, err := os.Executable()
	require.NoError(t, err)
	coordinator := filepath.Join(t.TempDir(), "coordinator")
	require.NoError(t, os.Symlink(executable, coordinator))
	ctx := t.Context()
	prints := func(pattern string, args ...string) { // once the worker answers in time
		t.Helper()
		require.EventuallyWithT(t, func(t *assert.CollectT) {
			out, err := exec.CommandContext(ctx, coordinator, append(args, fleet...)...).CombinedOutput()
			require.NoError(t, err)
			require.Regexp(t, pattern, string(out))
		}, 2*time.Minute, 200*time.Millisecond, "%s", args)
	}
	sentence := `bash, call \S+, waits for: 1 worker of pool default, none offers level paths; a sandbox is offered by \S+\n`
	prints(`(?m)^`+sentence, "lane", "show", "sandbox/s-1")
	prints(`waiting; the next call waits for: 1 worker of pool default, none offers level paths`, "lane", "show", "sandbox/s-1")
	prints(`"needs":\{"kind":"command_run","level":"paths"\},"waits_for":"1 worker`, "lane", "show", "--json", "sandbox/s-1")
	prints(`(?m)^session s-1: `+sentence, "workers")
	prints(`state +waits_for_worker\n(?:owner .*\n)?waits +`+sentence, "session", "show", "s-1")
	prints(`"waits":\["bash, call`, "session", "show", "--json", "s-1")
	m.keys("C-c")
	m.shows("[ended: 130]")
}
