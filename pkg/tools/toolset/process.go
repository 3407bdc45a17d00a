package toolset

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/modeltext/modelpath"
	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/modeltext/render"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

type processArguments struct {
	Action  string   `json:"action"`
	Process string   `json:"process"`
	Offset  *int64   `json:"offset"`
	Limit   int64    `json:"limit"`
	Wait    *float64 `json:"wait"`
	Text    string   `json:"text"`
	Keys    []string `json:"keys"`
}

const (
	// processTail is how much output is read when no offset is given, in bytes from the end.
	processTail = 8000
	// maxProcessRead is the most that is read at once: all of it is shown.
	maxProcessRead = 40_000
	// sendWait is how long a process may take to answer what was typed when no wait is given.
	sendWait = 5 * time.Second
)

func processTool() tools.Tool {
	return tools.Tool{
		Definition: definition("process",
			"Look at, type into and end background processes, which bash starts with background=true or tty=true. list names them with their state; "+
				"read returns what one wrote, its end unless offset is given; send types at the terminal of one that has tty=true, and returns what it wrote since; "+
				"kill ends one with all that it started. "+
				"They live beside other calls until they end, are killed, or the worker of the sandbox stops.",
			`{
				"type": "object",
				"properties": {
					"action": {"type": "string", "enum": ["list", "read", "send", "kill"], "description": "What to do."},
					"process": {"type": "string", "description": "Name of the process, as in p-0c1d2e3f. Needed for all but list."},
					"offset": {"type": "integer", "minimum": 0, "maximum": 1000000000000000, "description": "First byte to read; a read says where to read on. Default: the last 8,000 bytes."},
					"limit": {"type": "integer", "minimum": 1, "maximum": 40000, "description": "How many bytes to read at most. Default: as many as fit."},
					"wait": {"type": "number", "minimum": 0, "maximum": 300, "description": "Seconds to wait for new output, or for the end of the process, before it is read. Default: 0; for send 5, and less when it has written something and then nothing."},
					"text": {"type": "string", "maxLength": 16000, "description": "What to type: every line feed is Enter, and Enter is pressed at the end unless keys are given."},
					"keys": {"type": "array", "maxItems": 100, "items": {"type": "string"}, "description": "Keys to press after the text: enter, tab, escape, backspace, delete, space, up, down, left, right, home, end, page-up, page-down, ctrl-a to ctrl-z, ctrl-\\, ctrl-]. [] presses none."}
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
	action := arguments["action"]
	var faults []string
	if _, named := action.(string); named && action != "list" && (!given || process == "") { // else the schema says it
		faults = append(faults, fmt.Sprintf("process: is required, but missing: action %q needs the name of a process; action \"list\" tells their names", action))
	}
	text, keys := arguments["text"], arguments["keys"]
	if pressed, _ := keys.([]any); action == "send" && (text == nil || text == "") && len(pressed) == 0 {
		faults = append(faults, "text: is required, but missing: action \"send\" needs text or keys")
	}
	if _, fault := typed("", keyNames(keys)); fault != "" {
		faults = append(faults, fault)
	}
	return faults
}

func planProcess(scope tools.Scope, args processArguments) (tools.Plan, *protocol.Error) {
	plan := tools.Plan{Delivery: protocol.Idempotent, Timeout: fileTimeout}
	access := protocol.Shared
	switch args.Action {
	case "list":
		plan.Payload = wire.ProcessList{}
	case "read":
		read := wire.ProcessRead{Process: args.Process, Offset: -processTail, Limit: cmp.Or(args.Limit, maxProcessRead)}
		if args.Offset != nil {
			read.Offset = *args.Offset
		}
		wait := args.wait(0)
		read.Wait = protocol.MillisOf(wait)
		plan.Payload, plan.Timeout = read, fileTimeout+wait
	case "send":
		input, fault := typed(args.Text, args.Keys)
		if fault != "" {
			return tools.Plan{}, protocol.Errorf(protocol.CodeInvalidArguments, "%s", fault)
		}
		wait := args.wait(sendWait)
		plan.Payload = wire.ProcessSend{Process: args.Process, Input: input, Wait: protocol.MillisOf(wait)}
		plan.Timeout, plan.Delivery, access = fileTimeout+wait, protocol.AtMostOnce, protocol.Exclusive
	default:
		plan.Payload, access = wire.ProcessKill{Process: args.Process}, protocol.Exclusive
	}
	uses, err := modelpath.Use(scope.Sandbox, "", access)
	plan.Resources = uses
	if err != nil {
		return tools.Plan{}, err
	}
	return plan, nil
}

// wait is how long to wait for output; usual when the model does not say.
func (a processArguments) wait(usual time.Duration) time.Duration {
	if a.Wait == nil {
		return usual
	}
	return seconds(*a.Wait, 0)
}

// keyboard is what keys send by their names, as those of a terminal of the kind xterm do. The rest
// are those with control.
var keyboard = map[string]string{ //nolint:gochecknoglobals // a constant
	"enter": "\r", "tab": "\t", "escape": "\x1b", "backspace": "\x7f", "space": " ", "delete": "\x1b[3~",
	"up": "\x1b[A", "down": "\x1b[B", "right": "\x1b[C", "left": "\x1b[D", "home": "\x1b[H", "end": "\x1b[F",
	"page-up": "\x1b[5~", "page-down": "\x1b[6~",
}

// typed is what a terminal gets for a text and keys; nil keys are Enter, unless the text ends with
// it. fault names a key that there is not.
func typed(text string, keys []string) (input protocol.Bytes, fault string) {
	input = protocol.Bytes(strings.NewReplacer("\r\n", "\r", "\n", "\r").Replace(text))
	if keys == nil && text != "" && !strings.HasSuffix(string(input), "\r") {
		keys = []string{"enter"}
	}
	for i, name := range keys {
		name = strings.ToLower(name)
		if letter, ok := strings.CutPrefix(name, "ctrl-"); ok && len(letter) == 1 && (letter >= "a" && letter <= "z" || letter >= "[" && letter <= "_") {
			input = append(input, letter[0]&0x1f)
			continue
		}
		key, ok := keyboard[name]
		if !ok {
			return nil, fmt.Sprintf("keys.%d: there is no key %q: must be %s, or ctrl- and a letter, as in ctrl-c",
				i, prose.Short(name, 50), strings.Join(slices.Sorted(maps.Keys(keyboard)), ", "))
		}
		input = append(input, key...)
	}
	return input, ""
}

// keyNames returns the keys of arguments that are not decoded yet. Values that are no strings are
// left out: the schema reports them.
func keyNames(value any) []string {
	list, _ := value.([]any)
	names := []string{}
	for _, entry := range list {
		if name, ok := entry.(string); ok {
			names = append(names, name)
		}
	}
	return names
}
