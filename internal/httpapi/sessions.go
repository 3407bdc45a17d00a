package httpapi

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// TurnRequest asks a serving coordinator for a turn.
type TurnRequest struct {
	Prompt       string             `json:"prompt" minLength:"1" doc:"What the person says."`
	Attachments  []Attachment       `json:"attachments,omitempty" maxItems:"20" doc:"Images and documents."`
	AnswerSchema json.RawMessage    `json:"answer_schema,omitempty" doc:"JSON Schema of the answer, which then is one JSON value: result.value.answer of the call. Default: any text."`
	Model        string             `json:"model,omitempty" doc:"A model that a coordinator serves. Default: that of the session, else of the coordinator."`
	Toolsets     []string           `json:"toolsets,omitempty" maxItems:"16" doc:"Built-in toolsets. Default: core."`
	System       string             `json:"system,omitempty" doc:"System prompt."`
	MaxSteps     int                `json:"max_steps,omitempty" minimum:"0" doc:"Bound of the replies of the model in the turn."`
	MaxTokens    int64              `json:"max_tokens,omitempty" minimum:"0" doc:"Bound of the tokens of the turn."`
	TimeoutMS    int64              `json:"timeout_ms,omitempty" minimum:"0" maximum:"31622400000" doc:"Bound of the turn."`
	Budget       *protocol.Spending `json:"budget,omitempty" doc:"Bound of the session."`
	Policies     []json.RawMessage  `json:"policies,omitempty" maxItems:"16" doc:"Policies in addition to those of the coordinator."`
	NotBefore    time.Time          `json:"not_before,omitzero" doc:"Time before which the turn does not start."`
	Tenant       protocol.Tenant    `json:"tenant,omitempty" doc:"Tenant. Default: that of the token."`
	Priority     protocol.Priority  `json:"priority,omitempty" enum:"interactive,normal,batch" doc:"Order among the turns of the tenant."`
}

// Attachment is an image or a document of a prompt.
type Attachment struct {
	Name string `json:"name" maxLength:"255" doc:"File name."`
	Data []byte `json:"data" doc:"Content, in base64."`
}

// NewSession begins a session with a turn.
type NewSession struct {
	TurnRequest

	Session protocol.SessionID `json:"session_id,omitempty" doc:"Id of the session. Default: a new one."`
}

// turn is what the client submits.
func turn(r *TurnRequest, session protocol.SessionID, id string) (fleet.Turn, error) {
	made := fleet.Turn{
		Session: session, Prompt: r.Prompt, AnswerSchema: r.AnswerSchema, Model: r.Model, Toolsets: r.Toolsets, System: r.System, MaxSteps: r.MaxSteps, MaxTokens: r.MaxTokens,
		Timeout: milliseconds(r.TimeoutMS), Budget: r.Budget, Policies: r.Policies, NotBefore: r.NotBefore, Tenant: r.Tenant, Priority: r.Priority,
		ID: protocol.CallID(id),
	}
	for i, attachment := range r.Attachments {
		read, err := loop.NewAttachment(attachment.Name, attachment.Data)
		if err != nil {
			return made, ofRequest(http.StatusUnprocessableEntity, "attachments", &huma.ErrorDetail{Location: "body.attachments[" + itoa(i) + "]", Message: err.Error()})
		}
		made.Attachments = append(made.Attachments, read)
	}
	return made, nil
}

// SessionPath names a session.
type SessionPath struct {
	Session protocol.SessionID `path:"session" maxLength:"64" doc:"Id of the session."`
}

// SessionList lists sessions.
type SessionList struct {
	Sessions []report.Session `json:"sessions"`
	LeftOut  int              `json:"left_out" doc:"How many more there are."`
}

// QuestionList lists what waits for a person.
type QuestionList struct {
	Questions []report.Question `json:"questions"`
}

// Place is a point of a session.
type Place struct {
	Call protocol.CallID `json:"call_id,omitempty" doc:"Call after which it is."`
	Turn int             `json:"turn,omitempty" minimum:"0" doc:"Turn at whose end it is."`
}

func (p Place) at() fleet.At { return fleet.At{Call: p.Call, Turn: p.Turn} }

// orBeginning is the point behind which effects are: without one all effects are meant.
func (p Place) orBeginning() fleet.At {
	if p == (Place{}) {
		return fleet.At{Turn: -1}
	}
	return p.at()
}

