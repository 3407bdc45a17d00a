package policy_test

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

	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/policy"
	"github.com/toolfleet/toolfleet/pkg/tools/policy/internal/shell"
	"github.com/toolfleet/toolfleet/test/processtest"
)

// fragments are what random scripts are made of. None has a slash, so none leads out of the
// directory in which they run.
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
// started, each in one write, and the rest are those of the system.
func programs(tb testing.TB) (dir, log string) {
	tb.Helper()
	dir = tb.TempDir()
	log = filepath.Join(dir, "log")
	for _, name := range []string{"p1", "p2"} {
		text := fmt.Sprintf("#!/bin/sh\nr=%s\nfor a; do r=\"$r\x1f$a\"; done\nprintf '%%s\\036' \"$r\" >> '%s'\n", name, log)
		processtest.WriteProgram(tb, filepath.Join(dir, name), []byte(text))
	}
	for _, name := range []string{"sh", "bash", "env", "timeout", "nice", "nohup", "xargs", "find", "cat"} {
		if path, err := exec.LookPath(name); err == nil {
			require.NoError(tb, os.Symlink(path, filepath.Join(dir, name)))
		}
	}
	return dir, log
}

// rules are policies of which each allows some of the scripts, and names p1, p2 or both.
var rules = []string{
	"commands: {deny: [p1]}", "commands: {deny: [p1 a]}", "commands: {deny: ['p* * b']}", "approval: {commands: [p2 b]}",
	"commands: {allow: [p2, cat, echo, ':', test, '[', printf, export, set, read, find, sh, x*]}",
	"commands: {allow: [p1 a, p2 b, cat, echo, ':', env, nice, sh, bash, printf]}",
}

// forbids reports whether a rule forbids a program that was started, as it is written.
func forbids(p policy.Policy, is []string) bool {
	matches := func(pattern string) bool {
		words := strings.Fields(pattern)
		return len(words) <= len(is) && !slices.ContainsFunc(words, func(word string) bool {
			matched, _ := filepath.Match(word, is[slices.Index(words, word)])
			return !matched
		})
	}
	return slices.ContainsFunc(p.Commands.Deny, matches) || slices.ContainsFunc(p.Approval.Commands, matches) ||
		len(p.Commands.Allow) > 0 && !slices.ContainsFunc(p.Commands.Allow, matches)
}

// isolated starts a program in namespaces of its own: it sees no network, and its end ends all that
// it left in the background.
func isolated(ctx context.Context, dir, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	cmd.Dir, cmd.Stdin, cmd.WaitDelay = dir, bytes.NewReader(nil), time.Second
	return cmd
}

// checkAgainst judges a script by each of the rules, and runs it with a real shell if one of them
// allows it. Each program that the shell starts must be one that was found, with the same known
// words, and none that a rule forbids by which the script is allowed.
func checkAgainst(t *testing.T, interpreter, dir, log, script string) {
	t.Helper()
	var allowed []policy.Policy
	for _, text := range rules {
		p, err := policy.Parse("rules.yaml", []byte(text))
		require.NoError(t, err)
		j, err := policy.New(p)
		require.NoError(t, err)
		if j.Judge(policy.Call{Tool: "bash", Plan: tools.Plan{Payload: protocol.CommandRun{Command: script}}}).Decision == policy.Allowed {
			allowed = append(allowed, p)
		}
	}
	parsed, err := shell.Parse(script, false)
	if err != nil {
		require.Empty(t, allowed, "what is not understood is allowed: %q", script)
		return
	}
	if len(allowed) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second) // some never end
	defer cancel()
	cmd := isolated(ctx, t.TempDir(), interpreter, "-c", script)
	cmd.Env = []string{"PATH=" + dir, "HOME=" + cmd.Dir, "X=a[$(p1 X)]", "Y=$(p1 Y)"}
	require.NoError(t, os.RemoveAll(log))
	_, _ = cmd.CombinedOutput() // many end with an error
	started, err := os.ReadFile(log)
	if os.IsNotExist(err) {
		return
	}
	require.NoError(t, err)
	for record := range strings.SplitSeq(strings.TrimSuffix(string(started), "\x1e"), "\x1e") {
		is := strings.Split(record, "\x1f")
		require.True(t, anyIs(parsed.Commands, is), "%s runs %q, which was not found in %q: %v", interpreter, is, script, parsed.Commands)
		for _, p := range allowed {
			require.False(t, forbids(p, is), "%s runs %q, and %q is allowed by %+v", interpreter, is, script, p)
		}
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

// FuzzJudge_WhatRunsIsAllowed holds what a policy promises: a real shell starts nothing that the
// rules forbid by which its script is allowed.
func FuzzJudge_WhatRunsIsAllowed(f *testing.F) {
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
	if err := isolated(tb.Context(), tb.TempDir(), shells[0], "-c", ":").Run(); err != nil {
		tb.Skipf("random scripts run only in namespaces of their own, which this machine does not make: %v", err)
	}
	return shells
}

// TestJudge_WhatRealShellsRunIsAllowed is the fuzz test with random scripts. Most of them are not
// understood, so many are made.
func TestJudge_WhatRealShellsRunIsAllowed(t *testing.T) {
	t.Parallel()
	shells := realShells(t)
	dir, log := programs(t)
	random, ran := rand.New(rand.NewPCG(1, 2)), 0
	for range 10_000 {
		data := make([]byte, 1+random.IntN(14))
		for i := range data {
			data[i] = byte(random.UintN(256))
		}
		script := scriptOf(data)
		if _, err := shell.Parse(script, false); err == nil && strings.Contains(script, "p") {
			checkAgainst(t, shells[random.IntN(len(shells))], dir, log, script)
			ran++
		}
	}
	require.Greater(t, ran, 200, "too few scripts are understood to show anything")
}
