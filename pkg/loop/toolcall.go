package loop

import (
	"fmt"
	"strconv"
	"strings"
)

// uniqueIDs returns the calls as they are journaled: with ids that no other tool
// call of the conversation has, because providers answer calls by id alone. An id
// that is empty or taken is replaced.
func uniqueIDs(calls []ToolCall, taken map[string]bool, turn, step int) []ToolCall {
	unique := make([]ToolCall, len(calls))
	own := make(map[string]bool, len(calls))
	for i, call := range calls {
		id := validText(call.ID)
		place := fmt.Sprintf("call_%d_%d_%d", turn, step, i)
		for n := 1; id == "" || taken[id] || own[id]; n++ {
			id = place
			place = fmt.Sprintf("call_%d_%d_%d", turn, step, i) + "_" + strconv.Itoa(n)
		}
		own[id] = true
		unique[i] = ToolCall{ID: id, Name: validText(call.Name), Arguments: validText(call.Arguments)}
	}
	return unique
}

// validText replaces what is not UTF-8. A journal is JSON and would do so itself;
// doing it first keeps a session that runs and one that is resumed the same.
func validText(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
