package toolset

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/modeltext/modelpath"
	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/modeltext/render"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

type bashArguments struct {
	Command  string      `json:"command"`
	Cwd      string      `json:"cwd"`
	Timeout  float64     `json:"timeout"`
	Env      environment `json:"env"`
	ReadOnly bool        `json:"read_only"`

	Background bool `json:"background"`
	TTY        bool `json:"tty"`
}

// bash is the tool that runs commands, each in a new shell.
func bash() tools.Tool {
	return bashTool(
		"Every command is a new process: files persist, but variables and the current directory do not, and what a command leaves running is killed at its end. ",
		"Default: the workspace.", planBash)
}

// bashKeeping is bash with a shell that is kept between commands.
func bashKeeping() tools.Tool {
	return bashTool(
		"The current directory and exported variables are kept for the next command, unless this one is read_only or in the background. "+
			"What a command leaves running is killed at its end. ",
		"Default: where the last command ended.",
		func(scope tools.Scope, args bashArguments) (tools.Plan, *protocol.Error) {
			plan, err := planBash(scope, args)
			if payload, ok := plan.Payload.(protocol.CommandRun); ok {
				payload.KeepShell = true
				plan.Payload = payload
			}
			return plan, err
		})
}

// bashTool is bash with what it says about its shell.
func bashTool(shell, cwd string, plan func(tools.Scope, bashArguments) (tools.Plan, *protocol.Error)) tools.Tool {
	return tools.Tool{
		Metadata: tools.Metadata{Effect: tools.Effect{Open: true}},
		Definition: definition("bash",
			"Run a shell command in the workspace. Returns what it wrote, stdout and stderr in the order in which they came, and its exit code unless that is 0. "+
				shell+
				"There is no input to read: pass flags that keep programs from asking, or, for what has to be talked to (a debugger, a REPL, a prompt), set tty. "+
				"Of output over 42,000 characters you get the beginning and the end, and where to read the rest. "+
				"\"Read-only file system\" or \"Device or resource busy\" in the workspace means that the place, such as .git/hooks, is protected: leave it as it is. "+
				"Prefer read, write, edit, list and grep for files.",
			`{
				"type": "object",
				"properties": {
					"command": {"type": "string", "minLength": 1, "description": "The command line, run by the shell; may have several lines."},
					"cwd": {"type": "string", "description": "Directory to run in, relative to the workspace. `+cwd+`"},
					"timeout": {"type": "number", "exclusiveMinimum": 0, "maximum": 3600, "description": "Seconds after which the command is killed. Default: 120, in the background 3600."},
					"env": {"type": "object", "maxProperties": 200, "additionalProperties": {"type": ["string", "number", "boolean"]}, "description": "Environment variables to set for the command, as in {\"PORT\": \"8080\"}."},
					"read_only": {"type": "boolean", "default": false, "description": "Keep the command from changing the workspace. Such commands of one step run side by side. Default: false."},
					"background": {"type": "boolean", "default": false, "description": "Start the command, as a server, and return at once with a name for it; see the process tool. Default: false."},
					"tty": {"type": "boolean", "default": false, "description": "Run the command in the background with a terminal, where the process tool types by action send. Default: false."}
				},
				"required": ["command"],
				"additionalProperties": false
			}`),
		Plan:   tools.PlanOf(plan),
		Rules:  bashRules,
		Render: render.Command,
	}
}

func planBash(scope tools.Scope, args bashArguments) (tools.Plan, *protocol.Error) {
	cwd, err := modelpath.Path(args.Cwd)
	if err != nil {
		return tools.Plan{}, err
	}
	payload := protocol.CommandRun{Command: args.Command, Cwd: cwd, Env: args.Env, ReadOnly: args.ReadOnly}
	timeout := seconds(args.Timeout, bashTimeout)
	if args.Background || args.TTY { // what takes time is not the call
		payload.TTY = args.TTY
		payload.Background, payload.Limits.Wall = true, protocol.MillisOf(seconds(args.Timeout, maxTimeout))
		timeout = fileTimeout
	}
	return commandPlan(scope, payload, args.ReadOnly, timeout)
}

