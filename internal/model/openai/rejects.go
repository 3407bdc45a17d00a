package openai

import (
	"errors"
	"net/http"
	"regexp"
	"slices"

	"github.com/toolfleet/toolfleet/internal/model/endpoint"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// What a server may reject of requests: of chat completions, and of the Responses API.
const (
	usage       = "stream_options"
	maxTokens   = "max_tokens" // the server wants max_completion_tokens
	reasoning   = "reasoning"  // the fields of [fieldNames] in messages
	thoughts    = "thoughts"   // what the model thought in this conversation
	names       = "name"       // in messages
	ids         = "ids"        // of tool calls as other servers make them
	responseAPI = "the Responses API"
	encrypted   = "reasoning.encrypted_content"
	include     = "include" // what else is included of native tools
	summary     = "reasoning.summary"
)

func rejected() []endpoint.Field {
	return []endpoint.Field{
		// A thought is of another model or account, or its item is not whole. Other sessions'
		// thoughts are not.
		{Name: thoughts, Says: regexp.MustCompile(`(?i)signature|invalid_encrypted|encrypted.*(?:verif|decrypt|pars)|of type .reasoning.`), Once: true},
		{Name: usage, Says: regexp.MustCompile(`\b(?:stream_options|include_usage)\b`)},
		{Name: maxTokens, Says: regexp.MustCompile(`\bmax_completion_tokens\b`)},
		{Name: reasoning, Says: regexp.MustCompile(`\breasoning_(?:content|details)\b|['".]reasoning\b`)},
		{Name: names, Says: regexp.MustCompile(`messages\W{1,3}\d+\W{1,3}name\b|property 'name'`)},
		{Name: ids, Says: regexp.MustCompile(`(?i)\btool.call.id\b.*\b(?:must|invalid|long|length|match)|\binvalid\b.*\btool.call.id\b|tool_calls\W{1,3}\d+\W{1,3}id\b`)},
		{Name: encrypted, Says: regexp.MustCompile(`(?i)\bencrypted(?:_| )content\b`)},
		{Name: include, Says: regexp.MustCompile(`(?i)\binclude\b`)},
		{Name: summary, Says: regexp.MustCompile(`\breasoning[.']*summary\b|\bsummary\b`)},
	}
}

// Where a server says that something is wrong.
//
//nolint:gochecknoglobals // compiled once
var (
	inMessage = endpoint.Path("messages")
	inCall    = endpoint.Path("tool_calls")
	inContent = endpoint.Path("content")
	inInput   = endpoint.Path("input")
	inOutput  = endpoint.Path("(?:output|content)")
)

// learn is [endpoint.Lessons.Learn], which also learns that there is no Responses API.
func (m *Model) learn(lessons *endpoint.Lessons, err error, sent *endpoint.Asked) bool {
	failure, ok := errors.AsType[*endpoint.Error](err)
	if ok && m.api == Auto && m.uses(lessons) && (failure.Type == endpoint.TypeNotFound ||
		failure.Status == http.StatusMethodNotAllowed || failure.Status == http.StatusNotImplemented) {
		lessons.Omit(responseAPI, failure.Message)
		return true
	}
	return lessons.Learn(err, sent)
}

// offered are the tools that are sent: not those of other providers.
func offered(lessons *endpoint.Lessons, all []tools.Definition) []tools.Definition {
	return lessons.Offered(all, func(definition tools.Definition) bool {
		_, declared := toolOf(definition)
		return declared
	})
}

// idOf is the id of a tool call as the server takes it.
func (r *request) idOf(id string) string {
	if r.May(ids) {
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
	sent := m.request(req, m.rejects.Of(req.Session))
	return endpoint.Refused(err, func(text string, aboutImages bool) []loop.Part {
		at, named := endpoint.IndexIn(inMessage, text, len(sent.Conversation))
		if !named {
			return nil
		}
		return partsOf(&sent.Conversation[at], text, aboutImages)
	}, func() (groups [][]loop.Part) {
		for i := range sent.Conversation {
			if images := distinct(sent.Conversation[i].shown); len(images) > 0 {
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
