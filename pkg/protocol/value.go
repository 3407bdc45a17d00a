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

// Spending is how much a session uses, or how much it may use; as a bound, a zero field is none.
type Spending struct {
	Steps  int     `json:"steps,omitempty"`  // replies of the model
	Calls  int     `json:"calls,omitempty"`  // tool calls that were not refused
	Tokens int64   `json:"tokens,omitempty"` // input plus output
	TimeMS Millis  `json:"time_ms,omitempty"`
	USD    float64 `json:"usd,omitempty"`
}

// Add returns the sum of both.
func (s Spending) Add(other Spending) Spending {
	return Spending{s.Steps + other.Steps, s.Calls + other.Calls, s.Tokens + other.Tokens, s.TimeMS + other.TimeMS, s.USD + other.USD}
}

// UnknownValue is a value of a kind that this version does not know.
type UnknownValue struct {
	Name Kind
	Raw  json.RawMessage
}
