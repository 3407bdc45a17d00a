// Package toolset is the built-in tools, in sets that have names.
//
// A tool of a set declares its arguments and plans a payload. Package formats makes the tools of
// other systems of those of [Core]. See docs/tools.md for every argument and every text.
package toolset

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/formats"
)

// builtin are the built-in toolsets by name.
func builtin() map[string]func() []tools.Tool {
	return map[string]func() []tools.Tool{
		"agents": agentTools, "ask": askTools, "channels": channelTools, "core": Core, "core-shell": coreShellTools, "files": func() []tools.Tool { return formats.Files(Core()) }, "help": tools.Help,
		"jobs": jobsTools, "memory": memoryTools, "openrath": func() []tools.Tool { return formats.OpenRath(Core()) }, "scratchpad": scratchTools, "smithers": func() []tools.Tool { return formats.Smithers(Core()) }, "triggers": triggerTools, "web": webTools,
		"code_execution": codeTools, "image_generation": imageTools, "web_search": searchTools,
	}
}

// Names returns the names that [Named] knows, sorted.
func Names() []string { return slices.Sorted(maps.Keys(builtin())) }

// AllTools returns the names of the tools of all built-in toolsets, some of them twice.
func AllTools() []string {
	var names []string
	for _, set := range builtin() {
		for _, tool := range set() {
			names = append(names, tool.Name)
		}
	}
	slices.Sort(names)
	return names
}

// Named returns the tools of built-in toolsets, for [tools.NewTable]; a name that is
// given twice counts once. The error reports every unknown name, and those that there are.
func Named(names ...string) ([]tools.Tool, error) {
	var all []tools.Tool
	var faults []error
	for i, name := range names {
		if slices.Contains(names[:i], name) {
			continue
		}
		set, ok := builtin()[name]
		if !ok {
			hint := ""
			if near, ok := prose.Nearest(name, Names()); ok {
				hint = fmt.Sprintf("; did you mean %q?", near)
			}
			faults = append(faults, fmt.Errorf("unknown toolset %q: must be one of %s%s", name, strings.Join(Names(), ", "), hint))
			continue
		}
		all = append(all, set()...)
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	return all, nil
}
