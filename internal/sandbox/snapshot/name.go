package snapshot

import (
	"encoding/base64"
	"encoding/json"
	"path/filepath"
	"strings"
	"unicode/utf8"
)

// maxName is the longest part of a path, in bytes.
const maxName = 255

// checkName accepts paths that are relative, canonical, and possible on this system.
func checkName(name string) error {
	if strings.ContainsRune(name, 0) {
		return unsafef(name, "it contains a NUL byte")
	}
	for part := range strings.SplitSeq(name, "/") {
		switch {
		case part == "" || part == "." || part == "..":
			return unsafef(name, "not a canonical relative path")
		case len(part) > maxName:
			return unsafef(name, "a part of it has more than %d bytes", maxName)
		default:
		}
	}
	local := filepath.FromSlash(name)
	if filepath.Separator != '/' && strings.ContainsAny(name, `\:`) || !filepath.IsLocal(local) {
		return unsafef(name, "not a path that this system allows")
	}
	return nil
}

// checkTarget accepts what a symbolic link can say. Where it leads does not matter:
// nothing here follows it.
func checkTarget(name, target string) error {
	if target == "" || strings.ContainsRune(target, 0) {
		return unsafef(name, "a symbolic link to %q", target)
	}
	return nil
}

// encoded begins what stands for a name that is no text, in JSON: no name has a NUL.
const encoded = "\x00"

// toText returns a name as text, fromText the name again.
func toText(name string) string {
	if utf8.ValidString(name) {
		return name
	}
	return encoded + base64.RawURLEncoding.EncodeToString([]byte(name))
}

func fromText(text string) (string, error) {
	code, is := strings.CutPrefix(text, encoded)
	if !is {
		return text, nil
	}
	name, err := base64.RawURLEncoding.DecodeString(code)
	return string(name), err
}

// MarshalJSON implements [json.Marshaler]: names and targets are bytes, and JSON has only text.
func (t Tree) MarshalJSON() ([]byte, error) {
	text := make(map[string]Node, len(t))
	for name, node := range t {
		node.Target = toText(node.Target)
		text[toText(name)] = node
	}
	return json.Marshal(text)
}

// UnmarshalJSON implements [json.Unmarshaler].
func (t *Tree) UnmarshalJSON(body []byte) error {
	text := map[string]Node{}
	if err := json.Unmarshal(body, &text); err != nil {
		return err
	}
	*t = make(Tree, len(text))
	for name, node := range text {
		if _, err := t.put(name, node); err != nil {
			return err
		}
	}
	return nil
}

// put adds a node whose name and target are text, and returns its name.
func (t Tree) put(text string, node Node) (name string, err error) {
	if name, err = fromText(text); err != nil {
		return "", err
	}
	node.Target, err = fromText(node.Target)
	t[name] = node
	return name, err
}

// Names are paths, which are bytes.
type Names []string

// MarshalJSON implements [json.Marshaler].
func (n Names) MarshalJSON() ([]byte, error) {
	text := make([]string, len(n))
	for i, name := range n {
		text[i] = toText(name)
	}
	return json.Marshal(text)
}

// UnmarshalJSON implements [json.Unmarshaler].
func (n *Names) UnmarshalJSON(body []byte) error {
	var text []string
	if err := json.Unmarshal(body, &text); err != nil {
		return err
	}
	*n = make(Names, len(text))
	for i := range text {
		var err error
		if (*n)[i], err = fromText(text[i]); err != nil {
			return err
		}
	}
	return nil
}
