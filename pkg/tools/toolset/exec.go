package toolset

import (
	"bytes"
	"cmp"
	"encoding/json"
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

type bashArguments struct {
	Command  string      `json:"command"`
	Cwd      string      `json:"cwd"`
	Timeout  float64     `json:"timeout"`
	Env      environment `json:"env"`
	ReadOnly bool        `json:"read_only"`

	Background bool `json:"background"`
	TTY        bool `json:"tty"`
}

// bash is the tool that runs commands, each in a new shell.
func bash() tools.Tool {
	return bashTool(
		"Every command is a new process: files persist, but variables and the current directory do not, and what a command leaves running is killed at its end. ",
		"Default: the workspace.", planBash)
}

// persistentBash is bash with a shell that is kept between commands.
func persistentBash() tools.Tool {
	return bashTool(
		"The current directory and exported variables are kept for the next command, unless this one is read_only or in the background. "+
			"What a command leaves running is killed at its end. ",
		"Default: where the last command ended.",
		func(scope tools.Scope, args bashArguments) (tools.Plan, *protocol.Error) {
			plan, err := planBash(scope, args)
			if payload, ok := plan.Payload.(protocol.CommandRun); ok {
				payload.KeepShell = true
				plan.Payload = payload
			}
			return plan, err
		})
}

// bashTool is bash with what it says about its shell.
func bashTool(shell, cwd string, plan func(tools.Scope, bashArguments) (tools.Plan, *protocol.Error)) tools.Tool {
	return tools.Tool{
		Metadata: tools.Metadata{Effect: tools.Effect{Open: true}},
		Definition: tools.Define("bash",
			"Run a shell command in the workspace. Returns what it wrote, stdout and stderr in the order in which they came, and its exit code unless that is 0. "+
				shell+
				"There is no input to read: pass flags that keep programs from asking, or, for what has to be talked to (a debugger, a REPL, a prompt), set tty. "+
				"Of output over 42,000 characters you get the beginning and the end, and where to read the rest. "+
				"\"Read-only file system\" or \"Device or resource busy\" in the workspace means that the place, such as .git/hooks, is protected: leave it as it is. "+
				"Prefer read, write, edit, list and grep for files.",
			`"command": {"type": "string", "minLength": 1, "description": "The command line, run by the shell; may have several lines."},
				"cwd": {"type": "string", "description": "Directory to run in, relative to the workspace. `+cwd+`"},
				"timeout": {"type": "number", "exclusiveMinimum": 0, "maximum": 3600, "description": "Seconds after which the command is killed. Default: 120, in the background 3600."},
				"env": {"type": "object", "maxProperties": 200, "additionalProperties": {"type": ["string", "number", "boolean"]}, "description": "Environment variables to set for the command, as in {\"PORT\": \"8080\"}."},
				"read_only": {"type": "boolean", "default": false, "description": "Keep the command from changing the workspace. Such commands of one step run side by side. Default: false."},
				"background": {"type": "boolean", "default": false, "description": "Start the command, as a server, and return at once with a name for it; see the process tool. Default: false."},
				"tty": {"type": "boolean", "default": false, "description": "Run the command in the background with a terminal, where the process tool types by action send. Default: false."}`, "command"),
		Plan:   tools.PlanOf(plan),
		Rules:  bashRules,
		Render: render.Command,
	}
}

func planBash(scope tools.Scope, args bashArguments) (tools.Plan, *protocol.Error) {
	cwd, err := modelpath.Path(args.Cwd)
	if err != nil {
		return tools.Plan{}, err
	}
	payload := protocol.CommandRun{Command: args.Command, Cwd: cwd, Env: args.Env, ReadOnly: args.ReadOnly}
	timeout := seconds(args.Timeout, bashTimeout)
	if args.Background || args.TTY { // what takes time is not the call
		payload.TTY = args.TTY
		payload.Background, payload.Limits.Wall = true, protocol.MillisOf(seconds(args.Timeout, maxTimeout))
		timeout = fileTimeout
	}
	return commandPlan(scope, payload, args.ReadOnly, timeout)
}

type runCodeArguments struct {
	Code     string  `json:"code"`
	Language string  `json:"language"`
	Timeout  float64 `json:"timeout"`
	ReadOnly bool    `json:"read_only"`
}

func runCode() tools.Tool {
	return tools.Tool{
		Metadata: tools.Metadata{Effect: tools.Effect{Open: true}},
		Definition: tools.Define("run_code",
			"Run a program in the workspace directory. Returns what it wrote, stdout and stderr in the order in which they came, and its exit code unless that is 0. "+
				"Every run is a new process: print what you want to see, and keep in files what a later run needs. "+
				"A go program is a complete main package that uses the standard library only. "+
				"Of output over 42,000 characters you get the beginning and the end, and where to read the rest.",
			`"code": {"type": "string", "minLength": 1, "description": "The whole text of the program."},
				"language": {"type": "string", "enum": ["python", "sh", "node", "go"], "default": "python", "description": "Default: python."},
				"timeout": {"type": "number", "exclusiveMinimum": 0, "maximum": 3600, "description": "Seconds after which the program is killed. Default: 60."},
				"read_only": {"type": "boolean", "default": false, "description": "Keep the program from changing the workspace. Such programs of one step run side by side. Default: false."}`, "code"),
		Plan:   tools.PlanOf(planRunCode),
		Render: render.Execution(func(v protocol.CodeRunResult) *protocol.Execution { return &v.Execution }),
	}
}

func planRunCode(scope tools.Scope, args runCodeArguments) (tools.Plan, *protocol.Error) {
	if args.Language == "" {
		args.Language = "python"
	}
	payload := protocol.CodeRun{Code: args.Code, Language: args.Language, ReadOnly: args.ReadOnly}
	return commandPlan(scope, payload, args.ReadOnly, seconds(args.Timeout, runCodeTimeout))
}

// commandPlan is the plan of a command. It uses all of its sandbox: exclusively, or shared if it is
// read-only, and then there is nothing to roll back either.
func commandPlan(scope tools.Scope, payload protocol.Payload, readOnly bool, timeout time.Duration) (tools.Plan, *protocol.Error) {
	access, delivery := protocol.Exclusive, protocol.Rollback
	if readOnly {
		access, delivery = protocol.Shared, protocol.Idempotent
	}
	uses, err := modelpath.Use(scope.Sandbox, "", access)
	if err != nil {
		return tools.Plan{}, err
	}
	return tools.Plan{Payload: payload, Resources: uses, Delivery: delivery, Timeout: timeout}, nil
}

// environment is variables as a model writes them: numbers and booleans will do.
type environment map[string]string

// UnmarshalJSON implements [json.Unmarshaler].
func (e *environment) UnmarshalJSON(data []byte) error {
	var raw map[string]any
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	if err := decoder.Decode(&raw); err != nil {
		return err
	}
	if len(raw) == 0 {
		return nil
	}
	*e = make(environment, len(raw))
	for name, value := range raw {
		switch value.(type) {
		case string, json.Number, bool:
			(*e)[name] = fmt.Sprint(value)
		default:
			return fmt.Errorf("env.%s: must be a string", prose.Short(name, 100))
		}
	}
	return nil
}

// bashRules reports every name and value that no environment can have.
func bashRules(arguments map[string]any) []string {
	env, _ := arguments["env"].(map[string]any)
	var problems []string
	for name, value := range env {
		shown := prose.Short(prose.Plain(name), 100)
		if name == "" || strings.ContainsAny(name, "=\x00") {
			problems = append(problems, fmt.Sprintf("env.%s: the name of a variable must not be empty, or contain \"=\" or a NUL character", shown))
		}
		if text, _ := value.(string); strings.ContainsRune(text, 0) {
			problems = append(problems, fmt.Sprintf("env.%s: a value must not contain a NUL character", shown))
		}
	}
	return problems
}

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
		Definition: tools.Define("process",
			"Look at, type into and end background processes, which bash starts with background=true or tty=true. list names them with their state; "+
				"read returns what one wrote, its end unless offset is given; send types at the terminal of one that has tty=true, and returns what it wrote since; "+
				"kill ends one with all that it started. "+
				"They live beside other calls until they end, are killed, or the worker of the sandbox stops.",
			`"action": {"type": "string", "enum": ["list", "read", "send", "kill"], "description": "What to do."},
				"process": {"type": "string", "description": "Name of the process, as in p-0c1d2e3f. Needed for all but list."},
				"offset": {"type": "integer", "minimum": 0, "maximum": 1000000000000000, "description": "First byte to read; a read says where to read on. Default: the last 8,000 bytes."},
				"limit": {"type": "integer", "minimum": 1, "maximum": 40000, "description": "How many bytes to read at most. Default: as many as fit."},
				"wait": {"type": "number", "minimum": 0, "maximum": 300, "description": "Seconds to wait for new output, or for the end of the process, before it is read. Default: 0; for send 5, and less when it has written something and then nothing."},
				"text": {"type": "string", "maxLength": 16000, "description": "What to type: every line feed is Enter, and Enter is pressed at the end unless keys are given."},
				"keys": {"type": "array", "maxItems": 100, "items": {"type": "string"}, "description": "Keys to press after the text: enter, tab, escape, backspace, delete, space, up, down, left, right, home, end, page-up, page-down, ctrl-a to ctrl-z, ctrl-\\, ctrl-]. [] presses none."}`, "action"),
		Plan:   tools.PlanOf(planProcess),
		Rules:  processRules,
		Render: render.Process,
	}
}

