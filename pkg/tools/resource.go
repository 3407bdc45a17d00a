package tools

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/toolfleet/toolfleet/internal/modeltext/modelpath"
	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Resource is a template of a resource key: its placeholders are filled from the arguments of each
// call.
//
//	account/{account}                 the argument, as one segment
//	sandbox/{$sandbox}/{path...}      the argument, as a path in the session's workspace
//	queue/{$session}                  the session's id
//	browser                           is not enough: a key has two segments or more
//
// An argument that is one segment is escaped, so "a/b" and ".." are names like any other, and a
// number is the same one however it is written. A path is put into canonical form, and one that
// leaves the workspace is refused. {user.id} reaches into an object. An argument that is missing
// cuts the key before its segment, which makes it broader and so safe; the first two segments, the
// lane, must not be missing. Keys that begin with "sandbox" are of the session's own sandbox only:
// sandbox/{$sandbox}. "session" and "call" are taken.
type Resource struct {
	Key string `json:"key" yaml:"key"`
	// Access is shared or exclusive; "" means exclusive.
	Access protocol.Access `json:"access,omitempty" yaml:"access"`
}

// Placeholders that are not arguments.
const (
	placeSandbox = "$sandbox"
	placeSession = "$session"
)

// resourceTemplate is a compiled [Resource].
type resourceTemplate struct {
	segments []keySegment
	access   protocol.Access
}

// keySegment is literal text and placeholders in turn: texts[0] names[0] texts[1] ...
type keySegment struct {
	texts []string
	names []string
	path  bool // the one placeholder is a path
}

var placeholder = regexp.MustCompile(`\{([^{}]*)\}`)

// compileResources checks templates: all are of one lane.
func compileResources(resources []Resource) ([]resourceTemplate, error) {
	if resources == nil {
		return nil, nil
	}
	templates := make([]resourceTemplate, 0, len(resources))
	var errs []error
	for i, r := range resources {
		compiled, err := compileResource(r)
		if err == nil && i > 0 && laneOf(r.Key) != laneOf(resources[0].Key) {
			err = fmt.Errorf("the first two segments must be %q, as in the first resource", laneOf(resources[0].Key))
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("invalid resource %q: %w", r.Key, err))
			continue
		}
		templates = append(templates, compiled)
	}
	if len(resources) > protocol.MaxUses {
		errs = append(errs, fmt.Errorf("invalid resource: %d are given, at most %d are allowed", len(resources), protocol.MaxUses))
	}
	return templates, errors.Join(errs...)
}

// laneOf is the part of a template that makes its lane.
func laneOf(key string) string {
	segments := strings.SplitN(key, "/", 3)
	return strings.Join(segments[:min(2, len(segments))], "/")
}

func compileResource(r Resource) (resourceTemplate, error) {
	t := resourceTemplate{access: r.Access}
	switch r.Access {
	case "":
		t.access = protocol.Exclusive
	case protocol.Shared, protocol.Exclusive:
	default:
		return t, fmt.Errorf("access %q: must be %q or %q", r.Access, protocol.Shared, protocol.Exclusive)
	}
	parts := strings.Split(r.Key, "/")
	if len(parts) < 2 {
		return t, errors.New("a key needs two segments or more, as in account/{account}")
	}
	for i, part := range parts {
		segment, err := compileSegment(part)
		if err != nil {
			return t, err
		}
		if segment.path && (i != len(parts)-1 || i < 2) {
			return t, fmt.Errorf("{%s...}: a path must be the last segment, behind the two of the lane", segment.names[0])
		}
		t.segments = append(t.segments, segment)
	}
	switch {
	case len(t.segments[0].names) > 0:
		return t, errors.New("the first segment says of what sort the resource is, and has no placeholder")
	case parts[0] == "session" || parts[0] == "call":
		return t, fmt.Errorf("keys that begin with %q are the fleet's own", parts[0])
	case parts[0] == "sandbox" && parts[1] != "{"+placeSandbox+"}":
		return t, fmt.Errorf("a tool uses the sandbox of its own session only: sandbox/{%s}", placeSandbox)
	}
	return t, nil
}

func compileSegment(part string) (keySegment, error) {
	segment := keySegment{texts: placeholder.Split(part, -1)}
	for _, found := range placeholder.FindAllStringSubmatch(part, -1) {
		name := found[1]
		if path, ok := strings.CutSuffix(name, "..."); ok {
			name, segment.path = path, true
		}
		if name == "" || strings.HasPrefix(name, "$") && name != placeSandbox && name != placeSession {
			return segment, fmt.Errorf("placeholder %q: must be the name of an argument, %s or %s", found[0], placeSandbox, placeSession)
		}
		segment.names = append(segment.names, name)
	}
	literal := strings.Join(segment.texts, "")
	switch {
	case part == "" || part == "." || part == "..":
		return segment, fmt.Errorf("segment %q: must have a name (\".\" and \"..\" are none)", part)
	case strings.ContainsAny(literal, "{}%\x00"):
		return segment, fmt.Errorf("segment %q: braces enclose placeholders, %% and NUL are not allowed", part)
	case segment.path && (len(segment.names) != 1 || literal != ""):
		return segment, fmt.Errorf("segment %q: a path stands alone", part)
	}
	return segment, nil
}

