package tools

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// CoreToolset is the name of the toolset that [Core] returns.
const CoreToolset = "core"

// ErrUnknownToolset is wrapped by the errors of [Toolset] and [Toolsets].
var ErrUnknownToolset = errors.New("unknown toolset")

// ToolsetNames returns the names that [Toolset] knows, sorted.
func ToolsetNames() []string { return []string{CoreToolset} }

// Toolset returns the tools of a built-in toolset. The error names the toolsets
// that there are.
func Toolset(name string) ([]Tool, error) {
	if name == CoreToolset {
		return Core(), nil
	}
	return nil, fmt.Errorf("%w %q: must be one of %s", ErrUnknownToolset, name, strings.Join(ToolsetNames(), ", "))
}

// Toolsets returns the tools of several toolsets, for [NewTable]; a name that is
// given twice counts once. It reports every unknown name.
func Toolsets(names ...string) ([]Tool, error) {
	var all []Tool
	var faults []error
	for i, name := range names {
		if slices.Contains(names[:i], name) {
			continue
		}
		tools, err := Toolset(name)
		if err != nil {
			faults = append(faults, err)
		}
		all = append(all, tools...)
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	return all, nil
}
