package toolset

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/internal/modeltext/modelpath"
	"github.com/toolfleet/toolfleet/internal/modeltext/plain"
	"github.com/toolfleet/toolfleet/internal/modeltext/render"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// Limits of the toolset "smithers".
const (
	smithersBytes   = render.SmithersBytes
	smithersTimeout = render.SmithersTimeout
	maxSmithersCwd  = 1024 // characters
)

// smithersTools returns the tools of the toolset "smithers", sorted by name: the names, arguments
// and texts of that system, with the plans and payloads of [Core]. Files, contents and patches over
// 200,000 bytes are errors; the output of commands is cut.
func smithersTools() []tools.Tool {
	return worded(&tools.Format{Text: render.Smithers}, smithersBash(), smithersEdit(), smithersGrep(), smithersRead(), smithersWrite())
}

func smithersRead() tools.Tool {
	return tools.Tool{
		Metadata: tools.Metadata{Effect: tools.Effect{ReadOnly: true}},
		Definition: definition("read",
			"Read a text file of at most 200,000 bytes. Returns its text as it is; what is too long to be shown is cut, and the end says so.",
			fileSchema),
		Plan: tools.PlanOf(func(scope tools.Scope, args struct {
			Path string `json:"path"`
		},
		) (tools.Plan, *protocol.Error) {
			plan, err := readPlan(scope, args.Path, protocol.FilesRead{MaxBytes: smithersBytes})
			plan.Timeout = smithersTimeout
			return plan, err
		}),
	}
}

func smithersWrite() tools.Tool {
	return tools.Tool{
		Metadata: tools.Metadata{Effect: tools.Effect{Idempotent: true}},
		Definition: definition("write",
			"Write a file of at most 200,000 bytes: make it, with its directories, or replace all of its content. Returns ok.", writeSchema),
		Plan: tools.PlanOf(func(scope tools.Scope, args writeArguments) (tools.Plan, *protocol.Error) {
			if len(args.Content) > smithersBytes {
				return tools.Plan{}, tooLong("content", len(args.Content))
			}
			plan, err := planWhole(scope, args)
			plan.Timeout = smithersTimeout
			return plan, err
		}),
	}
}

func tooLong(what string, bytes int) *protocol.Error {
	return protocol.Errorf(codes.TooLarge,
		"The %s has %d bytes; at most %d are allowed. Do it in several calls, or with bash.", what, bytes, smithersBytes)
}

func smithersEdit() tools.Tool {
	return tools.Tool{
		Definition: definition("edit",
			"Apply a unified diff to a file. Its context must be in the file as it is; its line numbers may be off. "+
				"Returns ok. When it fails, the file is as it was.",
			`{
				"type": "object",
				"properties": {
					"path": {"type": "string", "description": "The file, relative to the workspace."},
					"patch": {"type": "string", "description": "A unified diff of this one file."}
				},
				"required": ["path", "patch"],
				"additionalProperties": false
			}`),
		Plan: tools.PlanOf(func(scope tools.Scope, args struct {
			Path  string `json:"path"`
			Patch string `json:"patch"`
		},
		) (tools.Plan, *protocol.Error) {
			path, err := modelpath.File(args.Path)
			if err != nil {
				return tools.Plan{}, err
			}
			if len(args.Patch) > smithersBytes {
				return tools.Plan{}, tooLong("patch", len(args.Patch))
			}
			payload := protocol.FilesEdit{Path: path, Patch: args.Patch, MaxBytes: smithersBytes, Guard: scope.Guard}
			plan, err := filePlan(scope, path, payload, protocol.Exclusive, protocol.Rollback)
			plan.Timeout = smithersTimeout
			return plan, err
		}),
	}
}

func smithersGrep() tools.Tool {
	return tools.Tool{
		Metadata: tools.Metadata{Effect: tools.Effect{ReadOnly: true}},
		Definition: definition("grep",
			"Find the lines that match a regular expression, in one file or in all files below a directory that no .gitignore excludes, without directories of packages and caches. "+
				"Returns path:line:text, sorted, of one file line:text; nothing when there is no match.",
			`{
				"type": "object",
				"properties": {
					"pattern": {"type": "string", "minLength": 1, "description": "Regular expression in RE2 syntax, matched against each line."},
					"path": {"type": "string", "default": ".", "description": "File or directory to search, relative to the workspace. Default: the workspace."},
					`+contextProperty+`
				},
				"required": ["pattern"],
				"additionalProperties": false
			}`),
		Plan: tools.PlanOf(func(scope tools.Scope, args grepArguments) (tools.Plan, *protocol.Error) {
			plan, err := searchPlan(scope, args.Path, protocol.FilesSearch{Pattern: args.Pattern, Limit: plain.MaxListed, Context: args.Context})
			plan.Timeout = smithersTimeout
			return plan, err
		}),
	}
}

type smithersCommand struct {
	Cmd  string   `json:"cmd"`
	Args []string `json:"args"`
	Opts struct {
		Cwd string `json:"cwd"`
	} `json:"opts"`
}

func smithersBash() tools.Tool {
	return tools.Tool{
		Metadata: tools.Metadata{Effect: tools.Effect{Open: true}},
		Definition: definition("bash",
			"Run a program with arguments, without a shell: no pipes, wildcards or variables, unless cmd is sh and args are -c and a command line. "+
				"Returns what it wrote, after TOOL_COMMAND_FAILED and the exit code unless that is 0. It is killed after 60 seconds.",
			`{
				"type": "object",
				"properties": {
					"cmd": {"type": "string", "minLength": 1, "maxLength": 8192, "description": "The program."},
					"args": {
						"type": "array", "maxItems": 128, "description": "Its arguments, each taken as it is.",
						"items": {"type": "string", "maxLength": 8192}
					},
					"opts": {
						"type": "object", "description": "Options.",
						"properties": {"cwd": {"type": "string", "description": "Directory to run in, relative to the workspace. Default: the workspace."}},
						"additionalProperties": false
					}
				},
				"required": ["cmd"],
				"additionalProperties": false
			}`),
		Plan: tools.PlanOf(func(scope tools.Scope, args smithersCommand) (tools.Plan, *protocol.Error) {
			cwd, err := modelpath.Path(args.Opts.Cwd)
			if err != nil {
				return tools.Plan{}, err
			}
			payload := protocol.CommandRun{
				Argv: append([]string{args.Cmd}, args.Args...), Cwd: cwd, Limits: protocol.Limits{Output: smithersBytes},
			}
			return commandPlan(scope, payload, false, smithersTimeout)
		}),
		Rules: smithersBashRules,
	}
}

// smithersBashRules refuses arguments as that system's tool does, in addition to the schema.
func smithersBashRules(arguments map[string]any) (faults []string) {
	if cmd, isText := arguments["cmd"].(string); isText && cmd != "" && strings.TrimSpace(cmd) == "" {
		faults = append(faults, "cmd: is blank: name a program")
	}
	opts, _ := arguments["opts"].(map[string]any)
	cwd, _ := opts["cwd"].(string)
	if length := utf8.RuneCountInString(cwd); length > maxSmithersCwd {
		faults = append(faults, fmt.Sprintf("opts.cwd: has %d characters, must have %d or fewer", length, maxSmithersCwd))
	}
	return faults
}
