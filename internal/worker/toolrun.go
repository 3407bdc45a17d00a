package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

const (
	// toolsVar tells the command of a tool where the folder of tools is.
	toolsVar = "TOOLFLEET_TOOLS"
	// toolsPlace stands for that folder in the command.
	toolsPlace = "{tools}"
	// maxComplaint is how much of what a failed tool wrote goes into the error, in characters.
	maxComplaint = 2000
)

// toolRun runs the command of a tool of the user's own.
func (w *Worker) toolRun(ctx context.Context, s sandbox.Sandbox, p protocol.ToolRun, frames *frames) (protocol.Value, error) {
	cmd := sandbox.Cmd{Argv: make([]string, len(p.Argv)), Env: maps.Clone(p.Env), Stdin: p.Arguments}
	if len(p.Argv) == 0 {
		return nil, protocol.Errorf(protocol.CodeInvalidPayload, "tool_run: argv is empty")
	}
	folder := w.sandboxes.toolsPlace()
	for i, arg := range p.Argv {
		if strings.Contains(arg, toolsPlace) && folder == "" {
			return nil, protocol.Errorf(protocol.CodeInvalidPayload,
				"the tool's command needs a folder of tools (%s), and worker %s has none: start it with --tools DIR", toolsPlace, w.ID())
		}
		cmd.Argv[i] = strings.ReplaceAll(arg, toolsPlace, folder)
	}
	if folder != "" {
		if cmd.Env == nil {
			cmd.Env = map[string]string{}
		}
		cmd.Env[toolsVar] = folder
	}
	cmd.Live = frames.output
	r, err := s.Exec(ctx, cmd)
	if err != nil {
		return nil, err
	}
	execution := w.execution(&r)
	value := protocol.ToolRunResult{Execution: execution}
	whole := wholeOf(execution, &r)
	output, fault := toolOutput(&whole, p.Text)
	if value.Output = output; output != nil {
		value.Stdout, value.Combined = protocol.Bytes{}, nil
	}
	err = endFault(&r)
	switch {
	case err != nil:
		return value, err
	case execution.Signal != "":
		return value, protocol.Errorf(protocol.CodeToolFailed, "the tool was ended by signal %s%s", execution.Signal, complaint(&execution))
	case execution.ExitCode != 0:
		return value, protocol.Errorf(protocol.CodeToolFailed, "the tool failed (exit code %d)%s", execution.ExitCode, complaint(&execution))
	case fault != "":
		return value, protocol.Errorf(protocol.CodeToolFailed, "%s", fault)
	}
	return value, nil
}

// toolOutput reads what a tool wrote to standard output, all of it, or says what is wrong with it.
func toolOutput(e *protocol.Execution, isText bool) (output json.RawMessage, fault string) {
	if isText {
		text := strings.TrimSuffix(strings.ToValidUTF8(string(e.Stdout), "\uFFFD"), "\n")
		encoded, err := json.Marshal(text)
		if err != nil {
			return nil, fmt.Sprintf("the tool's output cannot be sent: %v", err)
		}
		return encoded, ""
	}
	trimmed := bytes.TrimSpace(e.Stdout)
	var compact bytes.Buffer
	switch {
	case len(trimmed) == 0:
		return json.RawMessage("null"), ""
	case !utf8.Valid(trimmed):
		return nil, "the tool must write one JSON value to standard output, and what it wrote is not UTF-8"
	}
	if err := json.Compact(&compact, trimmed); err != nil {
		return nil, fmt.Sprintf("the tool must write one JSON value to standard output, and what it wrote is none: %v", err)
	}
	return compact.Bytes(), ""
}

// complaint is the end of what a tool that failed wrote, to standard error if anything.
func complaint(e *protocol.Execution) string {
	wrote := strings.TrimSpace(strings.ToValidUTF8(string(e.Stderr), "\uFFFD"))
	if wrote == "" {
		return ""
	}
	if all := []rune(wrote); len(all) > maxComplaint {
		wrote = "..." + string(all[len(all)-maxComplaint:])
	}
	return ": " + wrote
}