// missingFrom returns the placeholders of the lane that a schema does not require,
// and all placeholders that it does not know.
func (t resourceTemplate) missingFrom(schema map[string]any) (optional, unknown []string) {
	properties, _ := schema["properties"].(map[string]any)
	required, _ := schema["required"].([]any)
	for i, segment := range t.segments {
		for _, name := range segment.names {
			top, _, _ := strings.Cut(name, ".")
			_, known := properties[top]
			switch {
			case strings.HasPrefix(name, "$"):
			case !known:
				unknown = append(unknown, name)
			case i < 2 && !slices.Contains(required, any(top)):
				optional = append(optional, name)
			}
		}
	}
	return optional, unknown
}

// use fills the template.
func (t resourceTemplate) use(scope Scope, arguments map[string]any) (protocol.Use, *protocol.Error) {
	var parts []string
	for i, segment := range t.segments {
		if segment.path {
			return t.usePath(parts, segment.names[0], arguments)
		}
		part, missing := segment.fill(scope, arguments)
		if missing != "" && i < 2 {
			return protocol.Use{}, protocol.Errorf(protocol.CodeInvalidArguments, "%s: is required, but missing", missing)
		}
		if missing != "" {
			break
		}
		parts = append(parts, part)
	}
	return keyUse(strings.Join(parts, "/"), t.access)
}

func (t resourceTemplate) usePath(parts []string, name string, arguments map[string]any) (protocol.Use, *protocol.Error) {
	value, found := lookupArgument(arguments, name)
	raw, isText := value.(string)
	if found && !isText {
		return protocol.Use{}, protocol.Errorf(protocol.CodeInvalidArguments, "%s: must be a path, as a string", name)
	}
	path, refusal := modelpath.Path(raw)
	if refusal != nil {
		return protocol.Use{}, refusal
	}
	base := protocol.ResourceKey(strings.Join(parts, "/"))
	key, err := base.Join(path)
	if err != nil {
		return protocol.Use{}, protocol.Errorf(codes.InvalidPath, "The path %q cannot be used: %v.", prose.Short(path, 200), err)
	}
	return keyUse(string(key), t.access)
}

func keyUse(key string, access protocol.Access) (protocol.Use, *protocol.Error) {
	parsed, err := protocol.ParseResourceKey(key)
	if err != nil {
		return protocol.Use{}, protocol.Errorf(protocol.CodeInvalidArguments,
			"the arguments name a resource that cannot be (%v): use shorter or plainer ones", err)
	}
	return protocol.Use{Key: parsed, Access: access}, nil
}

// fill returns the segment, or the name of an argument that is missing.
func (s keySegment) fill(scope Scope, arguments map[string]any) (part, missing string) {
	var b strings.Builder
	b.WriteString(s.texts[0])
	for i, name := range s.names {
		switch name {
		case placeSandbox:
			b.WriteString(scope.Sandbox)
		case placeSession:
			b.WriteString(string(scope.Session))
		default:
			value, found := lookupArgument(arguments, name)
			if !found {
				return "", name
			}
			b.WriteString(escapeSegment(value))
		}
		b.WriteString(s.texts[i+1])
	}
	switch filled := b.String(); filled {
	case ".":
		return "%2E", ""
	case "..":
		return "%2E%2E", ""
	case "":
		return "%", "" // which no other argument becomes
	default:
		return filled, ""
	}
}

// lookupArgument finds an argument by its name, or by names joined with dots. null is missing.
func lookupArgument(arguments map[string]any, name string) (any, bool) {
	var value any = arguments
	for part := range strings.SplitSeq(name, ".") {
		object, ok := value.(map[string]any)
		if !ok {
			return nil, false
		}
		if value, ok = object[part]; !ok || value == nil {
			return nil, false
		}
	}
	return value, true
}

// escapeSegment makes one segment of a value, a different one for each, and the same one
// however a number is written.
func escapeSegment(value any) string {
	text, isText := value.(string)
	if !isText {
		encoded, err := prose.JSON(sameNumbers(value))
		if err != nil {
			encoded = []byte("?")
		}
		text = string(encoded)
	}
	return strings.NewReplacer("%", "%25", "/", "%2F", "\x00", "%00").Replace(prose.Valid(text))
}

// sameNumbers returns a value in which equal numbers are written in the same way: 1, 1.0 and
// 1e0 name one resource.
func sameNumbers(value any) any {
	switch value := value.(type) {
	case json.Number:
		return sameNumber(value)
	case []any:
		same := make([]any, len(value))
		for i := range value {
			same[i] = sameNumbers(value[i])
		}
		return same
	case map[string]any:
		same := make(map[string]any, len(value))
		for name, property := range value {
			same[name] = sameNumbers(property)
		}
		return same
	default:
		return value
	}
}

// sameNumber writes whole numbers as they are, and what has a fraction as the float64 that a
// program reads it as.
func sameNumber(number json.Number) json.Number {
	exact, ok := new(big.Rat).SetString(number.String())
	switch {
	case !ok:
		return number
	case exact.IsInt():
		return json.Number(exact.Num().String())
	}
	nearest, _ := exact.Float64()
	return json.Number(strconv.FormatFloat(nearest, 'g', -1, 64))
}
