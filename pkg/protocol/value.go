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
}

// Add returns the sum of both.
func (u Usage) Add(other Usage) Usage {
	return Usage{u.InputTokens + other.InputTokens, u.OutputTokens + other.OutputTokens}
}

// Total is input plus output.
func (u Usage) Total() int64 { return u.InputTokens + u.OutputTokens }

// UnknownValue is a value of a kind that this version does not know.
type UnknownValue struct {
	Name Kind
	Raw  json.RawMessage
}
