package shell_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/shell"
)

// found is what a script does, one command a line: "~" before those that only wrap
// another, "?" around words that are not known.
func found(t *testing.T, script string) []string {
	t.Helper()
	parsed, err := shell.Parse(script)
	require.NoError(t, err)
	return show(parsed)
}

func show(parsed *shell.Script) []string {
	out := []string{}
	for _, c := range parsed.Commands {
		words := make([]string, len(c.Words))
		for i, w := range c.Words {
			words[i] = w.Text
			if !w.Known {
				words[i] = "?" + w.Text + "?"
			}
		}
		line := strings.Join(words, " ")
		if c.Wraps {
			line = "~" + line
		}
		out = append(out, line)
	}
	return out
}

func TestParse_Commands(t *testing.T) {
	t.Parallel()
	for script, want := range map[string][]string{
		"":                                      {},
		"# nothing":                             {},
		"git status":                            {"git status"},
		"cd src && go test ./... | tee log; ls": {"cd src", "go test ./...", "tee log", "ls"},
		`r\m -r"f" '/tmp/x y'`:                  {"rm -rf /tmp/x y"},
		"r\\\nm x":                              {"rm x"},
		`"r\
m" x`: {"rm x"},
		`echo "a $(rm x) b" <(cat y) ` + "`date`":                               {`echo ?"a $(rm x) b"? ?<(cat y)? ?$(date)?`, "rm x", "cat y", "date"},
		"if a; then b; else c; fi; for i in 1; do d; done; while e; do f; done": {"a", "b", "c", "d", "e", "f"},
		"(a; { b; }) & c || d":                                                  {"a", "b", "c", "d"},
		"git() { rm -rf x; }; git":                                              {"rm -rf x", "git"},
		"case x in *) a;; esac":                                                 {"a"},
		"cat <<EOF\n$(rm x)\nEOF":                                               {"cat", "rm x"},
		"cat <<'EOF'\n$(rm x)\nEOF":                                             {"cat"},
		"x=$(rm a)":                                                             {"rm a"},
		"export x=$(rm a)":                                                      {"rm a"},
		"! rm x":                                                                {"rm x"},
		"time rm x":                                                             {"rm x"},
		"coproc rm x":                                                           {"rm x"},
		"[[ $(rm x) == y ]]":                                                    {"rm x"},
		"$cmd -rf":                                                              {"?$cmd? -rf"},
		"ech? *.go ~/x {rm,-rf,/}":                                              {"?ech?? ?*.go? ?~/x? ?{rm,-rf,/}?"},
		"{rm,-rf,/}":                                                            {"?{rm,-rf,/}?"},
		`$'\x72\x6d' x`:                                                         {`?$'\x72\x6d'? x`},
		`echo "a*b" 'c?d' {} {x}`:                                               {"echo a*b c?d {} {x}"},
		"env -i A=b -u C rm x":                                                  {"~env -i A=b -u C rm x", "rm x"},
		"env":                                                                   {"env"},
		"FOO=1 env --chdir=/ rm x":                                              {"env --chdir=/ rm x", "rm x"},
		"env -S 'rm x'":                                                         {"~env -S rm x", "?-S ...?"},
		"nohup nice -n 5 timeout -k 1 10s rm x": {
			"~nohup nice -n 5 timeout -k 1 10s rm x", "~nice -n 5 timeout -k 1 10s rm x", "~timeout -k 1 10s rm x", "rm x",
		},
		"flock -n /tmp/l rm x":           {"flock -n /tmp/l rm x", "rm x"},
		"flock /tmp/l -c 'rm x; ls'":     {"flock /tmp/l -c rm x; ls", "rm x", "ls"},
		"flock --command='rm x' /tmp/l":  {"flock --command=rm x /tmp/l", "rm x"},
		"flock /tmp/l gcc -c x.c":        {"flock /tmp/l gcc -c x.c", "gcc -c x.c"},
		"flock -u 9":                     {"flock -u 9"},
		"script -qec 'rm x' /dev/null":   {"script -qec rm x /dev/null", "rm x"},
		"script -q log <<E\nrm x\nE":     {"script -q log", "rm x"},
		"watch -n 1 'rm x | ls'":         {"~watch -n 1 rm x | ls", "rm x", "ls"},
		"watch -n1 -x rm x":              {"~watch -n1 -x rm x", "rm x"},
		"parallel rm ::: x":              {"parallel rm ::: x", "?(what its arguments say)?"},
		"strace -f -o log -e trace=a rm": {"strace -f -o log -e trace=a rm", "rm"},
		"unshare -rm --propagation x rm": {"unshare -rm --propagation x rm", "rm"},
		"unshare -r <<<'rm x'":           {"unshare -r", "rm x"},
		"nsenter -t 1 -m rm x":           {"nsenter -t 1 -m rm x", "rm x"},
		"setpriv --reuid 0 --nnp rm":     {"setpriv --reuid 0 --nnp rm", "rm"},
		"chrt -f 10 rm":                  {"~chrt -f 10 rm", "rm"},
		"chrt -o rm x":                   {"~chrt -o rm x", "rm x"},
		"chrt -p 10 1":                   {"chrt -p 10 1"},
		"ionice -c2 -n 7 rm":             {"~ionice -c2 -n 7 rm", "rm"},
		"taskset -c 0-3 rm":              {"~taskset -c 0-3 rm", "rm"},
		"setarch x86_64 -R rm":           {"~setarch x86_64 -R rm", "rm"},
		"setarch -R rm":                  {"~setarch -R rm", "rm"},
		"linux32 rm":                     {"~linux32 rm", "rm"},
		"prlimit --nofile=9 -c0 rm":      {"~prlimit --nofile=9 -c0 rm", "rm"},
		"dbus-run-session -- rm":         {"~dbus-run-session -- rm", "rm"},
		"ssh-agent -t 5 rm x":            {"ssh-agent -t 5 rm x", "rm x"},
		"ssh-agent -k":                   {"ssh-agent -k"},
		"valgrind --tool=memcheck -q rm": {"valgrind --tool=memcheck -q rm", "rm"},
		"su - ada -c 'rm x'":             {"su - ada -c rm x", "rm x"},
		"runuser -u ada -- rm x":         {"runuser -u ada -- rm x", "rm x"},
		"runuser ada -c 'rm x'":          {"runuser ada -c rm x", "rm x"},
		"sg staff 'rm x'":                {"sg staff rm x", "rm x"},
		"systemd-run --scope -p A=1 rm":  {"systemd-run --scope -p A=1 rm", "rm"},
		"at now <<< 'rm x'":              {"at now", "rm x"},
		"timeout --signal KILL 5 rm":     {"~timeout --signal KILL 5 rm", "rm"},
		"ls | xargs -0 -n1 rm -f":        {"ls", "~xargs -0 -n1 rm -f", "rm -f ?...?"},
		"xargs -rI % git %":              {"~xargs -rI % git %", "git ?%?"},
		"xargs --replace rm {}":          {"~xargs --replace rm {}", "rm ?{}?"},
		"xargs -I{} sh -c 'rm {}'":       {"~xargs -I{} sh -c rm {}", "sh -c ?rm {}?", "?rm {}?"},
		"env - A=b rm x":                 {"~env - A=b rm x", "rm x"},
		"/usr/bin/time -o f rm x":        {"~/usr/bin/time -o f rm x", "?-o ...?"},
		"tini -g -- rm x":                {"~tini -g -- rm x", "rm x"},
		"dumb-init -r 1:2 rm x":          {"~dumb-init -r 1:2 rm x", "rm x"},
		"gosu ada rm x":                  {"gosu ada rm x", "rm x"},
		"setlock -n l rm x":              {"setlock -n l rm x", "rm x"},
		"gtimeout -k 1 5 genv - rm x":    {"~gtimeout -k 1 5 genv - rm x", "~genv - rm x", "rm x"},
		"tmux new -d 'rm x'":             {"tmux new -d rm x", "?(what its arguments say)?"},
		"nu -c 'rm x'":                   {"nu -c rm x", "?(a script in another language)?"},
		"command -v rm":                  {"command -v rm"},
		"command -p rm x":                {"~command -p rm x", "rm x"},
		"exec -a ls rm x":                {"~exec -a ls rm x", "rm x"},
		"builtin cd x":                   {"~builtin cd x", "cd x"},
		"sudo -u bob rm x":               {"sudo -u bob rm x", "rm x"},
		"/usr/bin/env rm":                {"~/usr/bin/env rm", "rm"},
		"bash -c 'rm x; ls'":             {"~bash -c rm x; ls", "rm x", "ls"},
		"sh -ec \"rm x\"":                {"~sh -ec rm x", "rm x"},
		"bash --norc -o pipefail -c ls":  {"~bash --norc -o pipefail -c ls", "ls"},
		"bash -euo pipefail -c ls":       {"~bash -euo pipefail -c ls", "ls"},
		"bash -euoc pipefail ls":         {"~bash -euoc pipefail ls", "ls"},
		"bash --rcfile x -c ls":          {"bash --rcfile x -c ls", "ls"},
		"bash -c":                        {"bash -c"},
		`bash -c "$x"`:                   {`bash -c ?"$x"?`, `?"$x"?`},
		"bash script.sh -c ls":           {"bash script.sh -c ls"},
		"bash":                           {"bash"},
		"eval 'rm x' y":                  {"~eval rm x y", "rm x y"},
		"eval $x":                        {"~eval ?$x?", "?$x?"},
		"trap -- 'rm x' EXIT":            {"trap -- rm x EXIT", "rm x"},
		"find $x -type f":                {"find ?$x? -type f", "?$x?"},
		"find src/* -type f":             {"find ?src/*? -type f"},
		"env A=b -C /x git status":       {"env A=b -C /x git status", "git status"},
		"busybox rm x":                   {"~busybox rm x", "rm x"},
		"[ -f x ]":                       {"[ -f x ]"},
		"bash -lc 'rm x'":                {"bash -lc rm x", "rm x"},
		"bash -c -x 'rm x'":              {"~bash -c -x rm x", "rm x"},
		"bash -norc -c 'rm x'":           {"~bash -norc -c rm x", "rm x"},
		"sh <<<'rm x'":                   {"~sh", "rm x"},
		"bash -s a <<'E'\nrm x\nE":       {"~bash -s a", "rm x"},
		"timeout 5 bash <<E\nrm x\nE":    {"~timeout 5 bash", "~bash", "rm x"},
		"sudo sh -- /dev/stdin <<<ls":    {"sudo sh -- /dev/stdin", "~sh -- /dev/stdin", "ls"},
		"source /dev/stdin <<< 'rm x'":   {"source /dev/stdin", "rm x"},
		"sh < script.sh; bash":           {"sh", "bash"},
		"source .venv/bin/activate":      {"source .venv/bin/activate"},
		"zsh x.zsh":                      {"zsh x.zsh"},
		"zsh -c 'rm x'":                  {"zsh -c rm x", "?(a script in another language)?"},
		"trap 'rm x' EXIT":               {"trap rm x EXIT", "rm x"},
		"alias ls='rm x'":                {"alias ls=rm x", "?alias 'ls=rm x'?"},
		`find . -name x -exec rm {} \; -o -execdir cat {} +`: {
			`find . -name x -exec rm {} ; -o -execdir cat {} +`, "rm ?{}?", "cat ?{}?",
		},
	} {
		t.Run(script, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, want, found(t, script))
		})
	}
}

