package process

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// MarkVar is the environment variable that tells whose a process is. Its value is
// different for every command, and means nothing.
const MarkVar = "TOOLFLEET_COMMAND"

// command builds what cmd asks for. The directory, in which the command is to
// start, has to stay open until then.
func (s *Sandbox) command(cmd sandbox.Cmd) (*exec.Cmd, *os.File, error) {
	if err := checkArgv(cmd.Argv); err != nil {
		return nil, nil, err
	}
	if err := checkEnv(cmd.Env); err != nil {
		return nil, nil, err
	}
	dir, err := s.workspace.OpenDir(cmd.Dir)
	if err != nil {
		return nil, nil, err
	}
	env := s.env(cmd.Env)
	path, err := lookup(cmd.Argv[0], env["PATH"], dir.Name())
	if err != nil {
		return nil, nil, errors.Join(err, dir.Close())
	}
	return &exec.Cmd{Path: path, Args: cmd.Argv, Env: environ(env), Dir: startDir(dir)}, dir, nil
}

// env is the complete environment of a command.
func (s *Sandbox) env(extra map[string]string) map[string]string {
	env := map[string]string{"HOME": s.scratch.home(), "TMPDIR": s.scratch.temp()}
	maps.Copy(env, s.spec.Env)
	maps.Copy(env, extra)
	env[MarkVar] = rand.Text()
	return env
}

func environ(env map[string]string) []string {
	out := make([]string, 0, len(env))
	for _, name := range slices.Sorted(maps.Keys(env)) {
		out = append(out, name+"="+env[name])
	}
	return out
}

func checkArgv(argv []string) error {
	if len(argv) == 0 || argv[0] == "" {
		return sandbox.Faultf(sandbox.FaultArguments, "there is no command to run")
	}
	for _, arg := range argv {
		if strings.ContainsRune(arg, 0) {
			return sandbox.Faultf(sandbox.FaultArguments, "an argument contains a NUL byte: %q", arg)
		}
	}
	return nil
}

func checkEnv(env map[string]string) error {
	for name, value := range env {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.ContainsRune(value, 0) {
			return sandbox.Faultf(sandbox.FaultArguments,
				"environment variable %q: a name must not be empty or contain \"=\", nothing may contain a NUL byte", name)
		}
	}
	return nil
}

// startFault explains why a program did not start.
func startFault(name string, err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return sandbox.Faultf(sandbox.FaultCommand, "%q cannot be run: the interpreter that its first line names does not exist", name)
	case errors.Is(err, fs.ErrPermission):
		return notExecutable(name)
	case errors.Is(err, syscall.ENOEXEC):
		return sandbox.Faultf(sandbox.FaultCommand,
			"%q is not a program for this system; if it is a script, run it by its interpreter", name)
	case errors.Is(err, syscall.E2BIG):
		return sandbox.Faultf(sandbox.FaultTooLarge, "the arguments and the environment of %q are too long; use a file or the input", name)
	default:
		return fmt.Errorf("start %q: %w", name, err)
	}
}

func notFound(name string) error {
	return sandbox.Faultf(sandbox.FaultCommand, "%q is not installed: there is no such program in the PATH", name)
}

func notExecutable(name string) error {
	return sandbox.Faultf(sandbox.FaultCommand, "%q is not executable; make it so with chmod +x, or run it by its interpreter", name)
}
