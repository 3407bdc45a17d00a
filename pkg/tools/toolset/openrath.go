package toolset

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/internal/modeltext/modelpath"
	"github.com/toolfleet/toolfleet/internal/modeltext/render"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// maxShellCommand is how many characters a run_shell_command may have.
const maxShellCommand = 2048

// openRathTools returns the tools of the toolset "openrath", sorted by name: the names, arguments
// and texts of that system, with the plans and payloads of [Core].
func openRathTools() []tools.Tool {
	return worded(&tools.Format{Text: render.OpenRath, JSON: true, Loose: true},
		listWorkspaceFiles(), readWorkspaceFile(), runWorkspaceCode(), runShellCommand(), workspacePathExists(), writeWorkspaceFile())
}

func runShellCommand() tools.Tool {
	return tools.Tool{
		Metadata: tools.Metadata{Effect: tools.Effect{Open: true}},
		Definition: definition("run_shell_command",
			"Run one shell command in the workspace. Returns JSON: exit_code, stdout, stderr and elapsed_ms. "+
				"A command has one line of at most 2,048 characters.",
			`{
				"type": "object",
				"properties": {
					"cmd": {"type": "string", "description": "The command line, run by the shell."}
				},
				"required": ["cmd"],
				"additionalProperties": false
			}`),
		Plan: tools.PlanOf(func(scope tools.Scope, args struct {
			Cmd string `json:"cmd"`
		},
		) (tools.Plan, *protocol.Error) {
			return commandPlan(scope, protocol.CommandRun{Command: cmp.Or(args.Cmd, ":")}, false, bashTimeout) // ":" does nothing, too
		}),
		Rules: shellCommandRules,
	}
}

// shellCommandRules refuses what the tool of that system refuses, in its words.
func shellCommandRules(arguments map[string]any) (faults []string) {
	const instead = "write a script with write_workspace_file and run that"
	cmd, _ := arguments["cmd"].(string)
	if strings.ContainsAny(cmd, "\n\r") {
		faults = append(faults, "cmd: multiline commands are rejected: send one line, or "+instead)
	}
	if length := utf8.RuneCountInString(cmd); length > maxShellCommand {
		faults = append(faults, fmt.Sprintf("cmd: command too long: it has %d characters, at most %d are allowed; %s", length, maxShellCommand, instead))
	}
	return faults
}

func readWorkspaceFile() tools.Tool {
	return tools.Tool{
		Metadata: tools.Metadata{Effect: tools.Effect{ReadOnly: true}},
		Definition: definition("read_workspace_file",
			"Read a file of the workspace. Returns JSON: data has its text. With encoding null it has the bytes: as text if they are UTF-8, else as base64, and encoding says so. "+
				"Of more than 12,000 characters you get the first, and truncated says how to read on.",
			`{
				"type": "object",
				"properties": {
					"path": {"type": "string", "description": "The file, relative to the workspace."},
					"encoding": {"type": ["string", "null"], "default": "utf-8", "description": "The encoding of the text, as in latin-1, or null for the bytes. Default: utf-8; of a file that is not UTF-8 the encoding is guessed."}
				},
				"required": ["path"],
				"additionalProperties": false
			}`),
		Plan: tools.PlanOf(func(scope tools.Scope, args struct {
			Path     string          `json:"path"`
			Encoding json.RawMessage `json:"encoding"`
		},
		) (tools.Plan, *protocol.Error) {
			payload := protocol.FilesRead{Raw: string(args.Encoding) == "null"}
			if json.Unmarshal(args.Encoding, &payload.Encoding) != nil || strings.EqualFold(payload.Encoding, "utf-8") {
				payload.Encoding = ""
			}
			return readPlan(scope, args.Path, payload)
		}),
	}
}

// readPlan is the plan of reading a file as a model names it.
func readPlan(scope tools.Scope, raw string, payload protocol.FilesRead) (tools.Plan, *protocol.Error) {
	if plan, ok, err := readHandle(raw, 0, 0); ok {
		return plan, err
	}
	path, err := modelpath.File(raw)
	if err != nil {
		return tools.Plan{}, err
	}
	payload.Path, payload.Guard = path, scope.Guard
	return filePlan(scope, path, payload, protocol.Shared, protocol.Idempotent)
}

