package toolset

import (
	"github.com/toolfleet/toolfleet/internal/modeltext/modelpath"
	"github.com/toolfleet/toolfleet/internal/modeltext/plain"
	"github.com/toolfleet/toolfleet/internal/modeltext/render"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// filesTools returns the tools of the toolset "files", sorted by name: the five tools that many
// agents have for files, with their texts and the plans and payloads of [Core].
func filesTools() []tools.Tool {
	return worded(&tools.Format{Text: render.FileTools}, editFile(), listFiles(), readFile(), searchFiles(), writeFile())
}

func readFile() tools.Tool {
	return tools.Tool{
		Metadata: tools.Metadata{Effect: tools.Effect{ReadOnly: true}},
		Definition: definition("read_file",
			"Read a text file. Returns its text as it is; what is too long is cut, and the end says so.",
			fileSchema),
		Plan: tools.PlanOf(func(scope tools.Scope, args struct {
			Path string `json:"path"`
		},
		) (tools.Plan, *protocol.Error) {
			return readPlan(scope, args.Path, protocol.FilesRead{})
		}),
	}
}

func writeFile() tools.Tool {
	return tools.Tool{
		Metadata: tools.Metadata{Effect: tools.Effect{Idempotent: true}},
		Definition: definition("write_file",
			"Write a file: make it, with its directories, or replace all of its content.", writeSchema),
		Plan: tools.PlanOf(planWhole),
	}
}

func editFile() tools.Tool {
	return tools.Tool{
		Definition: definition("edit_file",
			"Replace the first occurrence of a text in a file. When it fails, the file is as it was.",
			`{
				"type": "object",
				"properties": {
					"path": {"type": "string", "description": "The file, relative to the workspace."},
					"search": {"type": "string", "minLength": 1, "description": "The text to replace, exactly as it is in the file."},
					"replace": {"type": "string", "description": "The text to put in its place; empty to delete."}
				},
				"required": ["path", "search", "replace"],
				"additionalProperties": false
			}`),
		Plan: tools.PlanOf(func(scope tools.Scope, args struct {
			Path    string `json:"path"`
			Search  string `json:"search"`
			Replace string `json:"replace"`
		},
		) (tools.Plan, *protocol.Error) {
			path, err := modelpath.File(args.Path)
			if err != nil {
				return tools.Plan{}, err
			}
			payload := protocol.FilesEdit{Path: path, Old: args.Search, New: args.Replace, First: true, Guard: scope.Guard}
			return filePlan(scope, path, payload, protocol.Exclusive, protocol.Rollback)
		}),
	}
}

func listFiles() tools.Tool {
	return tools.Tool{
		Metadata: tools.Metadata{Effect: tools.Effect{ReadOnly: true}},
		Definition: definition("list_files",
			"List the files of the workspace that match a glob, one path a line, sorted. Directories of packages and caches, such as node_modules, are left out unless the pattern begins with one.",
			`{
				"type": "object",
				"properties": {
					"pattern": {"type": "string", "minLength": 1, "default": "*", "description": "*.go matches at the top, **/*.go at every depth. Default: *, the files at the top."}
				},
				"additionalProperties": false
			}`),
		Plan: tools.PlanOf(func(scope tools.Scope, args struct {
			Pattern string `json:"pattern"`
		},
		) (tools.Plan, *protocol.Error) {
			if args.Pattern == "" {
				args.Pattern = "*"
			}
			payload := protocol.FilesGlob{Pattern: args.Pattern, NoIgnore: true, NoGenerated: true, Limit: plain.MaxListed}
			return filePlan(scope, "", payload, protocol.Shared, protocol.Idempotent)
		}),
	}
}

func searchFiles() tools.Tool {
	return tools.Tool{
		Metadata: tools.Metadata{Effect: tools.Effect{ReadOnly: true}},
		Definition: definition("search_files",
			"Find the lines of the workspace's files that match a regular expression. Returns path:line: text, sorted. "+
				"What .gitignore files exclude is left out, and so are directories of packages and caches, such as node_modules.",
			`{
				"type": "object",
				"properties": {
					"pattern": {"type": "string", "minLength": 1, "description": "Regular expression in RE2 syntax, matched against each line."},
					"file_pattern": {"type": "string", "description": "Search only files that match, as in *.go (by name) or src/**/*.ts (by path). Default: all."},
					`+contextProperty+`
				},
				"required": ["pattern"],
				"additionalProperties": false
			}`),
		Plan: tools.PlanOf(func(scope tools.Scope, args struct {
			Pattern     string `json:"pattern"`
			FilePattern string `json:"file_pattern"`
			Context     int    `json:"context"`
		},
		) (tools.Plan, *protocol.Error) {
			return searchPlan(scope, "", protocol.FilesSearch{Pattern: args.Pattern, Glob: args.FilePattern, Limit: plain.MaxListed, Context: args.Context})
		}),
	}
}
