// Package start has what drivers share about running a command: checks of its arguments, the search
// in its own PATH, its terminal, the deadline after which its supervisor kills it, and errors.
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

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// ContextReason maps the error of an ended context to the reason for which a command ended.
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

// CheckArgv returns a [protocol.Error] for arguments that cannot be passed to a program.
func CheckArgv(argv []string) error {
	if len(argv) == 0 || argv[0] == "" {
		return protocol.Errorf(protocol.CodeInvalidArguments, "there is no command to run")
	}
	for _, arg := range argv {
		if strings.ContainsRune(arg, 0) {
			return protocol.Errorf(protocol.CodeInvalidArguments, "an argument contains a NUL byte: %q", arg)
		}
	}
	return nil
}

// CheckLimits returns a [protocol.Error] for negative limits.
func CheckLimits(limits sandbox.Limits) error {
	if err := isolation.ValidateLimits(limits); err != nil {
		return protocol.Errorf(protocol.CodeInvalidArguments, "%v", err)
	}
	return nil
}

// CheckEnv returns a [protocol.Error] for variables that cannot be passed to a program.
func CheckEnv(env map[string]string) error {
	for name, value := range env {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.ContainsRune(value, 0) {
			return protocol.Errorf(protocol.CodeInvalidArguments,
				"environment variable %q: a name must not be empty or contain \"=\", nothing may contain a NUL byte", name)
		}
	}
	return nil
}

// Error explains why a program did not start. It is a [protocol.Error] if the caller's request was
// wrong.
func Error(name string, err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return protocol.Errorf(protocol.CodeCommandNotFound, "%q cannot be run: the interpreter that its first line names does not exist", name)
	case errors.Is(err, fs.ErrPermission):
		return notExecutable(name)
	case errors.Is(err, syscall.ENOEXEC):
		return protocol.Errorf(protocol.CodeCommandNotFound,
			"%q is not a program for this system; if it is a script, run it by its interpreter", name)
	case errors.Is(err, syscall.E2BIG):
		return protocol.Errorf(codes.TooLarge, "the arguments and the environment of %q are too long; use a file or the input", name)
	case errors.Is(err, syscall.EAGAIN):
		return protocol.Errorf(protocol.CodeToolFailed, "%q cannot be started: the sandbox has as many processes as it may; end some of them", name)
	default:
		return fmt.Errorf("start %q: %w", name, err)
	}
}

func notFound(name string) error {
	return protocol.Errorf(protocol.CodeCommandNotFound, "%q is not installed: there is no such program in the PATH", name)
}

func notExecutable(name string) error {
	return protocol.Errorf(protocol.CodeCommandNotFound, "%q is not executable; make it so with chmod +x, or run it by its interpreter", name)
}
