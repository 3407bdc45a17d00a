package openai

import (
	"encoding/json"
	"fmt"

	"github.com/toolfleet/toolfleet/internal/model/lenient"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// spoken returns the text and the reasoning in a value of a message. A part of another kind, as a
// reference, says nothing.
func spoken(where string, raw json.RawMessage) (text, thought string, err error) {
	switch {
	case !lenient.IsSet(raw):
		return "", "", nil
	case lenient.Kind(raw) == '"':
		return lenient.Unquote(raw), "", nil
	case lenient.IsNumber(raw):
		return string(raw), "", nil
	case lenient.Kind(raw) == '{':
		return spokenPart(where, raw)
	case lenient.Kind(raw) != '[':
		return "", "", lenient.WrongForm(where, raw, "a text")
	}
	parts, err := lenient.List(where, raw)
	for i, part := range parts {
		said, thinks, err := spoken(fmt.Sprintf("%s[%d]", where, i), part)
		if err != nil {
			return "", "", err
		}
		text, thought = text+said, thought+thinks
	}
	return text, thought, err
}

func spokenPart(where string, raw json.RawMessage) (text, thought string, err error) {
	part, err := lenient.Object(where, raw)
	if err != nil {
		return "", "", err
	}
	for _, name := range []string{"thinking", "reasoning", "text", "refusal"} {
		if !lenient.IsSet(part[name]) {
			continue
		}
		said, thinks, err := spoken(where+"."+name, part[name])
		if kind := lenient.String(part["type"]); kind == "thinking" || kind == "reasoning" {
			return "", thinks + said, err
		}
		return said, thinks, err
	}
	return "", "", nil
}

// usageOf returns the usage of a reply; 0 where the server gives no number.
func usageOf(raw json.RawMessage) (protocol.Usage, bool) {
	var usage lenient.Fields
	if !lenient.IsSet(raw) || json.Unmarshal(raw, &usage) != nil {
		return protocol.Usage{}, false
	}
	detail := func(of ...string) lenient.Fields {
		for _, name := range of {
			if details, err := lenient.Object(name, usage[name]); err == nil && len(details) > 0 {
				return details
			}
		}
		return nil
	}
	cached := lenient.Count(detail("prompt_tokens_details", "input_tokens_details"), "cached_tokens")
	return protocol.Usage{
		InputTokens:     lenient.Count(usage, "prompt_tokens", "input_tokens"),
		OutputTokens:    lenient.Count(usage, "completion_tokens", "output_tokens"),
		CachedTokens:    max(cached, lenient.Count(usage, "prompt_cache_hit_tokens")), // of DeepSeek
		ReasoningTokens: lenient.Count(detail("completion_tokens_details", "output_tokens_details"), "reasoning_tokens"),
	}, true
}
