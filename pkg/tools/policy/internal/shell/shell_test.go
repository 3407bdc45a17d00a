package shell_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/tools/policy/internal/shell"
)

// found is what a script does, one command a line: "~" before those that only wrap
// another, "?" around words that are not known.
func found(t *testing.T, script string) []string {
	t.Helper()
	parsed, err := shell.Parse(script, false)
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
		`echo "a $x b" $y "$@" $?`:              {`echo ?"a $x b"? ?$y? ?"$@"? ?$??`},
		"if a; then b; else c; fi; for i in 1; do d; done; while e; do f; done": {"a", "b", "c", "d", "e", "f"},
		"(a; { b; }) & c || d":          {"a", "b", "c", "d"},
		"cat <<'EOF'\n$(rm x)\nEOF\nls": {"cat", "ls"},
		"x=$y rm a":                     {"rm a"},
		"export x=\"$y\"":               {`export ?x="$y"?`},
		"! rm x":                        {"rm x"},
		"time rm x":                     {"rm x"},
		"x=1 then rm":                   {"then rm"},
		"\\if rm":                       {"if rm"},
		"$cmd -rf":                      {"?$cmd? -rf"},
		"ech? *.go ~/x {rm,-rf,/}":      {"?ech?? ?*.go? ?~/x? ?{rm,-rf,/}?"},
		`{rm"",x}`:                      {`?{rm"",x}?`},
		`echo "a*b" 'c?d' {} {x}`:       {"echo a*b c?d {} {x}"},
		"env -i A=b -u C rm x":          {"~env -i A=b -u C rm x", "rm x"},
		"env":                           {"env"},
		"ENV rm x; /opt/env rm":         {"ENV rm x", "rm x", "/opt/env rm", "rm"},
		"nohup nice -n 5 timeout -k 1 10s rm x": {
			"~nohup nice -n 5 timeout -k 1 10s rm x", "~nice -n 5 timeout -k 1 10s rm x", "~timeout -k 1 10s rm x", "rm x",
		},
		"ls | xargs -0 -n1 rm -f":           {"ls", "~xargs -0 -n1 rm -f", "rm -f ?...?"},
		"xargs -rI % git %":                 {"~xargs -rI % git %", "git ?%? ?...?"},
		"gtimeout -k 1 5 genv - rm x":       {"~gtimeout -k 1 5 genv - rm x", "~genv - rm x", "rm x"},
		"command -v rm":                     {"~command -v rm", "rm"},
		"command -p rm x":                   {"~command -p rm x", "rm x"},
		"sudo -u bob rm x":                  {"sudo -u bob rm x", "rm x"},
		"/usr/bin/env rm":                   {"~/usr/bin/env rm", "rm"},
		"./env rm":                          {"./env rm", "rm"},
		"bash -c 'rm x; ls'":                {"~bash -c rm x; ls", "rm x", "ls"},
		"sh -ec \"rm x\"":                   {"~sh -ec rm x", "rm x"},
		"bash --norc -euo pipefail -c ls a": {"~bash --norc -euo pipefail -c ls a", "ls"},
		"bash script.sh -c ls":              {"bash script.sh -c ls", "~script.sh -c ls"},
		"bash":                              {"bash"},
		"ls; bash":                          {"ls", "bash"},
		"source .venv/bin/activate":         {"source .venv/bin/activate", "~.venv/bin/activate"},
		"[ -f x ]":                          {"[ -f x ]"},
		`find . -name "$x" -print src/*`:    {`find . -name ?"$x"? -print ?src/*?`},
	} {
		require.Equal(t, want, found(t, script), script)
	}
}

func TestParse_Assignments(t *testing.T) {
	t.Parallel()
	parsed, err := shell.Parse("PATH=/x A=b ls >out 2>>'e r' <in 2>&1; B=1; export C=2 D; read -r E; for F in x; do :; done", false)
	require.NoError(t, err)
	require.Equal(t, []string{"PATH", "A"}, parsed.Commands[0].Assigned)
	require.Equal(t, []string{"B", "C", "D", "E", "F"}, parsed.Assigned)
	require.Equal(t, "ls", parsed.Commands[0].Program())
}

