package protocol

import (
	"encoding/json"
	"errors"
	"unicode/utf8"
)

// Bytes is content that is usually text. In JSON it is a string when it is valid
// UTF-8, and {"base64": "..."} otherwise: readable, and never changed on the way.
type Bytes []byte

type base64Bytes struct {
	Base64 []byte `json:"base64"`
}

// MarshalJSON implements [json.Marshaler].
func (b Bytes) MarshalJSON() ([]byte, error) {
	if utf8.Valid(b) {
		return json.Marshal(string(b))
	}
	return json.Marshal(base64Bytes{Base64: b})
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
	var raw *base64Bytes
	if err := json.Unmarshal(data, &raw); err != nil {
		return err
	}
	if raw == nil {
		return errors.New(`content: want a string or {"base64": "..."}, not null`)
	}
	*b = raw.Base64
	return nil
}
