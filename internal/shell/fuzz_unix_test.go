//go:build unix

package shell_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/shell"
)

// fragments are what random scripts are made of. None leads out of the directory in which they run.
var fragments = []string{
	" ", " ", " ", " ", "\n", "\n", "\t", ";", "; ", "&", " && ", " || ", " | ", "(", ")", "{ ", "; }", "\\", "\\\n", " \\\n", "#", " # ", "!", " ! ",
	"'", "'", "\"", "\"", "`", "$", "$(", "${", "}", "$((", "))", "((", "[[ ", " ]]", "[ ", " ]", "$X", "$Y", "\"$Y\"", "${Y}", "$'", "$@", "$!", "$?",
	"<", ">", ">f", " 2>&1", "&>", ">&", "<<A\n", "<<'A'\n", "<<\"A\" ", "<<-A\n", "<<A", "\nA\n", "\n\tA\n", "A", "<<<", "<(", ">(", "3<", "{v}>f", "|&",
	"if ", "then ", "else ", "fi", "while ", "do ", "done", "for x in ", "for x", "case ", " in ", "esac", ";;", "time ", "coproc ", "function ", "f()", "select ",
	"p1", "p1", "p2", "p1 a", "p2 b", "p1 -c", "p\\1", "p'2'", "x=", "x=p1", "PATH=", "x+=", "a[0]=", "IFS=p", "p1 $x", "$x", "~", "*", "?", "{p1,p2}", "{p1", ",p2}",
	"env ", "timeout 9 ", "nice ", "command ", "exec ", "nohup ", "sh -c ", "bash -c ", "xargs ", "xargs -I{} ", "{}", "sh", "bash", "eval ", ". f", "source ", "trap ",
	"sh -ec ", "+c", "-c", "-e", "--", "read x", "printf ", "%s", "%n", "-v", "test ", "export ", "set -e", "set -- ", "alias ", "shopt -s extglob", "@(", "echo ", ":",
	"find . -exec ", "-exec ", " \\; ", " + ", "f", "dev", "\u00e9", "\r", "\x01", "\u00a0", "cat ", "cat <<'A' | ", "1", "2", "=", "%", "^",
}

// scriptOf makes a script of bytes: each is a fragment.
func scriptOf(data []byte) string {
	var b strings.Builder
	for _, c := range data[:min(len(data), 40)] {
		b.WriteString(fragments[int(c)%len(fragments)])
	}
	return b.String()
}

// programs makes a directory with the only programs that scripts find. p1 and p2 note how they were
// started, and the rest are those of the system.
func programs(tb testing.TB) (dir, log string) {
	tb.Helper()
	dir = tb.TempDir()
	log = filepath.Join(dir, "log")
	for _, name := range []string{"p1", "p2"} {
		text := fmt.Sprintf("#!/bin/sh\n(printf %%s %s; for a; do printf '\\037%%s' \"$a\"; done; printf '\\036') >> '%s'\n", name, log)
		require.NoError(tb, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755))
	}
	for _, name := range []string{"sh", "bash", "env", "timeout", "nice", "nohup", "xargs", "find", "cat"} {
		if path, err := exec.LookPath(name); err == nil {
			require.NoError(tb, os.Symlink(path, filepath.Join(dir, name)))
		}
	}
	return dir, log
}

// checkAgainst runs a script that is understood with a real shell, and requires that each program
// it starts is one that was found, with the same known words.
func checkAgainst(t *testing.T, interpreter, dir, log, script string) {
	t.Helper()
	parsed, err := shell.Parse(script)
	if err != nil {
		return
	}
	for _, c := range parsed.Commands {
		if c.Program() == "" { // any rule refuses it
			return
		}
	}
	if slices.Contains(parsed.Assigned, "PATH") { // an allow list refuses it
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second) // some never end
	defer cancel()
	cmd := exec.CommandContext(ctx, interpreter, "-c", script)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.Dir, cmd.Stdin, cmd.WaitDelay = t.TempDir(), bytes.NewReader(nil), time.Second
	cmd.Env = []string{"PATH=" + dir, "HOME=" + cmd.Dir, "X=a[$(p1 X)]", "Y=$(p1 Y)"}
	require.NoError(t, os.RemoveAll(log))
	_, _ = cmd.CombinedOutput() // many end with an error
	if cmd.Process != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what is left in the background
	}
	started, err := os.ReadFile(log)
	if os.IsNotExist(err) {
		return
	}
	require.NoError(t, err)
	for record := range strings.SplitSeq(strings.TrimSuffix(string(started), "\x1e"), "\x1e") {
		is := strings.Split(record, "\x1f")
		require.True(t, anyIs(parsed.Commands, is), "%s runs %q, which was not found in %q: %v", interpreter, is, script, show(parsed))
	}
}

// anyIs reports whether one of the commands may be the program that was started.
func anyIs(commands []shell.Command, is []string) bool {
	for _, c := range commands {
		var pattern strings.Builder
		pattern.WriteString(`(?s)^` + regexp.QuoteMeta(c.Program()))
		for _, word := range c.Words[1:] {
			switch {
			case word.Known:
				pattern.WriteString("\x1f" + regexp.QuoteMeta(word.Text))
			case word.Many:
				pattern.WriteString("(\x1f.*)?")
			default:
				pattern.WriteString("\x1f[^\x1f]*")
			}
		}
		if regexp.MustCompile(pattern.String() + "$").MatchString(strings.Join(is, "\x1f")) {
			return true
		}
	}
	return false
}

// FuzzParse_WhatRunsWasFound holds what a policy relies on: whatever a real shell starts was found.
func FuzzParse_WhatRunsWasFound(f *testing.F) {
	f.Add([]byte("p1"))
	shells := realShells(f)
	dir, log := programs(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, interpreter := range shells {
			checkAgainst(t, interpreter, dir, log, scriptOf(data))
		}
	})
}

func realShells(tb testing.TB) []string {
	tb.Helper()
	var shells []string
	for _, name := range []string{"bash", "dash"} {
		if path, err := exec.LookPath(name); err == nil {
			shells = append(shells, path)
		}
	}
	if len(shells) == 0 {
		tb.Skip("neither bash nor dash is installed, so what they run cannot be compared")
	}
	return shells
}

// TestParse_WhatRealShellsRunWasFound is the fuzz test with random scripts; most of them are not
// understood, so many are made.
func TestParse_WhatRealShellsRunWasFound(t *testing.T) {
	t.Parallel()
	shells := realShells(t)
	dir, log := programs(t)
	random := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		data := make([]byte, 1+random.IntN(14))
		for i := range data {
			data[i] = byte(random.UintN(256))
		}
		script := scriptOf(data)
		if _, err := shell.Parse(script); err == nil && strings.Contains(script, "p") {
			checkAgainst(t, shells[random.IntN(len(shells))], dir, log, script)
		}
	}
}
