package render

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// HandlePrefix begins a path that names no file but the result of an earlier call.
const HandlePrefix = "result:"

// Handle returns the path by which tools that read files read the result of a call. part is one of
// the protocol's Part constants, or "": the output of a command, the text of anything else. Reading
// begins at line and column, 0 and 1 at the beginning.
func Handle(call protocol.CallID, part string, line int, column int64) string {
	handle := HandlePrefix + string(call)
	if part != "" && part != wire.PartText {
		handle += "#" + part
	}
	if line > 1 || column > 1 {
		handle += ":" + strconv.Itoa(max(line, 1))
	}
	if column > 1 {
		handle += "@" + strconv.FormatInt(column, 10)
	}
	return handle
}

// fullText says where a model reads the full text of a result that it is shown in part.
type fullText struct {
	call   protocol.CallID
	stored *protocol.Kept // nil if no more is stored
}

func fullTextOf(result *protocol.Result) fullText {
	return fullText{call: result.CallID, stored: result.Kept}
}

// isStored reports whether the full text can be read.
func (r fullText) isStored() bool { return r.stored != nil && r.call != "" }

// path is the argument with which to read on.
func (r fullText) path(part string, line int, column int64) string {
	return fmt.Sprintf("path=%q", Handle(r.call, part, line, column))
}

// note says where all of it is; "" when no more is stored.
func (r fullText) note(part string) string {
	if !r.isStored() {
		return ""
	}
	return "all of it: read with " + r.path(part, 0, 0)
}

// mark is a note as a line of its own.
func (r fullText) mark(part string) string {
	if note := r.note(part); note != "" {
		return "\n[it was cut; " + note + "]"
	}
	return ""
}

// Mark is the line that says where the full text of a cut result is; "" if no more is stored.
func Mark(call protocol.CallID, kept *protocol.Kept) string { return fullText{call, kept}.mark("") }

// ReadOn returns the argument with which to read on behind the shown beginning of a text; "" when
// no more is stored.
func ReadOn(result *protocol.Result, shown string) string {
	r := fullTextOf(result)
	if !r.isStored() {
		return ""
	}
	line, column := endOf(shown)
	return r.path("", line, column)
}

// Others says how to get at the entries of a list that follow those shown, of a total; narrower
// says what else would help.
func Others(result *protocol.Result, shown, total int, narrower string) string {
	return fullTextOf(result).othersAfter(shown, total, narrower)
}

// others says how to get at the entries of a list that follow those shown in body, of which there
// are total; narrower says what else would help.
func (r fullText) others(body string, total int, narrower string) string {
	return r.othersAfter(strings.Count(body, "\n"), total, narrower)
}

// othersAfter is others for so many shown lines.
func (r fullText) othersAfter(shown, total int, narrower string) string {
	next := shown + 1
	switch {
	case !r.isStored():
		return "the others are not stored: " + narrower
	case r.stored.Truncated || r.stored.Lines < total:
		return fmt.Sprintf("the first %d are stored: read on with %s, or %s", r.stored.Lines, r.path("", next, 0), narrower)
	default:
		return "the others: read on with " + r.path("", next, 0)
	}
}

// storedResultText is the lines of a kept result with their numbers, as many as have room in so
// many characters, and where they stand in it.
func storedResultText(v wire.ResultReadResult, room int) string {
	what := Handle(v.CallID, v.Part, 0, 0)
	switch {
	case v.Part == wire.PartMedia:
		return fmt.Sprintf("[%s, %s: here it is]", what, prose.Plural(v.Bytes, "byte"))
	case len(v.Content) == 0 && v.TotalLines == 0:
		return fmt.Sprintf("[%s is empty]", what)
	case len(v.Content) == 0:
		return fmt.Sprintf("[there are no such lines: %s has %s]", what, prose.Plural(v.TotalLines, "line"))
	}
	first, column := max(v.FirstLine, 1), max(v.FirstColumn, 1)
	body, shown, bytes := numberedRows(string(v.Content), first, room)
	last := first + shown - 1
	end := column + bytes - 1 // of the first line
	next := Handle(v.CallID, v.Part, last+1, 0)
	mark := fmt.Sprintf("[lines %d-%d of %d", first, last, max(v.TotalLines, last))
	if column > 1 || end < v.LineBytes {
		mark = fmt.Sprintf("[line %d of %d, bytes %d-%d of %d", first, max(v.TotalLines, last), column, end, max(v.LineBytes, end))
		if shown > 1 {
			mark += fmt.Sprintf(", and lines %d-%d", first+1, last)
		}
	}
	switch {
	case end < v.LineBytes:
		mark += fmt.Sprintf("; read on with path=%q", Handle(v.CallID, v.Part, first, end+1))
	case last < v.TotalLines:
		mark += fmt.Sprintf("; read on with path=%q", next)
	case v.Truncated:
		mark += "; the rest is not stored"
	}
	return body + mark + "]"
}

// numberedRows returns the lines that have room, with their numbers, and how many they are: at
// least one, of which only so many bytes are shown.
func numberedRows(content string, first, room int) (text string, count int, bytes int64) {
	var b strings.Builder
	for line := range strings.Lines(content) {
		line = strings.TrimSuffix(line, "\n")
		number := fmt.Sprintf("%6d\t", first+count)
		if count == 0 {
			line = line[:prose.Offset(line, room-len(number)-1)]
			bytes = int64(len(line))
		}
		row := number + prose.Plain(line) + "\n"
		if room -= utf8.RuneCountInString(row); room < 0 && count > 0 {
			break
		}
		b.WriteString(row)
		count++
	}
	return b.String(), count, bytes
}

