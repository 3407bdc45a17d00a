package render

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/internal/modeltext/plain"
	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// outputLimit is how many characters of a command's output a model gets: less than
// prose.BodyLimit, so that marks fit even beside a failure.
const outputLimit = prose.BodyLimit - 2_000

// Execution makes a Render function for values that have an execution.
func Execution[V protocol.Value](execution func(V) *protocol.Execution) func(*protocol.Result) string {
	return func(result *protocol.Result) string {
		value, ok := result.Value.(V)
		if !ok {
			return JSON(result)
		}
		text := executionText(fullTextOf(result), execution(value))
		if result.Status != protocol.StatusOK {
			return Failure(result, text)
		}
		return text
	}
}

// executionText is what a process wrote, as it would stand on a terminal, how it
// ended, and a line in brackets for each thing that is not as usual.
func executionText(r fullText, e *protocol.Execution) string {
	text, cut := writtenText(e)
	marks := endMarks(e)
	if cut || e.Truncated {
		marks = append(marks, "["+cutNote(r, e, text)+"]")
	}
	if len(marks) > 0 {
		return prose.Ended(text) + strings.Join(marks, "\n")
	}
	if text == "" {
		return "[no output; exit code 0]"
	}
	return text
}

// writtenText is both streams in the order in which they came, and whether they did
// not fit. Without the order, stderr comes after stdout.
func writtenText(e *protocol.Execution) (text string, cut bool) {
	switch {
	case len(e.Combined) > 0:
		text = prose.Plain(string(e.Combined))
	case len(e.Stderr) == 0:
		text = prose.Plain(string(e.Stdout))
	case len(e.Stdout) == 0:
		text = "[stderr]\n" + prose.Plain(string(e.Stderr))
	default:
		stdout, stderr := prose.Plain(string(e.Stdout)), prose.Plain(string(e.Stderr))
		shownOut, shownErr := clipBoth(stdout, stderr, outputLimit)
		return prose.Ended(shownOut) + "[stderr]\n" + shownErr, shownOut != stdout || shownErr != stderr
	}
	shown := prose.Clip(text, outputLimit)
	return shown, shown != text
}

// Written returns the output of a command as it would stand on a terminal, in the order written: at
// most limit characters of it, and then where the rest is. It is "" for other values.
func Written(result *protocol.Result, limit int) string {
	e := plain.Execution(result.Value)
	if e == nil {
		return ""
	}
	all := prose.Plain(string(plain.Written(e)))
	text := prose.Clip(all, limit)
	if text == all && !e.Truncated {
		return text
	}
	return prose.Ended(text) + "[" + cutNote(fullTextOf(result), e, text) + "]"
}

// Streams returns the outputs of a command, cut to limit characters together, and if they are cut
// where the rest is.
func Streams(result *protocol.Result, limit int) (stdout, stderr, note string) {
	e := plain.Execution(result.Value)
	if e == nil {
		return "", "", ""
	}
	out, err := prose.Valid(string(e.Stdout)), prose.Valid(string(e.Stderr))
	stdout, stderr = clipBoth(out, err, limit)
	if e.Truncated || stdout != out || stderr != err {
		note = cutNote(fullTextOf(result), e, "")
	}
	return stdout, stderr, note
}

// cutNote says how much there was, and how to get at it.
func cutNote(r fullText, e *protocol.Execution, shown string) string {
	how := "the rest is not stored: write the output to a file and read that, or filter it"
	if r.isStored() {
		what := "all of it"
		if r.stored.Truncated {
			what = "its beginning and its end"
		}
		line, column := cutAt(e, shown)
		how = fmt.Sprintf("%s: read it from %s on", what, r.path("", line, column))
	}
	return fmt.Sprintf("output was cut: stdout had %s, stderr %s; %s",
		streamSize(e.StdoutBytes, e.StdoutLines), streamSize(e.StderrBytes, e.StderrLines), how)
}

// streamSize is how much of a stream there was; lines is 0 if the worker did not count them.
func streamSize(bytes, lines int64) string {
	if lines == 0 {
		return prose.Plural(bytes, "byte")
	}
	return fmt.Sprintf("%s in %s", prose.Plural(bytes, "byte"), prose.Plural(lines, "line"))
}

// cutAt returns the position of the first missing piece, or one before it. Columns count in the
// output as written, which may differ from the shown text.
func cutAt(e *protocol.Execution, shown string) (line int, column int64) {
	before, _, _ := strings.Cut(shown, "\n[... ")
	before = strings.TrimPrefix(before, "[stderr]\n")
	line = strings.Count(before, "\n") + 1
	if strings.HasPrefix(string(plain.Written(e)), before) {
		column = int64(len(before) - strings.LastIndexByte(before, '\n'))
	}
	return line, column
}

// Exit says how the command or the code of a result ended that ran and did not succeed: "exit code
// 2", "ended by signal KILL"; "" for all else, also for a process that still runs.
func Exit(r *protocol.Result) string {
	if e := plain.Execution(r.Value); e != nil && e.Reason != processRunning {
		return exitOf(e)
	}
	return ""
}

func exitOf(e *protocol.Execution) string {
	switch {
	case e.Signal != "":
		return "ended by signal " + e.Signal
	case e.ExitCode != 0:
		return fmt.Sprintf("exit code %d", e.ExitCode)
	}
	return ""
}