// processRules says which actions need the name of a process.
func processRules(arguments map[string]any) []string {
	process, given := arguments["process"]
	action := arguments["action"]
	var problems []string
	if _, named := action.(string); named && action != "list" && (!given || process == "") { // else the schema says it
		problems = append(problems, fmt.Sprintf("process: is required, but missing: action %q needs the name of a process; action \"list\" tells their names", action))
	}
	text, keys := arguments["text"], arguments["keys"]
	if pressed, _ := keys.([]any); action == "send" && (text == nil || text == "") && len(pressed) == 0 {
		problems = append(problems, "text: is required, but missing: action \"send\" needs text or keys")
	}
	if _, problem := keystrokes("", keyNames(keys)); problem != "" {
		problems = append(problems, problem)
	}
	return problems
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
		input, problem := keystrokes(args.Text, args.Keys)
		if problem != "" {
			return tools.Plan{}, protocol.Errorf(protocol.CodeInvalidArguments, "%s", problem)
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

// keyboard has the characters that an xterm sends for named keys. Keys with control are not listed.
var keyboard = map[string]string{ //nolint:gochecknoglobals // a constant
	"enter": "\r", "tab": "\t", "escape": "\x1b", "backspace": "\x7f", "space": " ", "delete": "\x1b[3~",
	"up": "\x1b[A", "down": "\x1b[B", "right": "\x1b[C", "left": "\x1b[D", "home": "\x1b[H", "end": "\x1b[F",
	"page-up": "\x1b[5~", "page-down": "\x1b[6~",
}

// keystrokes is what a terminal gets for a text and keys; nil keys are Enter, unless the text ends
// with it. problem names a key that there is not.
func keystrokes(text string, keys []string) (input protocol.Bytes, problem string) {
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
