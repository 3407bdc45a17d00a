package tools

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/internal/modeltext/argument"
	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/modeltext/render"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Revert is the tool call that undoes the effect of a call that ended ok. It is made when the
// result comes, and runs when a person rewinds the session with --revert.
type Revert struct {
	// Tool is the name of another tool of the session, whose calls run on workers.
	Tool string
	// Arguments is a JSON object whose texts may have placeholders: {account} is an argument of the
	// call, {order.id} a field of one, {result} what the call returned, {result.id} a field of it.
	// A text that is only a placeholder becomes the value. A call without one of them has no
	// revert.
	Arguments json.RawMessage
	// Func makes the arguments instead; a nil return value means that there is no revert. It is
	// pure.
	Func func(arguments json.RawMessage, result *protocol.Result) json.RawMessage
}

// resultPlace is the placeholder of what the call returned.
const resultPlace = "result"

// check returns the error of a tool's revert.
func (r *Revert) check(schema json.RawMessage) error {
	if r == nil {
		return nil
	}
	if r.Tool == "" {
		return errors.New("revert: tool: missing")
	}
	if (r.Func == nil) == (r.Arguments == nil) {
		return errors.New("revert: arguments: must be an object with the arguments of the tool that reverts")
	}
	if r.Func != nil {
		return nil
	}
	var object map[string]any
	if json.Unmarshal(r.Arguments, &object) != nil || object == nil {
		return fmt.Errorf("revert: arguments %s: must be an object", prose.Short(string(r.Arguments), 100))
	}
	var document struct {
		Properties map[string]any `json:"properties"`
	}
	_ = json.Unmarshal(schema, &document) // the table reports invalid JSON
	for _, found := range placeholder.FindAllStringSubmatch(string(r.Arguments), -1) {
		top, _, _ := strings.Cut(found[1], ".")
		if _, known := document.Properties[top]; isName(found[1]) && !known && top != resultPlace {
			return fmt.Errorf("revert: arguments: placeholder %s: must be %s", found[0],
				strings.Join(append(slices.Sorted(maps.Keys(document.Properties)), resultPlace), ", "))
		}
	}
	return nil
}

// isName reports whether a text in braces is a placeholder, not a part of JSON.
func isName(text string) bool { return text != "" && !strings.ContainsAny(text, "\" :,\n\t") }

// Reverted returns the name and the arguments of the call that undoes a call of the tool, which has
// ended ok; ok is false when there is none. The tool is one that [Table.Plan] returned.
func (t *Tool) Reverted(result *protocol.Result) (name string, arguments json.RawMessage, ok bool) {
	if t == nil || t.Revert == nil || result == nil || result.Status != protocol.StatusOK {
		return "", nil, false
	}
	defer func() {
		if recover() != nil { // it is code of the tool
			ok = false
		}
	}()
	if t.Revert.Func != nil {
		arguments = t.Revert.Func(json.RawMessage(t.arguments), result)
		return t.Revert.Tool, arguments, arguments != nil
	}
	values, err := argument.Decode(json.RawMessage(t.arguments))
	if err != nil {
		return "", nil, false
	}
	values[resultPlace] = render.Output(result)
	template, err := argument.Decode(t.Revert.Arguments)
	if err != nil {
		return "", nil, false
	}
	filled, ok := fillValue(template, values)
	if !ok {
		return "", nil, false
	}
	arguments, err = prose.JSON(filled)
	return t.Revert.Tool, arguments, err == nil
}

// fillValue replaces the placeholders of a value; ok is false when one has no value.
func fillValue(template any, values map[string]any) (filled any, ok bool) {
	switch template := template.(type) {
	case map[string]any:
		object := make(map[string]any, len(template))
		for name, property := range template {
			if object[name], ok = fillValue(property, values); !ok {
				return nil, false
			}
		}
		return object, true
	case []any:
		list := make([]any, len(template))
		for i := range template {
			if list[i], ok = fillValue(template[i], values); !ok {
				return nil, false
			}
		}
		return list, true
	case string:
		return fillText(template, values)
	default:
		return template, true
	}
}

func fillText(template string, values map[string]any) (filled any, ok bool) {
	if found := placeholder.FindString(template); found == template && found != "" && isName(found[1:len(found)-1]) {
		return lookupArgument(values, found[1:len(found)-1])
	}
	ok = true
	text := placeholder.ReplaceAllStringFunc(template, func(found string) string {
		name := found[1 : len(found)-1]
		value, has := lookupArgument(values, name)
		if !isName(name) {
			return found
		}
		ok = ok && has
		if text, is := value.(string); is {
			return text
		}
		encoded, _ := prose.JSON(value) // it was JSON
		return string(encoded)
	})
	return text, ok
}
