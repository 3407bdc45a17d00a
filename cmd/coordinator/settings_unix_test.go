//go:build unix

package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/stretchr/testify/require"
)

// TestSettings_APersonIsAskedOnce whether a project's file is trusted, and no means to run without.
func TestSettings_APersonIsAskedOnce(t *testing.T) {
	t.Parallel()
	executable, err := os.Executable()
	require.NoError(t, err)
	project, home := t.TempDir(), t.TempDir()
	for name, content := range map[string]string{
		"toolfleet.yaml": "model: script:ok.json\n", "ok.json": `{"steps": [{"text": "hello"}]}`,
	} {
		require.NoError(t, os.WriteFile(filepath.Join(project, name), []byte(content), 0o600))
	}
	start := func(typed string) (stdout, screen string) {
		terminal, tty, err := pty.Open()
		require.NoError(t, err)
		_, err = terminal.WriteString(typed)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, executable)
		cmd.Args = []string{"coordinator", "run", "--sandbox", "process", "Hello"}
		cmd.Dir, cmd.Env = project, append(os.Environ(), "HOME="+home, "XDG_STATE_HOME=", "XDG_CONFIG_HOME=")
		var out, seen bytes.Buffer
		cmd.Stdin, cmd.Stderr, cmd.Stdout = tty, tty, &out
		require.NoError(t, cmd.Start())
		require.NoError(t, tty.Close())
		_, _ = io.Copy(&seen, terminal) // ends with an error where the other side is closed
		_ = cmd.Wait()
		require.NoError(t, terminal.Close())
		return out.String(), seen.String()
	}
	const asked = "Trust this file, as it is now?"
	stdout, screen := start("n\n")
	require.Contains(t, screen, "toolfleet.yaml sets for this command:\r\n  model: script:")
	require.Contains(t, screen, asked)
	require.Contains(t, screen, "--model: ", "which nothing else sets")
	require.Empty(t, stdout)
	stdout, screen = start("y\n")
	require.Contains(t, screen, asked)
	require.Equal(t, "hello\n", stdout, screen)
	stdout, screen = start("")
	require.NotContains(t, screen, asked)
	require.Equal(t, "hello\n", stdout, screen)
}
