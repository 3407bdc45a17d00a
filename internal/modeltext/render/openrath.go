package render

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	pathpkg "path"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/internal/modeltext/plain"
	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

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

// rathRoom is what the notes have of a text.
const rathRoom = 1000

// OpenRath is the format of that system: each text is JSON, however long what it is about.
func OpenRath(tool, arguments string, result *protocol.Result) string {
	text := ""
	for limit := outputLimit; ; limit /= 2 { // what is quoted is longer
		encoded, err := prose.JSON(rathValue(tool, arguments, result, limit))
		if err != nil {
			encoded, _ = prose.JSON(rathFailure{Kind: "unexpected", Message: "the result cannot be shown: " + err.Error(), Detail: string(protocol.CodeInternal)})
		}
		text = string(encoded)
		if limit < 2*minClip || utf8.RuneCountInString(text) <= prose.MaxText-rathRoom {
			break
		}
	}
	if note := startedAgain(result); note != "" && (result.Status != protocol.StatusOK || !isAboutFiles(result.Value)) {
		return Annotated(text, againKey, note)
	}
	return text
}

// rathValue returns a result in that system's format; long texts have at most so many characters.
func rathValue(tool, arguments string, result *protocol.Result, limit int) any {
	if result.Status != protocol.StatusOK {
		return rathFault(tool, arguments, result, limit)
	}
	switch v := result.Value.(type) {
	case protocol.CommandRunResult:
		return rathOfCommand(result, &v.Execution, limit)
	case protocol.CodeRunResult:
		return rathOfProgram(result, &v.Execution, limit)
	case protocol.FilesReadResult:
		return rathOfFile(arguments, v, restOf(result), min(limit, plain.MaxFile))
	case protocol.FilesListResult:
		return rathOfList(v, restOf(result), limit)
	case protocol.FilesWriteResult:
		return rathWritten{v.Bytes, linksNote(v.Links)}
	case protocol.FilesExistsResult:
		return rathOK{v.Exists}
	case wire.ResultReadResult:
		return rathData{Data: keptText(v, min(limit, plain.MaxFile))}
	default:
		return rathOwn(result, limit)
	}
}

func rathOfCommand(result *protocol.Result, e *protocol.Execution, limit int) rathCommand {
	value := rathCommand{ExitCode: e.ExitCode, ElapsedMS: result.RunMS, Signal: e.Signal}
	if number := slices.Index(signals, e.Signal); number > 0 {
		value.ExitCode = -number
	}
	for _, note := range e.Notes {
		value.Notes = append(value.Notes, prose.Short(prose.Valid(note), maxRepeated))
	}
	value.Stdout, value.Stderr, value.Truncated = rathStreams(result, e, limit)
	return value
}

