package render

import (
	"fmt"
	"strconv"

	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools/internal/prose"
)

// HandlePrefix begins a path that names no file but the result of an earlier call.
const HandlePrefix = "result:"

// Handle is the path under which tools that read files find the result of a call: of
// a command what it wrote, of anything else its value as JSON. part is one of the
// protocol's Part constants, or ""; line is where to begin, 0 and 1 at the beginning.
func Handle(call protocol.CallID, part string, line int) string {
	handle := HandlePrefix + string(call)
	if part != "" {
		handle += "#" + part
	}
	if line > 1 {
		handle += ":" + strconv.Itoa(line)
	}
	return handle
}

// keptText is the lines of a kept result with their numbers, and where they stand in it.
func keptText(v protocol.ResultReadResult) string {
	content := prose.Plain(string(v.Content))
	what := Handle(v.CallID, v.Part, 0)
	if content == "" {
		if v.TotalLines == 0 {
			return fmt.Sprintf("[%s is empty]", what)
		}
		return fmt.Sprintf("[there are no such lines: %s has %s]", what, prose.Plural(v.TotalLines, "line"))
	}
	first := max(v.FirstLine, 1)
	body, shown, _ := numbered(content, first, prose.BodyLimit, prose.BodyLimit)
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

// OrKept is the Render function of tools that read files, and so kept results too.
func OrKept(file func(*protocol.Result) string) func(*protocol.Result) string {
	return func(result *protocol.Result) string {
		if _, kept := result.Value.(protocol.ResultReadResult); kept {
			return Of(keptText)(result)
		}
		return file(result)
	}
}
