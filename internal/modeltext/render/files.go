package render

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/internal/modeltext/plain"
	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Read is the lines of a file with their numbers, and where they stand in it.
func Read(v protocol.FilesReadResult, r fullText) string {
	if v.Binary {
		return binaryText(v)
	}
	content := prose.Valid(string(v.Content))
	if content == "" {
		return noLinesText(v)
	}
	first := max(v.FirstLine, 1)
	if v.LineEnds != "" { // the mark has them
		content = strings.ReplaceAll(content, "\r\n", "\n")
	}
	body, shown, cut := numberedLines(content, first, v.LineBytes)
	last := first + shown - 1
	total := max(v.TotalLines, last)
	mark := fmt.Sprintf("[lines %d-%d of %d", first, last, total)
	if last < total {
		mark += fmt.Sprintf("; read on with offset=%d", last+1)
		if r.isStored() {
			mark += ", or in the file as it was now with " + r.path("", last+1, 0)
		}
	}
	if len(cut) > 0 {
		mark += "; " + cutLines(v, r, content, first, cut)
	}
	if stored := encodingText(v); stored != "" {
		mark += "; " + stored
	}
	return body + mark + "]"
}

// encodingText says how a file stores its text where that is not UTF-8 with LF; "" where it is.
// Edits keep it.
func encodingText(v protocol.FilesReadResult) string {
	var parts []string
	if v.Cells > 0 {
		parts = append(parts, fmt.Sprintf("a notebook of %s, without its pictures: edit these lines; %%%% cell [code] begins a new cell; outputs can only be removed",
			prose.Plural(v.Cells, "cell")))
	}
	if v.Encoding != "" {
		parts = append(parts, "encoding "+prose.Plain(v.Encoding))
	}
	if v.BOM {
		parts = append(parts, "with a byte order mark")
	}
	switch v.LineEnds {
	case "":
	case "mixed":
		parts = append(parts, "line ends are mixed, CRLF and LF")
	default:
		parts = append(parts, "line ends are "+prose.Plain(v.LineEnds))
	}
	return strings.Join(parts, ", ")
}

// cutLines says how to get at the rest of lines that are cut.
func cutLines(v protocol.FilesReadResult, r fullText, content string, first int, cut []int) string {
	from, to := secondPart(content, cut[0]-first)
	what := fmt.Sprintf("line %d is cut", cut[0])
	if len(cut) > 1 {
		what = fmt.Sprintf("line %d and %s are cut", cut[0], otherLines(len(cut)-1))
	}
	if r.isStored() {
		return what + ": read on in it with " + r.path("", cut[0], int64(from))
	}
	show := fmt.Sprintf("sed -n %dp %s", cut[0], shellWord(v.Path))
	if v.Encoding != "" {
		show = fmt.Sprintf("iconv -f %s -t UTF-8 %s | sed -n %dp", prose.Plain(v.Encoding), shellWord(v.Path), cut[0])
	}
	return what + fmt.Sprintf(": for the rest of it use bash, as in `%s | cut -b %d-%d`", show, from, to)
}

func otherLines(n int) string {
	if n == 1 {
		return "1 other"
	}
	return fmt.Sprintf("%d others", n)
}

// secondPart is where the [plain.MaxLine] characters stand that follow the shown ones of the line
// at an index, in bytes from 1: that is what cut counts, its -c too.
func secondPart(content string, index int) (from, to int) {
	line := strings.SplitN(content, "\n", index+2)[index]
	return prose.Offset(line, plain.MaxLine) + 1, prose.Offset(line, 2*plain.MaxLine)
}

// noLinesText says why there is nothing to be shown of a text file.
func noLinesText(v protocol.FilesReadResult) string {
	if v.TotalLines == 0 {
		return fmt.Sprintf("[%s is empty]", prose.Path(v.Path))
	}
	return fmt.Sprintf("[there are no such lines: %s has %s]", prose.Path(v.Path), prose.Plural(v.TotalLines, "line"))
}

func binaryText(v protocol.FilesReadResult) string {
	one, several := mediaKind(v.Image)
	if v.Image != "" && len(v.Content) <= MaxImageBytes && !v.Truncated {
		return fmt.Sprintf("[%s is %s, %s of %s: it is attached if you can see %s; otherwise examine it with bash]",
			prose.Path(v.Path), one, v.Image, prose.Plural(v.Bytes, "byte"), several)
	}
	if v.Image != "" {
		return fmt.Sprintf("[%s is %s, %s of %s: too large to be shown (at most %d bytes); make a smaller one with bash]",
			prose.Path(v.Path), one, v.Image, prose.Plural(v.Bytes, "byte"), MaxImageBytes)
	}
	return fmt.Sprintf("[%s is a binary file of %s: not shown; examine it with bash, such as with `file` or `od -c`]",
		prose.Path(v.Path), prose.Plural(v.Bytes, "byte"))
}

