package toolset

import (
	"slices"
	"strconv"
	"strings"

	"github.com/toolfleet/toolfleet/internal/modeltext/modelpath"
	"github.com/toolfleet/toolfleet/internal/modeltext/plain"
	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/modeltext/render"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

type readArguments struct {
	Path   string `json:"path"`
	Offset int    `json:"offset"`
	Limit  int    `json:"limit"`
}

func read() tools.Tool {
	return tools.Tool{
		Metadata: tools.Metadata{Effect: tools.Effect{ReadOnly: true}},
		Definition: tools.Define("read",
			"Read a text file. Returns its lines, each after its number and a tab, and at the end which lines of how many these are. "+
				"Text in UTF-16 with a byte order mark, GBK, Latin-1 or Windows-1252 is shown as text, and the end names the encoding, and line ends that are not LF. "+
				"At most about 12,000 characters come back at once: read on with the offset that is named. "+
				"An image (PNG, JPEG, GIF, WebP) or a PDF document comes back as such where you can take one; of any other binary file only the size is told. A path that a mark of cut output names, as in result:ID, works too.",
			`"path": {"type": "string", "description": "The file, relative to the workspace."},
				"offset": {"type": "integer", "minimum": 1, "maximum": 1000000000, "description": "First line to read, counted from 1. Default: 1."},
				"limit": {"type": "integer", "minimum": 1, "maximum": 1000000000, "description": "How many lines to read. Default: as many as fit."}`, "path"),
		Plan: tools.PlanOf(func(scope tools.Scope, args readArguments) (tools.Plan, *protocol.Error) {
			if plan, ok, err := readHandle(args.Path, args.Offset, args.Limit); ok {
				return plan, err
			}
			path, err := modelpath.File(args.Path)
			payload := protocol.FilesRead{Path: path, Offset: args.Offset, Limit: args.Limit, Guard: scope.Guard}
			return filePlan(scope, path, err, payload, protocol.Shared, protocol.Idempotent)
		}),
		Render: render.Cut(render.Read),
	}
}

type listArguments struct {
	Path string `json:"path"`
}

func list() tools.Tool {
	return tools.Tool{
		Metadata: tools.Metadata{Effect: tools.Effect{ReadOnly: true}},
		Definition: tools.Define("list",
			"List a directory, not what is below its subdirectories. Returns one name a line, hidden ones too: "+
				"directories with a slash at the end, files with their size. At most 500 names; the total is told.",
			`"path": {"type": "string", "description": "The directory, relative to the workspace. Default: the workspace."}`),
		Plan: tools.PlanOf(func(scope tools.Scope, args listArguments) (tools.Plan, *protocol.Error) {
			path, err := modelpath.Path(args.Path)
			return filePlan(scope, path, err, protocol.FilesList{Path: path}, protocol.Shared, protocol.Idempotent)
		}),
		Render: render.Cut(render.List),
	}
}

type existsArguments struct {
	Path string `json:"path"`
}

func exists() tools.Tool {
	return tools.Tool{
		Metadata: tools.Metadata{Effect: tools.Effect{ReadOnly: true}},
		Definition: tools.Define("exists",
			"Ask whether there is something at a path. Returns yes or no, and with yes whether it is a file (and its size), a directory or a symlink.",
			`"path": {"type": "string", "description": "The path, relative to the workspace."}`, "path"),
		Plan: tools.PlanOf(func(scope tools.Scope, args existsArguments) (tools.Plan, *protocol.Error) {
			path, err := modelpath.Named(args.Path)
			return filePlan(scope, path, err, protocol.FilesExists{Path: path}, protocol.Shared, protocol.Idempotent)
		}),
		Render: render.Of(render.Exists),
	}
}

// readHandle plans the reading of a handle: offset is the first line, from 1, and 0 for the
// position that the handle names; limit is the maximum number of lines, 0 for as many as fit. ok is
// false when path is not a handle. The plan touches no sandbox; its result is of kind result_read.
func readHandle(path string, offset, limit int) (plan tools.Plan, ok bool, err *protocol.Error) {
	rest, ok := strings.CutPrefix(path, render.HandlePrefix)
	if !ok {
		return tools.Plan{}, false, nil
	}
	rest, at, hasPlace := strings.Cut(rest, ":")
	id, part, _ := strings.Cut(rest, "#")
	call, parseErr := protocol.ParseCallID(id)
	line, column, isPlace := parsePosition(at)
	parts := []string{"", wire.PartText, wire.PartOutput, wire.PartStdout, wire.PartStderr, wire.PartMedia, wire.PartValue}
	if parseErr != nil || call == "" || hasPlace && !isPlace || !slices.Contains(parts, part) {
		return tools.Plan{}, true, protocol.Errorf(codes.InvalidPath,
			"The path %q is no result of an earlier call: want result:ID, or result:ID#text, #stdout, #stderr, #output, #media or #value, and :LINE or :LINE@BYTE for where to begin. A file of that name is \"./%s\".",
			prose.Short(path, 200), prose.Short(path, 200))
	}
	if offset != 0 {
		line, column = offset, 0
	}
	return tools.Plan{
		Payload:   wire.ResultRead{CallID: call, Part: part, Offset: line, Column: column, Limit: limit},
		Resources: []protocol.Use{}, Delivery: protocol.Idempotent, Timeout: fileTimeout,
	}, true, nil
}

// parsePosition reads LINE or LINE@BYTE.
func parsePosition(text string) (line int, column int64, ok bool) {
	before, after, hasColumn := strings.Cut(text, "@")
	line, err := strconv.Atoi(before)
	if err != nil || line < 0 {
		return 0, 0, false
	}
	if hasColumn {
		column, err = strconv.ParseInt(after, 10, 64)
	}
	return line, column, err == nil && column >= 0
}

// gitignoreProperty is the property of every tool that honours .gitignore files.
const gitignoreProperty = `"gitignore": {"type": "boolean", "default": true, "description": "Leave out what .gitignore files exclude, and directories of packages and caches, such as node_modules. Default: true."}`

// contextProperty is the property of every tool that finds lines.
const contextProperty = `"context": {"type": "integer", "minimum": 0, "maximum": 20, "default": 0, "description": "How many lines before and after each match to return, too, with - instead of : in them. Default: 0."}`

// orTrue is an optional boolean that is true unless it is given.
func orTrue(b *bool) bool { return b == nil || *b }

// listLimit is the limit of shown entries that a call names, or the default.
func listLimit(limit int) int {
	if limit == 0 {
		return plain.MaxListed
	}
	return limit
}

type globArguments struct {
	Pattern   string `json:"pattern"`
	Path      string `json:"path"`
	Gitignore *bool  `json:"gitignore"`
	Limit     int    `json:"limit"`
}

func glob() tools.Tool {
	return tools.Tool{
		Metadata: tools.Metadata{Effect: tools.Effect{ReadOnly: true}},
		Definition: tools.Define("glob",
			"Find files by their path. Returns the paths of matching files, sorted, one a line, hidden ones too; directories are not listed. "+
				"* matches within one name, ** any number of directories, {a,b} either, [a-z] one of; where a name has these brackets, as app/[slug] has, it is found by itself.",
			`"pattern": {"type": "string", "minLength": 1, "description": "The glob, matched against the path below path: *.go is that directory only, **/*.go everything below it."},
				"path": {"type": "string", "description": "Directory to start from, relative to the workspace. Default: the workspace."},
				`+gitignoreProperty+`,
				"limit": {"type": "integer", "minimum": 1, "maximum": 500, "default": 500, "description": "How many paths to return. Default: 500."}`, "pattern"),
		Plan: tools.PlanOf(func(scope tools.Scope, args globArguments) (tools.Plan, *protocol.Error) {
			path, err := modelpath.Path(args.Path)
			payload := protocol.FilesGlob{Pattern: args.Pattern, Path: path, NoIgnore: !orTrue(args.Gitignore), Limit: listLimit(args.Limit)}
			return filePlan(scope, path, err, payload, protocol.Shared, protocol.Idempotent)
		}),
		Render: render.Cut(render.Glob),
	}
}

type treeArguments struct {
	Path  string `json:"path"`
	Depth int    `json:"depth"`
	Limit int    `json:"limit"`
}

func tree() tools.Tool {
	return tools.Tool{
		Metadata: tools.Metadata{Effect: tools.Effect{ReadOnly: true}},
		Definition: tools.Define("tree",
			"Show a directory and what is below it as an indented tree, sorted, hidden names too: directories with a slash at the end, "+
				"files with their size. What .gitignore files exclude is left out and counted, and so are directories of packages and caches, such as node_modules.",
			`"path": {"type": "string", "description": "The directory, relative to the workspace. Default: the workspace."},
				"depth": {"type": "integer", "minimum": 1, "maximum": 100, "default": 3, "description": "How many levels to show. Default: 3."},
				"limit": {"type": "integer", "minimum": 1, "maximum": 500, "default": 500, "description": "How many entries to show. Default: 500."}`),
		Plan: tools.PlanOf(func(scope tools.Scope, args treeArguments) (tools.Plan, *protocol.Error) {
			path, err := modelpath.Path(args.Path)
			payload := protocol.FilesTree{Path: path, Depth: args.Depth, Limit: listLimit(args.Limit)}
			return filePlan(scope, path, err, payload, protocol.Shared, protocol.Idempotent)
		}),
		Render: render.Cut(render.Tree),
	}
}

type grepArguments struct {
	Pattern    string `json:"pattern"`
	Path       string `json:"path"`
	Glob       string `json:"glob"`
	IgnoreCase bool   `json:"ignore_case"`
	Gitignore  *bool  `json:"gitignore"`
	Limit      int    `json:"limit"`
	Context    int    `json:"context"`
}

func grep() tools.Tool {
	return tools.Tool{
		Metadata: tools.Metadata{Effect: tools.Effect{ReadOnly: true}},
		Definition: tools.Define("grep",
			"Find the lines that match a regular expression, in one file or in all files below a directory. "+
				"Returns path:line:text, sorted; long lines are cut. Binary and very large files are left out and counted.",
			`"pattern": {"type": "string", "minLength": 1, "description": "Regular expression in RE2 syntax, matched against each line by itself."},
				"path": {"type": "string", "description": "File or directory to search, relative to the workspace. Default: the workspace."},
				"glob": {"type": "string", "description": "Search only files that match, as in *.go (by name) or src/**/*.ts (by path below the searched directory)."},
				"ignore_case": {"type": "boolean", "default": false, "description": "Take capital and small letters as equal. Default: false."},
				`+contextProperty+`,
				`+gitignoreProperty+`,
				"limit": {"type": "integer", "minimum": 1, "maximum": 500, "default": 500, "description": "How many lines to return. Default: 500."}`, "pattern"),
		Plan: tools.PlanOf(func(scope tools.Scope, args grepArguments) (tools.Plan, *protocol.Error) {
			return searchPlan(scope, args.Path, protocol.FilesSearch{
				Pattern: args.Pattern, Glob: args.Glob, IgnoreCase: args.IgnoreCase, NoIgnore: !orTrue(args.Gitignore), Limit: listLimit(args.Limit),
				Context: args.Context,
			})
		}),
		Render: render.Cut(render.Search),
	}
}

// searchPlan is the plan of a search in a path as a model names it.
func searchPlan(scope tools.Scope, raw string, payload protocol.FilesSearch) (tools.Plan, *protocol.Error) {
	path, err := modelpath.Path(raw)
	payload.Path = path
	return filePlan(scope, path, err, payload, protocol.Shared, protocol.Idempotent)
}