func writeWorkspaceFile() tools.Tool {
	return tools.Tool{
		Metadata: tools.Metadata{Effect: tools.Effect{Idempotent: true}},
		Definition: definition("write_workspace_file",
			"Write text to a file of the workspace: make it, with its directories, or replace all of its content. Returns JSON: bytes_written.",
			writeSchema),
		Plan: tools.PlanOf(planWhole),
		Rules: func(arguments map[string]any) []string {
			content, given := arguments["content"]
			if _, isText := content.(string); given && !isText {
				return []string{"content: content must be text for write_workspace_file"}
			}
			return nil
		},
	}
}

// fileSchema is the schema of tools that take a file and nothing else.
const fileSchema = `{
	"type": "object",
	"properties": {
		"path": {"type": "string", "description": "The file, relative to the workspace."}
	},
	"required": ["path"],
	"additionalProperties": false
}`

// writeSchema is the schema of tools that write whole files.
const writeSchema = `{
	"type": "object",
	"properties": {
		"path": {"type": "string", "description": "The file, relative to the workspace."},
		"content": {"type": "string", "description": "The whole content of the file, taken as it is."}
	},
	"required": ["path", "content"],
	"additionalProperties": false
}`

func planWhole(scope tools.Scope, args writeArguments) (tools.Plan, *protocol.Error) {
	return writePlan(scope, args.Path, args.Content, "")
}

func listWorkspaceFiles() tools.Tool {
	return tools.Tool{
		Metadata: tools.Metadata{Effect: tools.Effect{ReadOnly: true}},
		Definition: definition("list_workspace_files",
			"List a directory of the workspace. Returns JSON: entries, hidden ones too, each with name, path and is_dir. At most 500; total says how many there are.",
			`{
				"type": "object",
				"properties": {
					"path": {"type": "string", "description": "The directory, relative to the workspace, which is \".\"."}
				},
				"required": ["path"],
				"additionalProperties": false
			}`),
		Plan: tools.PlanOf(func(scope tools.Scope, args listArguments) (tools.Plan, *protocol.Error) {
			path, err := modelpath.Path(args.Path)
			if err != nil {
				return tools.Plan{}, err
			}
			return filePlan(scope, path, protocol.FilesList{Path: path, Follow: true}, protocol.Shared, protocol.Idempotent)
		}),
	}
}

func workspacePathExists() tools.Tool {
	return tools.Tool{
		Metadata: tools.Metadata{Effect: tools.Effect{ReadOnly: true}},
		Definition: definition("workspace_path_exists",
			"Ask whether there is something at a path of the workspace. Returns JSON: ok is true or false.",
			fileSchema),
		Plan: tools.PlanOf(func(scope tools.Scope, args existsArguments) (tools.Plan, *protocol.Error) {
			path, err := modelpath.Path(args.Path)
			if err != nil { // nothing of the workspace has such a path
				return tools.Plan{Inline: func(context.Context) (string, *protocol.Error) { return `{"ok":false}`, nil }}, nil //nolint:nilerr // that is the answer
			}
			return filePlan(scope, path, protocol.FilesExists{Path: path, Follow: true}, protocol.Shared, protocol.Idempotent)
		}),
	}
}

func runWorkspaceCode() tools.Tool {
	t := runCode()
	t.Plan = tools.PlanOf(func(scope tools.Scope, args runCodeArguments) (tools.Plan, *protocol.Error) {
		args.Timeout = min(args.Timeout, maxTimeout.Seconds())
		return planRunCode(scope, args)
	})
	t.Definition = definition(t.Name,
		"Run a program in the workspace directory. Returns JSON: stdout, stderr, and error unless it ended with exit code 0. "+
			"Every run is a new process: print what you want to see, and keep in files what a later run needs. "+
			"A go program is a complete main package that uses the standard library only.", `{
		"type": "object",
		"properties": {
			"code": {"type": "string", "description": "The whole text of the program."},
			"language": {"type": "string", "default": "python", "description": "python, sh, node or go, as far as the sandbox has them. Default: python."},
			"timeout": {"type": ["number", "null"], "exclusiveMinimum": 0, "description": "Seconds after which the program is killed, up to 3600. Default: 60."}
		},
		"required": ["code"],
		"additionalProperties": false
	}`)
	return t
}
