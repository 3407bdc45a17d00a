package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// TurnRun runs one turn of a session on a coordinator.
type TurnRun struct {
	Prompt string `json:"prompt"`
	// Attachments are images, PDF documents and texts that belong to the prompt.
	Attachments []Attachment `json:"attachments,omitempty"`
	// AnswerSchema is the JSON Schema of the answer.
	AnswerSchema json.RawMessage `json:"answer_schema,omitempty"`
	Model        string          `json:"model,omitempty"`
	Toolsets     []string        `json:"toolsets,omitempty"`
	TurnBounds
	// Policies bind the turn's tool calls, beside those of the coordinator: objects as
	// docs/policy.md describes them.
	Policies []json.RawMessage `json:"policies,omitempty"`
	// Guard is what the session must know of a file before it may change it.
	Guard protocol.Guard `json:"guard,omitempty"`
	ReplySettings
	// System is the system prompt, and Project what the workspace says to agents; missing ones are
	// as in the session's turn before, and an empty Project is none.
	System  string                     `json:"system,omitempty"`
	Project []protocol.InstructionFile `json:"project,omitzero"`
	// Author is who commits in the turn's commands.
	Author protocol.Author `json:"author,omitzero"`
	// Compact asks for a summary of the session instead of a turn.
	Compact bool `json:"compact,omitempty"`
	// Trigger is what begins the turn if no person does.
	Trigger *TurnTrigger `json:"trigger,omitempty"`
}

// TurnTrigger begins a turn instead of a person.
type TurnTrigger struct {
	// Name is the name of the trigger or the schedule.
	Name string `json:"name"`
	// By is the tool call that set the trigger; "" of a schedule.
	By protocol.CallID `json:"by,omitempty"`
	// Channel is the watched channel, of the call's tenant, with whose unread messages the turn
	// begins.
	Channel string `json:"channel,omitempty"`
}

// Attachment is a file; its content says what it is.
type Attachment struct {
	Name string `json:"name"`
	Data []byte `json:"data"`
}

// TurnBounds bound a turn and its session.
type TurnBounds struct {
	MaxSteps  int   `json:"max_steps,omitempty"`
	MaxTokens int64 `json:"max_tokens,omitempty"`
	// Budget bounds the session over all of its turns; a missing budget is the budget of the
	// session's turn before, an empty one is none.
	Budget *protocol.Spending `json:"budget,omitempty"`
	// PromoteAfter is when calls that have not ended become jobs; 0 is the coordinator's to choose.
	PromoteAfter protocol.Millis `json:"promote_after_ms,omitempty"`
}

// ReplySettings tune the model's replies; what is missing is the coordinator's to choose.
type ReplySettings struct {
	Temperature *float64 `json:"temperature,omitempty"`
	Reasoning   string   `json:"reasoning,omitempty"`  // an effort
	MaxOutput   int64    `json:"max_output,omitempty"` // tokens of a reply
}

// TurnRunResult answers [TurnRun].
type TurnRunResult struct {
	// Outcome is answered, failed, limit_reached or interrupted.
	Outcome string `json:"outcome"`
	Text    string `json:"text"`
	// Answer is the text as JSON, if the turn has a schema and was answered.
	Answer json.RawMessage `json:"answer,omitempty"`
	Steps  int             `json:"steps"`
	Usage  protocol.Usage  `json:"usage"`
	// Compacted reports that a summary was written.
	Compacted bool `json:"compacted,omitempty"`
}

// AgentTool is the name of the tool that starts sub-agents.
const AgentTool = "agent"

// AgentRequest is the plan of the tool that starts a sub-agent. The session runs it.
type AgentRequest struct {
	Prompt string
	Agent  string // its kind; "" is as its parent
	// Workspace is [AgentWorkspaceEmpty], [AgentWorkspaceFork], or that of the parent.
	Workspace string
	// Background makes a job of it.
	Background bool
}

// Workspaces of sub-agents.
const (
	AgentWorkspaceEmpty = "empty" // one of its own
	AgentWorkspaceFork  = "fork"  // begins as the parent's, and is merged into it at the end
)

// JobVerb is a request about a job: a call of a tool that runs in the background.
type JobVerb string

// The verbs.
const (
	JobStatus JobVerb = "status"
	JobWait   JobVerb = "wait"
	JobCancel JobVerb = "cancel"
)

// JobRequest is the plan of a tool about jobs. The session answers it.
type JobRequest struct {
	Verb JobVerb
	// Job is the handle of the job; "" of status means all jobs of the session.
	Job string
	// Timeout is how long wait waits.
	Timeout time.Duration
}

