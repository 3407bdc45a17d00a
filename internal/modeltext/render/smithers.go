package render

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/modeltext/modelpath"
	"github.com/toolfleet/toolfleet/internal/modeltext/plain"
	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Limits of the tools of that system.
const (
	SmithersBytes   = 200_000 // of files, contents, patches, and of output that is kept
	SmithersTimeout = time.Minute
)

// Smithers is the format of that system: the requested content, "ok" for a change, and "CODE: text"
// for a failure.
func Smithers(tool, arguments string, result *protocol.Result) string {
	return acting(result, smithersText(tool, arguments, result))
}

func smithersText(tool, arguments string, result *protocol.Result) string {
	if result.Status != protocol.StatusOK {
		code, text := smithersFault(tool, arguments, result)
		return failed(result, code+": "+text)
	}
	r := restOf(result)
	switch v := result.Value.(type) {
	case protocol.FilesReadResult:
		return wholeText(v, r,
			`for the rest use bash, as in {"cmd": "sed", "args": ["-n", "900,1200p", FILE]}`,
			`for the rest use bash, as in {"cmd": "cut", "args": ["-b", "44001-88000", FILE]}`)
	case protocol.FilesWriteResult:
		return "ok" + linksText(v.Links)
	case protocol.FilesEditResult:
		return "ok" + linksText(v.Links)
	case protocol.FilesSearchResult:
		return ripgrep(arguments, v, r)
	case protocol.CommandRunResult:
		return smithersCommand(result, &v.Execution)
	case wire.ResultReadResult:
		return keptText(v, prose.BodyLimit)
	default:
		return own(result)
	}
}

// smithersCommand is what a command wrote, after how it ended when that is not well.
func smithersCommand(result *protocol.Result, e *protocol.Execution) string {
	if e.ExitCode == 0 && e.Signal == "" {
		return writtenOrCut(result, e)
	}
	how := fmt.Sprintf("TOOL_COMMAND_FAILED: Command failed with exit code %d", e.ExitCode)
	if e.Signal != "" {
		how += " (" + e.Signal + ")"
	}
	if len(e.Notes) > 0 {
		how += "\n[" + prose.Plain(strings.Join(e.Notes, "; ")) + "]"
	}
	return how + partial(result)
}

// ripgrep is what `rg -n` prints: without the path where only one file was asked for.
func ripgrep(arguments string, v protocol.FilesSearchResult, r rest) string {
	only, _ := modelpath.Path(path(arguments))
	found := plain.Matches(v.Matches, func(match protocol.Match, separator string) string {
		line := strconv.Itoa(match.Line) + separator + matchText(match)
		if match.Path != only {
			line = prose.Path(match.Path) + separator + line
		}
		return line
	})
	text := lines(found, v.Total, r, "", "line") + unsearched(v)
	if left := generatedLine(v.Generated, v.GeneratedPaths); left != "" {
		return strings.TrimSuffix(text, "\n") + left
	}
	return text
}

// smithersFault is the code of that system for a failure, and its text.
func smithersFault(tool, arguments string, result *protocol.Result) (code, text string) {
	fault, message := faultOf(result)
	switch {
	case !slices.Contains([]string{"bash", "edit", "grep", "read", "write"}, tool):
		return strings.ToUpper(string(fault)), message
	case fault == protocol.CodeRunTimeout:
		return "PROCESS_TIMEOUT", fmt.Sprintf("Command timed out after %dms", SmithersTimeout.Milliseconds())
	case tool == "bash":
		if code, text = smithersCommandFault(arguments, fault, message); code != "" {
			return code, text
		}
	}
	return smithersFileFault(tool, arguments, result)
}

// smithersFileFault is that of a tool about files, and what of a command is about a path.
func smithersFileFault(tool, arguments string, result *protocol.Result) (code, text string) {
	fault, message := faultOf(result)
	named, isText := argument(arguments, "path")
	switch fault {
	case codes.PathEscape:
		if _, refused := modelpath.Path(named); isText && refused == nil {
			return "TOOL_PATH_ESCAPE", "Path escapes sandbox root (via symlink)"
		}
		return "TOOL_PATH_ESCAPE", "Path escapes sandbox root"
	case codes.InvalidPath:
		return "TOOL_PATH_INVALID", message
	case protocol.CodeInvalidArguments:
		if !isText && tool != "grep" {
			return "TOOL_PATH_INVALID", "Path must be a string"
		}
		return "INVALID_INPUT", message
	case codes.TooLarge:
		return smithersTooLarge(tool, message)
	case codes.EditNotFound, codes.EditNotUnique, codes.InvalidPatch:
		return "TOOL_PATCH_FAILED", "Failed to apply patch: " + message
	default:
	}
	switch {
	case tool == "grep" && result.Status == protocol.StatusFailed:
		return "TOOL_GREP_FAILED", message
	case fault == protocol.CodeNotFound && isText && !strings.HasPrefix(named, HandlePrefix):
		return "ENOENT", fmt.Sprintf("no such file or directory, open '%s'", named)
	default:
		return strings.ToUpper(string(fault)), message
	}
}

// smithersCommandFault is that of a command alone; "" when it is as of every tool.
func smithersCommandFault(arguments string, fault protocol.Code, message string) (code, text string) {
	switch fault {
	case protocol.CodeInvalidArguments:
		return "INVALID_INPUT", message
	case protocol.CodeCommandNotFound:
		cmd, _ := argument(arguments, "cmd")
		return "PROCESS_FAILED", "Failed to spawn " + cmd
	default:
		return "", ""
	}
}

// sizeOf finds the size in a message about what is too large.
var sizeOf = regexp.MustCompile(`has (\d+) bytes`)

func smithersTooLarge(tool, message string) (code, text string) {
	size := "over 200000"
	if found := sizeOf.FindStringSubmatch(message); found != nil {
		size = found[1]
	}
	switch {
	case tool == "write":
		return "TOOL_CONTENT_TOO_LARGE", "Content too large (" + size + " bytes)"
	case tool == "edit" && strings.HasPrefix(message, "The patch"):
		return "TOOL_PATCH_TOO_LARGE", "Patch too large (" + size + " bytes)"
	default:
		return "TOOL_FILE_TOO_LARGE", "File too large (" + size + " bytes)"
	}
}
