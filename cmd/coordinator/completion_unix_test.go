//go:build unix

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/test/processtest"
)

// TestCompletion_InRealShells: what a tab gives after the words of a command line.
func TestCompletion_InRealShells(t *testing.T) {
	t.Parallel()
	executable, err := os.Executable()
	require.NoError(t, err)
	home, bin := t.TempDir(), t.TempDir()
	require.NoError(t, os.Symlink(executable, filepath.Join(bin, "coordinator")))
	state := filepath.Join(home, ".local", "state")
	t.Cleanup(func() { processtest.EndServer(state) })
	env := append(os.Environ(), "HOME="+home, "TOOLFLEET_LOCAL_IDLE=10m", "XDG_STATE_HOME=", "XDG_CONFIG_HOME=", "TERM=dumb", "PATH="+bin+":"+os.Getenv("PATH"))
	in := func(t *testing.T, program string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), program, args...)
		cmd.Dir, cmd.Env = home, env
		var stderr strings.Builder
		cmd.Stderr = &stderr
		stdout, err := cmd.Output()
		require.NoError(t, err, "%s", stderr.String())
		return string(stdout)
	}
	require.Empty(t, in(t, filepath.Join(bin, "coordinator"), "__complete", "session", "show", ""))
	require.NoDirExists(t, filepath.Join(state, "toolfleet"), "it starts no server")
	require.NoError(t, os.WriteFile(filepath.Join(home, "ok.json"), []byte(`{"steps": [{"text": "ok"}]}`), 0o600))
	workspace := filepath.Join(home, "a")
	require.NoError(t, os.Mkdir(workspace, 0o700))
	in(t, filepath.Join(bin, "coordinator"), "run", "--sandbox=process", "--session=fix-login", "--workspace="+workspace, "--model=script:ok.json", "Do\tthis\x1b[31m")
	in(t, filepath.Join(bin, "coordinator"), "context", "add", "prod", "--nats=nats://127.0.0.1:1")

	shells := map[string]func(t *testing.T, line string) string{
		"bash": func(t *testing.T, line string) string {
			t.Helper()
			return in(t, "bash", "--norc", "-c",
				`source <(coordinator completion bash); COMP_LINE=$1; COMP_POINT=${#1}; _coordinator; printf '%s\n' "${COMPREPLY[@]}"`,
				"bash", line)
		},
		"zsh": func(t *testing.T, line string) string {
			t.Helper()
			return in(t, "zsh", "-f", "-c", `autoload -U compinit; compinit -u -D; source <(coordinator completion zsh)
				compadd() { print -rl -- "${@[2,-1]}"; }; _files() { :; }
				words=("${(@s: :)1}"); CURRENT=${#words}; _coordinator`, "zsh", line)
		},
		"fish": func(t *testing.T, line string) string {
			t.Helper()
			return in(t, "fish", "-N", "-c", `coordinator completion fish | source; complete -C $argv[1] | string replace -r '\t.*' ''; true`, line)
		},
	}
	for shell, complete := range shells {
		t.Run(shell, func(t *testing.T) {
			t.Parallel()
			if _, err := exec.LookPath(shell); err != nil {
				t.Skipf("SKIPPED: %s is not installed, so its completion was not tried", shell)
			}
			for line, want := range map[string]string{
				"coordinator ru":                      "run",
				"coordinator session sh":              "show",
				"coordinator run --budg":              "--budget",
				"coordinator run --guard ":            "none changed read",
				"coordinator run --sandbox l":         "landlock",
				"coordinator ping --context ":         "prod none",
				"coordinator context rm ":             "prod",
				"coordinator session show ":           "last fix-login",
				"coordinator session --json show f":   "fix-login",
				"coordinator run --session=fix":       "--session=fix-login",
				"coordinator session rm --nats x las": "",
			} {
				if shell == "bash" && strings.Contains(line, "=") {
					want = "fix-login" // a word of its own there
				}
				got := strings.Fields(complete(t, line))
				if shell == "fish" {
					require.ElementsMatch(t, strings.Fields(want), got, line)
				} else {
					require.Equal(t, strings.Fields(want), append([]string{}, got...), line)
				}
			}
		})
	}
}
