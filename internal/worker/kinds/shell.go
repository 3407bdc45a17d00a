package kinds

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/system/regular"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/internal/worker/sandboxes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// Bounds of what is kept between the commands of a shell.
const (
	maxShellState = 64 << 10 // bytes of the environment
	maxShellVars  = 500
)

// shellState is what a sandbox's shell is like after a command: where it is, and which
// exported variables it has that its sandbox does not give it.
type shellState struct {
	dir string
	env map[string]string
}

// parseShell reads a state as the keeping script writes it: the directory, then NAME=VALUE for each
// variable, and a NUL behind each of them. They are bytes, which need not be UTF-8.
func parseShell(written string) (state shellState, ok bool) {
	dir, env, found := strings.Cut(written, "\x00")
	if !found || dir == "" {
		return state, false
	}
	state = shellState{dir: dir, env: map[string]string{}}
	for pair := range strings.SplitSeq(env, "\x00") {
		if name, value, isPair := strings.Cut(pair, "="); isPair && name != "" {
			state.env[name] = value
		}
	}
	return state, true
}

// String is what parseShell reads.
func (s shellState) String() string {
	var b strings.Builder
	b.WriteString(s.dir + "\x00")
	for name, value := range s.env {
		b.WriteString(name + "=" + value + "\x00")
	}
	return b.String()
}

// stateScript runs the command $1 in the directory $2, and writes where it ended, and
// with which environment, to a file of the sandbox. A command that sets a trap on EXIT of its
// own, or is killed, leaves nothing there.
const stateScript = `__toolfleet=${TMPDIR:-/tmp}/.toolfleet-shell
[ ! -p "$__toolfleet" ] || rm -f -- "$__toolfleet"
: 2>/dev/null >"$__toolfleet"
trap "{ printf '%s\\0' \"\$(pwd -P)\"; env -0; } 2>/dev/null >'$__toolfleet'" EXIT
[ -z "$2" ] || cd -- "$2" 2>/dev/null || :
__toolfleet=$1
set --
eval "unset __toolfleet
$__toolfleet"`

// inStateScript is stateScript for commands that leave the state as it is.
const inStateScript = `[ -z "$2" ] || cd -- "$2" 2>/dev/null || :
__toolfleet=$1
set --
eval "unset __toolfleet
$__toolfleet"`

// inShell makes a command one of the sandbox's shell, and returns what stores the state of the
// shell once the command has ended.
func (a *Attempt) inShell(p protocol.CommandRun, cmd *sandbox.Cmd) (keep func(context.Context, *sandbox.Result)) {
	shell, file := a.env.languages.shell, a.laneSandbox.ShellFile()
	state := readShell(file)
	dir := state.dir
	if p.Cwd != "" {
		dir = ""
	}
	script := stateScript
	if p.ReadOnly || p.Background {
		script = inStateScript
	}
	cmd.Argv = []string{shell, "-c", script, shell, p.Command, dir}
	cmd.Env = map[string]string{}
	maps.Copy(cmd.Env, state.env)
	maps.Copy(cmd.Env, p.Env)
	return func(ctx context.Context, r *sandbox.Result) {
		if p.ReadOnly {
			return
		}
		next, ok := a.readShellState(ctx, state, p.Env)
		if r.Reason != sandbox.ReasonExited || !ok {
			return
		}
		if err := regular.Replace(file, []byte(next.String())); err != nil {
			a.env.Logger.WarnContext(ctx, "state of the shell cannot be kept", slog.Any("error", err))
		}
	}
}

// readStateWait bounds looking at a shell's state, which is a file that commands can exchange.
const readStateWait = 10 * time.Second

// readShellState reads what a command of the shell has left. Variables that its call gave it
// are as they were before.
func (a *Attempt) readShellState(ctx context.Context, before shellState, given map[string]string) (state shellState, ok bool) {
	r, err := a.sandbox.Exec(ctx, sandbox.Cmd{
		Argv:   []string{"sh", "-c", `f=${TMPDIR:-/tmp}/.toolfleet-shell; [ -f "$f" ] && cat "$f"; s=$?; rm -rf "$f"; exit $s`},
		Limits: sandbox.Limits{Output: 2 * maxShellState, Wall: readStateWait},
	})
	if err != nil || r.ExitCode != 0 || r.Stdout.Truncated {
		return state, false
	}
	if state, ok = parseShell(string(r.Stdout.Data)); !ok {
		return state, false
	}
	size := 0
	for name, value := range state.env {
		kept := true
		if _, isGiven := given[name]; isGiven {
			value, kept = before.env[name]
		}
		if !kept || a.env.ownVariable(name, value) {
			delete(state.env, name)
			continue
		}
		state.env[name] = value
		size += len(name) + len(value)
	}
	return state, size <= maxShellState && len(state.env) <= maxShellVars
}