func TestParse_AssignmentsAndFiles(t *testing.T) {
	t.Parallel()
	parsed, err := shell.Parse("PATH=/x A=b ls >out 2>>'e r' <in 2>&1; B=1; export C=2 D; cat <<<x >$f")
	require.NoError(t, err)
	require.Equal(t, []string{"PATH", "A"}, parsed.Commands[0].Assigned)
	require.Equal(t, []string{"B", "C", "D"}, parsed.Assigned)
	require.Equal(t, []shell.Redirect{
		{Path: shell.Word{Text: "out", Known: true}, Write: true},
		{Path: shell.Word{Text: "e r", Known: true}, Write: true},
		{Path: shell.Word{Text: "in", Known: true}},
		{Path: shell.Word{Text: "$f", Many: true}, Write: true},
	}, parsed.Files)
	require.Equal(t, "ls", parsed.Commands[0].Program())
}

func TestParse_WhatCannotBeRead(t *testing.T) {
	t.Parallel()
	for script, want := range map[string]string{
		"echo 'x":                              "the script cannot be read: 1:6",
		"if x":                                 "the script cannot be read",
		"bash -c 'if x'":                       "the script cannot be read",
		strings.Repeat("x", shell.MaxScript+1): "at most",
		strings.Repeat("a;", shell.MaxCommands+1): "more than 10000 commands",
		strings.Repeat("eval ", 20) + "x":         "more than 16 levels",
	} {
		_, err := shell.Parse(script)
		require.ErrorContains(t, err, want)
	}
}

