package prompt

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/toolfleet/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Fill asks the person for what a running tool asks: first yes or no, then each field. What the
// model asks is one line.
func (q *Prompt) Fill(ctx context.Context, tool string, asked *protocol.Question) (protocol.Answer, error) {
	end, err := q.begin(ctx)
	if err != nil {
		return protocol.Answer{}, err
	}
	defer end()
	answer := protocol.Answer{Question: asked.ID, Action: protocol.ActionDecline, By: UserName()}
	var schema jsonschema.Schema
	if len(asked.Schema) > 0 {
		if err := json.Unmarshal(asked.Schema, &schema); err != nil {
			return answer, fmt.Errorf("what %s asks: %w", tool, err)
		}
	}
	if tool == wire.AskUserTool && schema.Properties["answer"] != nil {
		return q.answer(ctx, asked, schema.Properties["answer"], answer)
	}
	line, err := q.ask(ctx, terminal.Question{
		Reason: "the tool asks you", Tool: tool, Arguments: asked.Message, Answers: "Answer it? y: yes; anything else is no:",
	})
	if err != nil {
		return answer, err
	}
	if answered, _ := parseAnswer(line); !answered.Granted {
		return answer, nil
	}
	content := map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(schema.Properties)) {
		value, err := q.field(ctx, name, schema.Properties[name], slices.Contains(schema.Required, name))
		if err != nil {
			return answer, err
		}
		if value != nil {
			content[name] = value
		}
	}
	answer.Action = protocol.ActionAccept
	answer.Content, err = json.Marshal(content)
	return answer, err
}

// answer asks the person for the one field of a question of the model.
func (q *Prompt) answer(ctx context.Context, asked *protocol.Question, schema *jsonschema.Schema, answer protocol.Answer) (protocol.Answer, error) {
	names := choices(schema)
	for {
		line, err := q.ask(ctx, terminal.Question{
			Reason: "the model asks you", Tool: wire.AskUserTool, Arguments: asked.Message, Answers: "Answer, " + hintOf(schema) + "; an empty line declines:",
		})
		line = strings.TrimSpace(line)
		switch {
		case err != nil || line == "":
			return answer, err
		case len(names) > 0 && !slices.Contains(names, line):
			q.screen.Notice("answer: must be one of %s", strings.Join(names, ", "))
			continue
		}
		answer.Action = protocol.ActionAccept
		answer.Content, err = json.Marshal(map[string]string{"answer": line})
		return answer, err
	}
}

// field asks for a field until the answer is valid; nil means the default, or no value.
func (q *Prompt) field(ctx context.Context, name string, schema *jsonschema.Schema, required bool) (any, error) {
	title := name
	if schema.Title != "" && schema.Title != name {
		title += " (" + schema.Title + ")"
	}
	hint := hintOf(schema)
	switch {
	case schema.Default != nil:
		hint += "; an empty line is " + string(schema.Default)
	case !required:
		hint += "; optional"
	}
	resolved, err := schema.Resolve(nil)
	if err != nil {
		return nil, fmt.Errorf("field %s: %w", name, err)
	}
	for {
		line, err := q.ask(ctx, terminal.Question{Reason: "field", Tool: title, Arguments: schema.Description, Answers: hint + ":"})
		if err != nil {
			return nil, err
		}
		line = strings.TrimSpace(line)
		if line == "" && (schema.Default != nil || !required) {
			return nil, nil //nolint:nilnil // as the comment says
		}
		value, err := valueOf(schema, line)
		if err == nil {
			err = resolved.Validate(value)
		}
		if err == nil {
			return value, nil
		}
		q.screen.Notice("%s: %v", name, err)
	}
}

// hintOf says what may be typed.
func hintOf(schema *jsonschema.Schema) string {
	if names := choices(schema); len(names) > 0 {
		return "one of " + strings.Join(names, ", ")
	}
	switch schema.Type {
	case "boolean":
		return "y or n"
	case "array":
		if schema.Items != nil {
			return "any of " + strings.Join(choices(schema.Items), ", ") + ", with commas between them"
		}
		return "a list, with commas between"
	case "number", "integer":
		return "a " + map[string]string{"number": "number", "integer": "whole number"}[schema.Type]
	default:
		return "a text"
	}
}

// choices are the allowed values of a field, if its schema lists them.
func choices(schema *jsonschema.Schema) (names []string) {
	for _, value := range schema.Enum {
		names = append(names, fmt.Sprint(value))
	}
	for _, one := range slices.Concat(schema.OneOf, schema.AnyOf) {
		if one.Const != nil {
			names = append(names, fmt.Sprint(*one.Const))
		}
	}
	return names
}

// valueOf parses a line as the value of a field.
func valueOf(schema *jsonschema.Schema, line string) (any, error) {
	switch schema.Type {
	case "boolean":
		switch strings.ToLower(line) {
		case "y", "yes", "true":
			return true, nil
		case "n", "no", "false":
			return false, nil
		}
		return nil, errors.New("must be y or n")
	case "number", "integer":
		value, err := strconv.ParseFloat(line, 64)
		if err != nil {
			return nil, errors.New("must be a number")
		}
		return value, nil
	case "array":
		list := []any{}
		for one := range strings.SplitSeq(line, ",") {
			if one = strings.TrimSpace(one); one != "" {
				list = append(list, one)
			}
		}
		return list, nil
	default:
		return line, nil
	}
}
