package render

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/internal/modeltext/plain"
	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// The formats of other systems, one a file, share what is here: each makes all texts of a call,
// failures too, from its name, its arguments as a model wrote them, and its result.

// maxRepeated is how many characters of an argument a text repeats.
const maxRepeated = 500

// argument is a text among the arguments of a call; isText is false when it is missing or is none.
func argument(arguments, name string) (text string, isText bool) {
	var all map[string]any
	if json.Unmarshal([]byte(arguments), &all) != nil {
		return "", false
	}
	text, isText = all[name].(string)
	return prose.Short(prose.Valid(text), maxRepeated), isText
}

// isObject reports whether a model wrote arguments that are a JSON object.
func isObject(arguments string) bool {
	var all map[string]json.RawMessage
	return json.Unmarshal([]byte(arguments), &all) == nil && all != nil
}

// path is that argument of a call about a file.
func path(arguments string) string {
	text, _ := argument(arguments, "path")
	return text
}

// partial is what a command wrote before it failed, as it would stand on a terminal, after a line
// feed; "" when it wrote nothing.
func partial(result *protocol.Result) string {
	e := plain.Execution(result.Value)
	if e == nil || len(e.Stdout)+len(e.Stderr)+len(e.Combined) == 0 {
		return ""
	}
	return "\n" + writtenOrCut(result, e)
}

// writtenOrCut is what a command wrote, and when that is cut where the rest is.
func writtenOrCut(result *protocol.Result, e *protocol.Execution) string {
	all := prose.Plain(string(plain.Written(e)))
	text := prose.Clip(all, outputLimit)
	if text != all || e.Truncated {
		return prose.Ended(text) + "[" + cutNote(restOf(result), e, text) + "]"
	}
	return text
}

// failed returns a failure as text: the error, and the output until then.
func failed(result *protocol.Result, what string) string {
	text := prose.Head(what, prose.BodyLimit/2)
	written := prose.Clip(partial(result), max(prose.BodyLimit-utf8.RuneCountInString(text), minClip))
	if text != what && written == "" {
		written = restOf(result).mark("")
	}
	return text + written
}

// minClip is the least that [prose.Clip] cuts to.
const minClip = 100

// lines is the lines of a list that have room, and where the others are. none stands for an empty
// list; noun names an entry.
func lines(all []string, total int, r rest, none, noun string) string {
	if len(all) == 0 {
		return none
	}
	body, shown := fittingLines(all)
	if total = max(total, len(all)); shown < total {
		body += "[" + strconv.Itoa(total-shown) + " more of " + prose.Plural(total, noun) + "; " + r.others(body, total, "use a narrower pattern") + "]"
	}
	return body
}

// unsearched returns a line that says that a search took too long, or that it found nothing and
// skipped files.
func unsearched(v protocol.FilesSearchResult) string {
	switch {
	case v.Stopped:
		return "\n[not all files were searched, that took too long: use a narrower pattern or path]"
	case v.Total == 0 && v.Binary+v.Skipped > 0:
		return fmt.Sprintf("\n[not searched: %d binary%s, %d too large or unreadable%s]",
			v.Binary, named(v.BinaryPaths, v.Binary), v.Skipped, named(v.SkippedPaths, v.Skipped))
	default:
		return ""
	}
}

// linksNote says that a change is not in all names of a file; "" where it is.
func linksNote(links int) string {
	if links == 0 {
		return ""
	}
	return fmt.Sprintf("the file had %s (hard links), which keep the old content", prose.Plural(links, "other name"))
}

// linksText is linksNote as a line of its own.
func linksText(links int) string {
	if note := linksNote(links); note != "" {
		return "\n[" + note + "]"
	}
	return ""
}

// acting is a text with what is to be said of a call that was started again. What is about files
// acts on the workspace alone, which is as one run leaves it, and its readers expect it as it is.
func acting(result *protocol.Result, text string) string {
	note := startedAgain(result)
	if note == "" || result.Status == protocol.StatusOK && isAboutFiles(result.Value) {
		return text
	}
	return prose.Ended(text) + "[" + note + "]"
}

func isAboutFiles(v protocol.Value) bool {
	return v != nil && (wire.ValueKindOf(v) == wire.KindResultRead || strings.HasPrefix(string(wire.ValueKindOf(v)), "files_"))
}

// own is the text of a tool of the user's own that succeeded, and of everything that no format
// knows.
func own(result *protocol.Result) string {
	switch result.Value.(type) {
	case protocol.ToolRunResult:
		return ToolRun(result)
	case protocol.UnknownValue:
		return User(result)
	default:
		return JSON(result)
	}
}