// numberedLines returns the lines that fit, with their numbers, how many they are (at least
// one) and the numbers of the cut ones. The only line of a content that is not
// all of it has so many bytes in all; else 0.
func numberedLines(content string, first int, lineBytes int64) (_ string, count int, cut []int) {
	var b strings.Builder
	used := 0
	for line := range strings.Lines(content) {
		line = strings.TrimSuffix(line, "\n")
		shown := prose.Head(line, plain.MaxLine)
		if lineBytes > int64(len(line)) {
			begin := line[:prose.Offset(line, plain.MaxLine)]
			shown = begin + fmt.Sprintf(" [... and %d more bytes]", lineBytes-int64(len(begin)))
		}
		text := fmt.Sprintf("%6d\t%s\n", first+count, shown)
		length := utf8.RuneCountInString(text)
		if used+length > plain.MaxFile && count > 0 {
			break
		}
		if shown != line {
			cut = append(cut, first+count)
		}
		b.WriteString(text)
		used += length
		count++
	}
	return b.String(), count, cut
}

// shellWord is a path as a word of a shell command.
func shellWord(path string) string {
	if strings.Trim(path, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._/-") == "" && !strings.HasPrefix(path, "-") {
		return path
	}
	return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'"
}

// WholeFile returns the text of a file that was read, for tools that have no offset: without line
// numbers, cut at what fits. If more of it is not stored, lines says how to get at the other lines,
// and inLine at the rest of a long one.
func WholeFile(result *protocol.Result, lines, inLine string) string {
	v, isFile := result.Value.(protocol.FilesReadResult)
	if !isFile {
		return JSON(result)
	}
	if v.Binary {
		return binaryText(v)
	}
	content := prose.Valid(string(v.Content))
	shown := content[:prose.Offset(content, prose.BodyLimit)]
	if at := strings.LastIndexByte(shown, '\n'); len(shown) < len(content) && at > 0 {
		shown = shown[:at+1]
	}
	if len(shown) == len(content) && !v.Truncated {
		if v.Encoding != "" || v.Cells > 0 {
			content = prose.Ended(content) + "[" + encodingText(v) + "]"
		}
		return content
	}
	line, column := endOf(shown)
	first, next := strconv.Itoa(line-1), lines
	if column > 1 {
		first, next = prose.Plural(utf8.RuneCountInString(shown), "character"), inLine
	}
	if path := ReadOn(result, shown); path != "" {
		next = "read on with " + path
	}
	return prose.Ended(shown) + fmt.Sprintf("[cut here: these are the first %s of %s, %s in all; %s]",
		first, prose.Plural(max(v.TotalLines, line-1), "line"), prose.Plural(v.Bytes, "byte"), next)
}

// endOf is the line and the byte of it, both from 1, that follow a text.
func endOf(shown string) (line int, column int64) {
	return strings.Count(shown, "\n") + 1, int64(len(shown) - strings.LastIndexByte(shown, '\n'))
}

// Exists says yes or no, and what there is.
func Exists(v protocol.FilesExistsResult) string {
	if !v.Exists {
		return "no: there is nothing at " + prose.Path(v.Path)
	}
	what := "special file"
	switch v.Type {
	case protocol.TypeDir:
		what = "directory"
	case protocol.TypeSymlink:
		what = "symlink"
	case protocol.TypeFile:
		what = "file of " + prose.Plural(v.Size, "byte")
	case protocol.TypeOther:
	}
	return fmt.Sprintf("yes: %s is a %s", prose.Path(v.Path), what)
}

// Fetch is the text of a response from the web.
func Fetch(v protocol.HTTPFetchResult, r fullText) string {
	about := []string{strings.TrimSpace(fmt.Sprintf("%d %s", v.Status, http.StatusText(v.Status)))}
	if v.MediaType != "" {
		about = append(about, prose.Plural(v.Bytes, "byte")+" of "+v.MediaType)
	}
	if len(v.Redirects) > 0 {
		about = append(about, "redirected to "+v.URL)
	}
	if v.Title != "" {
		about = append(about, fmt.Sprintf("title %q", v.Title))
	}
	for _, name := range slices.Sorted(maps.Keys(v.Headers)) {
		about = append(about, name+": "+v.Headers[name])
	}
	if v.Truncated {
		about = append(about, "the body is longer: the rest was left out (max_bytes limits what is read, raw returns HTML as it is)")
	}
	text := prose.Plain(string(v.Content))
	switch {
	case v.Image != "":
		one, several := mediaKind(v.Image)
		about, text = append(about, one+": here it is, if you take "+several), ""
	case text == "" && v.MediaType == "text/html" && v.Headers["Content-Encoding"] == "":
		about = append(about, "the page has no visible text: raw returns its HTML")
	case text == "" && v.Bytes > 0:
		about = append(about, "not text: not shown")
	}
	head := "[" + prose.Plain(strings.Join(about, "; ")) + "]"
	if text == "" {
		return head
	}
	if shown := prose.Clip(text, prose.BodyLimit); shown != text {
		text = shown + r.mark("")
	}
	return head + "\n" + text
}

