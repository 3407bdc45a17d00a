package protocol

import (
	"encoding/json"
)

// Value answers a payload: the type with the payload's name and "Result", as a value, or an
// [UnknownValue].
type Value any

// Usage counts what a model was asked and answered.
type Usage struct {
	InputTokens  int64 `json:"input_tokens"`
	OutputTokens int64 `json:"output_tokens"`
	// CachedTokens are those of InputTokens that the provider read from its cache, and
	// ReasoningTokens those of OutputTokens that the model thought; 0 where it does not say.
	CachedTokens    int64 `json:"cached_tokens,omitempty"`
	ReasoningTokens int64 `json:"reasoning_tokens,omitempty"`
}

// Add returns the sum of both.
func (u Usage) Add(other Usage) Usage {
	return Usage{
		InputTokens: u.InputTokens + other.InputTokens, OutputTokens: u.OutputTokens + other.OutputTokens,
		CachedTokens: u.CachedTokens + other.CachedTokens, ReasoningTokens: u.ReasoningTokens + other.ReasoningTokens,
	}
}

// Total is input plus output.
func (u Usage) Total() int64 { return u.InputTokens + u.OutputTokens }

// UnknownValue is a value of a kind that this version does not know.
type UnknownValue struct {
	Name Kind
	Raw  json.RawMessage
}
