package formats

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// Limits of the tools of that system.
const (
	smithersBytes   = 200_000 // of files, contents, patches, and of output that is stored
	smithersTimeout = time.Minute
	maxSmithersCwd  = 1024 // characters
)

// Smithers returns the tools of that system, sorted by name, made out of toolset.Core. Files,
// contents and patches over 200,000 bytes are errors; the output of commands is cut.
func Smithers(core []tools.Tool) []tools.Tool {
	s := &system{core: core, timeout: smithersTimeout}
	s.format = &tools.Format{Text: func(a tools.Answer) string { return again(a, s.smithersText(a)) }}
	bash := tool(s, "bash", tools.Define("bash",
		"Run a program with arguments, without a shell: no pipes, wildcards or variables, unless cmd is sh and args are -c and a command line. "+
			"Returns what it wrote, after TOOL_COMMAND_FAILED and the exit code unless that is 0. It is killed after 60 seconds.",
		`"cmd": {"type": "string", "minLength": 1, "maxLength": 8192, "description": "The program."},
		"args": {
			"type": "array", "maxItems": 128, "description": "Its arguments, each taken as it is.",
			"items": {"type": "string", "maxLength": 8192}
		},
		"opts": {
			"type": "object", "description": "Options.",
			"properties": {"cwd": {"type": "string", "description": "Directory to run in, relative to the workspace. Default: the workspace."}},
			"additionalProperties": false
		}`, "cmd"), smithersBash)
	bash.Rules = smithersRules
	return []tools.Tool{
		bash,
		tool(s, "edit", tools.Define("edit",
			"Apply a unified diff to a file. Its context must be in the file as it is; its line numbers may be off. "+
				"Returns ok. When it fails, the file is as it was.",
			pathProperty+`, "patch": {"type": "string", "description": "A unified diff of this one file."}`, "path", "patch"), smithersEdit),
		tool(s, "grep", tools.Define("grep",
			"Find the lines that match a regular expression, in one file or in all files below a directory that no .gitignore excludes, without directories of packages and caches. "+
				"Returns path:line:text, sorted, of one file line:text; nothing when there is no match.",
			`"pattern": {"type": "string", "minLength": 1, "description": "Regular expression in RE2 syntax, matched against each line."},
			"path": {"type": "string", "default": ".", "description": "File or directory to search, relative to the workspace. Default: the workspace."},
			`+contextProperty, "pattern"), smithersGrep),
		tool(s, "read", tools.Define("read",
			"Read a text file of at most 200,000 bytes. Returns its text as it is; what is too long to be shown is cut, and the end says so.",
			pathProperty, "path"), smithersRead),
		tool(s, "write", tools.Define("write",
			"Write a file of at most 200,000 bytes: make it, with its directories, or replace all of its content. Returns ok.",
			pathProperty+", "+contentProperty, "path", "content"), smithersWrite),
	}
}

func smithersRead(ours ours, args fileArguments) (tools.Plan, *protocol.Error) {
	plan, err := readFile(ours, args)
	return changed(plan, err, func(p *protocol.FilesRead) { p.MaxBytes = smithersBytes })
}

func smithersWrite(ours ours, args fileArguments) (tools.Plan, *protocol.Error) {
	if len(args.Content) > smithersBytes {
		return tools.Plan{}, tooLong("content", len(args.Content))
	}
	return writeFile(ours, args)
}

func tooLong(what string, bytes int) *protocol.Error {
	return protocol.Errorf("too_large",
		"The %s has %d bytes; at most %d are allowed. Do it in several calls, or with bash.", what, bytes, smithersBytes)
}

func smithersEdit(ours ours, args struct {
	Path  string `json:"path"`
	Patch string `json:"patch"`
},
) (tools.Plan, *protocol.Error) {
	plan, err := ours(map[string]any{"path": args.Path, "patch": args.Patch})
	if err == nil && len(args.Patch) > smithersBytes {
		return tools.Plan{}, tooLong("patch", len(args.Patch))
	}
	return changed(plan, err, func(p *protocol.FilesEdit) { p.MaxBytes = smithersBytes })
}

func smithersGrep(ours ours, args struct {
	Pattern string `json:"pattern"`
	Path    string `json:"path"`
	Context int    `json:"context"`
},
) (tools.Plan, *protocol.Error) {
	return ours(map[string]any{"pattern": args.Pattern, "path": args.Path, "context": args.Context})
}

func smithersBash(ours ours, args struct {
	Cmd  string   `json:"cmd"`
	Args []string `json:"args"`
	Opts struct {
		Cwd string `json:"cwd"`
	} `json:"opts"`
},
) (tools.Plan, *protocol.Error) {
	plan, err := ours(map[string]any{"command": args.Cmd, "cwd": args.Opts.Cwd})
	return changed(plan, err, func(p *protocol.CommandRun) {
		p.Command, p.Argv, p.Limits.Output = "", append([]string{args.Cmd}, args.Args...), smithersBytes
	})
}

