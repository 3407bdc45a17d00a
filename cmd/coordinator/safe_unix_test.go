//go:build unix

package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/creack/pty"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

const (
	clipboard = "\x1b]52;c;cm0gLXJmIH4=\x07" // writes the clipboard
	shown     = "␛]52;c;cm0gLXJmIH4=␇"
)

// The answer goes to standard output, which is a terminal also where progress is not wanted.
func TestRun_AnswerDoesNothingToATerminal(t *testing.T) {
	t.Parallel()
	script := filepath.Join(t.TempDir(), "script.json")
	require.NoError(t, os.WriteFile(script, []byte(`{"steps": [{"text": "Look: \u001b]52;c;cm0gLXJmIH4=\u0007"}]}`), 0o600))
	args := []string{"run", "--sandbox", "process", "--model", "script:" + script, "--data", t.TempDir(), "go"}

	screen, slave, err := pty.Open()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, screen.Close()) })
	cmd := coordinator(t, args...)
	cmd.Stdout = slave
	require.NoError(t, cmd.Run())
	_, err = slave.WriteString("END")
	require.NoError(t, err)
	require.Equal(t, "Look: "+shown+"\r\nEND", readUntil(t, screen, "END"))

	var piped bytes.Buffer
	cmd = coordinator(t, append(args[:len(args)-3], "--data", t.TempDir(), "go")...)
	cmd.Stdout = &piped
	require.NoError(t, cmd.Run())
	require.Equal(t, "Look: "+clipboard+"\n", piped.String(), "a pipe gets every byte")
}

// What a worker calls itself is its own choice.
func TestWorkers_NamesDoNothingToATerminal(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	require.NoError(t, printWorkers(&out, []*protocol.WorkerInfo{{
		WorkerID: clipboard, Build: clipboard, Driver: clipboard, Level: clipboard, Network: clipboard,
		Languages: []string{clipboard}, Kinds: []protocol.Kind{clipboard + "\nw2\t1"},
	}}))
	require.NotContains(t, out.String(), "\x1b")
	require.NotContains(t, out.String(), "\x07")
	require.Equal(t, 2, bytes.Count(out.Bytes(), []byte("\n")), "no row of its own making:\n%s", out.String())
}

// coordinator is this program as the coordinator.
func coordinator(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	executable, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), executable)
	cmd.Args = append([]string{"coordinator"}, args...)
	return cmd
}

func readUntil(t *testing.T, screen *os.File, end string) string {
	t.Helper()
	var got []byte
	for buf := make([]byte, 1000); !bytes.HasSuffix(got, []byte(end)); {
		n, err := screen.Read(buf)
		require.NoError(t, err, "%s", got)
		got = append(got, buf[:n]...)
	}
	return string(got)
}
