package worker

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// refuseCommand says why a command is not run here; nil for other payloads and when it is.
func (w *Worker) refuseCommand(p protocol.Payload) *protocol.Error {
	var readOnly bool
	var limits protocol.Limits
	switch p := p.(type) {
	case protocol.CommandRun:
		readOnly, limits = p.ReadOnly, p.Limits
		if p.Background || p.KeepShell {
			return protocol.Errorf(protocol.CodeUnknownPayload, "command_run: this worker does not know background and keep_shell")
		}
	case protocol.CodeRun:
		readOnly, limits = p.ReadOnly, p.Limits
	default:
		return nil
	}
	if err := limits.Validate(); err != nil {
		return protocol.Errorf(protocol.CodeInvalidPayload, "%s: %v", p.Kind(), err)
	}
	if readOnly {
		return protocol.Errorf(protocol.CodeSandboxUnsupported,
			"read_only: sandbox driver %s cannot keep a command from changing the workspace; call again without read_only", w.options.Caps.Driver)
	}
	return nil
}

func (w *Worker) commandRun(ctx context.Context, s sandbox.Sandbox, p protocol.CommandRun, frames *frames) (protocol.Value, error) {
	argv := p.Argv
	switch {
	case p.Command != "" && len(p.Argv) > 0, p.Command == "" && len(p.Argv) == 0:
		return nil, protocol.Errorf(protocol.CodeInvalidPayload, "command_run: exactly one of command and argv must be given")
	case p.Command != "":
		argv = []string{w.languages.shell, "-c", p.Command}
	}
	execution, err := w.exec(ctx, s, sandbox.Cmd{Argv: argv, Dir: p.Cwd, Env: p.Env, Stdin: p.Stdin}, frames)
	if execution == nil {
		return nil, err
	}
	return protocol.CommandRunResult{Execution: *execution}, err
}

func (w *Worker) codeRun(ctx context.Context, s sandbox.Sandbox, p protocol.CodeRun, frames *frames) (protocol.Value, error) {
	script, err := w.languages.script(p.Language)
	if err != nil {
		return nil, err
	}
	cmd := sandbox.Cmd{Argv: []string{"sh", "-c", script}, Dir: p.Cwd, Env: p.Env, Stdin: []byte(p.Code)}
	execution, err := w.exec(ctx, s, cmd, frames)
	if execution == nil {
		return nil, err
	}
	return protocol.CodeRunResult{Execution: *execution}, err
}

// exec runs a command. An execution beside an error is what it wrote until it was stopped.
func (w *Worker) exec(ctx context.Context, s sandbox.Sandbox, cmd sandbox.Cmd, frames *frames) (*protocol.Execution, error) {
	cmd.Live = frames.output
	r, err := s.Exec(ctx, cmd)
	if err != nil {
		return nil, err
	}
	execution := &protocol.Execution{
		ExitCode: r.ExitCode, Signal: r.Signal, Reason: string(r.Reason),
		Stdout: r.Stdout.Data, Stderr: r.Stderr.Data,
		StdoutBytes: r.Stdout.Total, StderrBytes: r.Stderr.Total,
		Truncated: r.Stdout.Truncated || r.Stderr.Truncated,
		CPUMS:     float64(r.CPU.Microseconds()) / 1000, MaxRSSBytes: r.MaxRSS,
	}
	switch r.Reason {
	case sandbox.ReasonExited, sandbox.ReasonSignaled:
		return execution, nil
	case sandbox.ReasonOutputLimit:
		return execution, protocol.Errorf(protocol.CodeOutputLimit,
			"the command wrote too much and was killed; redirect its output to a file and read parts of that")
	case sandbox.ReasonOOM:
		return execution, protocol.Errorf(protocol.CodeOOM, "the command used too much memory and was killed")
	case sandbox.ReasonDiskLimit:
		return execution, protocol.Errorf(protocol.CodeDiskLimit, "the command wrote too much to disk and was killed")
	case sandbox.ReasonLost:
		return execution, protocol.Errorf(protocol.CodeSandboxLost, "the sandbox was lost while the command ran")
	case sandbox.ReasonTimeout, sandbox.ReasonCancelled:
		return execution, errStopped // the context knows why
	default:
		return execution, errStopped
	}
}

var errStopped = errors.New("the command was stopped")

// languages is what code_run can run here.
type languages struct {
	shell   string // of bash commands: bash where there is one, else sh
	scripts map[string]string
}

// findLanguages looks for interpreters in a PATH. Each script takes the program
// text on stdin, keeps it in a file, and runs it with an empty stdin.
func findLanguages(path string) languages {
	found := languages{shell: "sh", scripts: map[string]string{}}
	if onPath(path, "bash") {
		found.shell = "bash"
	}
	for _, candidate := range []struct{ language, program, file, run string }{
		{"python", "python3", "main.py", `python3 "$d/main.py"`},
		{"sh", "sh", "main.sh", `sh "$d/main.sh"`},
		{"node", "node", "main.mjs", `node "$d/main.mjs"`},
		{"go", "go", "main.go", `go run "$d/main.go"`},
	} {
		if onPath(path, candidate.program) {
			found.scripts[candidate.language] = `d=$(mktemp -d) && cat >"$d/` + candidate.file + `" && { ` + candidate.run +
				` </dev/null; s=$?; rm -rf "$d"; exit $s; }`
		}
	}
	return found
}

func onPath(path, program string) bool {
	return slices.ContainsFunc(filepath.SplitList(path), func(dir string) bool {
		info, err := os.Stat(filepath.Join(dir, program))
		return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
	})
}

func (l languages) script(language string) (string, error) {
	if script, known := l.scripts[language]; known {
		return script, nil
	}
	return "", protocol.Errorf(protocol.CodeLanguage, "language %q cannot be run by this worker; it has: %s",
		language, strings.Join(slices.Sorted(maps.Keys(l.scripts)), ", "))
}
