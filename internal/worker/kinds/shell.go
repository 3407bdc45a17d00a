package kinds

import (
	"context"
	"log/slog"
	"maps"
	"os"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/system/regular"
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

// keepingScript runs the command $1 in the directory $2, and writes where it ended, and
// with which environment, to a file of the sandbox. A command that sets a trap on EXIT of its
// own, or is killed, leaves nothing there.
const keepingScript = `__toolfleet=${TMPDIR:-/tmp}/.toolfleet-shell
[ ! -p "$__toolfleet" ] || rm -f -- "$__toolfleet"
: 2>/dev/null >"$__toolfleet"
trap "{ printf '%s\\0' \"\$(pwd -P)\"; env -0; } 2>/dev/null >'$__toolfleet'" EXIT
[ -z "$2" ] || cd -- "$2" 2>/dev/null || :
__toolfleet=$1
set --
eval "unset __toolfleet
$__toolfleet"`

// startingScript is keepingScript for commands that leave the state as it is.
const startingScript = `[ -z "$2" ] || cd -- "$2" 2>/dev/null || :
__toolfleet=$1
set --
eval "unset __toolfleet
$__toolfleet"`

// inShell makes a command one of the sandbox's shell, and returns what stores the state of the
// shell once the command has ended.
func (a *Attempt) inShell(p protocol.CommandRun, cmd *sandbox.Cmd) (keep func(context.Context, *sandbox.Result)) {
	shell, file := a.env.languages.shell, a.box.ShellFile()
	state := readShell(file)
	dir := state.dir
	if p.Cwd != "" {
		dir = ""
	}
	script := keepingScript
	if p.ReadOnly || p.Background {
		script = startingScript
	}
	cmd.Argv = []string{shell, "-c", script, shell, p.Command, dir}
	cmd.Env = maps.Clone(state.env)
	if cmd.Env == nil {
		cmd.Env = map[string]string{}
	}
	maps.Copy(cmd.Env, p.Env)
	return func(ctx context.Context, r *sandbox.Result) {
		if p.ReadOnly {
			return
		}
		next, ok := a.lookAtShell(ctx, state, p.Env)
		if r.Reason != sandbox.ReasonExited || !ok {
			return
		}
		if err := regular.Replace(file, []byte(next.String())); err != nil {
			a.env.Logger.WarnContext(ctx, "state of the shell cannot be kept", slog.Any("error", err))
		}
	}
}

// lookWait bounds looking at a shell's state, which is a file that commands can exchange.
const lookWait = 10 * time.Second

// lookAtShell reads what a command of the shell has left. Variables that its call gave it
// are as they were before.
func (a *Attempt) lookAtShell(ctx context.Context, before shellState, given map[string]string) (state shellState, ok bool) {
	r, err := a.sandbox.Exec(ctx, sandbox.Cmd{
		Argv:   []string{"sh", "-c", `f=${TMPDIR:-/tmp}/.toolfleet-shell; [ -f "$f" ] && cat "$f"; s=$?; rm -rf "$f"; exit $s`},
		Limits: sandbox.Limits{Output: 2 * maxShellState, Wall: lookWait},
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
	if body, err := os.ReadFile(file); err == nil {
		state, _ = parseShell(string(body))
	}
	return state
}
