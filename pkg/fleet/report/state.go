package report

import "strings"

// StateClass says in a word what a state means for a person who looks at it. Each screen has a
// colour and a mark for each class.
type StateClass string

// Every class of a state.
const (
	StateClassOK    StateClass = "ok"   // it ended well, or can be used
	StateClassRun   StateClass = "run"  // it is at work
	StateClassWait  StateClass = "wait" // it waits, or nothing is heard of it for a moment
	StateClassStop  StateClass = "stop" // it is being stopped, or was stopped before its end
	StateClassBad   StateClass = "bad"  // it failed, or was lost
	StateClassPlain StateClass = ""     // none of these
)

// states are the classes of all states that a fleet reports: of sessions, turns, calls, spans,
// lanes, workers, limits, decisions and schedules.
var states = map[string]StateClass{ //nolint:gochecknoglobals // a constant
	"ok": StateClassOK, "answered": StateClassOK, "done": StateClassOK, "serving": StateClassOK, "free": StateClassOK,
	"approved": StateClassOK, "allowed": StateClassOK, "accept": StateClassOK,

	"running": StateClassRun, StateOpen: StateClassRun, StateInUse: StateClassRun, "held": StateClassRun, SpanBackground: StateClassRun,

	StateWaitsForApproval: StateClassWait, StateWaitsForAnswer: StateClassWait, StateWaitsForWorker: StateClassWait, StateWaitsForCoordinator: StateClassWait,
	SpanWaiting: StateClassWait, "queued": StateClassWait, "not_sent": StateClassWait, "ready": StateClassWait,
	"delayed": StateClassWait, "asks": StateClassWait, "throttled": StateClassWait, "silent": StateClassWait,

	"paused": StateClassStop, "draining": StateClassStop, "cancelling": StateClassStop,
	"cancelled": StateClassStop, "interrupted": StateClassStop, "limit_reached": StateClassStop,
	SpanUnfinished: StateClassStop, StateUncompleted: StateClassStop, StateRemoving: StateClassStop, "cancel": StateClassStop,

	"failed": StateClassBad, "timeout": StateClassBad, "rejected": StateClassBad, "outcome_unknown": StateClassBad,
	StateLost: StateClassBad, "stalled": StateClassBad, StateInvalid: StateClassBad,
	"denied": StateClassBad, "refused": StateClassBad, "expired": StateClassBad, "decline": StateClassBad,

	StateForked: StateClassPlain, StateWorkspaceOnly: StateClassPlain, "ask": StateClassPlain,
}

// ClassOf returns the class of a state, of an outcome, of a status, or of how a command ended
// ([LoggedCall].Exit). One that is not known is [StateClassPlain].
func ClassOf(state string) StateClass {
	if strings.HasPrefix(state, "exit code ") || strings.HasPrefix(state, "ended by signal ") {
		return StateClassBad
	}
	return states[state]
}

// StateWords says a state in the words that people use: an open session and one that is in use are
// running.
func StateWords(state string) string {
	if state == StateOpen || state == StateInUse {
		return "running"
	}
	return strings.ReplaceAll(state, "_", " ")
}
