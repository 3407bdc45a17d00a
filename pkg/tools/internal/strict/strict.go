// Package strict reads YAML that people write: fields that do not exist are faults, and
// every fault has its line and speaks of YAML, not of Go.
package strict

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
)

// Fault is what is wrong with a line. Unmarshalers of fields may return one as their error.
type Fault struct { //nolint:errname // "fault" is the word for it
	Line    int // from 1; 0 when no line is to blame
	Message string
}

// Error implements the error interface.
func (f Fault) Error() string { return fmt.Sprintf("line %d: %s", f.Line, f.Message) }

// Decode reads one YAML document into a struct and returns every fault.
func Decode(content []byte, into any) []Fault {
	decoder := yaml.NewDecoder(bytes.NewReader(content))
	decoder.KnownFields(true)
	var faults []Fault
	if err := decoder.Decode(into); err != nil && !errors.Is(err, io.EOF) {
		faults = Faults(err, reflect.TypeOf(into).Elem())
	}
	if err := decoder.Decode(&yaml.Node{}); !errors.Is(err, io.EOF) && len(faults) == 0 {
		faults = append(faults, Fault{Message: "has more than one document"})
	}
	return faults
}

// Fields returns the names of the fields of a struct, in order.
func Fields(t reflect.Type) []string {
	names := make([]string, t.NumField())
	for i := range names {
		names[i] = t.Field(i).Tag.Get("yaml")
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

// Faults translates an error of the YAML library about a document that is read into a struct.
func Faults(err error, document reflect.Type) []Fault {
	if own, is := errors.AsType[Fault](err); is {
		return []Fault{own}
	}
	messages := []string{err.Error()}
	if typed, is := errors.AsType[*yaml.TypeError](err); is {
		messages = typed.Errors
	}
	faults := make([]Fault, 0, len(messages))
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
		faults = append(faults, Fault{Line: line, Message: strings.TrimPrefix(message, "yaml: ")})
	}
	return faults
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
