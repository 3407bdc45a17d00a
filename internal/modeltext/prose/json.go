package prose

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"unicode/utf8"
)

// Where cutting JSON begins.
const (
	maxJSONString = 12_000 // characters
	maxJSONItems  = 500    // of arrays and objects
)

// FitJSON returns JSON text of at most [BodyLimit] characters: as it is, or with long strings,
// arrays and objects cut, and marks that say how much is missing. What is cut is JSON, too; the
// keys of its objects are sorted. An object that is cut also has the note at its top, unless that
// is "".
func FitJSON(text []byte, note string) string {
	if utf8.RuneCount(text) <= BodyLimit {
		return string(text)
	}
	var value any
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	if decoder.Decode(&value) == nil {
		for characters, items := maxJSONString, maxJSONItems; characters > 0; characters, items = characters/2, (items+1)/2 {
			if shorter := plainJSON(noted(cutJSON(value, characters, items), note)); utf8.RuneCount(shorter) <= BodyLimit {
				return string(shorter)
			}
		}
	}
	return string(plainJSON(noted(Clip(string(text), BodyLimit/3), note))) // quoting makes it longer
}

// noted puts a note into a value.
func noted(value any, note string) any {
	if note == "" {
		return value
	}
	switch value := value.(type) {
	case map[string]any:
		value["[cut]"] = note
		return value
	case []any:
		return append(value, "[cut: "+note+"]")
	case string:
		return value + " [cut: " + note + "]"
	default:
		return value
	}
}

// cutJSON returns value with no string longer than so many characters, and no array or
// object with more than so many items, but for the marks.
func cutJSON(value any, characters, items int) any {
	switch value := value.(type) {
	case string:
		return Head(value, characters)
	case []any:
		cut := make([]any, 0, min(len(value), items)+1)
		for _, item := range value[:min(len(value), items)] {
			cut = append(cut, cutJSON(item, characters, items))
		}
		if len(value) > items {
			cut = append(cut, fmt.Sprintf("[... and %d more of %d items]", len(value)-items, len(value)))
		}
		return cut
	case map[string]any:
		keys := slices.Sorted(maps.Keys(value))
		cut := make(map[string]any, min(len(keys), items)+1)
		for _, key := range keys[:min(len(keys), items)] {
			cut[Head(key, characters)] = cutJSON(value[key], characters, items)
		}
		if len(keys) > items {
			cut["[...]"] = fmt.Sprintf("and %d more of %d keys", len(keys)-items, len(keys))
		}
		return cut
	default:
		return value
	}
}

// plainJSON is encodeJSON of what was decoded from JSON.
func plainJSON(value any) []byte {
	text, err := JSON(value)
	if err != nil {
		return []byte("null")
	}
	return text
}

// JSON is [json.Marshal] without the escapes that are for HTML.
func JSON(v any) ([]byte, error) {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(out.Bytes(), []byte{'\n'}), nil
}