// StoredResult returns the text of an earlier result that was read, in at most limit characters; is
// reports whether the result is one.
func StoredResult(result *protocol.Result, limit int) (text string, is bool) {
	value, is := result.Value.(wire.ResultReadResult)
	if !is {
		return "", false
	}
	return storedResultText(value, min(limit, prose.BodyLimit)), true
}

// Fits reports whether a model is shown all of a text.
func Fits(text string) bool {
	return len(text) <= prose.MaxText || utf8.RuneCountInString(text) <= prose.MaxText
}

// Shown shortens the text of a call to [prose.MaxText] characters, as models read it. If all of it
// is stored, the text says where.
func Shown(text string, call protocol.CallID, kept *protocol.Kept) string {
	if kept == nil || Fits(text) {
		return prose.Clip(text, prose.MaxText)
	}
	mark := Mark(call, kept)
	return prose.Clip(text, prose.MaxText-utf8.RuneCountInString(mark)) + mark
}

// Diff returns the unified diff of a write or an edit; "" for every other result.
func Diff(result *protocol.Result) string {
	if result == nil {
		return ""
	}
	switch value := result.Value.(type) {
	case protocol.FilesWriteResult:
		return value.Diff
	case protocol.FilesJSONWriteResult:
		return value.Diff
	case protocol.FilesEditResult:
		return value.Diff
	default:
		return ""
	}
}

// Image returns the first image or document of a result, and its media type, such as "image/png" or
// [MediaPDF]. ok is false without one, if it is too large, and for types that models do not accept,
// such as SVG.
func Image(result *protocol.Result) (mediaType string, data []byte, ok bool) {
	if result == nil {
		return "", nil, false
	}
	if called, isCall := result.Value.(protocol.MCPCallResult); isCall {
		for _, part := range called.Content {
			if mediaType := imageType(part.MediaType); (part.Type == "image" || part.Type == "resource") && mediaType != "" &&
				len(part.Data) > 0 && len(part.Data) <= MaxImageBytes {
				return mediaType, part.Data, true
			}
		}
	}
	if kept, isKept := result.Value.(wire.ResultReadResult); isKept && kept.Part == wire.PartMedia {
		mediaType := imageType(http.DetectContentType(kept.Content))
		return mediaType, kept.Content, mediaType != ""
	}
	if page, isPage := result.Value.(protocol.HTTPFetchResult); isPage && page.Image != "" && len(page.Content) <= MaxImageBytes {
		return page.Image, page.Content, true
	}
	read, isRead := result.Value.(protocol.FilesReadResult)
	if !isRead || read.Image == "" || read.Truncated || len(read.Content) > MaxImageBytes {
		return "", nil, false
	}
	return read.Image, read.Content, true
}

// imageType is the media type of an image or document as models take it; "" when they do not.
func imageType(mediaType string) string {
	switch mediaType = strings.ToLower(mediaType); mediaType {
	case "image/png", "image/jpeg", "image/gif", "image/webp", MediaPDF:
		return mediaType
	case "image/jpg":
		return "image/jpeg"
	default:
		return ""
	}
}

// againKey names what [Again] says in a JSON object.
const againKey = "[started again]"

// Again is the text of a result, with a line when the call was started more than once. After a lost
// worker the workspace is as one run leaves it, and the world outside of it may not be; after a
// failed attempt neither may be. JSON stays JSON; a number or a truth value has no room for the
// line.
func Again(result *protocol.Result, text string) string {
	note := StartedAgain(result)
	switch {
	case note == "":
		return text
	case isJSON(result.Value) && json.Valid([]byte(text)):
		return Annotated(text, againKey, note)
	default:
		return prose.Ended(text) + "[" + note + "]"
	}
}

// StartedAgain says that a call was started more than once; "" when it was not, or the failure
// says so.
func StartedAgain(result *protocol.Result) string {
	if result.Attempt < 2 || result.Status == protocol.StatusOutcomeUnknown || result.Error.ErrorType() == string(protocol.CodeAttemptsExhausted) {
		return ""
	}
	if failed := len(result.Tries); failed >= result.Attempt-1 {
		return fmt.Sprintf("attempt %d: attempt %d failed with %s, and the tool's retry started the call again; what it did before it failed may still be there, in the workspace too",
			result.Attempt, result.Attempt-1, result.Tries[failed-1].Error.ErrorType())
	}
	return fmt.Sprintf("attempt %d: a worker was lost while the call ran, and it was started again; what it does outside of the workspace may have happened more than once",
		result.Attempt)
}

// Annotated is a JSON text with a note in it: a property of an object, the last item of an array.
// Other values have no room for one; a text that is not JSON gets a line.
func Annotated(text, key, note string) string {
	if !json.Valid([]byte(text)) {
		return prose.Ended(text) + "[" + prose.Valid(note) + "]"
	}
	text = strings.TrimSpace(text)
	quoted := quote(note)
	switch text[0] {
	case '{':
		quoted = quote(key) + ":" + quoted
	case '[':
		quoted = quote("[" + note + "]")
	default:
		return text
	}
	rest, end := text[:len(text)-1], text[len(text)-1:]
	if len(strings.TrimSpace(rest)) > 1 {
		rest += ","
	}
	return rest + quoted + end
}

// quote is a text as a JSON string.
func quote(text string) string {
	quoted, err := prose.JSON(prose.Valid(text))
	if err != nil { // no string is none
		return `""`
	}
	return string(quoted)
}

// isJSON reports whether the text of a value is JSON for its reader.
func isJSON(value protocol.Value) bool {
	switch value.(type) {
	case protocol.ToolRunResult, protocol.UnknownValue, protocol.FilesJSONReadResult, protocol.FilesExistsResult:
		return true
	default:
		return false
	}
}
