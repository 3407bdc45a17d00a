package webui

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// questionForm is the form that answers a question of a tool.
type questionForm struct {
	Session protocol.SessionID
	Call    protocol.CallID
	Pool    protocol.Pool
	ID      string
	Message string
	Key     string
	To      string
	Fields  []property
	JSON    bool // the schema is not one of plain properties: the answer is written as JSON
	Schema  string
}

// property is one of an answer.
type property struct {
	Name, Kind, Label, About, Default string
	Choices                           []choice
	Required                          bool
}

// schemaOf is the schema of a property, as far as forms have it.
type schemaOf struct {
	Type        string     `json:"type"`
	Title       string     `json:"title"`
	Description string     `json:"description"`
	Default     any        `json:"default"`
	Enum        []any      `json:"enum"`
	EnumNames   []string   `json:"enumNames"` //nolint:tagliatelle // as JSON Schema names it
	OneOf       []constant `json:"oneOf"`     //nolint:tagliatelle // as JSON Schema names it
	AnyOf       []constant `json:"anyOf"`     //nolint:tagliatelle // as JSON Schema names it
	Items       *schemaOf  `json:"items"`
}

// constant is a choice with a title.
type constant struct {
	Const any    `json:"const"`
	Title string `json:"title"`
}

// choices are what a property may be, or each item of it.
func (s *schemaOf) choices(chosen ...any) (list []choice) {
	add := func(value any, word string) {
		list = append(list, choice{fmt.Sprint(value), cmp.Or(strings.TrimSpace(word), fmt.Sprint(value)), slices.Contains(chosen, value)})
	}
	for i, value := range s.Enum {
		word := ""
		if i < len(s.EnumNames) {
			word = s.EnumNames[i]
		}
		add(value, word)
	}
	for _, one := range slices.Concat(s.OneOf, s.AnyOf) {
		if _, is := one.Const.(string); !is {
			return nil // it is a schema of its own
		}
		add(one.Const, one.Title)
	}
	return list
}

// maxFields bounds how many properties a form shows.
const maxFields = 30

// formOf makes the form of a question: a field for each property of its schema.
func formOf(session protocol.SessionID, call protocol.CallID, pool protocol.Pool, q *protocol.Question, key, to string) *questionForm {
	f := &questionForm{Session: session, Call: call, Pool: pool, ID: q.ID, Message: q.Message, Key: key, To: to, Schema: pretty(string(q.Schema))}
	if len(q.Schema) == 0 {
		return f
	}
	var schema struct {
		Properties json.RawMessage `json:"properties"`
		Required   []string        `json:"required"`
	}
	if json.Unmarshal(q.Schema, &schema) != nil || len(schema.Properties) == 0 {
		f.JSON = true
		return f
	}
	required := map[string]bool{}
	for _, name := range schema.Required {
		required[name] = true
	}
	var err error
	if f.Fields, err = fieldsOf(schema.Properties, required); err != nil {
		f.Fields, f.JSON = nil, true
	}
	return f
}

// fieldsOf reads the properties of a schema in their order.
func fieldsOf(properties json.RawMessage, required map[string]bool) (fields []property, err error) {
	decoder := json.NewDecoder(bytes.NewReader(properties))
	if _, err := decoder.Token(); err != nil {
		return nil, err
	}
	for decoder.More() {
		name, err := decoder.Token()
		if err != nil {
			return nil, err
		}
		var p schemaOf
		if err := decoder.Decode(&p); err != nil {
			return nil, err
		}
		made := property{Name: fmt.Sprint(name), Kind: p.Type, Label: p.Title, About: p.Description, Required: required[fmt.Sprint(name)]}
		switch {
		case p.Type == "array" && p.Items != nil && p.Items.Type == "string":
			chosen, _ := p.Default.([]any)
			made.Choices = p.Items.choices(chosen...)
		case p.Default != nil:
			made.Default = fmt.Sprint(p.Default)
			fallthrough
		default:
			made.Choices = p.choices(p.Default)
		}
		switch made.Kind {
		case "string", "number", "integer", "boolean":
		case "array":
			if len(made.Choices) > 0 {
				break
			}
			fallthrough
		default:
			return nil, fmt.Errorf("property %s has the type %q", made.Name, made.Kind)
		}
		if strings.TrimSpace(made.Label) == "" {
			made.Label = made.Name
		}
		if fields = append(fields, made); len(fields) > maxFields {
			return nil, fmt.Errorf("more than %d properties", maxFields)
		}
	}
	return fields, nil
}
