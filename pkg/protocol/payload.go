package protocol

import (
	"encoding/json"
	"fmt"
)

// Kind names a payload and the typed value that answers it; both use one name. Kinds of your own
// have 1 to 64 lower-case letters, digits and '_', and are not those of built-in payloads.
type Kind string

// Payload is what a worker executes: a payload type of this package, as a value, or an
// [UnknownPayload]. Tools and sessions also send payloads that only toolfleet itself makes. Paths
// in payloads are slash-separated and relative to the workspace; "" is the workspace itself.
type Payload any

// InstructionFile is a file with instructions for agents, such as AGENTS.md.
type InstructionFile struct {
	Name string `json:"name"`
	Text string `json:"text"`
}

// UnknownPayload is a payload of a kind that is not built in, such as that of a handler. It keeps
// the bytes that it came with. A worker without a handler of that kind answers with status
// "rejected".
type UnknownPayload struct {
	Name Kind
	Raw  json.RawMessage
}

// Author is who commits with git in the commands of a session; what is "" is not said.
type Author struct {
	Name  string `json:"name,omitempty"`
	Email string `json:"email,omitempty"`
}

// Value answers a payload: the type with the payload's name and "Result", as a value, or an
// [UnknownValue].
type Value any

// Usage counts what a model was asked and answered.
type Usage struct {
	InputTokens  int64 `json:"input_tokens"`
	OutputTokens int64 `json:"output_tokens"`
	// CachedTokens are those of InputTokens that the provider read from its cache, CacheWriteTokens
	// those that it wrote to its cache at a higher price, and ReasoningTokens those of OutputTokens
	// that the model thought; 0 where it does not say.
	CachedTokens     int64 `json:"cached_tokens,omitempty"`
	CacheWriteTokens int64 `json:"cache_write_tokens,omitempty"`
	ReasoningTokens  int64 `json:"reasoning_tokens,omitempty"`
	// Estimated reports that the server did not count all of it: the rest is estimated from the
	// length of the texts.
	Estimated bool `json:"estimated,omitempty"`
}

// Add returns the sum of both.
func (u Usage) Add(other Usage) Usage {
	return Usage{
		InputTokens: u.InputTokens + other.InputTokens, OutputTokens: u.OutputTokens + other.OutputTokens,
		CachedTokens: u.CachedTokens + other.CachedTokens, CacheWriteTokens: u.CacheWriteTokens + other.CacheWriteTokens,
		ReasoningTokens: u.ReasoningTokens + other.ReasoningTokens, Estimated: u.Estimated || other.Estimated,
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

// UnknownValue is a value of a kind that is not built in, such as that of a handler.
type UnknownValue struct {
	Name Kind
	Raw  json.RawMessage
}

// userBody is the JSON of a payload or a value of a kind of a user's own. The
// user's part is one field, so that its names never meet those of the envelope.
type userBody struct {
	Arguments json.RawMessage `json:"arguments,omitempty"`
	Output    json.RawMessage `json:"output,omitempty"`
}

// Arguments returns the arguments of a payload of a user's own kind, a JSON value; nil without any.
func (u UnknownPayload) Arguments() (json.RawMessage, error) {
	var body userBody
	if err := json.Unmarshal(u.Raw, &body); err != nil {
		return nil, fmt.Errorf("%s: %w", u.Name, err)
	}
	return body.Arguments, nil
}

// Output returns what a handler of a user's own kind returned, a JSON value; nil when nothing.
func (u UnknownValue) Output() (json.RawMessage, error) {
	var body userBody
	if err := json.Unmarshal(u.Raw, &body); err != nil {
		return nil, fmt.Errorf("%s: %w", u.Name, err)
	}
	return body.Output, nil
}
