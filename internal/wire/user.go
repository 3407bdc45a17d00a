package wire

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// MaxKindLength bounds the kind of a payload of a user's own, in bytes.
const MaxKindLength = 64

// ErrInvalidKind is wrapped by the errors of [ParseUserKind].
var ErrInvalidKind = errors.New("invalid payload kind")

// userBody is the JSON of a payload or a value of a kind of a user's own. The user's part is one
// field, so that its names never meet those of the envelope.
type userBody struct {
	Arguments json.RawMessage `json:"arguments,omitempty"`
	Output    json.RawMessage `json:"output,omitempty"`
}

// ParseUserKind checks a kind for payloads of a user's own: 1 to [MaxKindLength]
// lower-case letters, digits and '_', and not a kind of this package. The error
// wraps [ErrInvalidKind].
func ParseUserKind(s string) (protocol.Kind, error) {
	if len(s) > MaxKindLength || !plainName([]byte(s)) {
		return "", fmt.Errorf("%w %q: must be 1 to %d lower-case letters, digits and '_'", ErrInvalidKind, s, MaxKindLength)
	}
	known, err := DecodePayload(json.RawMessage(typePrefix + s + `"}`))
	if _, unknown := known.(protocol.UnknownPayload); err != nil || !unknown {
		return "", fmt.Errorf("%w %q: is a built-in payload: choose another name", ErrInvalidKind, s)
	}
	return protocol.Kind(s), nil
}

// NewUserPayload makes a payload of a kind of a user's own, which a worker with a
// handler for that kind executes. arguments is a JSON value. The kind must be one
// that [ParseUserKind] takes.
func NewUserPayload(kind protocol.Kind, arguments json.RawMessage) (protocol.UnknownPayload, error) {
	raw, err := encodeTyped(kind, userBody{Arguments: arguments})
	return protocol.UnknownPayload{Name: kind, Raw: raw}, err
}

// NewUserValue makes the value that answers a payload of a kind of a user's own.
// output is a JSON value.
func NewUserValue(kind protocol.Kind, output json.RawMessage) (protocol.UnknownValue, error) {
	raw, err := encodeTyped(kind, userBody{Output: output})
	return protocol.UnknownValue{Name: kind, Raw: raw}, err
}
