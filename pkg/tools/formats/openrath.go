package formats

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	pathpkg "path"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// Limits of the tools and texts of that system.
const (
	maxRathCommand = 2048   // characters
	maxRathTimeout = 3600   // seconds
	maxRathFile    = 12_000 // characters
	maxRathListed  = 500
	maxRathText    = 47_000 // characters, without a note
)

// OpenRath returns the tools of that system, sorted by name, made out of toolset.Core. Each of
// their texts is JSON, and arguments that a tool does not have are ignored.
func OpenRath(core []tools.Tool) []tools.Tool {
	s := &system{core: core, format: &tools.Format{Text: rathText, Note: tools.InJSON}}
	command := tool(s, "bash", tools.Define("run_shell_command",
		"Run one shell command in the workspace. Returns JSON: exit_code, stdout, stderr and elapsed_ms. "+
			"A command has one line of at most 2,048 characters.",
		`"cmd": {"type": "string", "description": "The command line, run by the shell."}`, "cmd"), rathCommandPlan)
	command.Rules = rathCommandRules
	write := tool(s, "write", tools.Define("write_workspace_file",
		"Write text to a file of the workspace: make it, with its directories, or replace all of its content. Returns JSON: bytes_written.",
		pathProperty+", "+contentProperty, "path", "content"), writeFile)
	write.Rules = rathWriteRules
	set := []tools.Tool{
		tool(s, "list", tools.Define("list_workspace_files",
			"List a directory of the workspace. Returns JSON: entries, hidden ones too, each with name, path and is_dir. At most 500; total says how many there are.",
			`"path": {"type": "string", "description": "The directory, relative to the workspace, which is \".\"."}`, "path"), rathListPlan),
		tool(s, "read", tools.Define("read_workspace_file",
			"Read a file of the workspace. Returns JSON: data has its text. With encoding null it has the bytes: as text if they are UTF-8, else as base64, and encoding says so. "+
				"Of more than 12,000 characters you get the first, and truncated says how to read on.",
			pathProperty+`,
			"encoding": {"type": ["string", "null"], "default": "utf-8", "description": "The encoding of the text, as in latin-1, or null for the bytes. Default: utf-8; of a file that is not UTF-8 the encoding is guessed."}`, "path"), rathReadPlan),
		tool(s, "run_code", tools.Define("run_code",
			"Run a program in the workspace directory. Returns JSON: stdout, stderr, and error unless it ended with exit code 0. "+
				"Every run is a new process: print what you want to see, and keep in files what a later run needs. "+
				"A go program is a complete main package that uses the standard library only.",
			`"code": {"type": "string", "description": "The whole text of the program."},
			"language": {"type": "string", "default": "python", "description": "python, sh, node or go, as far as the sandbox has them. Default: python."},
			"timeout": {"type": ["number", "null"], "exclusiveMinimum": 0, "description": "Seconds after which the program is killed, up to 3600. Default: 60."}`, "code"), rathCodePlan),
		command,
		tool(s, "exists", tools.Define("workspace_path_exists",
			"Ask whether there is something at a path of the workspace. Returns JSON: ok is true or false.", pathProperty, "path"), rathExistsPlan),
		write,
	}
	for i := range set {
		set[i].Lenient = true
	}
	return set
}

func rathCommandPlan(ours ours, args struct {
	Cmd string `json:"cmd"`
},
) (tools.Plan, *protocol.Error) {
	return ours(map[string]any{"command": cmp.Or(args.Cmd, ":")}) // ":" does nothing, too
}

// rathCommandRules refuses what the tool of that system refuses, in its words.
func rathCommandRules(arguments map[string]any) (problems []string) {
	const instead = "write a script with write_workspace_file and run that"
	cmd, _ := arguments["cmd"].(string)
	if strings.ContainsAny(cmd, "\n\r") {
		problems = append(problems, "cmd: multiline commands are rejected: send one line, or "+instead)
	}
	if length := utf8.RuneCountInString(cmd); length > maxRathCommand {
		problems = append(problems, fmt.Sprintf("cmd: command too long: it has %d characters, at most %d are allowed; %s", length, maxRathCommand, instead))
	}
	return problems
}

func rathWriteRules(arguments map[string]any) []string {
	content, given := arguments["content"]
	if _, isText := content.(string); given && !isText {
		return []string{"content: content must be text for write_workspace_file"}
	}
	return nil
}

