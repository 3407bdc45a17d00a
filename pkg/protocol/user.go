package protocol

import (
	"encoding/json"
	"errors"
	"fmt"
)

// MaxKindLength bounds the kind of a payload of a user's own, in bytes.
const MaxKindLength = 64

// ErrInvalidKind is wrapped by the errors of [ParseUserKind].
var ErrInvalidKind = errors.New("invalid payload kind")

// userBody is the JSON of a payload or a value of a kind of a user's own. The
// user's part is one field, so that its names never meet those of the envelope.
type userBody struct {
	Arguments json.RawMessage `json:"arguments,omitempty"`
	Output    json.RawMessage `json:"output,omitempty"`
}

// ParseUserKind checks a kind for payloads of a user's own: 1 to [MaxKindLength]
// lower-case letters, digits and '_', and not a kind of this package. The error
// wraps [ErrInvalidKind].
func ParseUserKind(s string) (Kind, error) {
	if len(s) > MaxKindLength || !plainName([]byte(s)) {
		return "", fmt.Errorf("%w %q: must be 1 to %d lower-case letters, digits and '_'", ErrInvalidKind, s, MaxKindLength)
	}
	known, err := DecodePayload(json.RawMessage(typePrefix + s + `"}`))
	if _, unknown := known.(UnknownPayload); err != nil || !unknown {
		return "", fmt.Errorf("%w %q: is a built-in payload: choose another name", ErrInvalidKind, s)
	}
	return Kind(s), nil
}

// NewUserPayload makes a payload of a kind of a user's own, which a worker with a
// handler for that kind executes. arguments is a JSON value. The kind must be one
// that [ParseUserKind] takes.
func NewUserPayload(kind Kind, arguments json.RawMessage) (UnknownPayload, error) {
	raw, err := encodeTyped(kind, userBody{Arguments: arguments})
	return UnknownPayload{Name: kind, Raw: raw}, err
}

// Arguments returns what was given to [NewUserPayload]; nil when there is nothing.
func (u UnknownPayload) Arguments() (json.RawMessage, error) {
	var body userBody
	if err := unmarshal(u.Raw, &body); err != nil {
		return nil, fmt.Errorf("%s: %w", u.Name, err)
	}
	return body.Arguments, nil
}

// NewUserValue makes the value that answers a payload of a kind of a user's own.
// output is a JSON value.
func NewUserValue(kind Kind, output json.RawMessage) (UnknownValue, error) {
	raw, err := encodeTyped(kind, userBody{Output: output})
	return UnknownValue{Name: kind, Raw: raw}, err
}

// Output returns what was given to [NewUserValue]; nil when there is nothing.
func (u UnknownValue) Output() (json.RawMessage, error) {
	var body userBody
	if err := unmarshal(u.Raw, &body); err != nil {
		return nil, fmt.Errorf("%s: %w", u.Name, err)
	}
	return body.Output, nil
}
