package shell_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/tools/policy/internal/shell"
)

// hostile is the value of a variable that runs a program when it is evaluated.
const hostile = `a[$(touch PWN)]`

// evaluating is what bash evaluates as code, in the order of its manual. X is a variable that is
// hostile, Y one that is a command substitution as text, and Z one that splits into a test.
var evaluating = []struct{ section, script string }{
	{"3.1.2.5 locale translation", `echo $"x"`},
	{"3.2.5.1 looping", `for ((; X; )); do break; done`},
	{"3.2.5.2 conditionals", `select i in $((X)); do break; done`},
	{"3.2.5.2 conditionals", `((X))`},
	{"3.2.5.2 conditionals", `[[ $X -eq 1 ]]`},
	{"3.2.5.2 conditionals", `[[ 1 -lt X ]]`},
	{"3.2.5.2 conditionals", `a=1; [[ -v $X ]]`},
	{"3.2.5.2 conditionals", "shopt -s extglob\n[[ x == @($(touch PWN)) ]]"},
	{"3.2.6 coprocesses", `coproc bash; echo touch PWN >&${COPROC[1]}; exec {COPROC[1]}>&-; wait`},
	{"3.3 functions", `f() { bash; }; f <<< "touch PWN"`},
	{"3.3 functions", `f() { local -i q=$X; }; f`},
	{"3.4 parameters", `declare -i x=$X`},
	{"3.4 parameters", `typeset -n r=X; : $((r))`},
	{"3.4 parameters", `declare -n r=$X; : $r`},
	{"3.4 parameters", `export -n x; declare +x -i x=$X`},
	{"3.5.3 parameter expansion", `: ${!X}`},
	{"3.5.3 parameter expansion", `: "${!X}"`},
	{"3.5.3 parameter expansion", `: ${Y@P}`},
	{"3.5.3 parameter expansion", `x=abc; : ${x:X}`},
	{"3.5.3 parameter expansion", `x=abc; : ${x:0:X}`},
	{"3.5.3 parameter expansion", `x=(1); : ${x[X]}`},
	{"3.5.3 parameter expansion", `x=(1); : ${#x[$X]}`},
	{"3.5.3 parameter expansion", `: ${x:-$((X))}`},
	{"3.5.3 parameter expansion", `unset RANDOM; : ${OPTIND:+${HISTCMD:=$X}}; HISTCMD=$X`},
	{"3.5.5 arithmetic", `echo $((X))`},
	{"3.5.5 arithmetic", `echo $(( $X + 1 ))`},
	{"3.5.5 arithmetic", `echo "$[X]"`},
	{"3.5.5 arithmetic", `echo $(($(echo "$X")))`},
	{"3.5.5 arithmetic", `if false; then X=1; fi; echo $((X))`},
	{"3.5.5 arithmetic", `X=1; read X <<< 'a[$(touch PWN)]'; echo $((X))`},
	{"3.5.5 arithmetic", `X=1; printf -v X %s 'a[$(touch PWN)]'; echo $((X))`},
	{"3.5.5 arithmetic", `X=1; eval 'X="a[\$(touch PWN)]"'; echo $((X))`},
	{"3.5.5 arithmetic", `X=1; for X in "a[\$(touch PWN)]"; do :; done; echo $((X))`},
	{"3.5.5 arithmetic", `X=1; : ${X:=2}; X+='+a[$(touch PWN)]'; echo $((X))`},
	{"3.5.8.1 patterns", "shopt -s extglob\necho @($(touch PWN))"},
	{"3.4.2 special parameters", `_=5; : 'a[$(touch PWN)]'; : $((_))`},
	{"3.5.1 brace expansion", `printf {-v"",'a[$(touch PWN)]'} x`},
	{"3.5.1 brace expansion", `{touch"",PWN}`},
	{"3.5.7 word splitting", `printf $! -v 'a[$(touch PWN)]' x`},
	{"3.5.7 word splitting", `n=1; n=; printf $n -v 'a[$(touch PWN)]' x`},
	{"3.5.7 word splitting", `echo 'touch PWN' > f; set $! -k; bash -c : BASH_ENV=f`},
	{"3.5.8 file names", `shopt -s nullglob; printf a* -v 'a[$(touch PWN)]' x`},
	{"3.6 redirections", `exec {a[$(touch PWN)]}>f`},
	{"3.6.4 redirecting both", `echo >&'$(touch PWN)'`},
	{"3.6.4 redirecting both", `echo >&"$Y"`},
	{"3.6.4 redirecting both", `echo >&a"$Y"`},
	{"3.6.4 redirecting both", `echo 1>& \$\(touch\ PWN\)`},
	{"3.6.6 here documents", "cat <<E\n$((X))\nE"},
	{"3.6.6 here documents", "sh <<E\n$Y\nE"},
	{"3.6.7 here strings", `sh <<< "$Y"`},
	{"3.6.8 duplicating", `bash 3<<< "touch PWN" <&3`},
	{"3.7.4 environment", `echo 'touch PWN' > f; BASH_ENV=f bash -c :`},
	{"3.7.1 assignments that fail", "readonly x=$X; eval 'x=5\n: $((x))'"},
	{"3.7.1 assignments that fail", "for i in 1 2; do eval 'x=5\n: $((x))'; readonly x='a[$(touch PWN)]'; done"},
	{"3.7.1 assignments that fail", "export X; bash <<'E'\nX=$((1/0))\n: $((X))\nE"},
	{"3.7.1 assignments that fail", `env x='a[$(touch PWN)]' bash -c 'for x in $!; do :; done; : $((x))'`},
	{"3.8 scripts", `echo touch PWN | bash`},
	{"3.8 scripts", `echo touch PWN | (cat | sh -s a)`},
	{"3.8 scripts", `exec < <(echo touch PWN); bash`},
	{"3.8 scripts", `echo touch PWN > >(sh)`},
	{"3.8 scripts", `bash <(echo touch PWN)`},
	{"3.8 scripts", `bash /dev/fd/3 3<<< "touch PWN"`},
	{"4.1 source", `. /dev/stdin < <(echo touch PWN)`},
	{"4.1 source", `source <(echo touch PWN)`},
	{"4.1 eval", `eval "$Y"`},
	{"4.1 getopts", `OPTIND=$X; getopts a x -a`},
	{"4.1 hash", `hash -p "$(command -v touch)" foo; foo PWN`},
	{"4.1 test", `test -v "$X"`},
	{"4.1 test", `[ $Z ]`},
	{"4.1 test", `[ -v 'a[$(touch PWN)]' ]`},
	{"4.1 trap", `trap "$Y" EXIT`},
	{"4.1 unset", `a=(1); unset "$X"`},
	{"4.2 alias", "shopt -s expand_aliases\nalias foo=touch\nfoo PWN"},
	{"4.2 declare", `declare "$X=1"`},
	{"4.2 declare", `declare -a "x=($Y)"`},
	{"4.2 declare", `declare -a x; declare x=($X); v="($Y)"; declare x=$v`},
	{"4.2 declare", `v="([$Y]=1)"; export -a x=$v`},
	{"4.2 declare", `v="($Y)"; readonly -a x="$v"`},
	{"4.2 let", `let x=X`},
	{"4.2 let", `"let" "$X"`},
	{"4.2 mapfile", `mapfile -c 1 -C "touch PWN;:" x <<< a`},
	{"4.2 printf", `printf -v "$X" x`},
	{"4.2 printf", `printf "-v$X" x`},
	{"4.1 getopts", `OPTARG=1; getopts a: y -a "$X"; : $((OPTARG))`},
	{"4.2 mapfile", `MAPFILE=1; mapfile <<< "$X"; : $((MAPFILE))`},
	{"4.2 read", `REPLY=1; read <<< "$X"; : $((REPLY))`},
	{"4.2 read", `read "$X" <<< x`},
	{"4.2 read", `read x "$X" <<< "x y"`},
	{"4.3.1 set", `PS4='$(touch PWN)'; set -x; :`},
	{"4.3.1 set", `echo 'touch PWN' > f; set -k; bash -c : BASH_ENV=f`},
	{"5.2 variables", `OPTIND=$X`},
	{"5.2 variables", `RANDOM=$X`},
	{"5.2 variables", `SRANDOM=$X`},
	{"5.2 variables", `HISTCMD=$X`},
	{"5.2 variables", `BASH_CMDS[foo]=$(command -v touch); foo PWN`},
	{"5.2 variables", "shopt -s expand_aliases\nBASH_ALIASES[foo]=touch\nfoo PWN"},
	{"6.7 arrays", `x[X]=1`},
	{"6.7 arrays", `x=([X]=1)`},
	{"6.7 arrays", `x=([$X]=1)`},
	{"7.1 job control", `wait -n -p "$X" & wait`},
	{"7.2 job control", `sleep 0.01 & wait -p "$X" $!`},
	{"7.2 job control", `jobs -x touch PWN`},
	{"8.7 completion", `compgen -C 'touch PWN;:' x`},
	{"8.7 completion", `compgen -W "$Y" x`},
}