type runCodeArguments struct {
	Code     string  `json:"code"`
	Language string  `json:"language"`
	Timeout  float64 `json:"timeout"`
	ReadOnly bool    `json:"read_only"`
}

func runCode() tools.Tool {
	return tools.Tool{
		Metadata: tools.Metadata{Effect: tools.Effect{Open: true}},
		Definition: definition("run_code",
			"Run a program in the workspace directory. Returns what it wrote, stdout and stderr in the order in which they came, and its exit code unless that is 0. "+
				"Every run is a new process: print what you want to see, and keep in files what a later run needs. "+
				"A go program is a complete main package that uses the standard library only. "+
				"Of output over 42,000 characters you get the beginning and the end, and where to read the rest.",
			`{
				"type": "object",
				"properties": {
					"code": {"type": "string", "minLength": 1, "description": "The whole text of the program."},
					"language": {"type": "string", "enum": ["python", "sh", "node", "go"], "default": "python", "description": "Default: python."},
					"timeout": {"type": "number", "exclusiveMinimum": 0, "maximum": 3600, "description": "Seconds after which the program is killed. Default: 60."},
					"read_only": {"type": "boolean", "default": false, "description": "Keep the program from changing the workspace. Such programs of one step run side by side. Default: false."}
				},
				"required": ["code"],
				"additionalProperties": false
			}`),
		Plan:   tools.PlanOf(planRunCode),
		Render: render.Execution(func(v protocol.CodeRunResult) *protocol.Execution { return &v.Execution }),
	}
}

func planRunCode(scope tools.Scope, args runCodeArguments) (tools.Plan, *protocol.Error) {
	if args.Language == "" {
		args.Language = "python"
	}
	payload := protocol.CodeRun{Code: args.Code, Language: args.Language, ReadOnly: args.ReadOnly}
	return commandPlan(scope, payload, args.ReadOnly, seconds(args.Timeout, runCodeTimeout))
}

// commandPlan is the plan of a command. It uses all of its sandbox: exclusively, or shared if it is
// read-only, and then there is nothing to roll back either.
func commandPlan(scope tools.Scope, payload protocol.Payload, readOnly bool, timeout time.Duration) (tools.Plan, *protocol.Error) {
	access, delivery := protocol.Exclusive, protocol.Rollback
	if readOnly {
		access, delivery = protocol.Shared, protocol.Idempotent
	}
	uses, err := modelpath.Use(scope.Sandbox, "", access)
	if err != nil {
		return tools.Plan{}, err
	}
	return tools.Plan{Payload: payload, Resources: uses, Delivery: delivery, Timeout: timeout}, nil
}

// environment is variables as a model writes them: numbers and booleans will do.
type environment map[string]string

// UnmarshalJSON implements [json.Unmarshaler].
func (e *environment) UnmarshalJSON(data []byte) error {
	var raw map[string]any
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	if err := decoder.Decode(&raw); err != nil {
		return err
	}
	if len(raw) == 0 {
		return nil
	}
	*e = make(environment, len(raw))
	for name, value := range raw {
		switch value.(type) {
		case string, json.Number, bool:
			(*e)[name] = fmt.Sprint(value)
		default:
			return fmt.Errorf("env.%s: must be a string", prose.Short(name, 100))
		}
	}
	return nil
}

// bashRules reports every name and value that no environment can have.
func bashRules(arguments map[string]any) []string {
	env, _ := arguments["env"].(map[string]any)
	var faults []string
	for name, value := range env {
		shown := prose.Short(prose.Plain(name), 100)
		if name == "" || strings.ContainsAny(name, "=\x00") {
			faults = append(faults, fmt.Sprintf("env.%s: the name of a variable must not be empty, or contain \"=\" or a NUL character", shown))
		}
		if text, _ := value.(string); strings.ContainsRune(text, 0) {
			faults = append(faults, fmt.Sprintf("env.%s: a value must not contain a NUL character", shown))
		}
	}
	return faults
}
