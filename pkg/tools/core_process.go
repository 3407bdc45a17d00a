package tools

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

type processArguments struct {
	Action  string  `json:"action"`
	Process string  `json:"process"`
	Offset  *int64  `json:"offset"`
	Limit   int64   `json:"limit"`
	Wait    float64 `json:"wait"`
}

const (
	// processTail is how much output is read when no offset is given, in bytes from the end.
	processTail = 8000
	// maxProcessRead is the most that is read at once: all of it is shown.
	maxProcessRead = 40_000
)

func processTool() Tool {
	return Tool{
		Definition: definition("process",
			"Look at and end background processes, which bash starts with background=true. list names them with their state; "+
				"read returns what one wrote, its end unless offset is given; kill ends one with all that it started. "+
				"They live beside other calls until they end, are killed, or the worker of the sandbox stops.",
			`{
				"type": "object",
				"properties": {
					"action": {"type": "string", "enum": ["list", "read", "kill"], "description": "What to do."},
					"process": {"type": "string", "description": "Name of the process, as in p-0c1d2e3f. Needed to read and to kill."},
					"offset": {"type": "integer", "minimum": 0, "description": "First byte to read; a read says where to read on. Default: the last 8,000 bytes."},
					"limit": {"type": "integer", "minimum": 1, "maximum": 40000, "description": "How many bytes to read at most. Default: as many as fit."},
					"wait": {"type": "number", "minimum": 0, "maximum": 300, "description": "Seconds to wait for new output, or for the end of the process, before it is read. Default: 0."}
				},
				"required": ["action"],
				"additionalProperties": false
			}`),
		Plan:   planOf(planProcess),
		Render: processRender,
	}
}

func planProcess(scope Scope, args processArguments) (Plan, *protocol.Error) {
	plan := Plan{Delivery: protocol.Idempotent, Timeout: FileTimeout}
	access := protocol.Shared
	switch {
	case args.Action == "list":
		plan.Payload = protocol.ProcessList{}
	case args.Process == "":
		return Plan{}, protocol.Errorf(protocol.CodeInvalidArguments,
			"process: missing: action %q needs the name of a process. Use action \"list\" to see their names.", args.Action)
	case args.Action == "read":
		read := protocol.ProcessRead{Process: args.Process, Offset: -processTail, Limit: cmp.Or(args.Limit, maxProcessRead)}
		if args.Offset != nil {
			read.Offset = *args.Offset
		}
		wait := time.Duration(args.Wait * float64(time.Second))
		read.Wait = protocol.MillisOf(wait)
		plan.Payload, plan.Timeout = read, FileTimeout+wait
	default:
		plan.Payload, access = protocol.ProcessKill{Process: args.Process}, protocol.Exclusive
	}
	uses, err := usePath(scope, "", access)
	plan.Resources = uses
	if err != nil {
		return Plan{}, err
	}
	return plan, nil
}

// commandRender is the Render function of tools that run commands.
func commandRender(result *protocol.Result) string {
	value, ok := result.Value.(protocol.CommandRunResult)
	if !ok || value.Process == "" || result.Status != protocol.StatusOK {
		return executionOf(func(v protocol.CommandRunResult) *protocol.Execution { return &v.Execution })(result)
	}
	output, _ := writtenText(&value.Execution)
	status := protocol.ProcessStatus{
		Process: value.Process, Reason: value.Reason, ExitCode: value.ExitCode, Signal: value.Signal, Bytes: value.StdoutBytes,
	}
	how := "it goes on beside other calls; the process tool reads what it writes, and kills it"
	if value.Reason != processRunning {
		how = "it did not live long"
	}
	return ended(output) + fmt.Sprintf("[background process %s: %s; %s]", value.Process, stateText(status), how)
}

// processRunning is the reason of a process that lives.
const processRunning = "running"

func processRender(result *protocol.Result) string {
	switch result.Value.(type) {
	case protocol.ProcessListResult:
		return renderOf(processListText)(result)
	case protocol.ProcessReadResult:
		return renderOf(processReadText)(result)
	case protocol.ProcessKillResult:
		return renderOf(func(v protocol.ProcessKillResult) string {
			return fmt.Sprintf("[%s: %s]", v.Process, stateText(v.ProcessStatus))
		})(result)
	default:
		return RenderJSON(result)
	}
}

func processListText(v protocol.ProcessListResult) string {
	if len(v.Processes) == 0 {
		return "[there are no background processes]"
	}
	var lines []string
	for _, p := range v.Processes {
		command, _, _ := strings.Cut(plainText(p.Command), "\n")
		lines = append(lines, fmt.Sprintf("%s  %s, %s written, started %s: %s",
			p.Process, stateText(p), plural(p.Bytes, "byte"), p.StartedAt.UTC().Format(time.TimeOnly), command))
	}
	return strings.Join(lines, "\n")
}

// stateText is how a process is, in words.
func stateText(p protocol.ProcessStatus) string {
	switch {
	case p.Reason == processRunning:
		return "running"
	case p.Reason == "timeout":
		return "killed, its time was over"
	case p.Reason == "cancelled":
		return "killed"
	case p.Signal != "":
		return "ended by signal " + p.Signal
	case p.Reason == "exited":
		return fmt.Sprintf("ended with exit code %d", p.ExitCode)
	default:
		return "ended: " + p.Reason
	}
}

func processReadText(v protocol.ProcessReadResult) string {
	mark := fmt.Sprintf("[%s %s; bytes %d-%d of %d; read on with offset=%d]",
		v.Process, stateText(v.ProcessStatus), v.Offset, v.NextOffset, v.Bytes, v.NextOffset)
	if len(v.Content) == 0 {
		mark = fmt.Sprintf("[%s %s; nothing new after byte %d of %d]", v.Process, stateText(v.ProcessStatus), v.NextOffset, v.Bytes)
	}
	return ended(plainText(string(v.Content))) + mark
}
