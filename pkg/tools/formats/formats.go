// Package formats has the tools of other systems: their names, arguments, limits, texts and codes.
//
//	arguments of theirs ──► arguments of ours ──► the plan of our tool ──► changes to its payload
//	result of the call  ──► text of theirs
//
// Each file has one system, as a function that makes its tools out of toolset.Core. Agents and
// programs that were written for the system work unchanged, and their calls have the resource keys
// and the order of our tools. The package uses nothing but the API that every program has: a system
// of your own needs no more. docs/tools.md has the arguments and the differences.
package formats

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// Limits of texts, in characters.
const (
	maxOutput  = 42_000 // of a command
	maxFailure = 44_000 // error and output together
	maxText    = 48_000
	minCut     = 100 // to which anything is cut
	maxNamed   = 500 // of an argument that a text repeats
)

// handle begins a path that names the result of an earlier call.
const handle = "result:"

// system makes the tools of a system out of toolset.Core.
type system struct {
	core    []tools.Tool
	format  *tools.Format
	timeout time.Duration // of its calls; 0 keeps the timeout of our tools
}

// ours returns the named one of our tools.
func (s *system) ours(name string) tools.Tool {
	for i := range s.core {
		if s.core[i].Name == name {
			return s.core[i]
		}
	}
	return tools.Tool{} // NewTable says that it has no plan
}

// path is the path in the workspace that a model's path means, without a look at the files.
func (s *system) path(path string) (string, *protocol.Error) {
	plan, err := planner(s.ours("list"), tools.Scope{Sandbox: "any"})(map[string]any{"path": path})
	list, _ := plan.Payload.(protocol.FilesList)
	return list.Path, err
}

// ours plans a call of one of our tools.
type ours func(arguments map[string]any) (tools.Plan, *protocol.Error)

func planner(t tools.Tool, scope tools.Scope) ours {
	return func(arguments map[string]any) (tools.Plan, *protocol.Error) {
		encoded, err := json.Marshal(arguments)
		if err != nil {
			return tools.Plan{}, protocol.Errorf(protocol.CodeInvalidArguments, "%v", err)
		}
		return t.Plan(scope, encoded)
	}
}

// tool returns a tool of a system: plan makes its calls, with arguments A, of calls of ours.
func tool[A any](s *system, base string, definition tools.Definition, plan func(ours, A) (tools.Plan, *protocol.Error)) tools.Tool {
	own := s.ours(base)
	return tools.Tool{
		Definition: definition, Metadata: tools.Metadata{Effect: own.Effect}, Render: own.Render, Format: s.format,
		Plan: tools.PlanOf(func(scope tools.Scope, arguments A) (tools.Plan, *protocol.Error) {
			planned, err := plan(planner(own, scope), arguments)
			planned.Timeout = cmp.Or(s.timeout, planned.Timeout)
			return planned, err
		}),
	}
}

// changed is a plan with a changed payload, if that is a P.
func changed[P protocol.Payload](plan tools.Plan, err *protocol.Error, change func(*P)) (tools.Plan, *protocol.Error) {
	if payload, is := plan.Payload.(P); is {
		change(&payload)
		plan.Payload = payload
	}
	return plan, err
}

// Properties that several tools have.
const (
	pathProperty    = `"path": {"type": "string", "description": "The file, relative to the workspace."}`
	contentProperty = `"content": {"type": "string", "description": "The whole content of the file, taken as it is."}`
	contextProperty = `"context": {"type": "integer", "minimum": 0, "maximum": 20, "default": 0, "description": "How many lines before and after each match to return, too, with - instead of : in them. Default: 0."}`
)

// argument is a text among the arguments of a call, shortened to be repeated; isText is false when
// it is missing or is none.
func argument(a tools.Answer, name string) (text string, isText bool) {
	var all map[string]any
	if json.Unmarshal([]byte(a.Arguments), &all) != nil {
		return "", false
	}
	text, isText = all[name].(string)
	return short(text), isText
}

// short is a text of at most 500 characters, the last one "…" when there are more.
func short(text string) string {
	text = valid(text)
	if utf8.RuneCountInString(text) <= maxNamed {
		return text
	}
	return head(text, maxNamed-1) + "…"
}

// head is the first characters of a text.
func head(text string, most int) string {
	for i := range text {
		if most == 0 {
			return text[:i]
		}
		most--
	}
	return text
}

// shortened is the first characters of a text, and how many follow.
func shortened(text string, most int) string {
	text = valid(text)
	if more := utf8.RuneCountInString(text) - most; more > 0 {
		return head(text, most) + fmt.Sprintf(" [... and %d more characters]", more)
	}
	return text
}

// stored says where all of a result is; "" when no more of it is stored.
func stored(a tools.Answer) string {
	if path := a.ReadOn(""); path != "" {
		return "all of it: read with " + path
	}
	return ""
}

// valid replaces what is not UTF-8.
func valid(text string) string { return strings.ToValidUTF8(text, "\uFFFD") }

// failure is why a call failed.
func failure(a tools.Answer) (code protocol.Code, message string) {
	if a.Result.Error == nil {
		return protocol.Code(a.Result.Status), ""
	}
	return a.Result.Error.Code, strings.TrimSpace(a.Result.Error.Message)
}

// failed returns a failure as text: what failed, and the output until then.
func failed(a tools.Answer, what string) string {
	text := shortened(what, maxFailure/2)
	output := a.Output(min(maxOutput, maxFailure-utf8.RuneCountInString(text)))
	switch rest := stored(a); {
	case output != "":
		return text + "\n" + output
	case text != what && rest != "":
		return text + "\n[it was cut; " + rest + "]"
	default:
		return text
	}
}

// again is a text with a line when the call was started more than once. A file has none: the
// workspace is as one run leaves it, and readers expect the file as it is.
func again(a tools.Answer, text string) string {
	note := a.Again()
	switch {
	case note == "", isOfFiles(a.Result):
		return text
	case text != "" && !strings.HasSuffix(text, "\n"):
		text += "\n"
	}
	return text + "[" + note + "]"
}

// isOfFiles reports whether a result is one of a tool for files that succeeded.
func isOfFiles(result *protocol.Result) bool {
	switch result.Value.(type) {
	case protocol.FilesReadResult, protocol.FilesWriteResult, protocol.FilesEditResult, protocol.FilesListResult,
		protocol.FilesExistsResult, protocol.FilesGlobResult, protocol.FilesSearchResult:
		return result.Status == protocol.StatusOK
	default:
		return false
	}
}

// linksNote says that a change is not in all names of a file; "" where it is.
func linksNote(links int) string {
	switch links {
	case 0:
		return ""
	case 1:
		return "the file had 1 other name (hard links), which keep the old content"
	default:
		return fmt.Sprintf("the file had %d other names (hard links), which keep the old content", links)
	}
}

// done is what a system says of a change that was made.
func done(text string, links int) string {
	if note := linksNote(links); note != "" {
		return text + "\n[" + note + "]"
	}
	return text
}
