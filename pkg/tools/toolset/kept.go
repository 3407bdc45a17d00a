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
// for the place that the handle names; limit is how many lines at most, 0 for as many as
// fit. ok is false when path is not a handle. The plan touches no sandbox; its result is of
// kind result_read.
func readHandle(path string, offset, limit int) (plan tools.Plan, ok bool, err *protocol.Error) {
	rest, ok := strings.CutPrefix(path, render.HandlePrefix)
	if !ok {
		return tools.Plan{}, false, nil
	}
	rest, at, hasPlace := strings.Cut(rest, ":")
	id, part, _ := strings.Cut(rest, "#")
	call, fault := protocol.ParseCallID(id)
	line, column, isPlace := placeOf(at)
	parts := []string{"", protocol.PartText, protocol.PartOutput, protocol.PartStdout, protocol.PartStderr, protocol.PartValue}
	if fault != nil || call == "" || hasPlace && !isPlace || !slices.Contains(parts, part) {
		return tools.Plan{}, true, protocol.Errorf(protocol.CodeInvalidPath,
			"The path %q is no result of an earlier call: want result:ID, or result:ID#text, #stdout, #stderr, #output or #value, and :LINE or :LINE@BYTE for where to begin. A file of that name is \"./%s\".",
			prose.Short(path, 200), prose.Short(path, 200))
	}
	if offset != 0 {
		line, column = offset, 0
	}
	return tools.Plan{
		Payload:   protocol.ResultRead{CallID: call, Part: part, Offset: line, Column: column, Limit: limit},
		Resources: []protocol.Use{}, Delivery: protocol.Idempotent, Timeout: FileTimeout,
	}, true, nil
}

// placeOf reads LINE or LINE@BYTE.
func placeOf(text string) (line int, column int64, ok bool) {
	before, after, hasColumn := strings.Cut(text, "@")
	line, err := strconv.Atoi(before)
	if err != nil || line < 0 {
		return 0, 0, false
	}
	if hasColumn {
		column, err = strconv.ParseInt(after, 10, 64)
	}
	return line, column, err == nil && column >= 0
}
