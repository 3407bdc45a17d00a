package tools

import (
	"fmt"
	"strings"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func writeText(v protocol.FilesWriteResult) string {
	what := "Replaced the content of"
	if v.Created {
		what = "Created"
	}
	return fmt.Sprintf("%s %s (%s, SHA-256 %s).", what, name(v.Path), plural(v.Bytes, "byte"), v.SHA256)
}

// editText says what was changed, what was not and why, and shows the diff.
func editText(v protocol.FilesEditResult) string {
	made, failed := 0, 0
	var notes []string
	for i, outcome := range v.Outcomes {
		switch {
		case outcome.Error != nil:
			failed++
			notes = append(notes, "not made: "+plainText(outcome.Error.Message))
		case outcome.Offset != 0:
			notes = append(notes, fmt.Sprintf("hunk %d was applied at line %d, %s than its header says",
				i+1, outcome.Line, further(outcome.Offset)))
			made++
		default:
			made++
		}
	}
	text := fmt.Sprintf("Edited %s: %s (%s, SHA-256 %s).", name(v.Path), plural(v.Replacements, "replacement"), plural(v.Bytes, "byte"), v.SHA256)
	if failed > 0 {
		text = fmt.Sprintf("Edited %s: %d of %d edits were made (%s, SHA-256 %s).",
			name(v.Path), made, made+failed, plural(v.Bytes, "byte"), v.SHA256)
	}
	for _, note := range notes {
		text += "\n[" + headOf(note, lineLimit) + "]"
	}
	if v.Diff != "" {
		text += "\n" + clip(validText(v.Diff), bodyLimit/2)
	}
	return clip(text, bodyLimit)
}

// further says an offset in words.
func further(offset int) string {
	if offset < 0 {
		return plural(-offset, "line") + " further up"
	}
	return plural(offset, "line") + " further down"
}

// jsonReadText is the value as JSON.
func jsonReadText(v protocol.FilesJSONReadResult) string {
	if len(v.Value) > 0 {
		return fitJSON([]byte(validText(string(v.Value))), "")
	}
	keys := make([]string, 0, len(v.Keys))
	for _, key := range v.Keys {
		keys = append(keys, quoted(key))
	}
	return fitJSON(fmt.Appendf(nil,
		`{"[...]":"the value is too long: read a part of it with a query","type":%s,"length":%d,"bytes":%d,"keys":[%s]}`,
		quoted(v.JSONType), v.Length, v.ValueBytes, strings.Join(keys, ",")), "")
}
