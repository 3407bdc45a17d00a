package toolset

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/toolfleet/toolfleet/internal/modeltext/modelpath"
	"github.com/toolfleet/toolfleet/internal/modeltext/render"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

type writeArguments struct {
	Path    string `json:"path"`
	Content string `json:"content"`
	Expect  string `json:"expect_sha256"`
}

func write() tools.Tool {
	return tools.Tool{
		Metadata: tools.Metadata{Effect: tools.Effect{Idempotent: true}},
		Definition: tools.Define("write",
			"Write a file: make it, with its directories, or replace all of its content. Returns one line that says which, with the size and the SHA-256. "+
				"To change part of a file use edit.",
			`"path": {"type": "string", "description": "The file, relative to the workspace."},
				"content": {"type": "string", "description": "The whole content of the file, taken as it is."},
				"expect_sha256": {"type": "string", "pattern": "^([0-9a-fA-F]{64})?$", "description": "SHA-256 of what the file has now, in hex: when it has something else, nothing is written. Default: write in any case."}`, "path", "content"),
		Plan: tools.PlanOf(func(scope tools.Scope, args writeArguments) (tools.Plan, *protocol.Error) {
			return writePlan(scope, args.Path, args.Content, args.Expect)
		}),
		Render: render.Of(render.Write),
	}
}

// writePlan is the plan of writing a whole file. With an expectation it is not idempotent: the
// second attempt would find the content of the first.
func writePlan(scope tools.Scope, raw, content, expect string) (tools.Plan, *protocol.Error) {
	path, err := modelpath.NewFile(raw)
	delivery := protocol.Idempotent
	if expect != "" {
		delivery = protocol.Rollback
	}
	payload := protocol.FilesWrite{
		Path: path, Content: protocol.Bytes(content), ExpectSHA256: strings.ToLower(expect), Guard: scope.Guard,
	}
	return filePlan(scope, path, err, payload, protocol.Exclusive, delivery)
}

type editArguments struct {
	Path       string `json:"path"`
	Old        string `json:"old"`
	New        string `json:"new"`
	ReplaceAll bool   `json:"replace_all"`
	Patch      string `json:"patch"`
}

func edit() tools.Tool {
	return tools.Tool{
		Definition: tools.Define("edit",
			"Change part of a file: replace text (old and new), or apply a unified diff (patch). old must be in the file exactly as given, "+
				"white space included (without the line numbers that read shows), and exactly once unless replace_all is true; line ends are those of the file, LF or CRLF. "+
				"The context of a patch must be in the file as it is; its line numbers may be off. "+
				"Returns how many places were changed, and a diff. When it fails, the file is as it was.",
			`"path": {"type": "string", "description": "The file, relative to the workspace."},
				"old": {"type": "string", "minLength": 1, "description": "The text to replace; add lines around it until it is unique."},
				"new": {"type": "string", "description": "The text to put in its place; empty to delete."},
				"replace_all": {"type": "boolean", "default": false, "description": "Replace every occurrence. Default: false."},
				"patch": {"type": "string", "minLength": 1, "description": "Instead of old and new: the hunks of a unified diff of this one file, as in \"@@ -3,2 +3,2 @@\\n context\\n-old line\\n+new line\\n\"."}`, "path"),
		Plan:   tools.PlanOf(planEdit),
		Rules:  editRules,
		Render: render.Cut(render.Edit),
	}
}

// editRules says which arguments belong together. Providers take no schema that does.
func editRules(arguments map[string]any) []string {
	_, old := arguments["old"]
	_, replacement := arguments["new"]
	_, patch := arguments["patch"]
	problem := ""
	switch {
	case patch && (old || replacement):
		problem = "patch: must not be beside old and new"
	case patch || old && replacement:
		return nil
	case old:
		problem = "new: is required beside old, but missing"
	case replacement:
		problem = "old: is required beside new, but missing"
	default:
		problem = "old and new, or patch, are required, but missing"
	}
	return []string{problem + "; want {path, old, new, replace_all?} or {path, patch}"}
}

func planEdit(scope tools.Scope, args editArguments) (tools.Plan, *protocol.Error) {
	path, err := modelpath.File(args.Path)
	payload := protocol.FilesEdit{Path: path, Guard: scope.Guard}
	if args.Patch != "" {
		payload.Patch = args.Patch
	} else {
		payload.Old, payload.New, payload.ReplaceAll = args.Old, args.New, args.ReplaceAll
	}
	return filePlan(scope, path, err, payload, protocol.Exclusive, protocol.Rollback)
}

type multiEditArguments struct {
	Path       string              `json:"path"`
	Edits      []protocol.FileEdit `json:"edits"`
	BestEffort bool                `json:"best_effort"`
}

