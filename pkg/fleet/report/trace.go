package report

import (
	"time"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Trace is where the time of a turn went, by what the fleet keeps of it. Times are in milliseconds;
// positions count from the beginning of the turn, on the clock of its coordinator. What workers
// measure are durations, so their clocks do not matter.
type Trace struct {
	SessionID protocol.SessionID `json:"session_id"`
	Turn      int                `json:"turn"`
	// State is the outcome of the turn, or [StateOpen].
	State     string    `json:"state"`
	StartedAt time.Time `json:"started_at"`
	// DurationMS is until now while the turn is open.
	DurationMS float64 `json:"duration_ms"`
	Model      string  `json:"model,omitempty"`
	Input      string  `json:"input,omitempty"` // its beginning
	// Spans are in their order, the spans of a sub-agent behind that of its call. LeftOut is how
	// many more there are.
	Spans   []Span `json:"spans"`
	LeftOut int    `json:"left_out,omitempty"`
	// Totals has each reason that took time, the largest share of the turn first.
	Totals []Total `json:"totals"`
	// Usage and CostUSD are with sub-agents; CostUSD is nil if the price of a reply is unknown.
	Usage   protocol.Usage `json:"usage"`
	CostUSD *float64       `json:"cost_usd,omitempty"`
	TraceID string         `json:"trace_id,omitempty"` // where its trace was exported
}

// SpanKind says what a [Span] is.
type SpanKind string

// Every kind.
const (
	SpanModel   SpanKind = "model"   // a request to the model, until its reply was there
	SpanCompact SpanKind = "compact" // the request for a summary
	SpanCall    SpanKind = "call"
	SpanAgent   SpanKind = "agent" // a call that is a sub-agent
)

// Span is a request to a model, or a call from the reply that has it until its result was there.
type Span struct {
	Kind SpanKind `json:"kind"`
	Name string   `json:"name"` // of the model or of the tool
	// About is a few words of the call that are safe to print, although a model wrote them.
	About string `json:"about,omitempty"`
	// Depth is how many calls of agents it is below, and SessionID the session it is of.
	Depth     int                `json:"depth"`
	SessionID protocol.SessionID `json:"session_id"`
	Turn      int                `json:"turn"`
	Step      int                `json:"step"`
	Index     int                `json:"index"`
	CallID    protocol.CallID    `json:"call_id,omitempty"`

	StartMS float64 `json:"start_ms"`
	// DurationMS is until now while it is open.
	DurationMS float64 `json:"duration_ms"`
	// State is the status of a call, "ok" or "failed" of a reply, or one of the constants.
	State string        `json:"state"`
	Code  protocol.Code `json:"code,omitempty"`
	// Parts are what it consists of, without gaps.
	Parts []Part `json:"parts"`

	WorkerID protocol.WorkerID `json:"worker_id,omitempty"`
	Attempt  int               `json:"attempt,omitempty"`
	Lane     string            `json:"lane,omitempty"` // POOL/LANE
	Level    string            `json:"level,omitempty"`

	Usage   *protocol.Usage `json:"usage,omitempty"`
	CostUSD *float64        `json:"cost_usd,omitempty"`
}

// States of a [Span] in addition to the statuses of calls.
const (
	SpanRunning    = "running"
	SpanWaiting    = "waiting"
	SpanBackground = "background" // it goes on as a job
	SpanUnfinished = "unfinished" // the turn ended without it
)

// Part is a section of a [Span] with one reason.
type Part struct {
	Reason  Reason  `json:"reason"`
	StartMS float64 `json:"start_ms"`
	MS      float64 `json:"ms"`
	// For is what it waited for, if that is known: the call that held the lane or had to end first
	// (CALL, or SESSION/CALL of another session), the rule of a limit, who was asked, the lost
	// worker.
	For string `json:"for,omitempty"`
	// Attempt is the one that was lost.
	Attempt int  `json:"attempt,omitempty"`
	Open    bool `json:"open,omitempty"` // it has not ended
}

// Total is the time of a [Reason].
type Total struct {
	Reason Reason `json:"reason"`
	// MS is the sum of all parts, also of those at the same time.
	MS float64 `json:"ms"`
	// TurnMS is the share of the turn: each moment counts for one reason, that which got the turn
	// furthest. So waiting counts only while nothing ran, and the shares add up to the turn.
	TurnMS float64 `json:"turn_ms"`
}