// notHere are constructs that need more than a script to evaluate anything: a translation, a
// terminal, a loaded module. They are refused as well.
var notHere = []string{`echo $"x"`, `coproc bash; echo touch PWN >&${COPROC[1]}; exec {COPROC[1]}>&-; wait`, `wait -n -p "$X" & wait`, `export -n x; declare +x -i x=$X`}

// run runs a script with bash, and reports whether it started touch.
func run(t *testing.T, bash, script string) bool {
	t.Helper()
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, bash, "-c", script)
	cmd.Dir, cmd.Stdin, cmd.WaitDelay = dir, bytes.NewReader(nil), time.Second
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "X=" + hostile, "Y=$(touch PWN)", "Z=-v a[$(touch${IFS}PWN)]"}
	_, _ = cmd.CombinedOutput() // most of them end with an error
	_, err := os.Lstat(filepath.Join(dir, "PWN"))
	return err == nil
}

// seen reports whether a script is not understood, or starts a program that is not known, or touch
// is found in it.
func seen(t *testing.T, script string) bool {
	t.Helper()
	parsed, err := shell.Parse(script, false)
	return err != nil || slices.ContainsFunc(parsed.Commands, func(c shell.Command) bool { return c.Program() == "" || c.Program() == "touch" })
}

func findBash(t *testing.T) string {
	t.Helper()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("bash is not installed, so what it evaluates cannot be tried")
	}
	return bash
}