// Write says what was written.
func Write(v protocol.FilesWriteResult) string {
	return wroteText("Replaced the content of", v.Created, v.Path, v.Bytes, v.SHA256, v.Links)
}

// JSONWrite names the written file, and the position in it.
func JSONWrite(v protocol.FilesJSONWriteResult) string {
	return wroteText("Changed", v.Created, v.Path, v.Bytes, v.SHA256, v.Links)
}

// wroteText says what became of a file that existed before, unless it was created.
func wroteText(what string, created bool, path string, bytes int64, sum string, links int) string {
	if created {
		what = "Created"
	}
	return fmt.Sprintf("%s %s (%s, SHA-256 %s).", what, prose.Path(path), prose.Plural(bytes, "byte"), sum) + linksText(links)
}

// Edit lists the changes, the edits that failed and why, and the diff.
func Edit(v protocol.FilesEditResult, r fullText) string {
	made, failed := 0, 0
	var notes []string
	for i, outcome := range v.Outcomes {
		switch {
		case outcome.Error != nil:
			failed++
			notes = append(notes, "not made: "+prose.Plain(outcome.Error.Message))
		case outcome.Offset != 0:
			notes = append(notes, fmt.Sprintf("hunk %d was applied at line %d, %s than its header says",
				i+1, outcome.Line, offsetText(outcome.Offset)))
			made++
		default:
			made++
		}
	}
	text := fmt.Sprintf("Edited %s: %s (%s, SHA-256 %s).", prose.Path(v.Path), prose.Plural(v.Replacements, "replacement"), prose.Plural(v.Bytes, "byte"), v.SHA256)
	if failed > 0 {
		text = fmt.Sprintf("Edited %s: %d of %d edits were made (%s, SHA-256 %s).",
			prose.Path(v.Path), made, made+failed, prose.Plural(v.Bytes, "byte"), v.SHA256)
	}
	text += linksText(v.Links)
	for _, note := range notes {
		text += "\n[" + prose.Head(note, plain.MaxLine) + "]"
	}
	if v.Diff != "" {
		text += "\n" + prose.Clip(prose.Valid(v.Diff), prose.BodyLimit/2)
	}
	if shown := prose.Clip(text, prose.BodyLimit); shown != text {
		return shown + r.mark(wire.PartValue)
	}
	return text
}

// linksText says in a line that a change is not in all names of a file; "" where it is.
func linksText(links int) string {
	if links == 0 {
		return ""
	}
	return fmt.Sprintf("\n[the file had %s (hard links), which keep the old content]", prose.Plural(links, "other name"))
}

// offsetText says an offset in words.
func offsetText(offset int) string {
	if offset < 0 {
		return prose.Plural(-offset, "line") + " further up"
	}
	return prose.Plural(offset, "line") + " further down"
}

// JSONRead is the value as JSON.
func JSONRead(v protocol.FilesJSONReadResult, r fullText) string {
	if len(v.Value) == 0 {
		return "[the worker sent no value]"
	}
	return prose.FitJSON([]byte(prose.Valid(string(v.Value))), r.note(""))
}

// maxPaths is how many paths of a merge a model is shown of one kind.
const maxPaths = 50

// Merge is what a model reads of a merge of workspaces.
func Merge(m wire.WorkspaceMergeResult) string { return "[" + MergeText(m) + "]" }

// MergeText is what a person reads of a merge of workspaces.
func MergeText(m wire.WorkspaceMergeResult) string {
	if len(m.Written)+len(m.Removed)+len(m.Conflicts)+len(m.Protected) == 0 && !m.Commits {
		return "The fork has nothing new to merge."
	}
	var lines []string
	add := func(what string, paths []string) {
		if len(paths) == 0 {
			return
		}
		shown := paths[:min(len(paths), maxPaths)]
		line := what + strings.Join(shown, ", ")
		if more := len(paths) - len(shown); more > 0 {
			line += fmt.Sprintf(" and %d more", more)
		}
		lines = append(lines, line)
	}
	add("changed: ", m.Written)
	add("changed on both sides, and merged: ", m.Merged)
	add("removed: ", m.Removed)
	add("CONFLICTS, changed on both sides, and left as they are in the workspace: ", m.Conflicts)
	add("their versions of the fork: ", m.Theirs)
	add("protected, and left as they are: ", m.Protected)
	if m.Commits {
		lines = append(lines, "The commits of the fork stay in the fork. Its files are merged, and can be committed here.")
	}
	return "Merged into the workspace:\n" + strings.Join(lines, "\n")
}