// endMarks says how a process ended, when it is not by itself and with 0.
func endMarks(e *protocol.Execution) []string {
	var marks []string
	switch e.Reason {
	case "timeout":
		marks = append(marks, "[stopped: it ran out of its time]")
	case "oom":
		marks = append(marks, "[killed: it ran out of memory]")
	case "disk_limit":
		marks = append(marks, "[ended: it used up its disk]")
	case "cancelled":
		marks = append(marks, "[stopped: the call was cancelled]")
	case "sandbox_lost":
		marks = append(marks, "[lost: its sandbox ended]")
	}
	if exit := exitOf(e); exit != "" {
		marks = append(marks, "["+exit+"]")
	}
	for _, note := range e.Notes {
		marks = append(marks, "["+prose.Plain(note)+"]")
	}
	return marks
}

// clipBoth cuts two texts so that both together have at most limit characters. What
// one leaves of its half, the other may use.
func clipBoth(a, b string, limit int) (first, second string) {
	lenA, lenB := utf8.RuneCountInString(a), utf8.RuneCountInString(b)
	half := limit / 2
	return prose.Clip(a, max(half, limit-lenB)), prose.Clip(b, max(half, limit-lenA))
}

// Command is the Render function of tools that run commands.
func Command(result *protocol.Result) string {
	value, ok := result.Value.(protocol.CommandRunResult)
	if !ok || value.Process == "" || result.Status != protocol.StatusOK {
		return Execution(func(v protocol.CommandRunResult) *protocol.Execution { return &v.Execution })(result)
	}
	output, cut := writtenText(&value.Execution)
	if value.TTY {
		output = prose.Clip(prose.Screen(string(value.Combined)), outputLimit)
	}
	if cut {
		output += fullTextOf(result).mark("")
	}
	status := wire.ProcessStatus{
		Process: value.Process, Reason: value.Reason, ExitCode: value.ExitCode, Signal: value.Signal, Bytes: value.StdoutBytes,
	}
	how := "it runs concurrently with other calls; the process tool reads what it writes, and kills it"
	if value.TTY {
		how = "it runs concurrently with other calls; the process tool types into it (send), reads what it writes, and kills it"
	}
	if value.Reason != processRunning {
		how = "it ended at once"
	}
	return prose.Ended(output) + fmt.Sprintf("[background process %s: %s; %s]", value.Process, stateText(status), how)
}

// processRunning is the reason of a process that lives.
const processRunning = "running"

// Process is the Render function of the tool process.
func Process(result *protocol.Result) string {
	switch result.Value.(type) {
	case wire.ProcessListResult:
		return Of(processListText)(result)
	case wire.ProcessReadResult:
		return Of(processReadText)(result)
	case wire.ProcessSendResult:
		return Of(func(v wire.ProcessSendResult) string { return processReadText(v.ProcessReadResult) })(result)
	case wire.ProcessKillResult:
		return Of(func(v wire.ProcessKillResult) string {
			return fmt.Sprintf("[%s: %s]", v.Process, stateText(v.ProcessStatus))
		})(result)
	default:
		return JSON(result)
	}
}

func processListText(v wire.ProcessListResult) string {
	if len(v.Processes) == 0 {
		return "[there are no background processes]"
	}
	var lines []string
	for _, p := range v.Processes {
		command, _, _ := strings.Cut(prose.Plain(p.Command), "\n")
		lines = append(lines, fmt.Sprintf("%s  %s, %s written, started %s: %s",
			p.Process, stateText(p), prose.Plural(p.Bytes, "byte"), p.StartedAt.UTC().Format(time.TimeOnly), command))
	}
	return strings.Join(lines, "\n")
}

// stateText is how a process is, in words.
func stateText(p wire.ProcessStatus) string {
	switch {
	case p.Reason == processRunning:
		return "running"
	case p.Reason == "timeout":
		return "killed at its time limit"
	case p.Reason == "oom":
		return "killed, it ran out of memory"
	case p.Reason == "disk_limit":
		return "ended, the sandbox used up its disk"
	case p.Reason == "cancelled":
		return "killed"
	case p.Reason == "sandbox_lost":
		return "ended with its sandbox"
	case p.Signal != "":
		return "ended by signal " + p.Signal
	case p.Reason == "exited":
		return fmt.Sprintf("ended with exit code %d", p.ExitCode)
	default:
		return "ended: " + p.Reason
	}
}

func processReadText(v wire.ProcessReadResult) string {
	mark := fmt.Sprintf("[%s %s; bytes %d-%d of %d; read on with offset=%d]",
		v.Process, stateText(v.ProcessStatus), v.Offset, v.NextOffset, v.Bytes, v.NextOffset)
	if len(v.Content) == 0 {
		mark = fmt.Sprintf("[%s %s; nothing new after byte %d of %d]", v.Process, stateText(v.ProcessStatus), v.NextOffset, v.Bytes)
	}
	switch {
	case v.Kept != "" && len(v.Content) < int(v.Bytes):
		mark = strings.TrimSuffix(mark, "]") + fmt.Sprintf("; all of it: read with path=%q]", Handle(v.Kept, "", 0, 0))
	case v.Dropped > 0 && v.Offset == v.Dropped:
		mark = fmt.Sprintf("[%s before this are dropped and not stored: if you need all output, let the command write it to a file]\n", prose.Plural(v.Dropped, "byte")) + mark
	}
	if v.TTY {
		return prose.Ended(prose.Screen(string(v.Content))) + mark
	}
	return prose.Ended(prose.Plain(string(v.Content))) + mark
}
