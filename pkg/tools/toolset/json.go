package toolset

import (
	"bytes"
	"encoding/json"

	"github.com/toolfleet/toolfleet/internal/modeltext/modelpath"
	"github.com/toolfleet/toolfleet/internal/modeltext/render"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

type jsonReadArguments struct {
	Path  string `json:"path"`
	Query string `json:"query"`
}

func jsonRead() tools.Tool {
	return tools.Tool{
		Metadata: tools.Metadata{Effect: tools.Effect{ReadOnly: true}},
		Definition: definition("json_read",
			"Read a JSON file, or one place of it. Returns the JSON value. Of a value that is too long its parts are cut and say so: "+
				"read them with a query of their own.",
			`{
				"type": "object",
				"properties": {
					"path": {"type": "string", "description": "The file, relative to the workspace."},
					"query": {"type": "string", "description": "JSON pointer to the place, as in /dependencies/react or /items/0; in keys ~ is ~0 and / is ~1. Default: the whole document."}
				},
				"required": ["path"],
				"additionalProperties": false
			}`),
		Plan: tools.PlanOf(func(scope tools.Scope, args jsonReadArguments) (tools.Plan, *protocol.Error) {
			path, err := modelpath.File(args.Path)
			if err != nil {
				return tools.Plan{}, err
			}
			payload := protocol.FilesJSONRead{Path: path, Query: args.Query, Guard: scope.Guard}
			return filePlan(scope, path, payload, protocol.Shared, protocol.Idempotent)
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
		Definition: definition("json_write",
			"Write a JSON file, or replace one place of it: everything else in the file stays as it is, its layout too. "+
				"Keys of the query that are not there yet are made, as objects; - is the end of an array. Returns one line with size and SHA-256.",
			`{
				"type": "object",
				"properties": {
					"path": {"type": "string", "description": "The file, relative to the workspace; made, with its directories, if it does not exist."},
					"content": {"description": "The JSON value to write: an object, array, string, number, boolean or null. A string that holds a JSON object or array is taken as that."},
					"query": {"type": "string", "description": "JSON pointer to the place, as in /scripts/test or /items/-. Default: the whole document."}
				},
				"required": ["path", "content"],
				"additionalProperties": false
			}`),
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
	if err != nil {
		return tools.Plan{}, err
	}
	delivery := protocol.Idempotent
	if args.Query != "" {
		delivery = protocol.Rollback
	}
	payload := protocol.FilesJSONWrite{Path: path, Query: args.Query, Content: unquoted(args.Content), Guard: scope.Guard}
	return filePlan(scope, path, payload, protocol.Exclusive, delivery)
}

// unquoted is the object or array that a JSON string holds, or else the value as it is.
func unquoted(value json.RawMessage) json.RawMessage {
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
