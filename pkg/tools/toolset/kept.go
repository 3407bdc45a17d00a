package toolset

import (
	"slices"
	"strconv"
	"strings"

	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/internal/prose"
	"github.com/toolfleet/toolfleet/pkg/tools/internal/render"
)

// readHandle plans the reading of a handle: offset is the first line, from 1, and 0
// for the one that the handle names; limit is how many lines at most, 0 for as many as
// fit. ok is false when path is not a handle. The plan touches no sandbox; its result is of
// kind result_read.
func readHandle(path string, offset, limit int) (plan tools.Plan, ok bool, err *protocol.Error) {
	rest, ok := strings.CutPrefix(path, render.HandlePrefix)
	if !ok {
		return tools.Plan{}, false, nil
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
		return tools.Plan{}, true, protocol.Errorf(protocol.CodeInvalidPath,
			"The path %q is no result of an earlier call: want result:ID, or result:ID#stdout, #stderr, #output or #value, and :LINE for where to begin. A file of that name is \"./%s\".",
			prose.Short(path, 200), prose.Short(path, 200))
	}
	if offset == 0 {
		offset = from
	}
	return tools.Plan{
		Payload:   protocol.ResultRead{CallID: call, Part: part, Offset: offset, Limit: limit},
		Resources: []protocol.Use{}, Delivery: protocol.Idempotent, Timeout: FileTimeout,
	}, true, nil
}