func rathCodePlan(ours ours, args struct {
	Code     string  `json:"code"`
	Language string  `json:"language"`
	Timeout  float64 `json:"timeout"`
},
) (tools.Plan, *protocol.Error) {
	return ours(map[string]any{"code": args.Code, "language": args.Language, "timeout": min(args.Timeout, maxRathTimeout)})
}

func rathReadPlan(ours ours, args struct {
	Path     string          `json:"path"`
	Encoding json.RawMessage `json:"encoding"`
},
) (tools.Plan, *protocol.Error) {
	plan, err := ours(map[string]any{"path": args.Path})
	return changed(plan, err, func(p *protocol.FilesRead) {
		p.Raw = string(args.Encoding) == "null"
		if json.Unmarshal(args.Encoding, &p.Encoding) != nil || strings.EqualFold(p.Encoding, "utf-8") {
			p.Encoding = ""
		}
	})
}

func rathListPlan(ours ours, args fileArguments) (tools.Plan, *protocol.Error) {
	plan, err := ours(map[string]any{"path": args.Path})
	return changed(plan, err, func(p *protocol.FilesList) { p.Follow = true })
}

func rathExistsPlan(ours ours, args fileArguments) (tools.Plan, *protocol.Error) {
	plan, err := ours(map[string]any{"path": cmp.Or(args.Path, ".")})
	if err != nil { // nothing of the workspace has such a path
		return tools.Plan{Inline: func(context.Context) (string, *protocol.Error) { return `{"ok":false}`, nil }}, nil //nolint:nilerr // that is the answer
	}
	return changed(plan, nil, func(p *protocol.FilesExists) { p.Follow = true })
}

// The values of that system. What it does not have is left out when there is nothing to say;
// "truncated" says what is missing, and where it is.
type (
	rathCommand struct {
		ExitCode  int      `json:"exit_code"`
		Stdout    string   `json:"stdout"`
		Stderr    string   `json:"stderr"`
		ElapsedMS float64  `json:"elapsed_ms"`
		Signal    string   `json:"signal,omitempty"`
		Notes     []string `json:"notes,omitempty"`
		Truncated string   `json:"truncated,omitempty"`
	}
	rathProgram struct {
		Text      *string `json:"text"` // of a last expression: there is none
		Stdout    string  `json:"stdout"`
		Stderr    string  `json:"stderr"`
		Error     *string `json:"error"`
		Truncated string  `json:"truncated,omitempty"`
	}
	rathData struct {
		Data      string `json:"data"`
		Encoding  string `json:"encoding,omitempty"` // of the file, or of data, where that is not UTF-8
		Truncated string `json:"truncated,omitempty"`
	}
	rathEntry struct {
		Name  string `json:"name"`
		Path  string `json:"path"`
		IsDir bool   `json:"is_dir"`
	}
	rathEntries struct {
		Entries   []rathEntry `json:"entries"`
		Total     int         `json:"total,omitempty"`
		Truncated string      `json:"truncated,omitempty"`
	}
	rathWritten struct {
		Bytes int64  `json:"bytes_written"`
		Note  string `json:"note,omitempty"`
	}
	rathOK struct {
		OK bool `json:"ok"`
	}
	rathCut struct {
		Repr      string `json:"repr"`
		Type      string `json:"type"`
		Truncated string `json:"truncated,omitempty"`
	}
	rathFailure struct {
		rathOK

		Kind      string `json:"error_kind"`
		Message   string `json:"message"`
		Detail    string `json:"detail"`
		Stdout    string `json:"stdout,omitempty"`
		Stderr    string `json:"stderr,omitempty"`
		Truncated string `json:"truncated,omitempty"`
	}
)

// cutEnd is the end of a text of which there is more.
const cutEnd = "...(truncated)"

// rathText is JSON, however long what it is about.
func rathText(a tools.Answer) string {
	text := ""
	for limit := maxOutput; ; limit /= 2 { // what is quoted is longer
		text = encode(rathValue(a, limit))
		if limit < 2*minCut || utf8.RuneCountInString(text) <= maxRathText {
			break
		}
	}
	if note := a.Again(); note != "" && !isOfFiles(a.Result) {
		return tools.InJSON(text, "[started again]", note)
	}
	return text
}

