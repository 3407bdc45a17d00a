package render

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/toolfleet/toolfleet/internal/modeltext/plain"
	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// FileTools is the format of the five tools that a widely read tutorial gives its agents: one
// plain text, and "Error: " begins every failure.
func FileTools(tool, arguments string, result *protocol.Result) string {
	if result.Status != protocol.StatusOK {
		return acting(result, failed(result, "Error: "+fileToolsFault(tool, arguments, result)))
	}
	return acting(result, fileToolsText(arguments, result))
}

func fileToolsText(arguments string, result *protocol.Result) string {
	r := restOf(result)
	switch v := result.Value.(type) {
	case protocol.FilesReadResult:
		if v.Binary && v.Image == "" {
			return fmt.Sprintf("Error: Not a text file '%s'", path(arguments))
		}
		return wholeText(v, r, "find the place with search_files", "find what you need with search_files")
	case protocol.FilesWriteResult:
		return fmt.Sprintf("Successfully wrote to '%s'", path(arguments)) + linksText(v.Links)
	case protocol.FilesEditResult:
		return fmt.Sprintf("Successfully edited '%s'", path(arguments)) + linksText(v.Links)
	case protocol.FilesGlobResult:
		found, _ := plain.Lines(v)
		return strings.TrimSuffix(lines(found, v.Total, r, "No files found", "file"), "\n") + generatedLine(v.Generated, v.GeneratedPaths)
	case protocol.FilesSearchResult:
		found := plain.Matches(v.Matches, func(match protocol.Match, separator string) string {
			return prose.Path(match.Path) + separator + strconv.Itoa(match.Line) + separator + " " + matchText(match)
		})
		return strings.TrimSuffix(lines(found, v.Total, r, "No matches found", "line")+unsearched(v), "\n") + generatedLine(v.Generated, v.GeneratedPaths)
	case wire.ResultReadResult:
		return keptText(v, prose.BodyLimit)
	default:
		return own(result)
	}
}

func fileToolsFault(tool, arguments string, result *protocol.Result) string {
	code, message := faultOf(result)
	path, named := argument(arguments, "path")
	switch {
	case code == codes.UnknownTool:
		return fmt.Sprintf("Unknown tool '%s'", prose.Short(prose.Valid(tool), maxRepeated))
	case !named || strings.HasPrefix(path, HandlePrefix):
	case code == codes.PathEscape, code == codes.InvalidPath:
		return fmt.Sprintf("Invalid path '%s'", path)
	case code == protocol.CodeNotFound:
		return fmt.Sprintf("File not found '%s'", path)
	case code == codes.NotText:
		return fmt.Sprintf("Not a text file '%s'", path)
	case code == codes.EditNotFound:
		return fmt.Sprintf("Search string not found in '%s'", path)
	}
	return message
}

// matchText is the line of a match, and how much of it is missing.
func matchText(match protocol.Match) string {
	text := prose.Plain(match.Text)
	if match.Cut > 0 {
		text += fmt.Sprintf(" [... and %d more bytes]", match.Cut)
	}
	return text
}
