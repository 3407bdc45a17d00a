package terminal

import (
	"strings"

	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// exitOf says how a command ended that ran and did not succeed: "exit code 2", "ended by signal
// KILL"; "" for all else. What a model is told of a result ends with that, in brackets.
func exitOf(e *loop.Event) string {
	if e.Status != string(protocol.StatusOK) {
		return ""
	}
	rest := strings.TrimRight(e.Content, "\n")
	for {
		at := strings.LastIndexByte(rest, '\n') + 1
		mark, isMark := strings.CutPrefix(rest[at:], "[")
		mark, ends := strings.CutSuffix(mark, "]")
		if !isMark || !ends {
			return ""
		}
		code, isCode := strings.CutPrefix(mark, "exit code ")
		if isCode && strings.Trim(code, "0123456789") == "" && code != "0" || strings.HasPrefix(mark, "ended by signal ") {
			return mark
		}
		if at == 0 {
			return ""
		}
		rest = rest[:at-1]
	}
}
