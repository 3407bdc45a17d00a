package policy

import (
	"fmt"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// A class stands, in a rule, for all tools whose calls do the same: a rule about it holds for tools
// of every toolset. Calls of the user's own tools, of handlers and of MCP servers have none.
const (
	classExecute = "@" + string(wire.ClassExecute) // programs of the model's: run, typed at, ended
	classWrite   = "@" + string(wire.ClassWrite)   // files changed by the tool itself
	classRead    = "@" + string(wire.ClassRead)    // files, processes and results looked at
)

// classes returns every class.
func classes() []string { return []string{classExecute, classWrite, classRead} }

// classOf returns the class of a payload; "" when it has none.
func classOf(payload protocol.Payload) string {
	if payload == nil || wire.ClassOf(wire.KindOf(payload)) == wire.ClassNone {
		return ""
	}
	return "@" + string(wire.ClassOf(wire.KindOf(payload)))
}

// anyIsOf reports whether a pattern names the tool of a call, or its class.
func anyIsOf(patterns []string, call Call) (string, bool) {
	class := classOf(call.Plan.Payload)
	if class != "" && slices.Contains(patterns, class) {
		return class, true
	}
	return anyMatches(patterns, call.Tool)
}

// Unmatched returns the patterns that are no class and match none of the names.
func Unmatched(patterns, names []string) []string {
	return slices.DeleteFunc(slices.Clone(patterns), func(pattern string) bool {
		return slices.Contains(classes(), pattern) ||
			slices.ContainsFunc(names, func(name string) bool { return matches(pattern, name) })
	})
}

// checkClass is about a pattern that begins as a class does, and is none.
func checkClass(field, pattern string) error {
	if !strings.HasPrefix(pattern, "@") || slices.Contains(classes(), pattern) {
		return nil
	}
	return fmt.Errorf("%s %q: classes of tools are %s", field, pattern, strings.Join(classes(), ", "))
}