func TestParse_WhatIsNotUnderstoodSaysWhy(t *testing.T) {
	t.Parallel()
	for script, want := range map[string]string{
		"echo 'x":                               "line 1 is not understood: a quote has no end",
		"ls\necho $((1))":                       "line 2 is not understood: commands and arithmetic in words, as in $(...); run the command by itself",
		"((PATH=5))":                            "((; write > file",
		"for ((PATH=5;0;)); do":                 "a for other than: for name in words",
		"f() { ls; }":                           "'(' in a word without quotes",
		"x=(a b)":                               "'(' in a word without quotes",
		"x+=/e":                                 "write x=$x... for x+=",
		"echo `ls`":                             "commands and arithmetic in words",
		"echo ${x:-y}":                          "only $name and ${name}",
		"case x in x) ls;; esac":                "line 1 is not understood: case",
		"[[ -f x ]]":                            "[[",
		"echo $'x'":                             "only $name and ${name}",
		"ls &> x":                               "write > file 2>&1 for &>",
		"ls >& x":                               "a file behind >&; write > file 2>&1",
		"sh <<< ls":                             "the redirection <<<",
		"cat <(ls)":                             "the redirection <(",
		"bash 3<x":                              "the redirection 3<x",
		"cat <<E\n$x\nE":                        "quote the end of the here document, as in <<'E'",
		"cat <<E\nx":                            "the here document has no line E",
		"cat <<$'A'\nx\nA":                      "a here document ends with a name",
		"echo caf\u00e9":                        "'é' in a word without quotes",
		"echo \"\u00e9\\n\"":                    "a backslash behind text that is not ASCII",
		"ls\r\n":                                `line 1 has the control character '\r'; end lines with a line feed alone`,
		"ls \xff":                               "it is not UTF-8",
		"printf 'abc%n' PATH":                   "the command printf abc%n PATH is not understood",
		"printf -v PATH x":                      "the command printf -v PATH x is not understood",
		"eval -- git push":                      "the command eval -- git push is not understood",
		"test -v 'a[x]'":                        "is not understood",
		"export BASH_ENV=f":                     "is not understood",
		"env BASH_ENV=f bash -c :":              "BASH_ENV=f in the command env BASH_ENV=f bash -c : is not understood",
		"sh +ec 'git push'":                     "+ec in the command sh +ec 'git push' is not understood",
		"sh -c \"$x\"":                          "\"$x\" in the command sh -c \"$x\" is not understood",
		"cd /dev; sh stdin":                     "stdin in the command sh stdin is not understood",
		". ../dev/fd/3":                         "../dev/fd/3 in the command . ../dev/fd/3 is not understood",
		"ls | sh":                               "sh reads a script from its input; write it as sh -c '...'",
		"/lib64/ld-linux-x86-64.so.2 /bin/rm x": "what ld-linux-x86-64.so.2 runs is not understood",
		"zsh-5.9 -c 'rm x'":                     "what zsh-5.9 runs is not understood",
		"strace ls":                             "what strace runs is not understood",
		"env -S 'rm x'":                         "-S in the command env -S 'rm x' is not understood",
		"xargs -E -Ix git":                      "is not understood",
		"find . $x":                             "$x in the command find . $x is not understood",
		"time -o f ls":                          "options of time",
		"bash -c 'if \"x'":                      "a quote has no end",
		strings.Repeat("x", shell.MaxScript+1):  "at most",
		strings.Repeat("a;", shell.MaxCommands+1): "more than 10000 commands",
		strings.Repeat("nohup ", 20) + "x":        "more than 16 levels",
		"find . -exec rm {} +":                    "-exec in the command find . -exec rm '{}' + is not understood; pipe the names to xargs",
		"bash -lc ls":                             "-lc in the command bash -lc ls is not understood",
		"echo $(git push)":                        "commands and arithmetic in words",
		"cat <<E\\\nx\nE":                         "a here document ends with a name",
	} {
		_, err := shell.Parse(script, false)
		require.ErrorContains(t, err, want, script)
	}
}

