package protocol

import "encoding/json"

// ToolRun runs the command of a tool of the user's own: the tool call's arguments
// on its standard input, its output from its standard output. A call whose resources
// are not of a sandbox gets an empty one that ends with its lane.
type ToolRun struct {
	// Argv is the program and its arguments, without a shell. "{tools}" in any of them
	// stands for the worker's folder of tools, which is also TOOLFLEET_TOOLS in the environment.
	Argv []string `json:"argv"`
	// Arguments is a JSON object.
	Arguments json.RawMessage `json:"arguments"`
	// Env is added to the sandbox's environment.
	Env map[string]string `json:"env,omitempty"`
	// Text says that standard output is text; otherwise it is one JSON value.
	Text bool `json:"text,omitempty"`
}

// ToolRunResult answers [ToolRun].
type ToolRunResult struct {
	// Output is what the command wrote to standard output, when it is what it should be;
	// text as a JSON string. Stdout is empty then.
	Output json.RawMessage `json:"output,omitempty"`
	Execution
}

// Kind implements [Payload].
func (ToolRun) Kind() Kind { return KindToolRun }

// ValueKind implements [Value].
func (ToolRunResult) ValueKind() Kind { return KindToolRun }
