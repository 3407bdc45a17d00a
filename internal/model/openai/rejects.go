package openai

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// rejects is what a server has rejected of requests, and is not sent again: fields that it does not
// know, and tools. What it rejects of the conversation itself is the session's, see [refusedParts].
type rejects struct {
	usage     atomic.Bool // stream_options
	maxTokens atomic.Bool // max_tokens: it wants max_completion_tokens
	reasoning atomic.Bool // the fields of [fieldNames] in messages
	names     atomic.Bool // name in messages
	ids       atomic.Bool // ids of tool calls as other servers make them
	tools     sync.Map    // from toolKey to the server's message
}

// Where a server says that something is wrong.
var (
	inMessage  = regexp.MustCompile(`messages\W{1,3}(\d+)`)
	inCall     = regexp.MustCompile(`tool_calls\W{1,3}(\d+)`)
	inContent  = regexp.MustCompile(`content\W{1,3}(\d+)`)
	inTool     = regexp.MustCompile(`tools\W{1,3}(\d+)`)
	nameField  = regexp.MustCompile(`messages\W{1,3}\d+\W{1,3}name\b|property 'name'`)
	callID     = regexp.MustCompile(`(?i)tool.call.id|tool_calls\W{1,3}\d+\W{1,3}id\b`)
	imageWord  = regexp.MustCompile(`(?i)image|vision|multi-?modal`)
	tooManyFor = regexp.MustCompile(`(?i)at most|too many|more than`)
)

// omitted is what a request is without.
type omitted struct{ usage, maxTokens, reasoning, names, ids bool }

func (r *rejects) omitted() omitted {
	return omitted{r.usage.Load(), r.maxTokens.Load(), r.reasoning.Load(), r.names.Load(), r.ids.Load()}
}

// learn reports whether an error says that the server rejects something that the sent request has,
// so that one without it may do. Other requests may have learned the same meanwhile.
func (r *rejects) learn(err error, sent *request) bool {
	failure, ok := errors.AsType[*Error](err)
	if !ok || failure.Type != TypeInvalidRequest {
		return false
	}
	text := failure.text()
	switch {
	case strings.Contains(text, "stream_options"), strings.Contains(text, "include_usage"):
		r.usage.Store(true)
		return !sent.omitted.usage
	case strings.Contains(text, "max_completion_tokens"):
		r.maxTokens.Store(true)
		return !sent.omitted.maxTokens
	case strings.Contains(text, "reasoning_effort"): // which the user asked for
		return false
	case strings.Contains(text, "reasoning"): // of every field
		r.reasoning.Store(true)
		return !sent.omitted.reasoning
	case nameField.MatchString(text):
		r.names.Store(true)
		return !sent.omitted.names
	case callID.MatchString(text):
		r.ids.Store(true)
		return !sent.omitted.ids
	case inMessage.MatchString(text):
		return false
	default:
		return r.learnTool(text, sent.offered)
	}
}

// learnTool looks for the tool that a server names, by its place or its name.
func (r *rejects) learnTool(text string, sent []tools.Definition) bool {
	if found := inTool.FindStringSubmatch(text); found != nil {
		if i, err := strconv.Atoi(found[1]); err == nil && i < len(sent) {
			r.tools.Store(toolKey(sent[i]), text)
			return true
		}
	}
	for _, definition := range sent {
		quoted := regexp.MustCompile("(?i)(function|tool)\\W+" + regexp.QuoteMeta(definition.Name) + "\\b")
		if quoted.MatchString(text) {
			r.tools.Store(toolKey(definition), text)
			return true
		}
	}
	return false
}

// offered are the tools that are sent: those of other providers, and those that the server has
// rejected, are not.
func (r *rejects) offered(all []tools.Definition) []tools.Definition {
	var offered []tools.Definition
	for _, definition := range all {
		_, declared := toolOf(definition)
		if _, rejected := r.tools.Load(toolKey(definition)); declared && !rejected {
			offered = append(offered, definition)
		}
	}
	return offered
}

