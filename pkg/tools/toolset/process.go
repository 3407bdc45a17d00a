package toolset

import (
	"cmp"
	"fmt"
	"time"

	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/internal/render"
	"github.com/toolfleet/toolfleet/pkg/tools/internal/workspace"
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

func processTool() tools.Tool {
	return tools.Tool{
		Definition: definition("process",
			"Look at and end background processes, which bash starts with background=true. list names them with their state; "+
				"read returns what one wrote, its end unless offset is given; kill ends one with all that it started. "+
				"They live beside other calls until they end, are killed, or the worker of the sandbox stops.",
			`{
				"type": "object",
				"properties": {
					"action": {"type": "string", "enum": ["list", "read", "kill"], "description": "What to do."},
					"process": {"type": "string", "description": "Name of the process, as in p-0c1d2e3f. Needed to read and to kill."},
					"offset": {"type": "integer", "minimum": 0, "maximum": 1000000000000000, "description": "First byte to read; a read says where to read on. Default: the last 8,000 bytes."},
					"limit": {"type": "integer", "minimum": 1, "maximum": 40000, "description": "How many bytes to read at most. Default: as many as fit."},
					"wait": {"type": "number", "minimum": 0, "maximum": 300, "description": "Seconds to wait for new output, or for the end of the process, before it is read. Default: 0."}
				},
				"required": ["action"],
				"additionalProperties": false
			}`),
		Plan:   tools.PlanOf(planProcess),
		Rules:  processRules,
		Render: render.Process,
	}
}

// processRules says which actions need the name of a process.
func processRules(arguments map[string]any) []string {
	process, given := arguments["process"]
	if action := arguments["action"]; (action == "read" || action == "kill") && (!given || process == "") {
		return []string{fmt.Sprintf("process: is required, but missing: action %q needs the name of a process; action \"list\" tells their names", action)}
	}
	return nil
}

func planProcess(scope tools.Scope, args processArguments) (tools.Plan, *protocol.Error) {
	plan := tools.Plan{Delivery: protocol.Idempotent, Timeout: FileTimeout}
	access := protocol.Shared
	switch args.Action {
	case "list":
		plan.Payload = protocol.ProcessList{}
	case "read":
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
	uses, err := workspace.Use(scope.Sandbox, "", access)
	plan.Resources = uses
	if err != nil {
		return tools.Plan{}, err
	}
	return plan, nil
}
