package yamlfile

import (
	"bytes"
	"encoding/json"
	"fmt"
	"iter"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Bounds of a value as JSON: they stop documents that are small and unfold to be huge. A manifest
// that repeats nothing has fewer bytes, however its texts are escaped.
const (
	maxNodes = 20_000
	maxDepth = 64
	maxJSON  = 2 << 20 // bytes before the last text
)

// Pairs are the keys and values of a mapping; other nodes have none.
func Pairs(node *yaml.Node) iter.Seq2[*yaml.Node, *yaml.Node] {
	return func(yield func(key, value *yaml.Node) bool) {
		for i := 0; node.Kind == yaml.MappingNode && i+1 < len(node.Content); i += 2 {
			if !yield(node.Content[i], node.Content[i+1]) {
				return
			}
		}
	}
}

// JSON writes a YAML node as JSON, its properties in the order in which they are written. The error
// is an [Error].
func JSON(node *yaml.Node) (json.RawMessage, error) {
	w := &jsonWriter{}
	if err := w.write(node, 0); err != nil {
		return nil, err
	}
	return w.out.Bytes(), nil
}

type jsonWriter struct {
	out   bytes.Buffer
	nodes int
}

func (w *jsonWriter) write(node *yaml.Node, depth int) error {
	if w.nodes++; w.nodes > maxNodes || depth > maxDepth {
		return Error{Line: node.Line, Message: fmt.Sprintf("more than %d values or %d levels", maxNodes, maxDepth)}
	}
	if w.out.Len() > maxJSON {
		return Error{Line: node.Line, Message: fmt.Sprintf("more than %d bytes as JSON", maxJSON)}
	}
	switch node.Kind {
	case yaml.AliasNode:
		return w.write(node.Alias, depth+1)
	case yaml.MappingNode:
		return w.mapping(node, depth)
	case yaml.SequenceNode:
		w.out.WriteByte('[')
		for i, item := range node.Content {
			if i > 0 {
				w.out.WriteByte(',')
			}
			if err := w.write(item, depth+1); err != nil {
				return err
			}
		}
		w.out.WriteByte(']')
		return nil
	case yaml.ScalarNode:
		return w.scalar(node)
	default:
		return Error{Line: node.Line, Message: "is no value of JSON"}
	}
}

func (w *jsonWriter) mapping(node *yaml.Node, depth int) error {
	w.out.WriteByte('{')
	first := true
	for key, value := range Pairs(node) {
		if key.Kind != yaml.ScalarNode || key.Tag == "!!merge" {
			return Error{Line: key.Line, Message: "names of properties must be plain texts"}
		}
		if !first {
			w.out.WriteByte(',')
		}
		first = false
		w.text(key.Value)
		w.out.WriteByte(':')
		if err := w.write(value, depth+1); err != nil {
			return err
		}
	}
	w.out.WriteByte('}')
	return nil
}

func (w *jsonWriter) scalar(node *yaml.Node) error {
	switch node.Tag {
	case "!!null", "!!bool", "!!int", "!!float":
	default: // dates and the like are texts in JSON
		w.text(node.Value)
		return nil
	}
	var value any
	if err := node.Decode(&value); err != nil {
		return Error{Line: node.Line, Message: fmt.Sprintf("%q cannot be read: %v", node.Value, err)}
	}
	encoded, err := json.Marshal(value)
	if err != nil {
		return Error{Line: node.Line, Message: fmt.Sprintf("%q is no value of JSON", node.Value)}
	}
	w.out.Write(encoded)
	return nil
}

func (w *jsonWriter) text(s string) {
	encoded, _ := json.Marshal(s) // texts always encode
	w.out.Write(encoded)
}

// At returns the node at a JSON pointer, or the last one on the way to it.
func At(node *yaml.Node, pointer string) *yaml.Node {
	for part := range strings.SplitSeq(strings.TrimPrefix(pointer, "/"), "/") {
		part = strings.NewReplacer("~1", "/", "~0", "~").Replace(part)
		if node.Kind == yaml.AliasNode {
			node = node.Alias
		}
		next := Child(node, part)
		if next == nil {
			return node
		}
		node = next
	}
	return node
}

// Child returns the value of a key of a mapping, or the item at an index of a sequence; nil if it
// is not there.
func Child(node *yaml.Node, name string) *yaml.Node {
	if node.Kind == yaml.SequenceNode {
		if i, err := strconv.Atoi(name); err == nil && i >= 0 && i < len(node.Content) {
			return node.Content[i]
		}
		return nil
	}
	for key, value := range Pairs(node) {
		if key.Value == name {
			return value
		}
	}
	return nil
}
