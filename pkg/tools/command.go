package tools

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools/internal/render"
)

// Command is a tool of the user's own as a program: it runs in a sandbox of a worker,
// reads the arguments as JSON from standard input, and writes the result to standard
// output. An exit code other than 0 is a failure, told with what it wrote to standard error.
type Command struct {
	// Argv is the program and its arguments. "{tools}" in any of them stands for the
	// worker's folder of tools.
	Argv []string
	// Env is added to the sandbox's environment.
	Env map[string]string
	// Text says that the program writes text; otherwise it writes one JSON value.
	Text bool
}

// CommandTool makes the tool of a command. Kind is not used. With resources that are
// not of a sandbox, the command runs in an empty one, not in the session's. What cannot
// be a tool is reported by [NewTable].
func (r Remote) CommandTool(definition Definition, command Command) Tool {
	argv, env := slices.Clone(command.Argv), maps.Clone(command.Env)
	tool := r.planned(definition, func(arguments json.RawMessage) (protocol.Payload, error) {
		return protocol.ToolRun{Argv: argv, Arguments: arguments, Env: env, Text: command.Text}, nil
	})
	if len(argv) == 0 || argv[0] == "" {
		tool.fault = errors.Join(tool.fault, errors.New("command: must name a program"))
	}
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.Contains(env[name], "\x00") {
			tool.fault = errors.Join(tool.fault,
				fmt.Errorf("env %q: a name must not be empty or contain \"=\", and nothing may contain a NUL byte", name))
		}
	}
	tool.Render = render.ToolRun
	return tool
}
