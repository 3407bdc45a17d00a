package tools

import (
	"encoding/json"
	"math/big"
	"strconv"
	"strings"

	"github.com/toolfleet/toolfleet/pkg/tools/internal/prose"
)

// escapeSegment makes one segment of a value, a different one for each, and the same one
// however a number is written.
func escapeSegment(value any) string {
	text, isText := value.(string)
	if !isText {
		encoded, err := prose.JSON(sameNumbers(value))
		if err != nil {
			encoded = []byte("?")
		}
		text = string(encoded)
	}
	return strings.NewReplacer("%", "%25", "/", "%2F", "\x00", "%00").Replace(prose.Valid(text))
}

// sameNumbers returns a value in which equal numbers are written in the same way: 1, 1.0 and
// 1e0 name one resource.
func sameNumbers(value any) any {
	switch value := value.(type) {
	case json.Number:
		return sameNumber(value)
	case []any:
		same := make([]any, len(value))
		for i := range value {
			same[i] = sameNumbers(value[i])
		}
		return same
	case map[string]any:
		same := make(map[string]any, len(value))
		for name, property := range value {
			same[name] = sameNumbers(property)
		}
		return same
	default:
		return value
	}
}

// sameNumber writes whole numbers as they are, and what has a fraction as the float64 that a
// program reads it as.
func sameNumber(number json.Number) json.Number {
	exact, ok := new(big.Rat).SetString(number.String())
	switch {
	case !ok:
		return number
	case exact.IsInt():
		return json.Number(exact.Num().String())
	}
	nearest, _ := exact.Float64()
	return json.Number(strconv.FormatFloat(nearest, 'g', -1, 64))
}