func TestArgv_IsReadWithoutAShell(t *testing.T) {
	t.Parallel()
	parsed, err := shell.Argv([]string{"env", "sh", "-c", "rm \"$x\""}, false)
	require.NoError(t, err)
	require.Equal(t, []string{`~env sh -c rm "$x"`, `~sh -c rm "$x"`, `rm ?"$x"?`}, show(parsed))
	parsed, err = shell.Argv([]string{"/bin/echo", "$(rm x)"}, false)
	require.NoError(t, err)
	require.Equal(t, []string{"/bin/echo $(rm x)"}, show(parsed))
	require.Equal(t, "echo", parsed.Commands[0].Program())
	require.Equal(t, "/bin/echo '$(rm x)'", parsed.Commands[0].String())
	parsed, err = shell.Argv(nil, false)
	require.NoError(t, err)
	require.Empty(t, parsed.Commands)
}

// misread are scripts in which the parser takes for text what bash runs.
var misread = map[string]string{
	"a return behind a backslash":         "echo a \\\r\ntouch PWN",
	"a backslash at the end of a comment": "echo a # b \\\ntouch PWN",
	"one in a list":                       "x=(a # b \\\n$(touch PWN)\n)\nif :; then # \\\ntouch PWN\nfi",
	"a return in a comment":               "echo a # \\\r\ntouch PWN",
	"a return in a delimiter":             "echo <<A\r\nA\necho '\nA\r\ntouch PWN\n#'",
	"a line in an expansion":              "echo $\\\n{Y@P}",
	"a line in arithmetic":                "(\\\n(X))",
	"a line in a test":                    "[\\\n[ X -eq 1 ]]",
	"quotes in an expansion in quotes":    `echo "${X+'$(touch PWN)'}"`,
	"escapes in an expansion in quotes":   `echo "${X+$'\x24(touch PWN)'}"`,
	"in one in another":                   `echo "${X+${Y+'$(touch PWN)'}}"`,
	"in a here document":                  "cat <<A\n${X+'$(touch PWN)'}\nA",
	"a descriptor with a subscript":       `echo {a[$X]}>f`,
	"one for a here string":               `echo {a["X"]}<<< x`,
	"the end of a here document":          "echo $(cat <<A\nx\nA)\ntouch PWN\nA\n)",
	"one that ends behind its command":    "echo `cat <<A`\ntouch PWN\nA",
	"a process in an expansion":           `echo ${X%>(touch PWN)}; wait $!`,
	"it, and more":                        "echo $(cat <<-'A'\nx\n\tA x)\ntouch PWN\nA\n)",
	"an end that a backslash splits":      "cat <<EOF\nE\\\nOF\ntouch PWN\nEOF",
	"an end with an escape":               "cat <<$'A\\x42'\nx\nAB\ntouch PWN\nA\\x42\n",
	"a quote over the end":                "cat <<A \"\nA\n\"\nx\nA\ntouch PWN",
	"eval with an end of options":         "eval -- touch PWN",
	"an option before the script":         "sh +ec 'touch PWN'",
	"a descriptor below the directory":    "cd /dev; echo touch PWN | (cd /dev && sh stdin); cd - && echo touch PWN | sh ../../../../../../../../dev/stdin",
}

func TestParse_WhatTheParserMisreadsIsUnknown(t *testing.T) {
	t.Parallel()
	for name, script := range misread {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.True(t, seen(t, script), "must be unknown: %q", script)
			require.True(t, run(t, findBash(t), script), "bash runs nothing in %q", script)
		})
	}
}

// TestParse_OtherShellsAreNotBash: sh is another shell on many systems, where these run a program.
func TestParse_OtherShellsAreNotBash(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"redirections of both outputs": `echo hi &>/dev/null touch PWN`,
		"appended":                     `echo hi &>>/dev/null touch PWN`,
		"escapes in quotes":            `echo $'\'; touch PWN #'`,
		"conditions":                   `[[ x || touch == PWN ]]`,
		"arithmetic":                   `touch=1; PWN=2; ((touch - PWN))`,
		"arithmetic in brackets":       `touch=1; PWN=2; echo $[ 1 | touch - PWN ]`,
		"an assignment that adds":      `mkdir x+=; cp "$(command -v touch)" x+=/e; x+=/e PWN`,
	} {
		require.True(t, seen(t, script), name)
		if dash, err := exec.LookPath("dash"); err == nil {
			require.True(t, run(t, dash, script), "%s: dash runs nothing in %s", name, script)
		}
	}
}