// AskUserTool is the name of the tool by which a model asks a person.
const AskUserTool = "ask_user"

// PersonRequest is the plan of the tool that asks a person. The session puts the question.
type PersonRequest struct {
	// Question has a schema with the property "answer".
	Question protocol.Question
	// Choices are the possible answers; none means any text.
	Choices []string
	// Timeout is how long an answer is waited for.
	Timeout time.Duration
}

// Fits returns an error unless the request allows the answer.
func (r PersonRequest) Fits(answer protocol.Answer) error {
	var content struct {
		Answer string `json:"answer"`
	}
	form := `an answer needs a content such as {"answer":"TEXT"}`
	if len(answer.Content) == 0 {
		return errors.New(form)
	}
	if err := json.Unmarshal(answer.Content, &content); err != nil {
		return fmt.Errorf("%s: %w", form, err)
	}
	switch {
	case len(r.Choices) > 0 && !slices.Contains(r.Choices, content.Answer):
		return fmt.Errorf("answer %q: must be one of %s", content.Answer, strings.Join(r.Choices, ", "))
	case strings.TrimSpace(content.Answer) == "":
		return fmt.Errorf("answer: is missing: %s", form)
	case utf8.RuneCountInString(content.Answer) > MaxUserAnswer:
		return fmt.Errorf("answer: %d characters: must be at most %d", utf8.RuneCountInString(content.Answer), MaxUserAnswer)
	}
	return nil
}

// MaxUserAnswer bounds the text of an answer, in characters.
const MaxUserAnswer = 8000

// ScratchVerb is a request about the scratchpad of a session.
type ScratchVerb string

// The verbs.
const (
	ScratchGet    ScratchVerb = "get"
	ScratchSet    ScratchVerb = "set"
	ScratchList   ScratchVerb = "list"
	ScratchDelete ScratchVerb = "delete"
)

// ScratchRequest is the plan of the tool for the scratchpad. The session answers it.
type ScratchRequest struct {
	Verb       ScratchVerb
	Key, Value string
}

// SendRequest is the plan of the tool that sends a message. The session carries it out.
type SendRequest struct{ Channel, Text string }

// ReadRequest is the plan of the tool that reads messages. The session carries it out.
type ReadRequest struct {
	Channel string
	// All reads from the oldest message on, not from behind the last message that the session has
	// read.
	All   bool
	Limit int
	// Wait is how long to wait for a message if there is none.
	Wait time.Duration
}

// TriggerRequest is the plan of the tools that set triggers: a time, times or a message of a
// channel begin a turn with a prompt. One of At, Delay, Cron and Channel is set. The session
// carries it out.
type TriggerRequest struct {
	At             time.Time
	Delay          time.Duration
	Cron, TimeZone string
	Channel        string
	Prompt         string
}

// TriggersRequest is the plan of the tools that list triggers, and remove the one with an id.
type TriggersRequest struct{ Remove string }

// SearchTool is the name of the tool that searches journals.
const SearchTool = "search_memory"

// SearchRequest is the plan of [SearchTool]. The session carries it out.
type SearchRequest struct {
	Query string
	Limit int
}

// SessionSearchTool is the name of the tool that searches other sessions.
const SessionSearchTool = "session_search"

// SessionSearchRequest is the plan of [SessionSearchTool]. The session carries it out.
type SessionSearchRequest struct {
	Query string
	// Since is the least time of what is found; zero is every time.
	Since time.Time
	Limit int
}

// AskWait is how long a [protocol.Question] waits until a client accepts it.
const AskWait = 2 * time.Second

// AnswerTaken is the reply to an [protocol.Answer] that counts; any other says why it does not.
const AnswerTaken = "taken"

// MaxQuestion bounds the body of a [protocol.Question], in bytes.
const MaxQuestion = 64 << 10

// ReadAnswer decodes an answer to a question, and judges it: fits is asked about one that is
// accepted. The error, which wraps [ErrInvalidBody] for a message that is no answer, says why it
// does not count; its text is the reply to the sender. The reply to any other is [AnswerTaken].
func ReadAnswer(body []byte, question string, fits func(protocol.Answer) error) (protocol.Answer, error) {
	answer, err := Decode[protocol.Answer](body)
	switch {
	case err != nil:
		return protocol.Answer{}, err
	case answer.Question != "" && answer.Question != question:
		err = errors.New("it is about another question, which is not put any more")
	case answer.Action == protocol.ActionAccept:
		err = fits(*answer)
	}
	return *answer, err
}