// smithersRules refuses arguments of bash as that system's tool does, in addition to the schema.
func smithersRules(arguments map[string]any) (problems []string) {
	if cmd, isText := arguments["cmd"].(string); isText && cmd != "" && strings.TrimSpace(cmd) == "" {
		problems = append(problems, "cmd: is blank: name a program")
	}
	opts, _ := arguments["opts"].(map[string]any)
	cwd, _ := opts["cwd"].(string)
	if length := utf8.RuneCountInString(cwd); length > maxSmithersCwd {
		problems = append(problems, fmt.Sprintf("opts.cwd: has %d characters, must have %d or fewer", length, maxSmithersCwd))
	}
	return problems
}

// smithersText is the requested content, "ok" for a change, and "CODE: text" for a failure.
func (s *system) smithersText(a tools.Answer) string {
	if a.Result.Status != protocol.StatusOK {
		code, text := s.smithersFailure(a)
		return failed(a, code+": "+text)
	}
	switch v := a.Result.Value.(type) {
	case protocol.FilesReadResult:
		return a.File(`for the rest use bash, as in {"cmd": "sed", "args": ["-n", "900,1200p", FILE]}`,
			`for the rest use bash, as in {"cmd": "cut", "args": ["-b", "44001-88000", FILE]}`)
	case protocol.FilesWriteResult:
		return done("ok", v.Links)
	case protocol.FilesEditResult:
		return done("ok", v.Links)
	case protocol.FilesSearchResult:
		return s.ripgrep(a)
	case protocol.CommandRunResult:
		return smithersCommand(a, &v.Execution)
	default:
		return a.Text(maxText)
	}
}

// smithersCommand is what a command wrote, after how it ended when that is not well.
func smithersCommand(a tools.Answer, e *protocol.Execution) string {
	output := a.Output(maxOutput)
	if e.ExitCode == 0 && e.Signal == "" {
		return output
	}
	how := fmt.Sprintf("TOOL_COMMAND_FAILED: Command failed with exit code %d", e.ExitCode)
	if e.Signal != "" {
		how += " (" + e.Signal + ")"
	}
	if len(e.Notes) > 0 {
		how += "\n[" + valid(strings.Join(e.Notes, "; ")) + "]"
	}
	if output != "" {
		how += "\n" + output
	}
	return how
}

// ripgrep is what `rg -n` prints: without the path where only one file was asked for.
func (s *system) ripgrep(a tools.Answer) string {
	named, _ := argument(a, "path")
	only, _ := s.path(named)
	return a.Found("", func(path, separator string, number int, text string) string {
		line := strconv.Itoa(number) + separator + text
		if path != only {
			line = path + separator + line
		}
		return line
	})
}

// smithersFailure is the code of that system for a failure, and its text.
func (s *system) smithersFailure(a tools.Answer) (code, text string) {
	reason, message := failure(a)
	switch {
	case !slices.Contains([]string{"bash", "edit", "grep", "read", "write"}, a.Tool):
		return strings.ToUpper(string(reason)), message
	case reason == protocol.CodeRunTimeout:
		return "PROCESS_TIMEOUT", fmt.Sprintf("Command timed out after %dms", smithersTimeout.Milliseconds())
	case a.Tool == "bash" && reason == protocol.CodeInvalidArguments:
		return "INVALID_INPUT", message
	case a.Tool == "bash" && reason == protocol.CodeCommandNotFound:
		cmd, _ := argument(a, "cmd")
		return "PROCESS_FAILED", "Failed to spawn " + cmd
	}
	named, isText := argument(a, "path")
	switch reason {
	case "path_escape":
		if _, refused := s.path(named); isText && refused == nil {
			return "TOOL_PATH_ESCAPE", "Path escapes sandbox root (via symlink)"
		}
		return "TOOL_PATH_ESCAPE", "Path escapes sandbox root"
	case "invalid_path":
		return "TOOL_PATH_INVALID", message
	case protocol.CodeInvalidArguments:
		if !isText && a.Tool != "grep" {
			return "TOOL_PATH_INVALID", "Path must be a string"
		}
		return "INVALID_INPUT", message
	case "too_large":
		return smithersTooLarge(a.Tool, message)
	case "edit_not_found", "edit_not_unique", "invalid_patch":
		return "TOOL_PATCH_FAILED", "Failed to apply patch: " + message
	default:
	}
	switch {
	case a.Tool == "grep" && a.Result.Status == protocol.StatusFailed:
		return "TOOL_GREP_FAILED", message
	case reason == protocol.CodeNotFound && isText && !strings.HasPrefix(named, handle):
		return "ENOENT", fmt.Sprintf("no such file or directory, open '%s'", named)
	default:
		return strings.ToUpper(string(reason)), message
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
