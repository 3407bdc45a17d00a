package render

import (
	"fmt"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

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
		output += restOf(result).mark("")
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
