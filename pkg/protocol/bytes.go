package protocol

import (
	"encoding/json"
	"errors"
	"unicode/utf8"
)

// Bytes is content that is usually text. In JSON it is a string when it is UTF-8
// with few control characters, and {"base64": "..."} otherwise: readable, never
// changed on the way, and never more than twice as long.
type Bytes []byte

type base64Bytes struct {
	Base64 *[]byte `json:"base64"`
}

// MarshalJSON implements [json.Marshaler].
func (b Bytes) MarshalJSON() ([]byte, error) {
	if b.readable() {
		return json.Marshal(string(b))
	}
	raw := []byte(b)
	return json.Marshal(base64Bytes{Base64: &raw})
}

// readable reports whether a JSON string is a good form of b: what escapes add must
// not be more than b itself.
func (b Bytes) readable() bool {
	if !utf8.Valid(b) {
		return false
	}
	added := 0
	for _, c := range b {
		switch {
		case c == '"', c == '\\', c == '\n', c == '\t', c == '\r': // two bytes, as in \n
			added++
		case c < ' ', c == '<', c == '>', c == '&': // six, as in \u0000
			added += 5
		}
	}
	return added <= len(b)
}

// UnmarshalJSON implements [json.Unmarshaler].
func (b *Bytes) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] == '"' {
		var s string
		if err := json.Unmarshal(data, &s); err != nil {
			return err
		}
		*b = Bytes(s)
		return nil
	}
	var raw base64Bytes
	if err := json.Unmarshal(data, &raw); err != nil {
		return err
	}
	if raw.Base64 == nil {
		return errors.New(`content: want a string or {"base64": "..."}`)
	}
	*b = *raw.Base64
	return nil
}
