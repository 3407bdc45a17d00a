package argument

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// encodeArguments is the JSON of arguments that were parsed from raw, with the keys of
// objects in the order in which they were written: it can matter to who gets them.
func encodeArguments(raw string, arguments map[string]any) (json.RawMessage, error) {
	if strings.TrimSpace(raw) == "" {
		return json.Marshal(arguments)
	}
	e := encoder{order: json.NewDecoder(strings.NewReader(raw))}
	if err := e.value(arguments); err != nil {
		return nil, err
	}
	return e.out.Bytes(), nil
}

// encoder writes values while it reads the text from which they were parsed.
type encoder struct {
	order *json.Decoder
	out   bytes.Buffer
}

// value writes a value whose text is next. What was made of something of another kind
// has no order of its own.
func (e *encoder) value(value any) error {
	token, err := e.order.Token()
	if err != nil {
		return err
	}
	object, isObject := value.(map[string]any)
	array, isArray := value.([]any)
	switch {
	case token == json.Delim('{') && isObject:
		return e.object(object)
	case token == json.Delim('[') && isArray:
		return e.array(array)
	default:
		return e.plain(value)
	}
}

func (e *encoder) plain(value any) error {
	encoded, err := json.Marshal(value)
	e.out.Write(encoded)
	return err
}

func (e *encoder) object(object map[string]any) error {
	e.out.WriteByte('{')
	written := 0
	for e.order.More() {
		token, err := e.order.Token()
		if err != nil {
			return err
		}
		key, ok := token.(string)
		value, kept := object[key]
		if !ok || !kept { // null that was dropped
			if err := e.order.Decode(new(json.RawMessage)); err != nil {
				return err
			}
			continue
		}
		if written++; written > 1 {
			e.out.WriteByte(',')
		}
		if err := e.plain(key); err != nil {
			return err
		}
		e.out.WriteByte(':')
		if err := e.value(value); err != nil {
			return err
		}
	}
	if written != len(object) {
		return fmt.Errorf("%d properties were parsed, %d are there", len(object), written)
	}
	e.out.WriteByte('}')
	_, err := e.order.Token()
	return err
}

func (e *encoder) array(array []any) error {
	e.out.WriteByte('[')
	for i, item := range array {
		if i > 0 {
			e.out.WriteByte(',')
		}
		if err := e.value(item); err != nil {
			return err
		}
	}
	e.out.WriteByte(']')
	_, err := e.order.Token()
	return err
}
