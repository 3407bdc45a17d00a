package manifest

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/toolfleet/toolfleet/internal/system/yamlfile"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

var (
	inSchema  = regexp.MustCompile(`at '([^']*)': (.*)`)
	quoted    = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)
	inBraces  = regexp.MustCompile(`\{([^{}]*)\}`)
	ofNatives = regexp.MustCompile(`^native\.([^:]*):`)
)

// table reports what NewTable of package tools says about the tool, each error at the place that
// it is about.
func (m *parser) table(name string, err error) {
	if err == nil {
		return
	}
	blame := fmt.Sprintf("invalid tool %q: ", name) // before the first of the errors that are joined
	for line := range strings.SplitSeq(err.Error(), "\n") {
		message := strings.TrimPrefix(line, blame)
		_, input, isInput := strings.Cut(message, "input: ")
		switch {
		case isInput:
			m.schema("input", "/properties/input", strings.Split(input, "; "))
		case inSchema.MatchString(message), strings.Contains(message, metaschema):
			m.schema("parameters", "", []string{message})
		default:
			m.problem(m.lineOf(message), "%s", strings.Replace(message, "schema: ", "parameters: ", 1))
		}
	}
	if len(m.problems) == 0 {
		m.problem(0, "%v", err)
	}
}

// invalidResource begins what package tools says about a resource.
const invalidResource = "invalid resource"

// metaschema is in the line before the errors of a schema.
const metaschema = "is not valid against metaschema"

// schema reports errors of the schema in a field. below is where the schema is in the one
// that was compiled.
func (m *parser) schema(field, below string, errs []string) {
	for _, text := range errs {
		found := inSchema.FindStringSubmatch(text)
		switch {
		case strings.Contains(text, metaschema), found != nil && (found[2] == "validation failed" || strings.HasSuffix(found[2], "Of' failed")):
			// what failed there has its own line
		case found == nil:
			m.problem(m.lines[field], "%s: %s", field, strings.TrimPrefix(text, "schema: "))
		default:
			pointer := strings.TrimPrefix(found[1], below)
			m.problem(yamlfile.At(m.top, "/"+field+pointer).Line, "%s: at %q: %s", field, pointer, found[2])
		}
	}
}

// lineOf is the line of the place that an error is about, or of the field.
func (m *parser) lineOf(message string) int {
	if found := ofNatives.FindStringSubmatch(message); found != nil {
		return m.entryLine("native", found[1])
	}
	word, rest, _ := strings.Cut(message, " ")
	switch word = strings.TrimSuffix(word, ":"); {
	case word == "schema":
		word = "parameters"
	case word == "resources", strings.Contains(message, invalidResource):
		return m.resourceLine(message)
	case word == "env":
		if name, err := strconv.Unquote(quoted.FindString(rest)); err == nil {
			return m.entryLine("env", name)
		}
	case strings.Contains(message, wire.ErrInvalidKind.Error()):
		word = "handler"
	case strings.HasPrefix(message, protocol.ErrInvalidName.Error()):
		word = "pool"
	}
	return max(m.lines[word], 1)
}

// entryLine is the line of a name in the mapping of a field, or of the field.
func (m *parser) entryLine(field, name string) int {
	if mapping := yamlfile.Child(m.top, field); mapping != nil {
		for key := range yamlfile.Pairs(mapping) {
			if key.Value == name {
				return key.Line
			}
		}
	}
	return max(m.lines[field], 1)
}

// resourceLine is the line of the resource that an error is about, or of all: of the first
// whose key is named, or has the placeholder that is. A error of its access has that line.
func (m *parser) resourceLine(message string) int {
	list := yamlfile.Child(m.top, "resources")
	if list == nil {
		return 1
	}
	about := func(key string) bool {
		return strings.Contains(message, invalidResource+" "+strconv.Quote(key)+":") || strings.HasPrefix(message, "resources: "+key+":")
	}
	if name := inBraces.FindString(message); strings.HasPrefix(message, invalidResource+": {") {
		open := strings.TrimSuffix(name, "}")
		about = func(key string) bool { return strings.Contains(key, name) || strings.Contains(key, open+"...}") }
	}
	for _, item := range list.Content {
		key := yamlfile.Child(item, "key")
		if key == nil || !about(key.Value) {
			continue
		}
		access := yamlfile.Child(item, "access")
		if access != nil && (strings.Contains(message, ": access ") || strings.HasPrefix(message, "resources: ")) {
			return access.Line
		}
		return key.Line
	}
	return m.lines["resources"]
}
