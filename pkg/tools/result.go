package tools

import (
	"cmp"
	"strings"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/internal/prose"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools/internal/render"
)

// MaxText is the most characters of one result that a model gets to read.
const MaxText = prose.MaxText

// Text returns what the model reads of a result: what the tool's Format makes of it, or its
// Render, or [RenderJSON] when there is none, it panics, or t is nil; of a call that was started
// again it says so. It is valid UTF-8 of at most [MaxText] characters.
func (t *Tool) Text(result *protocol.Result) string {
	if result == nil {
		result = &protocol.Result{
			Status: protocol.StatusOutcomeUnknown,
			Error:  protocol.Errorf(protocol.CodeInternal, "The fleet kept no result of this call."),
		}
	}
	text := prose.Valid(t.render(result))
	if t == nil || t.Format == nil {
		text = render.Again(result, text)
	}
	return Shown(text, result.CallID, result.Kept)
}

// Handle is the path by which tools that read files read the result of a call.
func Handle(call protocol.CallID) string { return render.HandlePrefix + string(call) }

// Fits reports whether a model is shown all of a text.
func Fits(text string) bool { return len(text) <= MaxText || utf8.RuneCountInString(text) <= MaxText }

// Shown is what a model is shown of the text of a call: at most [MaxText] characters, and
// where all of it is, if it is cut and kept.
func Shown(text string, call protocol.CallID, kept *protocol.Kept) string {
	if kept == nil || Fits(text) {
		return prose.Clip(text, MaxText)
	}
	mark := render.Mark(call, kept)
	return prose.Clip(text, MaxText-utf8.RuneCountInString(mark)) + mark
}

// render calls the tool's Format or Render function, and catches its panic.
func (t *Tool) render(result *protocol.Result) (text string) {
	if t == nil || t.Render == nil && t.Format == nil {
		return render.JSON(result)
	}
	defer func() {
		if recover() != nil {
			text = render.JSON(result)
		}
	}()
	if t.Format != nil {
		return t.Format.Text(cmp.Or(t.called, t.Name), t.arguments, result)
	}
	return t.Render(result)
}

// RenderJSON is the text of a result whose tool has no Render function: its value
// as JSON, after the failure when it is not ok.
func RenderJSON(result *protocol.Result) string { return render.JSON(result) }

// RenderFailure is the text of a tool call that came to nothing: of an error of
// [Table.Plan] or [RunInline] under the status that its result will have.
func RenderFailure(status protocol.Status, err *protocol.Error) string {
	return prose.Clip(prose.Valid(render.Failure(&protocol.Result{Status: status, Error: err}, "")), MaxText)
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

// MaxImageBytes is the largest image that a model is shown.
const MaxImageBytes = render.MaxImageBytes

// Image returns the image that a result is, or the first that it has, and its media type, as in
// "image/png"; ok is false for every other result, for images that are too large to be shown, and
// for those of a type that models do not take, as SVG.
func Image(result *protocol.Result) (mediaType string, data []byte, ok bool) {
	if result == nil {
		return "", nil, false
	}
	if called, isCall := result.Value.(protocol.MCPCallResult); isCall {
		for _, part := range called.Content {
			if mediaType := imageType(part.MediaType); part.Type == "image" && mediaType != "" &&
				len(part.Data) > 0 && len(part.Data) <= MaxImageBytes {
				return mediaType, part.Data, true
			}
		}
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

// imageType is a media type as models take it; "" when they do not.
func imageType(mediaType string) string {
	switch mediaType = strings.ToLower(mediaType); mediaType {
	case "image/png", "image/jpeg", "image/gif", "image/webp":
		return mediaType
	case "image/jpg":
		return "image/jpeg"
	default:
		return ""
	}
}