func rathOfProgram(result *protocol.Result, e *protocol.Execution, limit int) rathProgram {
	var value rathProgram
	value.Stdout, value.Stderr, value.Truncated = rathStreams(result, e, limit)
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

// rathStreams returns head and tail of a command's output, and how much is missing.
func rathStreams(result *protocol.Result, e *protocol.Execution, limit int) (stdout, stderr, truncated string) {
	out, err := prose.Valid(string(e.Stdout)), prose.Valid(string(e.Stderr))
	stdout, stderr = share(out, err, limit)
	if e.Truncated || stdout != out || stderr != err {
		truncated = cutNote(restOf(result), e, "")
	}
	return stdout, stderr, truncated
}

// signals are the signals whose exit code that system has: their negative number.
var signals = []string{ //nolint:gochecknoglobals // a constant table
	"", "SIGHUP", "SIGINT", "SIGQUIT", "SIGILL", "SIGTRAP", "SIGABRT", "SIGBUS", "SIGFPE", "SIGKILL", "SIGUSR1", "SIGSEGV", "SIGUSR2", "SIGPIPE", "SIGALRM", "SIGTERM",
}

// rathOfFile is the text of a file, or its bytes, as base64 if they are not UTF-8.
func rathOfFile(arguments string, v protocol.FilesReadResult, r rest, limit int) any {
	all, encoding := prose.Valid(string(v.Content)), prose.Plain(v.Encoding)
	switch {
	case v.Binary && v.Raw:
		all, encoding = base64.StdEncoding.EncodeToString(v.Content), "base64"
	case v.Binary && !utf8.Valid(v.Content):
		return rathFailure{Kind: "tool_execution_exception", Message: "the file is not text in a known encoding: read it with encoding null", Detail: path(arguments)}
	}
	data := rathData{Data: all[:prose.Offset(all, limit)], Encoding: encoding}
	if len(data.Data) == len(all) && !v.Truncated && (!v.Raw || int64(len(v.Content)) == v.Bytes) {
		return data
	}
	data.Truncated = fmt.Sprintf("the file has %s; for the rest use run_shell_command, as in `cut -b 12001-24000 FILE`", prose.Plural(v.Bytes, "byte"))
	if line, column := endOf(data.Data); r.isKept() {
		data.Truncated = fmt.Sprintf("the file has %s; read on with %s", prose.Plural(v.Bytes, "byte"), r.path("", line, column))
	}
	data.Data += cutEnd
	return data
}

func rathOfList(v protocol.FilesListResult, r rest, limit int) rathEntries {
	list := rathEntries{Entries: []rathEntry{}}
	for _, entry := range v.Entries[:min(len(v.Entries), plain.MaxListed)] {
		name := prose.Valid(entry.Name)
		e := rathEntry{Name: name, Path: pathpkg.Join(prose.Valid(v.Path), name), IsDir: entry.Type == protocol.TypeDir}
		const rest = len(`{"name":"","path":"","is_dir":false},`)
		if limit -= utf8.RuneCountInString(e.Name) + utf8.RuneCountInString(e.Path) + rest; limit < 0 {
			break
		}
		list.Entries = append(list.Entries, e)
	}
	if shown, total := len(list.Entries), max(v.Total, len(v.Entries)); shown < total {
		list.Total = total
		list.Truncated = fmt.Sprintf("%d more; %s", total-shown, r.others(strings.Repeat("\n", shown), total, "list a subdirectory"))
	}
	return list
}

// rathOwn is the value that a tool of the user's own returned.
func rathOwn(result *protocol.Result, limit int) any {
	var output json.RawMessage
	var err error
	switch v := result.Value.(type) {
	case nil:
	case protocol.ToolRunResult:
		if output = v.Output; output == nil {
			output = json.RawMessage(quote(string(plain.Written(&v.Execution))))
		}
	case protocol.UnknownValue:
		output, err = v.Output()
	default:
		output, err = wire.EncodeValue(v)
	}
	switch {
	case err != nil || len(output) == 0:
		return nil
	case utf8.RuneCount(output) <= limit:
		return output
	}
	text := plain.Output(output)
	return rathCut{text[:prose.Offset(text, limit)] + cutEnd, typeOf(output), restOf(result).note("")}
}

// typeOf is the name of a JSON value's type in Python.
func typeOf(value json.RawMessage) string {
	switch value[0] {
	case '{':
		return "dict"
	case '[':
		return "list"
	case '"':
		return "str"
	default:
		return "int" // no other value is long
	}
}

func rathFault(tool, arguments string, result *protocol.Result, limit int) rathFailure {
	code, message := faultOf(result)
	value := rathFailure{Kind: rathKind(tool, arguments, code, result.Status), Message: prose.Head(prose.Valid(message), limit/2), Detail: string(code)}
	switch named := path(arguments); value.Kind {
	case "file_not_found", "os_error", "path_violation":
		value.Detail = cmp.Or(named, value.Detail)
	case "unsupported_tool":
		language, _ := argument(arguments, "language")
		value.Detail = cmp.Or(language, value.Detail)
	}
	if e := plain.Execution(result.Value); e != nil {
		value.Stdout, value.Stderr, value.Truncated = rathStreams(result, e, max(limit/2, 2*minClip))
	} else if value.Message != prose.Valid(message) {
		value.Truncated = restOf(result).note("")
	}
	return value
}

// rathKind is the word of that system for why a call failed.
func rathKind(tool, arguments string, code protocol.Code, status protocol.Status) string {
	switch code {
	case codes.UnknownTool:
		return string(code)
	case protocol.CodeInvalidArguments:
		if !isObject(arguments) {
			return string(code)
		}
		return "tool_execution_exception"
	case codes.PathEscape:
		return "path_violation"
	case protocol.CodeRunTimeout, protocol.CodeDeadline, protocol.CodeQueueTimeout:
		return "timeout"
	case protocol.CodeNotFound:
		if tool == "list_workspace_files" {
			return "os_error"
		}
		return "file_not_found"
	case codes.InvalidPath, codes.IsDirectory, codes.NotDirectory, codes.NotRegular, codes.NotText,
		protocol.CodePermission, codes.Protected, codes.TooLarge, protocol.CodeDiskLimit, protocol.CodeOOM, protocol.CodeCommandNotFound:
		return "os_error"
	case protocol.CodePolicyDenied, codes.NetworkOff, codes.LoginRequired, codes.FileChanged, codes.FileNotRead:
		return "tool_policy_denied"
	case protocol.CodeToolFailed, protocol.CodePanic:
		return "tool_execution_exception"
	case codes.UnknownPayload, codes.SandboxLevel, codes.SandboxUnsupported, codes.Language:
		return "unsupported_tool"
	case protocol.CodeSandboxLost, protocol.CodeSandboxUnavailable, protocol.CodeWorkspaceUnavailable, protocol.CodeStateLost,
		protocol.CodeAttemptsExhausted, protocol.CodeOutcomeUnknown, protocol.CodeNoWorker, protocol.CodeFleetFull, protocol.CodeBusy, protocol.CodeQuota, protocol.CodeFleetUnavailable:
		return "sandbox_closed"
	default:
		if status == protocol.StatusTimeout {
			return "timeout"
		}
		return "unexpected"
	}
}
