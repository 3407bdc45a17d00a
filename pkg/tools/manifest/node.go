package manifest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Bounds of a schema: they stop documents that are small and unfold to be huge.
const (
	maxNodes = 20_000
	maxDepth = 64
)

// nodeJSON writes a YAML node as JSON, its properties in the order in which they are written.
func nodeJSON(node *yaml.Node) (json.RawMessage, *Problem) {
	w := &jsonWriter{}
	if failure := w.write(node, 0); failure != nil {
		return nil, failure
	}
	return w.out.Bytes(), nil
}

type jsonWriter struct {
	out   bytes.Buffer
	nodes int
}

func (w *jsonWriter) write(node *yaml.Node, depth int) *Problem {
	if w.nodes++; w.nodes > maxNodes || depth > maxDepth {
		return &Problem{Line: node.Line, Message: fmt.Sprintf("more than %d values or %d levels", maxNodes, maxDepth)}
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
			if failure := w.write(item, depth+1); failure != nil {
				return failure
			}
		}
		w.out.WriteByte(']')
		return nil
	case yaml.ScalarNode:
		return w.scalar(node)
	default:
		return &Problem{Line: node.Line, Message: "is no value of JSON"}
	}
}

func (w *jsonWriter) mapping(node *yaml.Node, depth int) *Problem {
	w.out.WriteByte('{')
	for i := 0; i+1 < len(node.Content); i += 2 {
		key := node.Content[i]
		if key.Kind != yaml.ScalarNode || key.Tag == "!!merge" {
			return &Problem{Line: key.Line, Message: "names of properties must be plain texts"}
		}
		if i > 0 {
			w.out.WriteByte(',')
		}
		w.text(key.Value)
		w.out.WriteByte(':')
		if failure := w.write(node.Content[i+1], depth+1); failure != nil {
			return failure
		}
	}
	w.out.WriteByte('}')
	return nil
}

func (w *jsonWriter) scalar(node *yaml.Node) *Problem {
	switch node.Tag {
	case "!!null", "!!bool", "!!int", "!!float":
	default: // dates and the like are texts in JSON
		w.text(node.Value)
		return nil
	}
	var value any
	if err := node.Decode(&value); err != nil {
		return &Problem{Line: node.Line, Message: fmt.Sprintf("%q cannot be read: %v", node.Value, err)}
	}
	encoded, err := json.Marshal(value)
	if err != nil {
		return &Problem{Line: node.Line, Message: fmt.Sprintf("%q is no value of JSON", node.Value)}
	}
	w.out.Write(encoded)
	return nil
}

func (w *jsonWriter) text(s string) {
	encoded, _ := json.Marshal(s) // texts always encode
	w.out.Write(encoded)
}

// nodeAt returns the node at a JSON pointer, or the last one on the way to it.
func nodeAt(node *yaml.Node, pointer string) *yaml.Node {
	for part := range strings.SplitSeq(strings.TrimPrefix(pointer, "/"), "/") {
		part = strings.NewReplacer("~1", "/", "~0", "~").Replace(part)
		if node.Kind == yaml.AliasNode {
			node = node.Alias
		}
		next := childOf(node, part)
		if next == nil {
			return node
		}
		node = next
	}
	return node
}

func childOf(node *yaml.Node, name string) *yaml.Node {
	if node.Kind == yaml.SequenceNode {
		if i, err := strconv.Atoi(name); err == nil && i >= 0 && i < len(node.Content) {
			return node.Content[i]
		}
		return nil
	}
	for i := 0; node.Kind == yaml.MappingNode && i+1 < len(node.Content); i += 2 {
		if node.Content[i].Value == name {
			return node.Content[i+1]
		}
	}
	return nil
}
