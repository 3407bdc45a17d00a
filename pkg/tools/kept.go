package tools

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// handlePrefix begins a path that names no file but the result of an earlier call.
const handlePrefix = "result:"

// Handle is the path under which tools that read files find the result of a call: of
// a command what it wrote, of anything else its value as JSON. part is one of the
// protocol's Part constants, or ""; line is where to begin, 0 and 1 at the beginning.
func Handle(call protocol.CallID, part string, line int) string {
	handle := handlePrefix + string(call)
	if part != "" {
		handle += "#" + part
	}
	if line > 1 {
		handle += ":" + strconv.Itoa(line)
	}
	return handle
}

// ReadHandle plans the reading of a handle: offset is the first line, from 1, and 0
// for the one that the handle names; limit is how many lines at most, 0 for as many as
// fit. ok is false when path is not a handle. The plan touches no sandbox; its result is of
// kind result_read.
func ReadHandle(path string, offset, limit int) (plan Plan, ok bool, err *protocol.Error) {
	rest, ok := strings.CutPrefix(path, handlePrefix)
	if !ok {
		return Plan{}, false, nil
	}
	rest, line, hasLine := strings.Cut(rest, ":")
	id, part, _ := strings.Cut(rest, "#")
	call, fault := protocol.ParseCallID(id)
	from := 0
	if hasLine {
		from, fault = strconv.Atoi(line)
	}
	parts := []string{"", protocol.PartOutput, protocol.PartStdout, protocol.PartStderr, protocol.PartValue}
	if fault != nil || call == "" || from < 0 || !slices.Contains(parts, part) {
		return Plan{}, true, protocol.Errorf(protocol.CodeInvalidPath,
			"The path %q is no result of an earlier call: want result:ID, or result:ID#stdout, #stderr, #output or #value, and :LINE for where to begin. A file of that name is \"./%s\".",
			short(path, 200), short(path, 200))
	}
	if offset == 0 {
		offset = from
	}
	return Plan{
		Payload:   protocol.ResultRead{CallID: call, Part: part, Offset: offset, Limit: limit},
		Resources: []protocol.Use{}, Delivery: protocol.Idempotent, Timeout: FileTimeout,
	}, true, nil
}

// keptText is the lines of a kept result with their numbers, and where they stand in it.
func keptText(v protocol.ResultReadResult) string {
	content := plainText(string(v.Content))
	what := Handle(v.CallID, v.Part, 0)
	if content == "" {
		if v.TotalLines == 0 {
			return fmt.Sprintf("[%s is empty]", what)
		}
		return fmt.Sprintf("[there are no such lines: %s has %s]", what, plural(v.TotalLines, "line"))
	}
	first := max(v.FirstLine, 1)
	body, shown, _ := numbered(content, first, bodyLimit, bodyLimit)
	last := first + shown - 1
	mark := fmt.Sprintf("[lines %d-%d of %d", first, last, max(v.TotalLines, last))
	switch {
	case last < v.TotalLines:
		mark += fmt.Sprintf("; read on with path=%q", Handle(v.CallID, v.Part, last+1))
	case v.Truncated:
		mark += "; what came after that is not kept"
	}
	return body + mark + "]"
}

// keptOr is the Render function of tools that read files, and so kept results too.
func keptOr(file func(*protocol.Result) string) func(*protocol.Result) string {
	return func(result *protocol.Result) string {
		if _, kept := result.Value.(protocol.ResultReadResult); kept {
			return renderOf(keptText)(result)
		}
		return file(result)
	}
}
