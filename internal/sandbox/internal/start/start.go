// Package start is what drivers share about starting a program: the checks of a command,
// the search for the program in the command's own PATH, and the words for what went wrong.
package start

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"syscall"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// ContextReason is why a context that has ended ends a command.
func ContextReason(err error) sandbox.Reason {
	if errors.Is(err, context.DeadlineExceeded) {
		return sandbox.ReasonTimeout
	}
	return sandbox.ReasonCancelled
}

// Environ returns an environment as a list, sorted by name.
func Environ(env map[string]string) []string {
	out := make([]string, 0, len(env))
	for _, name := range slices.Sorted(maps.Keys(env)) {
		out = append(out, name+"="+env[name])
	}
	return out
}

// CheckArgv refuses arguments that no program can get, with a [sandbox.Fault].
func CheckArgv(argv []string) error {
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

// CheckLimits refuses negative limits, with a [sandbox.Fault].
func CheckLimits(limits sandbox.Limits) error {
	if err := limits.Validate(); err != nil {
		return sandbox.Faultf(sandbox.FaultArguments, "%v", err)
	}
	return nil
}

// CheckEnv refuses variables that no program can get, with a [sandbox.Fault].
func CheckEnv(env map[string]string) error {
	for name, value := range env {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.ContainsRune(value, 0) {
			return sandbox.Faultf(sandbox.FaultArguments,
				"environment variable %q: a name must not be empty or contain \"=\", nothing may contain a NUL byte", name)
		}
	}
	return nil
}

// Fault explains why a program did not start: a [sandbox.Fault] when the caller asked for
// the wrong thing.
func Fault(name string, err error) error {
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
	case errors.Is(err, syscall.EAGAIN):
		return sandbox.Faultf(sandbox.FaultFailed, "%q cannot be started: the sandbox has as many processes as it may; end some of them", name)
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
