package integration

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// gate holds calls: while it is shut, their commands wait. It opens by itself when the
// test ends, so that what a killed worker left behind ends too.
type gate struct{ file string }

func newGate(tb testing.TB) *gate {
	tb.Helper()
	g := &gate{file: filepath.Join(tb.TempDir(), "gate")}
	require.NoError(tb, os.WriteFile(g.file, nil, 0o600))
	return g
}

// open lets the calls go on.
func (g *gate) open(tb testing.TB) {
	tb.Helper()
	require.NoError(tb, os.Remove(g.file))
}

// pass is the shell command that waits at the gate.
func (g *gate) pass() string { return fmt.Sprintf("while [ -e '%s' ]; do sleep 0.05; done", g.file) }

// tally counts how often something was done, by lines of a file outside of every workspace.
type tally struct{ file string }

func newTally(tb testing.TB) *tally {
	tb.Helper()
	return &tally{file: filepath.Join(tb.TempDir(), "tally")}
}

// add is the shell command that counts.
func (c *tally) add(word string) string { return fmt.Sprintf("echo %s >> '%s'", word, c.file) }

// count is how often it was done so far.
func (c *tally) count() int {
	content, err := os.ReadFile(c.file)
	if err != nil {
		return 0 // nobody has counted
	}
	return bytes.Count(content, []byte("\n"))
}

// goEnv is a variable of the go command, which sandboxes need for their caches.
func goEnv(ctx context.Context, tb testing.TB, name string) string {
	tb.Helper()
	out, err := goCommand(ctx, ".", "env", name)
	require.NoError(tb, err, out)
	return out
}