// toolNotes tell a model which tools it is not offered, and why; "" when there are none.
func (r *rejects) toolNotes(all []tools.Definition) string {
	var notes strings.Builder
	for _, definition := range all {
		if reason, rejected := r.tools.Load(toolKey(definition)); rejected {
			fmt.Fprintf(&notes, "\n\n[The tool %s is left out, because the model's server refuses it: %v]", definition.Name, reason)
		}
	}
	return notes.String()
}

// toolKey is a tool as it is declared: another declaration may do.
func toolKey(definition tools.Definition) string {
	tool, _ := toolOf(definition)
	key, _ := json.Marshal(tool) // of JSON and strings
	return string(key)
}

// idOf is the id of a tool call as the server takes it.
func (o omitted) idOf(id string) string {
	if !o.ids {
		return id
	}
	sum := sha256.Sum256([]byte(id))
	return hex.EncodeToString(sum[:])[:9] // of the form of newCallID
}

// text is where servers say what is wrong: their message, and the field that they name.
func (e *Error) text() string { return strings.TrimSpace(e.param + " " + e.Message) }

// refused makes the error of a request that the server refuses for parts of the conversation a
// [loop.RefusedError].
func (m *Model) refused(req loop.Request, err error) error {
	failure, ok := errors.AsType[*Error](err)
	if !ok {
		return err
	}
	if parts := refusedParts(m.request(req), failure); len(parts) > 0 {
		return &loop.RefusedError{Parts: parts, Err: err}
	}
	return err
}

// refusedParts are the parts of the sent conversation that the server's message is about: those
// that it names by their place, else images, if it speaks of them.
func refusedParts(sent *request, failure *Error) []loop.Part {
	text := failure.text()
	switch failure.Type {
	case TypeInvalidRequest:
	case TypeServerError, TypeNotFound: // some servers answer so to what they cannot show a model
		if !imageWord.MatchString(text) {
			return nil
		}
	default:
		return nil
	}
	if at, named := placeIn(inMessage, text, len(sent.Messages)); named {
		if parts := partsOf(&sent.Messages[at], text); len(parts) > 0 {
			return parts
		}
	}
	if !imageWord.MatchString(text) {
		return nil
	}
	var groups [][]string
	for i := range sent.Messages {
		if images := sent.Messages[i].images; len(images) > 0 {
			groups = append(groups, images)
		}
	}
	switch {
	case len(groups) == 0:
		return nil
	case tooManyFor.MatchString(text):
		return imageParts(groups[0][:1])
	default: // the newest: the server took those before
		return imageParts(groups[len(groups)-1])
	}
}

// partsOf are the parts of a message that can be left out.
func partsOf(at *message, text string) []loop.Part {
	switch {
	case len(at.images) > 0:
		if i, named := placeIn(inContent, text, 2*len(at.images)); named { // each image is behind its text
			return imageParts(at.images[i/2 : i/2+1])
		}
		return imageParts(at.images)
	case imageWord.MatchString(text): // the server counts in another way
		return nil
	case at.Role == loop.RoleTool:
		return []loop.Part{{ToolCallID: at.callID, Kind: loop.PartResult}}
	case len(at.ToolCalls) > 0:
		i, _ := placeIn(inCall, text, len(at.ToolCalls))
		return []loop.Part{{ToolCallID: at.ToolCalls[i].callID, Kind: loop.PartCall}}
	default:
		return nil
	}
}

func imageParts(toolCallIDs []string) []loop.Part {
	parts := make([]loop.Part, len(toolCallIDs))
	for i, id := range toolCallIDs {
		parts[i] = loop.Part{ToolCallID: id, Kind: loop.PartImage}
	}
	return parts
}

// placeIn is the place in a list that a text names, if it is below its length.
func placeIn(list *regexp.Regexp, text string, length int) (place int, named bool) {
	found := list.FindStringSubmatch(text)
	if found == nil {
		return 0, false
	}
	place, err := strconv.Atoi(found[1])
	if err != nil || place >= length {
		return 0, false
	}
	return place, true
}