func multiEdit() tools.Tool {
	return tools.Tool{
		Definition: tools.Define("multi_edit",
			"Make several replacements in one file, one after another, each in what those before it left. The rules of each are those of edit. "+
				"All of them are made or none, unless best_effort is true: then those that can be made are, and you are told about each. "+
				"Returns what became of each, and a diff.",
			`"path": {"type": "string", "description": "The file, relative to the workspace."},
				"edits": {
					"type": "array", "minItems": 1, "maxItems": 200, "description": "The replacements, in their order.",
					"items": {
						"type": "object",
						"properties": {
							"old": {"type": "string", "minLength": 1, "description": "The text to replace; must be there exactly once unless replace_all is true."},
							"new": {"type": "string", "description": "The text to put in its place; empty to delete."},
							"replace_all": {"type": "boolean", "default": false, "description": "Replace every occurrence. Default: false."}
						},
						"required": ["old", "new"],
						"additionalProperties": false
					}
				},
				"best_effort": {"type": "boolean", "default": false, "description": "Make the edits that can be made. Default: false, all or none."}`, "path", "edits"),
		Plan: tools.PlanOf(func(scope tools.Scope, args multiEditArguments) (tools.Plan, *protocol.Error) {
			path, err := modelpath.File(args.Path)
			payload := protocol.FilesEdit{Path: path, Edits: args.Edits, BestEffort: args.BestEffort, Guard: scope.Guard}
			return filePlan(scope, path, err, payload, protocol.Exclusive, protocol.Rollback)
		}),
		Render: render.Cut(render.Edit),
	}
}

type jsonReadArguments struct {
	Path  string `json:"path"`
	Query string `json:"query"`
}

func jsonRead() tools.Tool {
	return tools.Tool{
		Metadata: tools.Metadata{Effect: tools.Effect{ReadOnly: true}},
		Definition: tools.Define("json_read",
			"Read a JSON file, or one place of it. Returns the JSON value. Of a value that is too long its parts are cut and say so: "+
				"read them with a query of their own.",
			`"path": {"type": "string", "description": "The file, relative to the workspace."},
				"query": {"type": "string", "description": "JSON pointer to the place, as in /dependencies/react or /items/0; in keys ~ is ~0 and / is ~1. Default: the whole document."}`, "path"),
		Plan: tools.PlanOf(func(scope tools.Scope, args jsonReadArguments) (tools.Plan, *protocol.Error) {
			path, err := modelpath.File(args.Path)
			payload := protocol.FilesJSONRead{Path: path, Query: args.Query, Guard: scope.Guard}
			return filePlan(scope, path, err, payload, protocol.Shared, protocol.Idempotent)
		}),
		Rules:  queryRules,
		Render: render.Cut(render.JSONRead),
	}
}

type jsonWriteArguments struct {
	Path    string          `json:"path"`
	Content json.RawMessage `json:"content"`
	Query   string          `json:"query"`
}

func jsonWrite() tools.Tool {
	return tools.Tool{
		Definition: tools.Define("json_write",
			"Write a JSON file, or replace one place of it: everything else in the file stays as it is, its layout too. "+
				"Keys of the query that are not there yet are made, as objects; - is the end of an array. Returns one line with size and SHA-256.",
			`"path": {"type": "string", "description": "The file, relative to the workspace; made, with its directories, if it does not exist."},
				"content": {"description": "The JSON value to write: an object, array, string, number, boolean or null. A string that holds a JSON object or array is taken as that."},
				"query": {"type": "string", "description": "JSON pointer to the place, as in /scripts/test or /items/-. Default: the whole document."}`, "path", "content"),
		Plan:   tools.PlanOf(planJSONWrite),
		Rules:  queryRules,
		Render: render.Of(render.JSONWrite),
	}
}

// queryRules says which queries are no JSON pointers.
func queryRules(arguments map[string]any) []string {
	query, _ := arguments["query"].(string)
	if query == "" || query[0] == '/' {
		return nil
	}
	return []string{"query: must be empty or a JSON pointer, which starts with a slash, as in /dependencies/react or /items/0"}
}

// planJSONWrite is idempotent for whole documents only: a place may be the end of an array.
func planJSONWrite(scope tools.Scope, args jsonWriteArguments) (tools.Plan, *protocol.Error) {
	path, err := modelpath.NewFile(args.Path)
	delivery := protocol.Idempotent
	if args.Query != "" {
		delivery = protocol.Rollback
	}
	payload := protocol.FilesJSONWrite{Path: path, Query: args.Query, Content: nestedValue(args.Content), Guard: scope.Guard}
	return filePlan(scope, path, err, payload, protocol.Exclusive, delivery)
}

// nestedValue is the object or array that a JSON string holds, or else the value as it is.
func nestedValue(value json.RawMessage) json.RawMessage {
	var text string
	if json.Unmarshal(value, &text) != nil {
		return value
	}
	inner := bytes.TrimSpace([]byte(text))
	if len(inner) > 0 && (inner[0] == '{' || inner[0] == '[') && json.Valid(inner) {
		return inner
	}
	return value
}
