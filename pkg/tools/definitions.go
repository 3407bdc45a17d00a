package tools

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// MarshalDefinitions returns definitions as an indented JSON array that ends with
// a line feed, in the order given and with the properties of each schema in the
// order in which they were written.
func MarshalDefinitions(definitions []Definition) ([]byte, error) {
	if definitions == nil {
		definitions = []Definition{}
	}
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(definitions); err != nil {
		return nil, fmt.Errorf("encode tool definitions: %w", err)
	}
	return out.Bytes(), nil
}
