package files

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// ReadJSON implements [sandbox.FS].
func (f *FS) ReadJSON(ctx context.Context, req sandbox.ReadJSONRequest) (sandbox.ReadJSONResult, error) {
	name, err := f.reach(req.Path, reading)
	if err != nil {
		return sandbox.ReadJSONResult{}, err
	}
	result, err := f.readJSON(ctx, name, req.Query)
	if err != nil {
		return sandbox.ReadJSONResult{}, f.fault("read", name, err)
	}
	return result, nil
}

func (f *FS) readJSON(ctx context.Context, name, query string) (sandbox.ReadJSONResult, error) {
	var result sandbox.ReadJSONResult
	steps, err := pointer(query)
	if err != nil {
		return result, err
	}
	content, _, err := f.load(ctx, name, os.O_RDONLY)
	if err != nil {
		return result, err
	}
	document, err := parseDocument(name, content)
	if err != nil {
		return result, err
	}
	at, err := document.find(steps)
	if err != nil {
		return result, err
	}
	value := content[at.start:at.end]
	result = sandbox.ReadJSONResult{
		Value: value, Type: jsonType(value), Length: len(document.members(at)), Size: int64(len(content)), SHA256: digest(content),
	}
	return result, nil
}

// WriteJSON implements [sandbox.FS].
func (f *FS) WriteJSON(ctx context.Context, req sandbox.WriteJSONRequest) (sandbox.WriteResult, error) {
	name, err := f.reach(req.Path, writing)
	if err != nil {
		return sandbox.WriteResult{}, err
	}
	steps, err := pointer(req.Query)
	if err != nil {
		return sandbox.WriteResult{}, err
	}
	if !json.Valid(req.Content) {
		return sandbox.WriteResult{}, sandbox.Faultf(sandbox.FaultInvalidJSON, "the new content is not JSON; nothing was changed")
	}
	result, err := f.write(ctx, name, req.Expect, func(file current) ([]byte, error) {
		after, err := replaceJSON(name, file, steps, bytes.TrimSpace(req.Content))
		if err == nil && len(after) > sandbox.MaxFileSize {
			err = tooLarge(name, int64(len(after)), sandbox.MaxFileSize)
		}
		return after, err
	})
	if err != nil {
		return sandbox.WriteResult{}, f.fault("write", name, err)
	}
	return result, nil
}

// replaceJSON returns the document with value at a place, and nothing else changed.
func replaceJSON(name string, file current, steps []string, value []byte) ([]byte, error) {
	if len(steps) == 0 {
		return append(indent(value, "", indentUnit(file.content, "  ")), '\n'), nil
	}
	switch {
	case !file.exists:
		return nil, fs.ErrNotExist
	case file.oversize != nil:
		return nil, file.oversize
	}
	document, err := parseDocument(name, file.content)
	if err != nil {
		return nil, err
	}
	at, err := document.find(steps)
	if err == nil {
		unit := indentUnit(file.content, "")
		return splice(file.content, at, indent(value, lineIndent(file.content, at.start), unit)), nil
	}
	parent, parentErr := document.find(steps[:len(steps)-1])
	if parentErr != nil {
		return nil, parentErr
	}
	return document.insert(parent, steps[len(steps)-1], value, err)
}

// document is the text of a JSON document that is valid.
type document struct {
	name string
	text []byte
}

// span is where a value stands in the text.
type span struct{ start, end int }

// member is a value of an object, or of an array, where it has no key.
type member struct {
	key string
	at  span
}

func parseDocument(name string, text []byte) (*document, error) {
	if err := json.Unmarshal(text, new(json.RawMessage)); err != nil {
		where := ""
		if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
			where = fmt.Sprintf(" at line %d", lineAt(text, min(int(syntax.Offset), len(text))))
		}
		return nil, sandbox.Faultf(sandbox.FaultInvalidJSON, "%q is not valid JSON%s: %v; nothing was changed", name, where, err)
	}
	return &document{name: name, text: text}, nil
}

