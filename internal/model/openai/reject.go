package openai

import (
	"errors"
	"strings"
	"sync/atomic"
)

// rejects is what a server has rejected of requests, and is not sent again.
type rejects struct {
	usage     atomic.Bool // stream_options
	maxTokens atomic.Bool // max_tokens: it wants max_completion_tokens
	reasoning atomic.Bool // the fields of [fieldNames] in messages
}

// learn reports whether an error says that the server rejects something that is not known yet, so
// that the same request without it may do.
func (r *rejects) learn(err error) bool {
	fault, ok := errors.AsType[*Error](err)
	if !ok || fault.Type != TypeInvalidRequest {
		return false
	}
	mentions := func(words ...string) bool {
		for _, word := range words {
			if strings.Contains(fault.Message, word) {
				return true
			}
		}
		return false
	}
	switch {
	case mentions("stream_options", "include_usage"):
		return r.usage.CompareAndSwap(false, true)
	case mentions("max_completion_tokens"):
		return r.maxTokens.CompareAndSwap(false, true)
	case mentions("reasoning_effort"): // which the user asked for
		return false
	case mentions("reasoning"): // of every field
		return r.reasoning.CompareAndSwap(false, true)
	default:
		return false
	}
}
