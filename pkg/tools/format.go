package tools

import (
	"encoding/json"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/modeltext/render"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Format words what tools return as another system does, for agents and programs that read it.
type Format struct {
	// Text words the result of a call. The text also mentions, where its readers accept that, that
	// the call was started again, and is at most 48,000 characters long. It is safe for concurrent
	// use.
	Text func(answer Answer) string
	// Note adds a note under a key to a text, as [InJSON] does; nil adds it as a line.
	Note func(text, key, note string) string
}

// InJSON puts a note into a JSON text: as a property of an object, or the last item of an array.
// Other values have no room for one, and stay as they are. A text that is not JSON gets a line.
func InJSON(text, key, note string) string { return render.Annotated(text, key, note) }

// Answer is the result of a call that a [Format] words. Its methods return the pieces of our own
// format, within the lengths that a model reads.
type Answer struct {
	Tool      string // as the model wrote it
	Arguments string // as the model wrote them
	Result    *protocol.Result

	render func(*protocol.Result) string
}

// Text returns the result in our own format, cut to limit characters, which must be 100 or more:
// what the tool's Render returns, or else its value as JSON.
func (a Answer) Text(limit int) string {
	text := ""
	switch stored, isStored := render.StoredResult(a.Result, limit); {
	case isStored:
		return stored
	case a.render == nil:
		text = render.JSON(a.Result)
	default:
		text = a.render(a.Result)
	}
	return prose.Clip(text, limit)
}

// Again says that the call was started more than once; "" if it was not, or its error says so.
func (a Answer) Again() string { return render.StartedAgain(a.Result) }

// Output returns the output of a command, both streams in the order written: its beginning and its
// end if it has more than limit characters, which must be 100 or more, and then where the rest is.
func (a Answer) Output(limit int) string { return render.Written(a.Result, limit) }

// Streams returns stdout and stderr of a command, cut to limit characters together, which must be
// 200 or more. If they are cut, rest says where the rest is.
func (a Answer) Streams(limit int) (stdout, stderr, rest string) {
	return render.Streams(a.Result, limit)
}

// File returns the text of a file that was read, without line numbers and cut at 44,000 characters.
// If more of it is not stored, lines and inLine say how else to read the other lines, or the rest
// of a long line.
func (a Answer) File(lines, inLine string) string { return render.WholeFile(a.Result, lines, inLine) }

// Found returns the files or the lines that a search found, one a line, and how many there are
// besides: none if it found nothing. line words a line of a file; its separator is ":" for a match,
// "-" for a line around one.
func (a Answer) Found(none string, line func(path, separator string, number int, text string) string) string {
	return render.Found(a.Result, none, line)
}

// Others says how to read the entries of a list that follow those shown, of a total; narrower says
// what else to do if they are not stored.
func (a Answer) Others(shown, total int, narrower string) string {
	return render.Others(a.Result, shown, total, narrower)
}

// ReadOn returns the argument with which tools that read files read on behind the shown beginning
// of the full text, as in path="result:ID:7"; "" if the fleet stores no more than the result.
func (a Answer) ReadOn(shown string) string { return render.ReadOn(a.Result, shown) }

// Failure is the text of a call that came to nothing: the result has an error of [Table.Plan] or
// [Plan.RunInline], and the status of the call. A nil tool stands for a call whose tool is unknown.
func (t *Tool) Failure(result *protocol.Result) string {
	if t != nil && t.Format == nil {
		t = nil // failures look alike
	}
	return t.Text(result)
}

// Returned returns the output of [Plan.RunInline] as the model reads it: by the tool's Format, or
// shortened, as JSON if it is JSON.
func (t *Tool) Returned(text string, call protocol.CallID, kept *protocol.Kept) string {
	if t == nil || t.Format == nil {
		return render.Shown(text, call, kept)
	}
	output := json.RawMessage(text)
	if !json.Valid(output) {
		output, _ = prose.JSON(text) // of a string there is no error
	}
	inline := *t
	inline.Render = render.ToolRun
	return inline.Text(&protocol.Result{CallID: call, Status: protocol.StatusOK, Kept: kept, Value: protocol.ToolRunResult{Output: output}})
}

// WithNote is the text of a result with what a person said who approved the call: behind it, or
// where the tool's [Format] adds notes. Nothing of the text makes room for that. A note of "" adds
// nothing.
func (t *Tool) WithNote(text, note string) string {
	const about = "the call was approved by a person, who said: "
	switch {
	case note == "":
		return text
	case t != nil && t.Format != nil && t.Format.Note != nil:
		return t.Format.Note(text, "[approved]", about+note)
	default:
		return text + "\n[" + about + prose.Valid(note) + "]"
	}
}

// formatOf is the format that the tools which have one share; nil when there is none, or two.
func formatOf(set []Tool) *Format {
	var format *Format
	for i := range set {
		switch own := set[i].Format; {
		case own == nil || own == format:
		case format != nil:
			return nil
		default:
			format = own
		}
	}
	return format
}
