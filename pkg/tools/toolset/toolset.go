// Package toolset is the built-in tools, in sets that have names.
//
// A tool of a set declares its arguments and plans a payload. Package formats makes the tools of
// other systems out of [Core]. See docs/tools.md for every argument and every text.
package toolset

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/modeltext/modelpath"
	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/formats"
)

// builtin are the built-in toolsets by name.
func builtin() map[string]func() []tools.Tool {
	return map[string]func() []tools.Tool{
		"agents": agentTools, "ask": askTools, "channels": channelTools, "core": Core, "core-shell": coreShellTools,
		"files": func() []tools.Tool { return formats.Files(Core()) }, "help": tools.Help,
		"jobs": jobsTools, "memory": memoryTools, "openrath": func() []tools.Tool { return formats.OpenRath(Core()) }, "scratchpad": scratchTools,
		"sessions": sessionTools, "smithers": func() []tools.Tool { return formats.Smithers(Core()) }, "triggers": triggerTools, "web": webTools,
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
// given twice counts once. The error reports every unknown name, and lists the known ones.
func Named(names ...string) ([]tools.Tool, error) {
	var all []tools.Tool
	var errs []error
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
			errs = append(errs, fmt.Errorf("unknown toolset %q: must be one of %s%s", name, strings.Join(Names(), ", "), hint))
			continue
		}
		all = append(all, set()...)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return all, nil
}

// Run times of the built-in tools, for one attempt.
const (
	fileTimeout    = 30 * time.Second
	bashTimeout    = 120 * time.Second // when the call names none
	runCodeTimeout = 60 * time.Second  // when the call names none
	maxTimeout     = time.Hour         // that a call can name
)

// Core returns the built-in tools for commands and files, sorted by name. What
// they touch, and so what may overlap:
//
//	bash, run_code          sandbox/<id>         exclusive   anything may happen
//	the same, read_only     sandbox/<id>         shared      the worker keeps the workspace as it is
//	process                 sandbox/<id>         shared, to kill one exclusive
//	write, edit,            sandbox/<id>/<path>  exclusive
//	multi_edit, json_write
//	read, json_read, list,  sandbox/<id>/<path>  shared
//	exists, tree, glob, grep
//
// Two calls conflict when one key is a prefix of the other and one is exclusive. That covers the
// other effects of a write:
//
//   - It changes the listing of its directory, and makes missing ones. Whoever
//     lists, searches or asks for any directory above the file uses a prefix of
//     the file's key, and so conflicts.
//   - Two writes of different files below one new directory do not conflict, and
//     need not: making a directory twice is making it once.
//   - A write of "a" and one of "a/b" cannot both succeed; they conflict, so which
//     one fails is decided by their order.
//
// Reading and writing whole files can be done again after a lost worker, and is
// declared idempotent. An edit that is done again does not find its text, nor a write
// what it expects, and a command may do anything: they are rolled back.
func Core() []tools.Tool {
	set := []tools.Tool{
		bash(), edit(), exists(), glob(), grep(), jsonRead(), jsonWrite(), list(), multiEdit(),
		processTool(), read(), runCode(), tree(), write(),
	}
	for i := range set {
		set[i].Returns = returns(set[i].Name)
	}
	return set
}

// returns has what a tool of [Core] returns.
func returns(tool string) []protocol.Value {
	return map[string][]protocol.Value{
		"bash": {protocol.CommandRunResult{}}, "edit": {protocol.FilesEditResult{}}, "exists": {protocol.FilesExistsResult{}},
		"glob": {protocol.FilesGlobResult{}}, "grep": {protocol.FilesSearchResult{}}, "json_read": {protocol.FilesJSONReadResult{}},
		"json_write": {protocol.FilesJSONWriteResult{}}, "list": {protocol.FilesListResult{}}, "multi_edit": {protocol.FilesEditResult{}},
		"process": {wire.ProcessListResult{}, wire.ProcessReadResult{}, wire.ProcessSendResult{}, wire.ProcessKillResult{}},
		"read":    {protocol.FilesReadResult{}, wire.ResultReadResult{}}, "run_code": {protocol.CodeRunResult{}},
		"tree": {protocol.FilesTreeResult{}}, "write": {protocol.FilesWriteResult{}},
	}[tool]
}

// coreShellTools returns the tools of [Core] with a bash whose current directory and exported
// variables are kept from one command of the sandbox to the next.
func coreShellTools() []tools.Tool {
	set := Core()
	for i := range set {
		if set[i].Name == "bash" {
			set[i] = persistentBash()
		}
	}
	return set
}

// filePlan is a plan for one path, unless that is refused.
func filePlan(
	scope tools.Scope, path string, refused *protocol.Error, payload protocol.Payload, access protocol.Access, delivery protocol.Delivery,
) (tools.Plan, *protocol.Error) {
	if refused != nil {
		return tools.Plan{}, refused
	}
	uses, err := modelpath.Use(scope.Sandbox, path, access)
	if err != nil {
		return tools.Plan{}, err
	}
	return tools.Plan{Payload: payload, Resources: uses, Delivery: delivery, Timeout: fileTimeout}, nil
}

// seconds is a time that a model gives in seconds; standard if it gives none, or 0.
func seconds(s float64, standard time.Duration) time.Duration {
	if s == 0 {
		return standard
	}
	return max(time.Duration(s*float64(time.Second)), time.Millisecond)
}