// find returns where the value is to which the steps lead.
func (d *document) find(steps []string) (span, error) {
	at := d.trim(span{0, len(d.text)})
	for i, step := range steps {
		next, ok := d.member(at, step)
		if !ok {
			return span{}, d.missing(at, steps, i)
		}
		at = next
	}
	return at, nil
}

func (d *document) member(at span, step string) (span, bool) {
	members := d.members(at)
	if d.text[at.start] == '[' {
		i, ok := index(step)
		if !ok || i >= len(members) {
			return span{}, false
		}
		return members[i].at, true
	}
	found := false
	for _, m := range members { // the last of several with one key counts, as in most parsers
		if m.key == step {
			at, found = m.at, true
		}
	}
	return at, found
}

// members are the values in an object or array, in their order; none of other values.
func (d *document) members(at span) []member {
	decoder := json.NewDecoder(bytes.NewReader(d.text[at.start:at.end]))
	open, err := decoder.Token()
	if _, nested := open.(json.Delim); err != nil || !nested {
		return nil
	}
	var members []member
	for decoder.More() {
		var m member
		if open == json.Delim('{') {
			key, err := decoder.Token()
			if err != nil {
				return nil
			}
			m.key, _ = key.(string)
		}
		var value json.RawMessage
		if decoder.Decode(&value) != nil {
			return nil
		}
		end := at.start + int(decoder.InputOffset())
		m.at = span{end - len(value), end}
		members = append(members, m)
	}
	return members
}

func (d *document) trim(at span) span {
	for at.start < at.end && isSpace(d.text[at.start]) {
		at.start++
	}
	for at.end > at.start && isSpace(d.text[at.end-1]) {
		at.end--
	}
	return at
}

func isSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\n' || c == '\r' }

// missing is the fault of steps of which the one at i leads nowhere.
func (d *document) missing(at span, steps []string, i int) error {
	where := "the document"
	if i > 0 {
		where = fmt.Sprintf("%q", "/"+strings.Join(steps[:i], "/"))
	}
	kind := jsonType(d.text[at.start:at.end])
	what := fmt.Sprintf("%s is a %s and has nothing in it", where, kind)
	switch members := d.members(at); kind {
	case "array":
		what = fmt.Sprintf("%s is an array of %d items, and %q is none of them", where, len(members), steps[i])
	case "object":
		what = fmt.Sprintf("%s has no key %q", where, steps[i])
		if len(members) > 0 {
			what += "; it has " + someKeys(members)
		}
	}
	return sandbox.Faultf(sandbox.FaultNotFound, "%q: %s", d.name, what)
}

func someKeys(members []member) string {
	const shown = 20
	var keys []string
	for _, m := range members[:min(len(members), shown)] {
		keys = append(keys, strconv.Quote(shorten(m.key)))
	}
	if len(members) > shown {
		keys = append(keys, fmt.Sprintf("and %d more", len(members)-shown))
	}
	return strings.Join(keys, ", ")
}

// pointer splits a JSON pointer (RFC 6901) into its steps.
func pointer(query string) ([]string, error) {
	if query == "" {
		return nil, nil
	}
	if query[0] != '/' || !utf8.ValidString(query) {
		return nil, sandbox.Faultf(sandbox.FaultArguments,
			`the query %q is no JSON pointer: it must be empty, or text that starts with a slash, as in "/dependencies/react" or "/items/0"`, shorten(query))
	}
	steps := strings.Split(query[1:], "/")
	for i, step := range steps {
		steps[i] = strings.NewReplacer("~1", "/", "~0", "~").Replace(step)
	}
	return steps, nil
}

// index reads the step into an array: digits without a leading zero.
func index(step string) (int, bool) {
	if step == "" || len(step) > 9 || step[0] == '0' && step != "0" || strings.Trim(step, "0123456789") != "" {
		return 0, false
	}
	i, err := strconv.Atoi(step)
	return i, err == nil
}

// jsonType names the type of JSON text.
func jsonType(value []byte) string {
	switch value[0] {
	case '{':
		return "object"
	case '[':
		return "array"
	case '"':
		return "string"
	case 't', 'f':
		return "boolean"
	case 'n':
		return "null"
	default:
		return "number"
	}
}
