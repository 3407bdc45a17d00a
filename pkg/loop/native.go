package loop

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/modeltext/render"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// NativeCall is a call of a tool that the model's provider ran for a reply ([Reply].Native).
type NativeCall struct {
	// Name is the tool's, as "web_search", and Input what the model wrote: a query, or a program.
	Name, Input string
	// Kind is the provider's word for the tool, for its price ([Price].Tools), and Uses how often
	// it is billed; 0 is once.
	Kind string
	Uses int
	// Output is what came back, for people: the model has it from its provider.
	Output string
	// Failed reports that the provider returned an error, which is the Output.
	Failed bool
	// Image is an image that the tool made; nil if none. The Runner stores it in the workspace.
	Image *Image
}

// directoryOfImages is where images are stored that a provider's tools make.
const directoryOfImages = "generated"

// nativeEvents are the events of the calls that the provider ran for a reply. For each image that
// they made the reply gets a tool call that stores it in the workspace: in the order of the
// session's calls, and under its policy. Its Index and Arguments are the event's, too.
func (t *turnRun) nativeEvents(at Event, reply *Reply) []Event {
	events := make([]Event, len(reply.Native))
	for i := range reply.Native {
		call, event := &reply.Native[i], &events[i]
		*event = Event{
			Type: EventNativeCall, Turn: at.Turn, Step: at.Step, CallFields: CallFields{Name: prose.Valid(call.Name)},
			Text: render.Shown(prose.Valid(call.Input), "", nil), Status: string(protocol.StatusOK),
			ResultFields: ResultFields{Content: render.Shown(prose.Valid(call.Output), "", nil), Image: call.Image},
		}
		if call.Failed {
			event.Status = string(protocol.StatusFailed)
		}
		tool, known := t.table.Lookup(call.Name)
		switch {
		case call.Image == nil, !known, len(tool.Native) == 0, t.session.open().lastAt > 0:
		case len(call.Image.Data) > render.MaxImageBytes:
			event.Image, event.Content = nil, strings.TrimSpace(event.Content+"\n[the image is too large to be stored: at most 4 MiB are]")
		default:
			sum := sha256.Sum256(call.Image.Data)
			_, kind, _ := strings.Cut(call.Image.MediaType, "/")
			arguments, _ := json.Marshal(map[string]string{"path": directoryOfImages + "/" + hex.EncodeToString(sum[:6]) + "." + kind}) // strings always encode
			event.Index, event.Arguments = len(reply.ToolCalls), string(arguments)
			reply.ToolCalls = append(reply.ToolCalls, ToolCall{Name: tool.Name, Arguments: event.Arguments})
		}
	}
	return events
}

// planImage is the plan of a call that stores an image; false for every other call.
func (t *turnRun) planImage(call *stepCall) (planned, bool) {
	image := t.session.open().images[call.ID]
	tool, known := t.table.Lookup(call.Name)
	var arguments struct {
		Path string `json:"path"`
	}
	if image == nil || len(image.Data) == 0 || !known || json.Unmarshal([]byte(call.Arguments), &arguments) != nil {
		return planned{}, false
	}
	return planned{tool: tool, derived: true, plan: tools.Plan{
		Payload: protocol.FilesWrite{Path: arguments.Path, Content: image.Data}, Delivery: protocol.Idempotent,
	}}, true
}
