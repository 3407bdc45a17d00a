package argument

import (
	"encoding/json"
	"math/big"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// maxReferences bounds the $ref chain that is followed to find out a type.
const maxReferences = 8

// coerce brings values into the form that the schema s expects, also in properties and items: a
// string that spells a number, boolean, array or object becomes one if s allows no string there;
// an integer loses its fraction and exponent ("3.0", "3e0": 3), because Go's decoder refuses them;
// null is dropped for an optional property that cannot be null. Validation judges everything else.
// Containers are changed in place.
func coerce(s *jsonschema.Schema, value any) any {
	s = resolve(s)
	if s == nil {
		return value
	}
	switch value := value.(type) {
	case map[string]any:
		for name, property := range value {
			inner, ok := s.Properties[name]
			switch {
			case !ok:
			case property == nil && !slices.Contains(s.Required, name) && !allowsNull(inner):
				delete(value, name)
			default:
				value[name] = coerce(inner, property)
			}
		}
		return value
	case []any:
		for i, item := range value {
			value[i] = coerce(itemSchema(s, i), item)
		}
		return value
	case string:
		return coerceString(s, value)
	case json.Number:
		return coerceNumber(s, value)
	default:
		return value
	}
}

// resolve follows references until a schema says something about types or properties.
func resolve(s *jsonschema.Schema) *jsonschema.Schema {
	for range maxReferences {
		if s == nil || s.Ref == nil || s.Types != nil || s.Properties != nil {
			return s
		}
		s = s.Ref
	}
	return nil
}

// itemSchema returns the schema of the item at i of an array, or nil. It knows
// the keywords of draft 2020-12 only.
func itemSchema(s *jsonschema.Schema, i int) *jsonschema.Schema {
	if i < len(s.PrefixItems) {
		return s.PrefixItems[i]
	}
	return s.Items2020
}

func coerceString(s *jsonschema.Schema, text string) any {
	types := typesOf(s)
	if len(types) == 0 || slices.Contains(types, "string") {
		return text
	}
	if slices.Contains(types, "boolean") {
		switch text {
		case "true", "True":
			return true
		case "false", "False":
			return false
		}
	}
	numeric := slices.Contains(types, "number") || slices.Contains(types, "integer")
	if numeric && isNumber(text) {
		return coerceNumber(s, json.Number(text))
	}
	if nested, ok := nestedValue(text, types); ok {
		return coerce(s, nested)
	}
	return text
}

// nestedValue is the array or object that a string holds, when it is of one of the types.
func nestedValue(text string, types []string) (any, bool) {
	trimmed := strings.TrimSpace(text)
	switch {
	case strings.HasPrefix(trimmed, "[") && slices.Contains(types, "array"):
	case strings.HasPrefix(trimmed, "{") && slices.Contains(types, "object"):
	default:
		return nil, false
	}
	p, err := parse(trimmed)
	return p.result, err == nil && len(p.faults) == 0
}

// allowsNull reports whether a schema can be null, as far as its types say.
func allowsNull(s *jsonschema.Schema) bool {
	s = resolve(s)
	return s == nil || s.Types == nil || slices.Contains(typesOf(s), "null")
}

// isNumber reports whether text is a number as JSON writes it, and nothing more.
func isNumber(text string) bool {
	if text == "" || !json.Valid([]byte(text)) {
		return false
	}
	first, last := text[0], text[len(text)-1]
	return (first == '-' || first >= '0' && first <= '9') && last >= '0' && last <= '9' && sensible(json.Number(text))
}

func coerceNumber(s *jsonschema.Schema, number json.Number) any {
	if !slices.Contains(typesOf(s), "integer") || !sensible(number) {
		return number
	}
	exact, ok := new(big.Rat).SetString(number.String())
	if !ok || !exact.IsInt() {
		return number
	}
	return json.Number(exact.Num().String())
}

func typesOf(s *jsonschema.Schema) []string {
	if s.Types == nil {
		return nil
	}
	return s.Types.ToStrings()
}
