package tools

import (
	"encoding/json"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/modeltext/render"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Format is how another system words what its tools return, for agents and programs that read it.
type Format struct {
	// Text words a result, of any status, of a call of the named tool; arguments are what a model
	// wrote, and result is never nil. It says itself what is to be said of a call that was started
	// again, and is at most 48,000 characters long. It is safe for concurrent use.
	Text func(tool, arguments string, result *protocol.Result) string
	// JSON says that every text is JSON, and stays so: what is added is put into it.
	JSON bool
	// Loose says that arguments that a tool does not have are ignored, as that system ignores them.
	Loose bool
}

// Failure is the text of a call that came to nothing: the result has an error of [Table.Plan] or
// [Plan.RunInline], and the status of the call. A nil tool has that of a call without a tool.
func (t *Tool) Failure(result *protocol.Result) string {
	if t != nil && t.Format == nil {
		t = nil // failures look alike
	}
	return t.Text(result)
}

// Returned returns the output of [Plan.RunInline] as the model reads it: by the tool's Format, or
// shortened, as JSON if it is JSON.
func (t *Tool) Returned(text string, call protocol.CallID, kept *protocol.Kept) string {
	if t == nil || t.Format == nil {
		return render.Shown(text, call, kept)
	}
	output := json.RawMessage(text)
	if !json.Valid(output) {
		output, _ = prose.JSON(text) // of a string there is no error
	}
	return t.Text(&protocol.Result{CallID: call, Status: protocol.StatusOK, Kept: kept, Value: protocol.ToolRunResult{Output: output}})
}

// WithNote is the text of a result with what a person said who approved the call: behind it, or in
// it where a [Format] has JSON. Nothing of the text makes room for that. A note of "" adds nothing.
func (t *Tool) WithNote(text, note string) string {
	switch {
	case note == "":
		return text
	case t != nil && t.Format != nil && t.Format.JSON:
		return render.Annotated(text, "[approved]", "the call was approved by a person, who said: "+note)
	default:
		return text + "\n[the call was approved by a person, who said: " + prose.Valid(note) + "]"
	}
}

// formatOf is the format that the tools which have one share; nil when there is none, or two.
func formatOf(set []Tool) *Format {
	var format *Format
	for i := range set {
		switch own := set[i].Format; {
		case own == nil || own == format:
		case format != nil:
			return nil
		default:
			format = own
		}
	}
	return format
}
