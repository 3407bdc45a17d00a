package openai

import (
	"errors"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/toolfleet/toolfleet/internal/model/endpoint"
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
	tools     endpoint.Tools
}

// Where a server says that something is wrong.
var (
	inMessage = regexp.MustCompile(`messages\W{1,3}(\d+)`)
	inCall    = regexp.MustCompile(`tool_calls\W{1,3}(\d+)`)
	inContent = regexp.MustCompile(`content\W{1,3}(\d+)`)
	nameField = regexp.MustCompile(`messages\W{1,3}\d+\W{1,3}name\b|property 'name'`)
	callID    = regexp.MustCompile(`(?i)tool.call.id|tool_calls\W{1,3}\d+\W{1,3}id\b`)
)

// refusesThoughts reports whether an error is about what a model thought in this conversation: it is
// of another model or account, or its item is not whole. Other sessions' thoughts are not.
func refusesThoughts(err error) bool {
	failure, ok := errors.AsType[*endpoint.Error](err)
	return ok && failure.Type == endpoint.TypeInvalidRequest && thoughts.MatchString(failure.Code+" "+failure.Text())
}

var thoughts = regexp.MustCompile(`(?i)signature|invalid_encrypted|encrypted.*(verif|decrypt|pars)|of type .reasoning.`)

// omitted is what a request is without.
type omitted struct{ usage, maxTokens, reasoning, names, ids bool }

func (r *rejects) omitted() omitted {
	return omitted{r.usage.Load(), r.maxTokens.Load(), r.reasoning.Load(), r.names.Load(), r.ids.Load()}
}

// learn reports whether an error says that the server rejects something that the sent request has,
// so that one without it may do. Other requests may have learned the same meanwhile.
func (r *rejects) learn(err error, sent *request) bool {
	failure, ok := errors.AsType[*endpoint.Error](err)
	if !ok || failure.Type != endpoint.TypeInvalidRequest {
		return false
	}
	text := failure.Text()
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
		return r.tools.Learn(text, sent.offered)
	}
}

// offered are the tools that are sent: those of other providers, and those that the server has
// rejected, are not.
func (r *rejects) offered(all []tools.Definition) []tools.Definition {
	return r.tools.Offered(all, func(definition tools.Definition) bool {
		_, declared := toolOf(definition)
		return declared
	})
}

// idOf is the id of a tool call as the server takes it.
func (o omitted) idOf(id string) string {
	if !o.ids {
		return id
	}
	return endpoint.ShortID(id)
}

// refused makes the error of a request that the server refuses for parts of the conversation a
// [loop.RefusedError].
func (m *Model) refused(req loop.Request, err error) error {
	if _, ok := errors.AsType[*endpoint.Error](err); !ok {
		return err
	}
	sent := m.request(req, false)
	return endpoint.Refused(err, func(text string, aboutImages bool) []loop.Part {
		at, named := endpoint.IndexIn(inMessage, text, len(sent.Messages))
		if !named {
			return nil
		}
		return partsOf(&sent.Messages[at], text, aboutImages)
	}, func() (groups [][]loop.Part) {
		for i := range sent.Messages {
			if images := distinct(sent.Messages[i].shown); len(images) > 0 {
				groups = append(groups, images)
			}
		}
		return groups
	})
}

// distinct are the parts of a content that can be left out, each once.
func distinct(shown []loop.Part) []loop.Part {
	return slices.DeleteFunc(slices.Compact(slices.Clone(shown)), func(part loop.Part) bool { return part == loop.Part{} })
}

// partsOf are the parts of a message that can be left out.
func partsOf(at *message, text string, aboutImages bool) []loop.Part {
	switch {
	case len(at.shown) > 0:
		if i, named := endpoint.IndexIn(inContent, text, len(at.shown)); named {
			return distinct(at.shown[i : i+1])
		}
		return distinct(at.shown)
	case aboutImages: // the server counts in another way
		return nil
	case at.Role == loop.RoleTool:
		return []loop.Part{{ToolCallID: at.callID, Kind: loop.PartResult}}
	case len(at.ToolCalls) > 0:
		i, _ := endpoint.IndexIn(inCall, text, len(at.ToolCalls))
		return []loop.Part{{ToolCallID: at.ToolCalls[i].callID, Kind: loop.PartCall}}
	default:
		return nil
	}
}
