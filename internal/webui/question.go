package webui

import (
	"bytes"
	"encoding/json"
	"fmt"
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
	Choices                           []string
	Required                          bool
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
		var p struct {
			Type        string `json:"type"`
			Title       string `json:"title"`
			Description string `json:"description"`
			Default     any    `json:"default"`
			Enum        []any  `json:"enum"`
		}
		if err := decoder.Decode(&p); err != nil {
			return nil, err
		}
		made := property{Name: fmt.Sprint(name), Kind: p.Type, Label: p.Title, About: p.Description, Required: required[fmt.Sprint(name)]}
		if p.Default != nil {
			made.Default = fmt.Sprint(p.Default)
		}
		for _, choice := range p.Enum {
			made.Choices = append(made.Choices, fmt.Sprint(choice))
		}
		switch made.Kind {
		case "string", "number", "integer", "boolean":
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
