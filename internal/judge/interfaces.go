package judge

import "slices"

// Class is what a tool call does, whichever tool and interface it has. Rules of policies name the
// first five, such as @read.
type Class string

// The classes.
const (
	ClassRead    Class = "read"    // files, directories, processes and results
	ClassWrite   Class = "write"   // files changed by the tool itself
	ClassExecute Class = "execute" // programs run, typed at and ended
	ClassMessage Class = "message" // messages sent to other sessions
	ClassTrigger Class = "trigger" // timers, schedules and watches
	ClassUse     Class = "use"     // the user's own tools, handlers, and tools of MCP servers
)

// The interfaces.
const (
	InterfaceTurns     = "turns"
	InterfaceCall      = "call"
	InterfaceBatch     = "call --batch"
	InterfaceTools     = "MCP tools/call"
	InterfaceResources = "MCP resources/read"
	InterfaceHTTP      = "HTTP"
	InterfaceTasks     = "MCP tasks"
	InterfaceSchedule  = "schedule"
	InterfaceGo        = "Go Client.Call"
	InterfaceManage    = "other commands, Go"
	InterfaceServe     = "serve"
	InterfaceWorker    = "worker"
	InterfaceApprove   = "approve"
)

// Interface is a way by which acts come.
type Interface struct {
	Name string
	// Who says which principal acts, and how the fleet knows it.
	Who string
	// Judged are the acts that are judged there, by what they are about.
	Judged []On
	// Classes are those of the tool calls that come by the interface; the rules of a policy hold
	// for each. Count says where they are counted for max_calls.
	Classes []Class
	Count   string
}

// On is an act on a kind of object.
type On struct {
	Act  Act
	Kind Kind
}

// Interfaces lists all of them.
func Interfaces() []Interface {
	single := []Class{ClassRead, ClassWrite, ClassExecute, ClassUse}
	const process, token, key = "the principal of the context, or else the operator, by the NATS user of the process", "a token", "the key that signed"
	use := []On{{Use, Session}}
	manage := []On{
		{See, Session},
		{Use, Session},
		{Cancel, Session},
		{Change, Session},
		{Remove, Session},
		{See, Workspace},
		{Use, Workspace},
		{See, Schedule},
		{Make, Schedule},
		{Change, Schedule},
		{Remove, Schedule},
		{See, Trigger},
		{Change, Trigger},
		{Remove, Trigger},
		{See, Template},
		{Make, Template},
		{Use, Template},
		{Remove, Template},
		{See, Limit},
		{Change, Limit},
		{Change, Lane},
		{See, Worker},
		{See, Token},
		{Make, Token},
		{Remove, Token},
		{See, Webhook},
		{Make, Webhook},
		{Change, Webhook},
		{Remove, Webhook},
		{Make, Call},
	}
	return []Interface{
		{
			InterfaceTurns, "the owner of the session",
			[]On{{See, Session}, {Use, Session}, {Make, Trigger}, {Remove, Trigger}, {See, Channel}, {Use, Channel}},
			append(single[:3:3], ClassMessage, ClassTrigger, ClassUse), "journal",
		},
		{InterfaceCall, process, use, single, "journal, with `--session`"},
		{InterfaceBatch, process, use, single[:3], "the batch; journal, with `--session`"},
		{InterfaceTools, token, []On{{Make, Call}, {See, Workspace}, {Use, Session}, {Approve, Call}}, single, "journal"},
		{InterfaceResources, token, []On{{See, Workspace}, {Use, Session}}, single[:1], "journal"},
		{InterfaceTasks, token, []On{{See, Call}, {Cancel, Call}}, nil, ""},
		{InterfaceHTTP, token, append(slices.Clone(manage), On{Make, Session}, On{Approve, Session}, On{Cancel, Call}), single, "journal"},
		{InterfaceSchedule, "the owner of the schedule, which the key has signed", use, single, "journal"},
		{InterfaceGo, process, append(slices.Clone(use), On{Make, Call}, On{Cancel, Call}), single, "journal"},
		{InterfaceManage, process, manage, nil, ""},
		{InterfaceServe, key, use, nil, ""},
		{InterfaceWorker, key, []On{{Make, Call}, {Use, Session}, {See, Workspace}, {Use, Workspace}, {Change, Workspace}, {Remove, Workspace}, {Use, Upload}}, nil, ""},
		{InterfaceApprove, key, []On{{Approve, Session}, {Use, Session}}, nil, ""},
	}
}
