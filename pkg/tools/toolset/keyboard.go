package toolset

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools/internal/prose"
)

// keyboard is what keys send by their names, as those of a terminal of the kind xterm do. The rest
// are those with control.
var keyboard = map[string]string{ //nolint:gochecknoglobals // a constant
	"enter": "\r", "tab": "\t", "escape": "\x1b", "backspace": "\x7f", "space": " ", "delete": "\x1b[3~",
	"up": "\x1b[A", "down": "\x1b[B", "right": "\x1b[C", "left": "\x1b[D", "home": "\x1b[H", "end": "\x1b[F",
	"page-up": "\x1b[5~", "page-down": "\x1b[6~",
}

// typed is what a terminal gets for a text and keys; nil keys are Enter, unless the text ends with
// it. fault names a key that there is not.
func typed(text string, keys []string) (input protocol.Bytes, fault string) {
	input = protocol.Bytes(strings.NewReplacer("\r\n", "\r", "\n", "\r").Replace(text))
	if keys == nil && text != "" && !strings.HasSuffix(string(input), "\r") {
		keys = []string{"enter"}
	}
	for i, name := range keys {
		name = strings.ToLower(name)
		if letter, ok := strings.CutPrefix(name, "ctrl-"); ok && len(letter) == 1 && (letter >= "a" && letter <= "z" || letter >= "[" && letter <= "_") {
			input = append(input, letter[0]&0x1f)
			continue
		}
		key, ok := keyboard[name]
		if !ok {
			return nil, fmt.Sprintf("keys.%d: there is no key %q: must be %s, or ctrl- and a letter, as in ctrl-c",
				i, prose.Short(name, 50), strings.Join(slices.Sorted(maps.Keys(keyboard)), ", "))
		}
		input = append(input, key...)
	}
	return input, ""
}

// keyNames are the keys of arguments that are not read yet; what is no name is somebody else's
// fault to tell.
func keyNames(value any) []string {
	list, _ := value.([]any)
	names := []string{}
	for _, entry := range list {
		if name, ok := entry.(string); ok {
			names = append(names, name)
		}
	}
	return names
}