// encode is a value as JSON, without the escapes that are for HTML.
func encode(value any) string {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return encode(rathFailure{Kind: "unexpected", Message: "the result cannot be shown: " + err.Error(), Detail: string(protocol.CodeInternal)})
	}
	return strings.TrimSuffix(out.String(), "\n")
}

// rathValue returns a result in that system's format; long texts have at most so many characters.
func rathValue(a tools.Answer, limit int) any {
	if a.Result.Status != protocol.StatusOK {
		return rathFailed(a, limit)
	}
	switch v := a.Result.Value.(type) {
	case protocol.CommandRunResult:
		return rathOfCommand(a, &v.Execution, limit)
	case protocol.CodeRunResult:
		return rathOfProgram(a, &v.Execution, limit)
	case protocol.FilesReadResult:
		return rathOfFile(a, v, min(limit, maxRathFile))
	case protocol.FilesListResult:
		return rathOfList(a, v, limit)
	case protocol.FilesWriteResult:
		return rathWritten{v.Bytes, linksNote(v.Links)}
	case protocol.FilesExistsResult:
		return rathOK{v.Exists}
	default:
		return rathOwn(a, limit)
	}
}

func rathOfCommand(a tools.Answer, e *protocol.Execution, limit int) rathCommand {
	value := rathCommand{ExitCode: e.ExitCode, ElapsedMS: a.Result.RunMS, Signal: e.Signal}
	if number := slices.Index(signals, e.Signal); number > 0 {
		value.ExitCode = -number
	}
	for _, note := range e.Notes {
		value.Notes = append(value.Notes, short(note))
	}
	value.Stdout, value.Stderr, value.Truncated = a.Streams(limit)
	return value
}

// signals are the signals whose exit code that system has: their negative number.
var signals = []string{ //nolint:gochecknoglobals // a constant table
	"", "SIGHUP", "SIGINT", "SIGQUIT", "SIGILL", "SIGTRAP", "SIGABRT", "SIGBUS", "SIGFPE", "SIGKILL", "SIGUSR1", "SIGSEGV", "SIGUSR2", "SIGPIPE", "SIGALRM", "SIGTERM",
}

func rathOfProgram(a tools.Answer, e *protocol.Execution, limit int) rathProgram {
	var value rathProgram
	value.Stdout, value.Stderr, value.Truncated = a.Streams(limit)
	switch {
	case e.Signal == "" && e.ExitCode == 0:
	case value.Stderr != "":
		value.Error = &value.Stderr
	case e.Signal != "":
		value.Error = new("ended by signal " + e.Signal)
	default:
		value.Error = new(fmt.Sprintf("exit code %d", e.ExitCode))
	}
	return value
}

// rathOfFile is the text of a file, or its bytes, as base64 if they are not UTF-8.
func rathOfFile(a tools.Answer, v protocol.FilesReadResult, limit int) any {
	all, encoding := valid(string(v.Content)), v.Encoding
	switch {
	case v.Binary && v.Raw:
		all, encoding = base64.StdEncoding.EncodeToString(v.Content), "base64"
	case v.Binary && !utf8.Valid(v.Content):
		path, _ := argument(a, "path")
		return rathFailure{Kind: "tool_execution_exception", Message: "the file is not text in a known encoding: read it with encoding null", Detail: path}
	}
	data := rathData{Data: head(all, limit), Encoding: encoding}
	if len(data.Data) == len(all) && !v.Truncated && (!v.Raw || int64(len(v.Content)) == v.Bytes) {
		return data
	}
	data.Truncated = fmt.Sprintf("the file has %d bytes; for the rest use run_shell_command, as in `cut -b 12001-24000 FILE`", v.Bytes)
	if next := a.ReadOn(data.Data); next != "" {
		data.Truncated = fmt.Sprintf("the file has %d bytes; read on with %s", v.Bytes, next)
	}
	data.Data += cutEnd
	return data
}

func rathOfList(a tools.Answer, v protocol.FilesListResult, limit int) rathEntries {
	list := rathEntries{Entries: []rathEntry{}}
	for _, entry := range v.Entries[:min(len(v.Entries), maxRathListed)] {
		name := valid(entry.Name)
		e := rathEntry{Name: name, Path: pathpkg.Join(valid(v.Path), name), IsDir: entry.Type == protocol.TypeDir}
		const rest = len(`{"name":"","path":"","is_dir":false},`)
		if limit -= utf8.RuneCountInString(e.Name) + utf8.RuneCountInString(e.Path) + rest; limit < 0 {
			break
		}
		list.Entries = append(list.Entries, e)
	}
	if shown, total := len(list.Entries), max(v.Total, len(v.Entries)); shown < total {
		list.Total = total
		list.Truncated = fmt.Sprintf("%d more; %s", total-shown, a.Others(shown, total, "list a subdirectory"))
	}
	return list
}

