package protocol

import (
	"encoding/json"
	"fmt"
)

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