// ownVariable reports whether a variable is what the worker, the sandbox or the shell makes it.
func (e *Env) ownVariable(name, value string) bool {
	if given, ok := e.Sandbox.Env[name]; ok && given == value {
		return true
	}
	switch strings.ToUpper(name) {
	case "_", "PWD", "OLDPWD", "SHLVL", "HOME", "TMPDIR", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY":
		return true
	default:
		return false
	}
}

// readShell reads a state; without one the shell is as new.
func readShell(file string) (state shellState) {
	if body, err := regular.Read(file, 2*maxShellState); err == nil {
		state, _ = parseShell(string(body))
	}
	return state
}

// languages is what a sandbox of this worker has.
type languages struct {
	shell   string            // of bash commands: bash where there is one, else sh
	scripts map[string]string // of code_run, by language
}

// interpreters says how each language is run: by which program, with its text in which file.
var interpreters = []struct{ language, program, file, run string }{ //nolint:gochecknoglobals // a constant table
	{"python", "python3", "main.py", `python3 "$d/main.py"`},
	{"sh", "sh", "main.sh", `sh "$d/main.sh"`},
	{"node", "node", "main.mjs", `node "$d/main.mjs"`},
	{"go", "go", "main.go", `go run "$d/main.go"`},
}

// languagesOf makes languages of the programs that there are. Each script takes the
// program text on stdin, keeps it in a file, and runs it with an empty stdin.
func languagesOf(has func(program string) bool) languages {
	found := languages{shell: "sh", scripts: map[string]string{}}
	if has("bash") {
		found.shell = "bash"
	}
	for _, i := range interpreters {
		if has(i.program) {
			found.scripts[i.language] = `d=$(mktemp -d) && cat >"$d/` + i.file + `" && { ` + i.run +
				` </dev/null; s=$?; rm -rf "$d"; exit $s; }`
		}
	}
	return found
}

// probeTimeout bounds the look into a sandbox.
const probeTimeout = 30 * time.Second

// probeScript prints the programs of its arguments that the sandbox has.
const probeScript = `for p do command -v "$p" >/dev/null 2>&1 && echo "$p"; done; exit 0`

// findLanguages looks for programs where commands run: in a sandbox, in a directory of data.
func findLanguages(ctx context.Context, driver isolation.Driver, spec isolation.Spec, data string) (_ languages, err error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	dir, err := os.MkdirTemp(data, "probe-")
	if err != nil {
		return languages{}, fmt.Errorf("look for languages: %w", err)
	}
	spec.ID, spec.Workspace, spec.Scratch = probeID, filepath.Join(dir, "workspace"), filepath.Join(dir, "scratch")
	if err := errors.Join(os.Mkdir(spec.Workspace, 0o700), os.Mkdir(spec.Scratch, 0o700)); err != nil {
		return languages{}, fmt.Errorf("look for languages: %w", err)
	}
	box, err := driver.Open(ctx, spec)
	if err != nil {
		return languages{}, errors.Join(fmt.Errorf("look for languages: %w", err), sandboxes.RemoveUnmounted(dir))
	}
	defer func() {
		if closeErr := box.Close(); closeErr != nil { // what processes are left in is not removed below them
			err = errors.Join(err, closeErr)
			return
		}
		err = errors.Join(err, sandboxes.RemoveUnmounted(dir))
	}()
	programs := []string{"bash"}
	for _, i := range interpreters {
		programs = append(programs, i.program)
	}
	r, err := box.Exec(ctx, sandbox.Cmd{Argv: append([]string{"sh", "-c", probeScript, "sh"}, programs...)})
	if err == nil && (r.Reason != sandbox.ReasonExited || r.ExitCode != 0) {
		err = fmt.Errorf("%s, exit code %d: %s", r.Reason, r.ExitCode, r.Stderr.Data)
	}
	if err != nil {
		return languages{}, fmt.Errorf("look for languages: %w", err)
	}
	found := strings.Fields(string(r.Stdout.Data))
	return languagesOf(func(program string) bool { return slices.Contains(found, program) }), nil
}

// probeID is the id of the sandbox in which languages are looked for.
const probeID = "probe"

// names returns the languages, sorted.
func (l languages) names() []string { return slices.Sorted(maps.Keys(l.scripts)) }

func (l languages) script(language string) (string, error) {
	if script, known := l.scripts[language]; known {
		return script, nil
	}
	return "", protocol.Errorf(codes.Language, "language %q cannot be run by this worker; it has: %s",
		language, strings.Join(l.names(), ", "))
}
