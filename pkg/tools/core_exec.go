package tools

import "github.com/toolfleet/toolfleet/pkg/protocol"

type bashArguments struct {
	Command string  `json:"command"`
	Cwd     string  `json:"cwd"`
	Timeout float64 `json:"timeout"`
}

func bash() Tool {
	return Tool{
		Definition: definition("bash",
			"Run a shell command in the workspace. Returns what it wrote to stdout and stderr, and its exit code unless that is 0. "+
				"Every command is a new process: files persist, but variables, the current directory and background processes do not. "+
				"There is no input to read: pass flags that keep programs from asking. "+
				"Of output over 48,000 characters you get the beginning and the end. "+
				"Prefer read, write, edit, list and grep for files.",
			`{
				"type": "object",
				"properties": {
					"command": {"type": "string", "minLength": 1, "description": "The command line, run by the shell."},
					"cwd": {"type": "string", "description": "Directory to run in, relative to the workspace. Default: the workspace."},
					"timeout": {"type": "number", "exclusiveMinimum": 0, "maximum": 3600, "description": "Seconds after which the command is killed. Default: 120."}
				},
				"required": ["command"],
				"additionalProperties": false
			}`),
		Plan:   planOf(planBash),
		Render: renderOf(func(v protocol.CommandRunResult) string { return executionText(&v.Execution) }),
	}
}

func planBash(scope Scope, args bashArguments) (Plan, *protocol.Error) {
	cwd, err := workspacePath(args.Cwd)
	if err != nil {
		return Plan{}, err
	}
	uses, err := wholeSandbox(scope)
	if err != nil {
		return Plan{}, err
	}
	return Plan{
		Payload:   protocol.CommandRun{Command: args.Command, Cwd: cwd},
		Resources: uses,
		Delivery:  protocol.Rollback,
		Timeout:   seconds(args.Timeout, BashTimeout),
	}, nil
}

type runCodeArguments struct {
	Code     string  `json:"code"`
	Language string  `json:"language"`
	Timeout  float64 `json:"timeout"`
}

func runCode() Tool {
	return Tool{
		Definition: definition("run_code",
			"Run a program in the workspace directory. Returns what it wrote to stdout and stderr, and its exit code unless that is 0. "+
				"Every run is a new process: print what you want to see, and keep in files what a later run needs. "+
				"A go program is a complete main package that uses the standard library only. "+
				"Of output over 48,000 characters you get the beginning and the end.",
			`{
				"type": "object",
				"properties": {
					"code": {"type": "string", "minLength": 1, "description": "The whole text of the program."},
					"language": {"type": "string", "enum": ["python", "sh", "node", "go"], "default": "python", "description": "Default: python."},
					"timeout": {"type": "number", "exclusiveMinimum": 0, "maximum": 3600, "description": "Seconds after which the program is killed. Default: 60."}
				},
				"required": ["code"],
				"additionalProperties": false
			}`),
		Plan:   planOf(planRunCode),
		Render: renderOf(func(v protocol.CodeRunResult) string { return executionText(&v.Execution) }),
	}
}

func planRunCode(scope Scope, args runCodeArguments) (Plan, *protocol.Error) {
	uses, err := wholeSandbox(scope)
	if err != nil {
		return Plan{}, err
	}
	if args.Language == "" {
		args.Language = "python"
	}
	return Plan{
		Payload:   protocol.CodeRun{Code: args.Code, Language: args.Language},
		Resources: uses,
		Delivery:  protocol.Rollback,
		Timeout:   seconds(args.Timeout, RunCodeTimeout),
	}, nil
}
