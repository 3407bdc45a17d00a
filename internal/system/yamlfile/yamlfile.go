// Package yamlfile reads YAML that people write: manifests, policies, settings, cases, and the
// front matter of Markdown. Fields that do not exist are errors, and every error has its line and
// speaks of YAML, not of Go.
package yamlfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/toolfleet/toolfleet/internal/system/regular"
)

// Error is an error of a line. Unmarshalers of fields may return one as their error.
type Error struct {
	Line    int // from 1; 0 when no line is to blame
	Message string
}

// Error implements the error interface.
func (e Error) Error() string { return fmt.Sprintf("line %d: %s", e.Line, e.Message) }

// FieldError is an error of a field, found without the lines of the document.
type FieldError struct {
	At      string // the field, as a JSON pointer: see [At]
	Message string // what is wrong, and what is allowed
}

// Error implements the error interface.
func (e FieldError) Error() string { return e.Message }

// Mapping reads a document that is one mapping; root is nil if it is empty.
func Mapping(content []byte) (root *yaml.Node, errs []Error) {
	decoder := yaml.NewDecoder(bytes.NewReader(content))
	var document yaml.Node
	switch err := decoder.Decode(&document); {
	case errors.Is(err, io.EOF):
		return nil, nil
	case err != nil:
		return nil, translated(err, nil)
	case len(document.Content) != 1 || document.Content[0].Kind != yaml.MappingNode:
		return nil, []Error{{Line: 1, Message: "must be a mapping"}}
	}
	return document.Content[0], oneDocument(decoder)
}

func oneDocument(decoder *yaml.Decoder) []Error {
	if err := decoder.Decode(&yaml.Node{}); !errors.Is(err, io.EOF) {
		return []Error{{Message: "has more than one document"}}
	}
	return nil
}

// Decode reads one YAML document into a struct and returns every error.
func Decode(content []byte, into any) []Error {
	decoder := yaml.NewDecoder(bytes.NewReader(content))
	decoder.KnownFields(true)
	if err := decoder.Decode(into); err != nil && !errors.Is(err, io.EOF) {
		return translated(err, reflect.TypeOf(into).Elem())
	}
	return oneDocument(decoder)
}

// Fields returns the names of the fields of a struct, in order.
func Fields(t reflect.Type) []string {
	names := make([]string, 0, t.NumField())
	for field := range t.Fields() {
		if !field.IsExported() && !field.Anonymous {
			continue
		}
		if tag := field.Tag.Get("yaml"); tag == ",inline" {
			names = append(names, Fields(field.Type)...)
		} else {
			names = append(names, tag)
		}
	}
	return names
}

var (
	atLine       = regexp.MustCompile(`^(?:yaml: )?line (\d+): (.*)$`)
	unknownField = regexp.MustCompile(`^field (.*) not found in type (\S+)$`)
	notThatType  = regexp.MustCompile("^cannot unmarshal !!(\\w+)(?: (`.*`))? into (.*)$")
	// lineBefore are the errors of the library's parser, which counts lines from 0 there.
	lineBefore = regexp.MustCompile(`^did not find expected (<|node content|'-' indicator|key$|',' or )`)
)

// translated is an error of the YAML library about a document that is read into a struct; nil is
// a document without one.
func translated(err error, document reflect.Type) []Error {
	if own, is := errors.AsType[Error](err); is {
		return []Error{own}
	}
	messages := []string{err.Error()}
	if typed, is := errors.AsType[*yaml.TypeError](err); is {
		messages = typed.Errors
	}
	errs := make([]Error, 0, len(messages))
	for _, message := range messages {
		line := 1 // of which the library does not speak
		if found := atLine.FindStringSubmatch(message); found != nil {
			line, _ = strconv.Atoi(found[1]) // digits
			if message = found[2]; lineBefore.MatchString(message) {
				line++
			}
		}
		if found := unknownField.FindStringSubmatch(message); found != nil {
			message = fmt.Sprintf("there is no field %q; the fields are %s", found[1], strings.Join(Fields(part(document, found[2])), ", "))
		} else if found := notThatType.FindStringSubmatch(message); found != nil {
			message = written(found[1], found[2]) + " is not what belongs here: " + wanted(found[3])
		}
		errs = append(errs, Error{Line: line, Message: strings.TrimPrefix(message, "yaml: ")})
	}
	return errs
}

// part returns the struct in a document, also in lists, mappings and pointers in it, that has this
// name in Go; else the document.
func part(document reflect.Type, name string) reflect.Type {
	for field := range document.Fields() {
		t := field.Type
		for t.Kind() == reflect.Slice || t.Kind() == reflect.Map || t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		if t.Kind() != reflect.Struct || t == reflect.TypeFor[yaml.Node]() {
			continue
		}
		if t.String() == name {
			return t
		}
		if inner := part(t, name); inner != t {
			return inner
		}
	}
	return document
}

// written names what stands in the document, by its tag and text.
func written(tag, text string) string {
	switch tag {
	case "seq":
		return "a list"
	case "map":
		return "a mapping"
	default:
		return text
	}
}

// wanted says what a Go type is in YAML.
func wanted(goType string) string {
	switch {
	case strings.HasPrefix(goType, "map[string]int"):
		return "it must be a mapping of names to whole numbers"
	case strings.HasPrefix(goType, "map[") && !strings.Contains(goType, "."):
		return "it must be a mapping of names to texts"
	case strings.HasPrefix(goType, "[]"):
		return "it must be a list"
	case goType == "time.Duration":
		return "it must be a time such as 90s or 2m"
	case goType == "bool":
		return "it must be true or false"
	case goType == "int":
		return "it must be a whole number"
	case strings.Contains(goType, "."):
		return "it must be a mapping of fields"
	default:
		return "it must be a text"
	}
}

// MaxFront bounds the size of a file with front matter, in bytes.
const MaxFront = 256 << 10

// FrontMatter reads a Markdown file: the YAML between its first two lines of --- into fields, of
// which unknown ones are ignored, and the text below. It reads what other programs accept, too: a
// byte order mark, and values with a colon that are not quoted. Errors name the line.
func FrontMatter(path string, fields any) (text string, err error) {
	content, err := regular.Read(path, MaxFront)
	if err != nil {
		return "", errors.Unwrap(err)
	}
	content = bytes.ReplaceAll(bytes.TrimPrefix(content, []byte("\uFEFF")), []byte("\r\n"), []byte("\n"))
	head, body, ok := bytes.Cut(bytes.TrimPrefix(append(content, '\n'), []byte("---")), []byte("\n---\n"))
	if !bytes.HasPrefix(content, []byte("---\n")) || !ok {
		return "", errors.New("line 1: must begin with front matter: a line ---, fields such as name and description, a line ---")
	}
	if err := yaml.Unmarshal(head, fields); err != nil && yaml.Unmarshal(quoted(head), fields) != nil {
		return "", fmt.Errorf("front matter: %w", err)
	}
	return strings.TrimSpace(string(body)), nil
}

// plainValue is a line of a field with a value that YAML reads as something else than a text: one
// with a colon in it, or with a mark at its beginning.
var plainValue = regexp.MustCompile("(?m)^([A-Za-z][\\w-]*:) +([*&!@%`].*|[^\\s\"'\\[{|>#].*(?:: .*|:))$")

// quoted quotes such values.
func quoted(head []byte) []byte {
	return plainValue.ReplaceAllFunc(head, func(line []byte) []byte {
		field := plainValue.FindSubmatch(line)
		return fmt.Appendf(nil, "%s '%s'", field[1], bytes.ReplaceAll(field[2], []byte("'"), []byte("''")))
	})
}
