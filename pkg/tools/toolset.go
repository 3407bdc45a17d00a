package tools

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// The built-in toolsets.
const (
	// CoreToolset is the name of the toolset that [Core] returns, the default.
	CoreToolset = "core"
	// CoreShellToolset is the name of the toolset that [CoreShell] returns.
	CoreShellToolset = "core-shell"
	// FilesToolset is the name of the toolset that [FileTools] returns.
	FilesToolset = "files"
	// OpenRathToolset is the name of the toolset that [OpenRath] returns.
	OpenRathToolset = "openrath"
	// SmithersToolset is the name of the toolset that [Smithers] returns.
	SmithersToolset = "smithers"
)

// ErrUnknownToolset is wrapped by the errors of [Toolset] and [Toolsets].
var ErrUnknownToolset = errors.New("unknown toolset")

// toolsets are the built-in toolsets by name.
func toolsets() map[string]func() []Tool {
	return map[string]func() []Tool{
		CoreToolset: Core, CoreShellToolset: CoreShell, FilesToolset: FileTools, OpenRathToolset: OpenRath, SmithersToolset: Smithers,
		HelpToolset: Help, JobsToolset: Jobs,
	}
}

// ToolsetNames returns the names that [Toolset] knows, sorted.
func ToolsetNames() []string { return slices.Sorted(maps.Keys(toolsets())) }

// Toolset returns the tools of a built-in toolset. The error names the toolsets
// that there are.
func Toolset(name string) ([]Tool, error) {
	if tools, ok := toolsets()[name]; ok {
		return tools(), nil
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