// rathOwn is the value that a tool of the user's own returned, or the text of any other result.
func rathOwn(a tools.Answer, limit int) any {
	var output json.RawMessage
	switch v := a.Result.Value.(type) {
	case nil:
	case protocol.ToolRunResult:
		if output = v.Output; output == nil {
			output = json.RawMessage(encode(valid(written(&v.Execution))))
		}
	case protocol.UnknownValue:
		output, _ = v.Output() // a value of another kind has none
	default:
		text := a.Text(min(limit, maxRathFile))
		if json.Valid([]byte(text)) {
			return json.RawMessage(text)
		}
		return rathData{Data: text}
	}
	switch {
	case len(output) == 0:
		return nil
	case utf8.RuneCount(output) <= limit:
		return output
	}
	value := rathCut{Repr: string(output), Type: "int"} // no other value is long
	switch output[0] {
	case '{':
		value.Type = "dict"
	case '[':
		value.Type = "list"
	case '"':
		value.Type = "str"
		_ = json.Unmarshal(output, &value.Repr)
	}
	value.Repr = head(value.Repr, limit) + cutEnd
	value.Truncated = stored(a)
	return value
}

// written is what a command wrote.
func written(e *protocol.Execution) string {
	if len(e.Combined) > 0 {
		return string(e.Combined)
	}
	return string(e.Stdout) + string(e.Stderr)
}

func rathFailed(a tools.Answer, limit int) rathFailure {
	code, message := failure(a)
	value := rathFailure{Kind: rathKind(a, code), Message: shortened(message, limit/2), Detail: string(code)}
	about := ""
	switch value.Kind {
	case "file_not_found", "os_error", "path_violation":
		about, _ = argument(a, "path")
	case "unsupported_tool":
		about, _ = argument(a, "language")
	}
	value.Detail = cmp.Or(about, value.Detail)
	value.Stdout, value.Stderr, value.Truncated = a.Streams(max(limit/2, 2*minCut))
	if value.Message != message {
		value.Truncated = cmp.Or(value.Truncated, stored(a))
	}
	return value
}

// rathKind is the word of that system for why a call failed.
func rathKind(a tools.Answer, code protocol.Code) string {
	switch code {
	case "unknown_tool":
		return string(code)
	case protocol.CodeInvalidArguments:
		var object map[string]json.RawMessage
		if json.Unmarshal([]byte(a.Arguments), &object) != nil || object == nil {
			return string(code)
		}
		return "tool_execution_exception"
	case "path_escape":
		return "path_violation"
	case protocol.CodeRunTimeout, protocol.CodeDeadline, protocol.CodeQueueTimeout:
		return "timeout"
	case protocol.CodeNotFound:
		if a.Tool == "list_workspace_files" {
			return "os_error"
		}
		return "file_not_found"
	case "invalid_path", "is_directory", "not_directory", "not_regular_file", "not_text", "protected", "too_large",
		protocol.CodePermission, protocol.CodeDiskLimit, protocol.CodeOOM, protocol.CodeCommandNotFound:
		return "os_error"
	case protocol.CodePolicyDenied, "network_off", "login_required", "file_changed", "file_not_read":
		return "tool_policy_denied"
	case protocol.CodeToolFailed, protocol.CodePanic:
		return "tool_execution_exception"
	case "unknown_payload", "sandbox_level", "sandbox_unsupported", "language_unavailable":
		return "unsupported_tool"
	case protocol.CodeSandboxLost, protocol.CodeSandboxUnavailable, protocol.CodeWorkspaceUnavailable, protocol.CodeStateLost,
		protocol.CodeAttemptsExhausted, protocol.CodeOutcomeUnknown, protocol.CodeNoWorker, protocol.CodeFleetFull,
		protocol.CodeBusy, protocol.CodeQuota, protocol.CodeFleetUnavailable:
		return "sandbox_closed"
	default:
		if a.Result.Status == protocol.StatusTimeout {
			return "timeout"
		}
		return "unexpected"
	}
}
