package kinds

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/internal/modeltext/plain"
	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/internal/worker/results"
	"github.com/toolfleet/toolfleet/internal/worker/spool"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

const (
	// toolsVar is the variable with the path of the folder of tools, for the command of a tool.
	toolsVar = "TOOLFLEET_TOOLS"
	// toolsPlace stands for that folder in the command.
	toolsPlace = "{tools}"
	// maxComplaint is how much of what a failed tool wrote goes into the error, in characters.
	maxComplaint = 2000
	// maxToolOutput bounds what a tool may return, and the output that is stored whole, in bytes.
	maxToolOutput = 512 << 10
)

// toolRun runs the command of a tool of the user's own.
func toolRun(ctx context.Context, a *Attempt, p protocol.ToolRun) (protocol.Value, error) {
	if len(p.Argv) == 0 {
		return nil, protocol.Errorf(codes.InvalidPayload, "tool_run: argv is empty")
	}
	argv, env, err := a.env.ofTools(p.Argv, p.Env)
	if err != nil {
		return nil, err
	}
	done, err := a.exec(ctx, sandbox.Cmd{Argv: argv, Env: env, Stdin: p.Arguments})
	if err != nil {
		return nil, err
	}
	execution := done.execution
	whole := wholeOf(execution, done.written)
	_ = done.written.Close() // it was read
	output, fault := toolOutput(&whole, p.Text)
	value := toolValue(execution, whole, output)
	switch {
	case done.fault != nil:
		return value, done.fault
	case execution.Signal != "":
		return value, protocol.Errorf(protocol.CodeToolFailed, "the tool was ended by signal %s%s", execution.Signal, complaint(a.Run.Call, &whole))
	case execution.ExitCode != 0:
		return value, protocol.Errorf(protocol.CodeToolFailed, "the tool failed (exit code %d)%s", execution.ExitCode, complaint(a.Run.Call, &whole))
	case fault != "":
		return value, protocol.Errorf(protocol.CodeToolFailed, "%s", fault)
	}
	return value, nil
}

// ofTools is the command of a tool, or of a server of tools, with the folder of tools.
func (e *Env) ofTools(argv []string, env map[string]string) ([]string, map[string]string, error) {
	folder := e.Sandboxes.ToolsPath()
	argv, env = slices.Clone(argv), maps.Clone(env)
	for i, arg := range argv {
		if strings.Contains(arg, toolsPlace) && folder == "" {
			return nil, nil, protocol.Errorf(codes.InvalidPayload,
				"the tool's command needs a folder of tools (%s), and worker %s has none: start it with --tools DIR", toolsPlace, e.ID)
		}
		argv[i] = strings.ReplaceAll(arg, toolsPlace, folder)
	}
	if folder != "" {
		if env == nil {
			env = map[string]string{}
		}
		env[toolsVar] = folder
	}
	return argv, env, nil
}

// wholeOf returns an execution with its whole output instead of the shortened one, unless that is
// too much.
func wholeOf(e protocol.Execution, written *spool.Spool) protocol.Execution {
	if !e.Truncated {
		return e
	}
	whole := func(kept *protocol.Bytes, streams ...sandbox.Stream) {
		if len(*kept) == 0 || written.Total(streams...) > maxToolOutput {
			return
		}
		if all, err := io.ReadAll(written.Reader(streams...)); err == nil && int64(len(all)) == written.Total(streams...) {
			*kept = all
		}
	}
	whole(&e.Stdout, sandbox.Stdout)
	whole(&e.Stderr, sandbox.Stderr)
	whole(&e.Combined, sandbox.Stdout, sandbox.Stderr)
	e.Truncated = int64(len(e.Stdout)) != e.StdoutBytes || int64(len(e.Stderr)) != e.StderrBytes
	return e
}

// toolValue is what the command of a tool returned, and kept whole where it may be shown cut.
func toolValue(shown, whole protocol.Execution, output json.RawMessage) protocol.Value {
	valueOf := func(e protocol.Execution) protocol.ToolRunResult {
		if output != nil {
			e.Stdout, e.Combined = protocol.Bytes{}, nil
		}
		return protocol.ToolRunResult{Output: output, Execution: e}
	}
	value := valueOf(shown)
	if toolSize(value) > plain.MaxShown || shown.Truncated || utf8.RuneCount(whole.Stderr) > maxComplaint {
		return results.Partial{Value: value, Whole: results.Value(valueOf(whole))}
	}
	return value
}

// toolSize is the size of what a tool returned, or wrote.
func toolSize(v protocol.ToolRunResult) int { return max(outputSize(v), len(v.Output)) }

// toolOutput reads the whole standard output of a tool, or returns why it is invalid.
func toolOutput(e *protocol.Execution, isText bool) (output json.RawMessage, fault string) {
	if int64(len(e.Stdout)) != e.StdoutBytes {
		return nil, fmt.Sprintf("the tool wrote %d bytes to standard output: what it returns has %d bytes at most", e.StdoutBytes, maxToolOutput)
	}
	if isText {
		text := strings.TrimSuffix(prose.Valid(string(e.Stdout)), "\n")
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
func complaint(c *protocol.Call, e *protocol.Execution) string {
	wrote := strings.TrimSpace(prose.Valid(string(e.Stderr)))
	if wrote == "" {
		return ""
	}
	if all := []rune(wrote); len(all) > maxComplaint {
		return fmt.Sprintf(": ...%s\n[these are the last %d of %d characters of what it wrote to stderr; all of it: read with path=%q]",
			string(all[len(all)-maxComplaint:]), maxComplaint, len(all), "result:"+string(c.ID)+"#"+wire.PartStderr)
	}
	return ": " + wrote
}
