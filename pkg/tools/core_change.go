package tools

import "github.com/toolfleet/toolfleet/pkg/protocol"

type writeArguments struct {
	Path    string `json:"path"`
	Content string `json:"content"`
}

func write() Tool {
	return Tool{
		Definition: definition("write",
			"Write a file: make it, with its directories, or replace all of its content. Returns one line that says which, with the size. "+
				"To change part of a file use edit.",
			`{
				"type": "object",
				"properties": {
					"path": {"type": "string", "description": "The file, relative to the workspace."},
					"content": {"type": "string", "description": "The whole content of the file, taken as it is."}
				},
				"required": ["path", "content"],
				"additionalProperties": false
			}`),
		Plan: planOf(func(scope Scope, args writeArguments) (Plan, *protocol.Error) {
			path, err := newFilePath(args.Path)
			if err != nil {
				return Plan{}, err
			}
			payload := protocol.FilesWrite{Path: path, Content: protocol.Bytes(args.Content)}
			return filePlan(scope, path, payload, protocol.Exclusive, protocol.Idempotent)
		}),
		Render: renderOf(writeText),
	}
}

type editArguments struct {
	Path       string `json:"path"`
	Old        string `json:"old"`
	New        string `json:"new"`
	ReplaceAll bool   `json:"replace_all"`
}

func edit() Tool {
	return Tool{
		Definition: definition("edit",
			"Replace text in a file. old must be in the file exactly as given, white space included (without the line numbers that read shows), "+
				"and exactly once unless replace_all is true. Returns how many places were changed, and a diff. When it fails, the file is as it was.",
			`{
				"type": "object",
				"properties": {
					"path": {"type": "string", "description": "The file, relative to the workspace."},
					"old": {"type": "string", "minLength": 1, "description": "The text to replace; add lines around it until it is unique."},
					"new": {"type": "string", "description": "The text to put in its place; empty to delete."},
					"replace_all": {"type": "boolean", "default": false, "description": "Replace every occurrence. Default: false."}
				},
				"required": ["path", "old", "new"],
				"additionalProperties": false
			}`),
		Plan: planOf(func(scope Scope, args editArguments) (Plan, *protocol.Error) {
			path, err := filePath(args.Path)
			if err != nil {
				return Plan{}, err
			}
			payload := protocol.FilesEdit{Path: path, Old: args.Old, New: args.New, ReplaceAll: args.ReplaceAll}
			return filePlan(scope, path, payload, protocol.Exclusive, protocol.Rollback)
		}),
		Render: renderOf(editText),
	}
}
