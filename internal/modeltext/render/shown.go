package render

import (
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

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