// TestParse_WhatBashEvaluatesIsUnknown goes through the manual of bash: each construct is tried
// with the bash of this machine, and must not pass as harmless.
func TestParse_WhatBashEvaluatesIsUnknown(t *testing.T) {
	t.Parallel()
	for _, test := range evaluating {
		t.Run(test.section, func(t *testing.T) {
			t.Parallel()
			require.True(t, seen(t, test.script), "must be unknown: %s", test.script)
			if slices.Contains(notHere, test.script) {
				return
			}
			bash := findBash(t)
			version, err := exec.CommandContext(t.Context(), bash, "-c", "echo $BASH_VERSION").Output()
			require.NoError(t, err)
			if !run(t, bash, test.script) {
				require.False(t, bytes.HasPrefix(version, []byte("5.2.")), "bash does not evaluate %s", test.script)
				t.Logf("bash %s does not evaluate %s", bytes.TrimSpace(version), test.script)
			}
		})
	}
}

// TestParse_EveryBuiltinOfBash gives hostile arguments to all of bash's builtins. Whatever bash
// evaluates must be unknown, so a builtin that a later bash has is found here.
func TestParse_EveryBuiltinOfBash(t *testing.T) {
	t.Parallel()
	bash := findBash(t)
	names, err := exec.CommandContext(t.Context(), bash, "-c", "compgen -b").Output()
	require.NoError(t, err)
	arguments := []string{
		`"$X"`, `"$X" "$X"`, `$Z`, `-v "$X" x`, `-v "$X" ]`, `-p "$X"`, `-n "$X"`, `"$X=1"`, `-x "$X"`, `-x touch PWN`, `-i x="$X"`, `-t "$X"`,
		`-C "$X"`, `-W "$Y" x`, `"$Y"`, `-a "x=($Y)"`, `-d "$X"`, `-o "$X"`, `1 -eq "$X"`, `"$X" -eq 1 ]`, `-R "$X" ]`, `x "$X"`, `-u "$X"`,
		`-O "$X"`, `-A "$X"`, `+"$X"`, `-f "$X"`, `-c 1 -C 'touch PWN;:' x <<< a`, `"$X" <<< a`, `x "$X" <<< "a b"`, `/dev/stdin <<< "touch PWN"`,
	}
	for name := range strings.FieldsSeq(string(names)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var all strings.Builder // each in its own directory, by one bash
			for i, args := range arguments {
				script := name + " " + args
				if dir := string(rune('A' + i)); !seen(t, script) && name != "suspend" {
					fmt.Fprintf(&all,
						"mkdir %s; (cd %s; a=(1); eval '%s') </dev/null >/dev/null 2>&1; [ ! -e %[1]s/PWN ] || touch PWN\n",
						dir, dir, strings.ReplaceAll(script, "'", `'\''`))
				}
			}
			require.False(t, run(t, bash, all.String()), "bash evaluates an argument of %s that is not unknown:\n%s", name, all.String())
		})
	}
}

