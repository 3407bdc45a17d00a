package openai

import (
	"fmt"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/pkg/loop"
)

// ending is what a server's finish_reason says of a reply.
type ending int

const (
	endUnknown  ending = iota // no known end: the reply is no answer
	endWhole                  // the reply is whole
	endCut                    // it ended at a limit of tokens
	endFiltered               // a filter stopped it
	endFailed                 // the server failed, and may not the next time
)

// endOf judges a finish_reason. Only the words that are known for it make a reply whole, or cut;
// what is left is a failure.
func endOf(reason string) ending {
	word := strings.ToLower(strings.NewReplacer("-", "_", " ", "_").Replace(reason))
	mentions := func(parts ...string) bool {
		return slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(word, part) })
	}
	switch word {
	case "", // some servers end with [DONE] alone
		"stop", "stop_sequence", "stop_token", "end_turn", "end_of_turn", "eos", "eos_token",
		"end", "done", "complete", "completed", "finished", "normal",
		"tool_calls", "tool_call", "tool_use", "function_call":
		return endWhole
	case "length", "model_length", "max_length", "max_tokens", "max_new_tokens", "max_output_tokens",
		"max_completion_tokens", "token_limit", "error_limit", "model_context_window_exceeded":
		return endCut
	}
	switch {
	case mentions("filter", "safety", "sensitive", "refus", "prohibited", "blocklist", "recitation", "guardrail", "toxic", "spii"):
		return endFiltered
	case mentions("abort", "error", "fail", "cancel", "network", "resource", "timeout", "timed_out", "overload", "unavailable", "malformed"):
		return endFailed
	default:
		return endUnknown
	}
}

// finish judges a reply by the reason for which it ended.
func (m *Model) finish(parts *assembler) (loop.Reply, error) {
	reply := parts.reply()
	end := endOf(parts.finish)
	switch {
	case parts.finish == "" && reply.Text == "" && len(reply.ToolCalls) == 0:
		return loop.Reply{}, m.endpoint.fault(TypeStreamBroken, "the answer was empty")
	case end == endWhole, end == endCut:
		return reply, nil
	case end == endFiltered:
		return loop.Reply{}, m.endpoint.fault(TypeContentFilter,
			fmt.Sprintf("the provider's content filter stopped the reply (finish_reason %q)", parts.finish))
	}
	fault := m.endpoint.fault(TypeUnfinished,
		fmt.Sprintf("the reply is not complete: it ended with finish_reason %q", parts.finish))
	fault.permanent = end == endUnknown
	return loop.Reply{}, fault
}