func TestArgv_IsReadWithoutAShell(t *testing.T) {
	t.Parallel()
	parsed, err := shell.Argv([]string{"env", "sh", "-c", "rm $x"}, nil)
	require.NoError(t, err)
	require.Equal(t, []string{"~env sh -c rm $x", "~sh -c rm $x", "rm ?$x?"}, show(parsed))
	parsed, err = shell.Argv([]string{"/bin/echo", "$(rm x)"}, nil)
	require.NoError(t, err)
	require.Equal(t, []string{"/bin/echo $(rm x)"}, show(parsed))
	require.Equal(t, "echo", parsed.Commands[0].Program())
	require.Equal(t, "/bin/echo '$(rm x)'", parsed.Commands[0].String())
	parsed, err = shell.Argv(nil, nil)
	require.NoError(t, err)
	require.Empty(t, parsed.Commands)
}

// FuzzParse holds what a policy relies on: no panic, and a word for every command.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{"a | b && c", "env -i x=1 rm", "sh -c 'eval \"$x\"'", "find . -exec rm {} +", "{a,b}; $'x'", "cat <<E\n$(x)\nE"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, script string) {
		parsed, err := shell.Parse(script)
		if err != nil {
			return
		}
		for _, c := range parsed.Commands {
			require.NotEmpty(t, c.Words)
			_ = c.String()
		}
	})
}