// sessions registers operations on sessions.
func (a *api) sessions() {
	const tag = "Sessions"
	submit := func(ctx context.Context, request *TurnRequest, session protocol.SessionID, key string) (*answer[*CallState], error) {
		made, err := turn(request, session, key)
		if err != nil {
			return nil, err
		}
		return using(ctx, a, session, true, true, func(sessions fleet.Sessions) (*CallState, error) {
			ref, err := sessions.Submit(ctx, made)
			return &CallState{SessionID: ref.SessionID, CallID: ref.ID, State: "accepted"}, err
		})
	}
	huma.Register(a.huma, operation(http.MethodPost, "/sessions", "new-session", tag, "Begin a session with a turn", accepted),
		func(ctx context.Context, in *struct {
			Keyed
			Body NewSession
		},
		) (*answer[*CallState], error) {
			return submit(ctx, &in.Body.TurnRequest, cmp.Or(in.Body.Session, protocol.NewSessionID()), in.Key)
		})
	huma.Register(a.huma, operation(http.MethodPost, "/sessions/{session}/turns", "send-turn", tag, "Continue a session with a turn", accepted),
		func(ctx context.Context, in *struct {
			SessionPath
			Keyed
			Body TurnRequest
		},
		) (*answer[*CallState], error) {
			return submit(ctx, &in.Body, in.Session, in.Key)
		})
	huma.Register(a.huma, operation(http.MethodGet, "/sessions", "list-sessions", tag, "List the sessions that changed last", bounded),
		func(ctx context.Context, in *Limited) (*answer[SessionList], error) {
			list, leftOut, err := a.Local.List(ctx, in.Limit)
			return answered(SessionList{orEmpty(list), leftOut}, err)
		})
	huma.Register(a.huma, operation(http.MethodGet, "/search", "search-sessions", tag, "Search the conversations and calls of all sessions for words", bounded),
		func(ctx context.Context, in *struct {
			Words string `query:"words" required:"true" minLength:"1" maxLength:"500" doc:"Words that must all be in a passage, \"phrases in quotes\", and word* for all words that begin like it."`
			Since string `query:"since" maxLength:"64" doc:"The least time of passages: a time, or how long ago, such as 24h or 7d."`
			Limited
		},
		) (*answer[report.Found], error) {
			from, err := since(in.Since)
			if err != nil {
				return answered(report.Found{}, err)
			}
			return answered(a.Client.Sessions(a.Pool).Search(ctx, fleet.Search{Words: in.Words, Since: from, Limit: in.Limit}))
		})
	huma.Register(a.huma, operation(http.MethodGet, "/sessions/{session}", "get-session", tag, "Get a session with its turns", bounded),
		func(ctx context.Context, in *SessionPath) (*answer[*report.Session], error) {
			return answered(a.Local.Show(ctx, in.Session))
		})
	huma.Register(a.huma,
		operation(http.MethodGet, "/sessions/{session}/turns/{turn}/trace", "get-turn-trace", tag, "Get where the time of a turn went, also of one that runs", bounded),
		func(ctx context.Context, in *struct {
			SessionPath
			Turn string `path:"turn" pattern:"^(last|[1-9][0-9]{0,8})$" doc:"Number of the turn, or last."`
		},
		) (*answer[*report.Trace], error) {
			turn, _ := strconv.Atoi(in.Turn) // 0 is the last one
			return answered(a.of(ctx, in.Session).Trace(ctx, in.Session, turn))
		})
	huma.Register(a.huma, operation(http.MethodDelete, "/sessions/{session}", "remove-session", tag, "Remove a session with all that is stored of it"),
		func(ctx context.Context, in *struct {
			SessionPath
			Force bool `query:"force" doc:"Also with unfinished calls, which are cancelled."`
		},
		) (*answer[report.Removed], error) {
			return answered(a.Local.Remove(ctx, in.Session, in.Force))
		})
	huma.Register(a.huma, operation(http.MethodGet, "/sessions/{session}/calls", "list-session-calls", tag, "List the calls of a session that run or wait", bounded),
		func(ctx context.Context, in *SessionPath) (*answer[UnfinishedList], error) {
			list, err := a.of(ctx, in.Session).Unfinished(ctx, in.Session)
			return answered(UnfinishedList{orEmpty(list)}, err)
		})
	huma.Register(a.huma, operation(http.MethodPost, "/sessions/{session}/cancel", "cancel-session", tag, "Cancel the running and waiting calls of a session", bounded),
		func(ctx context.Context, in *SessionPath) (*answer[Cancelled], error) {
			calls, err := a.Local.Cancel(ctx, in.Session)
			return answered(Cancelled{orEmpty(calls)}, late(ctx, err))
		})
	huma.Register(a.huma,
		operation(http.MethodPost, "/sessions/{session}/fork", "fork-session", tag, "Fork a session, with its files, at a call or the end of a turn", created),
		func(ctx context.Context, in *struct {
			SessionPath
			Body struct {
				Place
				To protocol.SessionID `json:"session_id" doc:"Id of the fork."`
			}
		},
		) (*answer[Forked], error) {
			return using(ctx, a, in.Body.To, true, false, func(sessions fleet.Sessions) (Forked, error) {
				turns, err := sessions.Fork(ctx, in.Session, in.Body.at(), in.Body.To)
				return Forked{in.Body.To, turns}, err
			})
		})
	huma.Register(a.huma, operation(http.MethodPost, "/sessions/{session}/merge", "merge-session", tag, "Merge the files and the answer of a fork into a session"),
		func(ctx context.Context, in *struct {
			SessionPath
			Body struct {
				Fork protocol.SessionID `json:"fork" doc:"Id of the fork."`
			}
		},
		) (*answer[report.Merged], error) {
			return using(ctx, a, in.Session, false, false, func(sessions fleet.Sessions) (report.Merged, error) {
				return sessions.Merge(ctx, in.Body.Fork, in.Session)
			})
		})
	huma.Register(a.huma, operation(http.MethodPost, "/sessions/{session}/restore", "restore-session", tag, "Restore the files of a session as they were after a call"),
		func(ctx context.Context, in *struct {
			SessionPath
			Body struct {
				Call protocol.CallID `json:"call_id"`
			}
		},
		) (*answer[Restored], error) {
			return using(ctx, a, in.Session, false, false, func(sessions fleet.Sessions) (Restored, error) {
				written, removed, err := sessions.Restore(ctx, in.Session, in.Body.Call)
				return Restored{written, removed}, err
			})
		})
	huma.Register(a.huma,
		operation(http.MethodPost, "/sessions/{session}/revert", "revert-session", tag, "Undo effects outside of the workspace, behind a call or a turn, or all"),
		func(ctx context.Context, in *struct {
			SessionPath
			Body Place
		},
		) (*answer[EffectList], error) {
			return using(ctx, a, in.Session, false, false, func(sessions fleet.Sessions) (EffectList, error) {
				effects, err := sessions.Revert(ctx, in.Session, in.Body.orBeginning())
				return EffectList{orEmpty(effects)}, err
			})
		})
	huma.Register(a.huma,
		operation(http.MethodPost, "/sessions/{session}/compact", "compact-session", tag, "Have a coordinator replace older replies of a session by a summary", bounded),
		func(ctx context.Context, in *struct {
			SessionPath
			Model string `query:"model" maxLength:"256" doc:"Model that writes the summary. Default: that of the coordinator."`
		},
		) (*answer[Compacted], error) {
			return using(ctx, a, in.Session, false, true, func(sessions fleet.Sessions) (Compacted, error) {
				compacted, err := sessions.Compact(ctx, in.Session, in.Model)
				return Compacted{compacted}, late(ctx, err)
			})
		})
	huma.Register(a.huma, operation(http.MethodGet, "/sessions/{session}/effects", "list-effects", tag, "List effects outside of the workspace", bounded),
		func(ctx context.Context, in *SessionPath) (*answer[EffectList], error) {
			effects, err := a.of(ctx, in.Session).Effects(ctx, in.Session, Place{}.orBeginning())
			return answered(EffectList{orEmpty(effects)}, err)
		})
	huma.Register(a.huma,
		operation(http.MethodGet, "/sessions/{session}/export", "export-session", tag, "Export the events of a session, one JSON object a line", ndjson, bounded),
		func(ctx context.Context, in *SessionPath) (*huma.StreamResponse, error) {
			history, err := a.of(ctx, in.Session).Log(ctx, in.Session)
			if err != nil {
				return nil, problem(err)
			}
			return &huma.StreamResponse{Body: func(out huma.Context) {
				out.SetHeader("Content-Type", ndjsonType)
				_ = history.Export(out.BodyWriter(), in.Session) // the client has gone
			}}, nil
		})
	huma.Register(a.huma, operation(http.MethodPost, "/sessions/{session}/import", "import-session", tag, "Import exported events as a new session", created),
		func(ctx context.Context, in *struct {
			SessionPath
			RawBody []byte `contentType:"application/x-ndjson"`
		},
		) (*answer[Forked], error) {
			events, err := loop.ReadExport(strings.NewReader(string(in.RawBody)))
			if err != nil {
				return nil, ofRequest(http.StatusUnprocessableEntity, err.Error())
			}
			return using(ctx, a, in.Session, true, false, func(sessions fleet.Sessions) (Forked, error) {
				turns, err := sessions.Import(ctx, events, in.Session)
				return Forked{in.Session, turns}, err
			})
		})
	huma.Register(a.huma, operation(http.MethodGet, "/questions", "list-questions", tag, "List what waits for a person: approvals, and questions of running calls", bounded),
		func(ctx context.Context, _ *struct{}) (*answer[QuestionList], error) {
			list, err := a.Client.Sessions(a.Pool).Approvals(ctx)
			return answered(QuestionList{orEmpty(list)}, err)
		})
	huma.Register(a.huma, operation(http.MethodPost, "/sessions/{session}/approve", "approve-call", tag, "Approve or refuse a call that waits for it", bounded),
		func(ctx context.Context, in *struct {
			SessionPath
			Body struct {
				Call    protocol.CallID `json:"call_id"`
				Granted bool            `json:"granted"`
				Note    string          `json:"note,omitempty" maxLength:"2000" doc:"Text for the model."`
			}
		},
		) (*struct{}, error) {
			return done(a.of(ctx, in.Session).Approve(ctx, in.Session, in.Body.Call, protocol.Approval{Granted: in.Body.Granted, Note: in.Body.Note}))
		})
	huma.Register(a.huma, operation(http.MethodPost, "/sessions/{session}/answer", "answer-question", tag, "Answer a question of a running call", bounded),
		func(ctx context.Context, in *struct {
			SessionPath
			Body struct {
				Call     protocol.CallID `json:"call_id"`
				Question string          `json:"question,omitempty" doc:"Id of the question. Default: the one that is asked."`
				Action   protocol.Action `json:"action" enum:"accept,decline,cancel"`
				Content  json.RawMessage `json:"content,omitempty" doc:"Answer, as the question's schema says."`
			}
		},
		) (*struct{}, error) {
			return done(a.of(ctx, in.Session).Answer(ctx, in.Session, in.Body.Call, protocol.Answer{Question: in.Body.Question, Action: in.Body.Action, Content: in.Body.Content}))
		})
	huma.Register(a.huma, operation(http.MethodPost, "/sessions/{session}/resolve", "resolve-call", tag, "Say what became of a call of unknown outcome", bounded),
		func(ctx context.Context, in *struct {
			SessionPath
			Body struct {
				Call     protocol.CallID `json:"call_id"`
				Happened bool            `json:"happened"`
			}
		},
		) (*struct{}, error) {
			return done(a.of(ctx, in.Session).Resolve(ctx, in.Session, in.Body.Call, in.Body.Happened, ""))
		})
	a.sessionEvents(tag)
}

// UnfinishedList lists calls that run or wait.
type UnfinishedList struct {
	Calls []report.Call `json:"calls"`
}

// Cancelled lists calls that were cancelled.
type Cancelled struct {
	Calls []protocol.CallID `json:"calls"`
}

// Compacted says whether there was something to replace.
type Compacted struct {
	Compacted bool `json:"compacted"`
}

// Forked says what a fork or an import has.
type Forked struct {
	SessionID protocol.SessionID `json:"session_id"`
	Turns     int                `json:"turns"`
}

// Restored counts files.
type Restored struct {
	Written int `json:"written"`
	Removed int `json:"removed"`
}

// EffectList lists effects.
type EffectList struct {
	Effects []report.Effect `json:"effects"`
}

// ndjsonType is the type of a text with a JSON object a line.
const ndjsonType = "application/x-ndjson"

// ndjson documents an answer of that type.
func ndjson(op *huma.Operation) {
	op.Responses = map[string]*huma.Response{"200": {
		Description: "One JSON object a line.", Content: map[string]*huma.MediaType{ndjsonType: {Schema: &huma.Schema{Type: huma.TypeString}}},
	}}
}