// TestParse_OrdinaryCommandsAreUnderstood: what models write every day must not be refused.
func TestParse_OrdinaryCommandsAreUnderstood(t *testing.T) {
	t.Parallel()
	for _, script := range []string{
		`cd src && go test ./... 2>&1 | tail -n 20`,
		`for f in *.go; do gofmt -l "$f"; done`,
		`for d in a b; do (cd "$d" && make) || exit 1; done`,
		`while IFS= read -r line; do echo "$line"; done < file.txt`,
		`find . -name '*.py' -not -path './.git/*' | xargs grep -n "import os"`,
		`find . \( -name a -o -name b \) -print; find src/* -type f`,
		`x=HEAD; echo "at $x ${x} $1 $# $?"`,
		`while [ "$i" -lt 5 ]; do echo "$i"; done`,
		`timeout 5 bash -c 'for f in a b; do cat "$f"; done'`,
		`find "$a" -type f -name "*.go" -print0 | xargs -0 grep -n x`,
		`if [ -f go.mod ] && [ ! -d vendor ]; then echo yes; elif test -e x; then echo no; fi`,
		`if [ $? -ne 0 ] || [ $# -eq 0 ]; then echo failed; fi; ! grep -q x y`,
		`set -euo pipefail; set +x; ls **/*.go`,
		`export FOO=bar BAR="$x"; FOO=baz env | grep FOO`,
		`python3 -m pytest -q "tests/test_$x.py" -k 'a and b'`,
		"cat > a.txt <<'EOF'\n$x `y` $((z)) don't\nEOF\nls",
		"cat > a.txt <<EOF\nhello (you)\nEOF",
		"git commit -m \"Subject\n\nBody\"\n# a comment, isn't it\nls # another",
		"docker run \\\n  --rm \\\n  image",
		`printf '%s\n' "$x" | sed -e 's/a/b$/' | awk '{ print $1 }' | sort | uniq -c`,
		`printf "%-10s %d\n" a 1; grep "foo$" a; grep -E "a|b$|c" "$f"`,
		`sleep 1 & wait $!; wait`,
		`case1=x; echo "${case1}" a{b,c} {} HEAD@{1} "it's" 'say "x"'`,
		`mkdir -p a/b && touch a/b/{c,d}.txt && mv a/b/c.txt{,.bak}`,
		`{ echo a; echo b; } >> log 2>/dev/null; exec 3>&1; echo x >&3`,
		`source .venv/bin/activate && pip install -e . --quiet; ./run.sh; bash build.sh -c x`,
		`time go build ./... ; echo $RANDOM $$; command -v node`,
		`git log --oneline -n 5 -- "$file" | cat; curl -sS "http://localhost:8080/?a=1" | jq .`,
		`env -i A=b git log; sudo -u bob ls; nice -n 5 make; find . -name x -print0 | xargs -0 -rI{} echo {}`,
		`nohup python3 -m http.server 8080 > log 2>&1 & echo $!; kill "$pid"`,
	} {
		parsed, err := shell.Parse(script, false)
		require.NoError(t, err, script)
		for _, c := range parsed.Commands {
			require.NotEmpty(t, c.Program(), "%s: %s", script, c.String())
		}
	}
}

// TestParse_AScriptAsInput: a shell may be given its script by the call.
func TestParse_AScriptAsInput(t *testing.T) {
	t.Parallel()
	_, err := shell.Parse("cat; bash", true)
	require.ErrorContains(t, err, "bash reads a script from its input; write it as bash -c '...'")
	_, err = shell.Argv([]string{"env", "sh"}, true)
	require.ErrorContains(t, err, "sh reads a script from its input")
	_, err = shell.Argv([]string{"env", "sh", "-s"}, false)
	require.ErrorContains(t, err, "-s in the command sh -s is not understood")
	parsed, err := shell.Argv([]string{"bash"}, false)
	require.NoError(t, err)
	require.Equal(t, []string{"bash"}, show(parsed))
}
