package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// InPool names a pool.
type InPool struct {
	Pool protocol.Pool `query:"pool" maxLength:"64" doc:"Pool of workers. Default: default."`
}

// LaneIn names a lane.
type LaneIn struct {
	InPool
	Lane protocol.Lane `query:"lane" required:"true" maxLength:"512" doc:"The lane, as lists name it."`
}

// workersWait is how long workers may take to answer.
const workersWait = 2 * time.Second

// Lists of the fleet.
type (
	// WorkerList lists workers.
	WorkerList struct {
		Workers []*report.Worker `json:"workers"`
	}
	// PoolList lists pools.
	PoolList struct {
		Pools []protocol.Pool `json:"pools"`
	}
	// LimitList lists limits.
	LimitList struct {
		Limits []fleet.Limit `json:"limits"`
	}
	// ScheduleList lists schedules.
	ScheduleList struct {
		Schedules []Schedule `json:"schedules"`
		LeftOut   int        `json:"left_out" doc:"How many more there are."`
	}
	// TemplateList lists templates.
	TemplateList struct {
		Templates []report.Template `json:"templates"`
	}
	// TokenList lists tokens.
	TokenList struct {
		Tokens []fleet.Token `json:"tokens"`
	}
	// MadeToken is a new token.
	MadeToken struct {
		fleet.Token

		Secret string `json:"token" doc:"What the client sends. It is stored nowhere, and not shown again."`
	}
	// Woken says whether the offer of a lane was missing.
	Woken struct {
		Missing bool `json:"missing"`
	}
	// KilledList lists running calls that were cancelled.
	KilledList struct {
		Calls []report.RunningCall `json:"calls"`
	}
	// Paused says whether a lane starts nothing.
	Paused struct {
		Paused    bool `json:"paused"`
		Confirmed bool `json:"confirmed" doc:"Its holder has answered."`
	}
)

// fleet registers operations on the fleet itself.
func (a *api) fleet() {
	const workers, lanes, limits, schedules, templates, tokens = "Workers", "Lanes", "Limits", "Schedules", "Templates", "Tokens"
	huma.Register(a.huma, operation(http.MethodGet, "/workers", "list-workers", workers, "List the workers of a pool", bounded),
		func(ctx context.Context, in *InPool) (*answer[WorkerList], error) {
			list, err := a.Client.Workers(ctx, in.Pool, workersWait)
			return answered(WorkerList{orEmpty(list)}, err)
		})
	huma.Register(a.huma, operation(http.MethodGet, "/pools", "list-pools", workers, "List the pools", bounded),
		func(ctx context.Context, _ *struct{}) (*answer[PoolList], error) {
			list, err := a.Client.Pools(ctx)
			return answered(PoolList{orEmpty(list)}, err)
		})
	huma.Register(a.huma, operation(http.MethodGet, "/lanes", "list-lanes", lanes, "List the lanes of a pool that have calls, are held or paused", bounded),
		func(ctx context.Context, in *struct {
			InPool
			Limited
		},
		) (*answer[*report.LaneList], error) {
			return answered(a.Client.Lanes(in.Pool).List(ctx, in.Limit))
		})
	huma.Register(a.huma, operation(http.MethodGet, "/lane", "get-lane", lanes, "Get a lane with its calls", bounded),
		func(ctx context.Context, in *struct {
			LaneIn
			Limited
		},
		) (*answer[*report.LaneCalls], error) {
			return answered(a.Client.Lanes(in.Pool).Show(ctx, in.Lane, in.Limit))
		})
	huma.Register(a.huma, operation(http.MethodPost, "/lane/pause", "pause-lane", lanes, "Pause a lane: it starts no calls until it is resumed", bounded),
		func(ctx context.Context, in *LaneIn) (*answer[Paused], error) {
			confirmed, err := a.Client.Lanes(in.Pool).Pause(ctx, in.Lane)
			return answered(Paused{true, confirmed}, err)
		})
	huma.Register(a.huma, operation(http.MethodPost, "/lane/resume", "resume-lane", lanes, "Resume a lane", bounded),
		func(ctx context.Context, in *LaneIn) (*struct{}, error) {
			_, err := a.Client.Lanes(in.Pool).Resume(ctx, in.Lane)
			return done(err)
		})
	huma.Register(a.huma, operation(http.MethodPost, "/lane/wake", "wake-lane", lanes, "Offer a lane to the workers again, if its offer is missing", bounded),
		func(ctx context.Context, in *LaneIn) (*answer[Woken], error) {
			missing, err := a.Client.Lanes(in.Pool).Wake(ctx, in.Lane)
			return answered(Woken{missing}, err)
		})
	huma.Register(a.huma, operation(http.MethodPost, "/lane/skip", "skip-call", lanes, "Cancel a call of a lane: it does not start, or is killed", bounded),
		func(ctx context.Context, in *struct {
			LaneIn
			Call protocol.CallID `query:"call" required:"true" maxLength:"64" doc:"Id of the call."`
		},
		) (*struct{}, error) {
			return done(a.Client.Lanes(in.Pool).Cancel(ctx, in.Lane, in.Call))
		})
	huma.Register(a.huma, operation(http.MethodPost, "/lane/kill", "kill-lane", lanes, "Cancel the running calls of a lane", bounded),
		func(ctx context.Context, in *LaneIn) (*answer[KilledList], error) {
			killed, err := a.Client.Lanes(in.Pool).CancelRunning(ctx, in.Lane)
			return answered(KilledList{orEmpty(killed)}, err)
		})
	huma.Register(a.huma, operation(http.MethodGet, "/limits", "list-limits", limits, "List the limits of the fleet", bounded),
		func(ctx context.Context, _ *struct{}) (*answer[LimitList], error) {
			list, err := a.Client.Limits().List(ctx)
			return answered(LimitList{orEmpty(list)}, err)
		})
	huma.Register(a.huma, operation(http.MethodPut, "/limits", "set-limit", limits, "Set a limit", bounded),
		func(ctx context.Context, in *struct{ Body fleet.Limit }) (*struct{}, error) {
			return done(a.Client.Limits().Set(ctx, in.Body))
		})
	huma.Register(a.huma, operation(http.MethodDelete, "/limits", "remove-limit", limits, "Remove the limit of a lane, a tenant or a pool", bounded),
		func(ctx context.Context, in *struct {
			Lane   string          `query:"lane" maxLength:"512"`
			Tenant protocol.Tenant `query:"tenant" maxLength:"64"`
			Pool   protocol.Pool   `query:"pool" maxLength:"64"`
		},
		) (*struct{}, error) {
			return done(a.Client.Limits().Remove(ctx, fleet.Limit{Lane: in.Lane, Tenant: in.Tenant, Pool: in.Pool}))
		})
	huma.Register(a.huma, operation(http.MethodGet, "/schedules", "list-schedules", schedules, "List schedules", bounded),
		func(ctx context.Context, in *struct {
			Limited
			After string `query:"after" maxLength:"64" doc:"Name behind which the list begins."`
		},
		) (*answer[ScheduleList], error) {
			list, leftOut, err := a.Client.Schedules().Page(ctx, in.After, in.Limit)
			made := ScheduleList{[]Schedule{}, leftOut}
			for i := range list {
				made.Schedules = append(made.Schedules, scheduleOf(&list[i]))
			}
			return answered(made, err)
		})
	huma.Register(a.huma, operation(http.MethodPost, "/schedules", "add-schedule", schedules, "Add a schedule of a turn or a call", created, bounded),
		func(ctx context.Context, in *struct{ Body NewSchedule }) (*answer[Schedule], error) {
			return a.schedule(ctx, &in.Body)
		})
	type named struct {
		Name string `path:"name" maxLength:"64" doc:"Name of the schedule or template."`
	}
	huma.Register(a.huma, operation(http.MethodDelete, "/schedules/{name}", "remove-schedule", schedules, "Remove a schedule", bounded),
		func(ctx context.Context, in *named) (*struct{}, error) {
			return done(a.Client.Schedules().Remove(ctx, in.Name))
		})
	for verb, method := range map[string]func(context.Context, string) (fleet.Schedule, error){
		"pause": func(ctx context.Context, name string) (fleet.Schedule, error) {
			return a.Client.Schedules().Pause(ctx, name)
		},
		"resume": func(ctx context.Context, name string) (fleet.Schedule, error) {
			return a.Client.Schedules().Resume(ctx, name)
		},
	} {
		huma.Register(a.huma, operation(http.MethodPost, "/schedules/{name}/"+verb, verb+"-schedule", schedules, "Pause or resume a schedule", bounded),
			func(ctx context.Context, in *named) (*answer[Schedule], error) {
				made, err := method(ctx, in.Name)
				return answered(scheduleOf(&made), err)
			})
	}
	huma.Register(a.huma, operation(http.MethodGet, "/templates", "list-templates", templates, "List templates of workspaces", bounded),
		func(ctx context.Context, _ *struct{}) (*answer[TemplateList], error) {
			list, err := a.Client.Templates().List(ctx)
			return answered(TemplateList{orEmpty(list)}, err)
		})
	huma.Register(a.huma, operation(http.MethodPost, "/templates", "add-template", templates, "Make a template of the files of a session", created, bounded),
		func(ctx context.Context, in *struct {
			Body struct {
				Name    string             `json:"name" maxLength:"64"`
				Session protocol.SessionID `json:"session_id"`
			}
		},
		) (*struct{}, error) {
			return done(a.Client.Templates().CreateFromSession(ctx, in.Body.Name, in.Body.Session))
		})
	huma.Register(a.huma, operation(http.MethodDelete, "/templates/{name}", "remove-template", templates, "Remove a template", bounded),
		func(ctx context.Context, in *named) (*struct{}, error) {
			return done(a.Client.Templates().Remove(ctx, in.Name))
		})
	huma.Register(a.huma, operation(http.MethodGet, "/tokens", "list-tokens", tokens,
		"List the tokens of clients, without their secrets: those of the tenant, or all for the fleet's operator", bounded),
		func(ctx context.Context, _ *struct{}) (*answer[TokenList], error) {
			list, err := a.Client.Tokens().List(ctx)
			return answered(TokenList{orEmpty(list)}, err)
		})
	huma.Register(a.huma, operation(http.MethodPost, "/tokens", "add-token", tokens, "Make a token of a client: only the fleet's operator may", created, bounded),
		func(ctx context.Context, in *struct{ Body NewToken }) (*answer[MadeToken], error) {
			made, secret, err := a.Client.Tokens().Add(ctx, fleet.Token{Name: in.Body.Name, Role: in.Body.Role, Tenant: in.Body.Tenant, Expires: in.Body.Expires})
			return answered(MadeToken{made, secret}, err)
		})
	huma.Register(a.huma, operation(http.MethodDelete, "/tokens/{token}", "remove-token", tokens, "Remove a token: its requests and streams end within a second", bounded),
		func(ctx context.Context, in *struct {
			Token string `path:"token" maxLength:"64" doc:"Id of the token, as the list has it."`
		},
		) (*struct{}, error) {
			return done(a.Client.Tokens().Remove(ctx, in.Token))
		})
}

// NewToken makes a token.
type NewToken struct {
	Name    string          `json:"name" maxLength:"256" doc:"Name of the client. Tokens with one name, role and tenant are one client."`
	Role    string          `json:"role" enum:"read,run,operate"`
	Tenant  protocol.Tenant `json:"tenant,omitempty" maxLength:"64" doc:"Default: the tenant default."`
	Expires time.Time       `json:"expires,omitzero" doc:"At most 366 days from now. Default: 90 days."`
}

// Schedule starts a turn or a call at set times.
type Schedule struct {
	Name      string             `json:"name"`
	Cron      string             `json:"cron" example:"0 9 * * 1-5"`
	TimeZone  string             `json:"time_zone" example:"Europe/Berlin"`
	Missed    string             `json:"missed" enum:"once,skip,all"`
	Paused    bool               `json:"paused"`
	Created   time.Time          `json:"created"`
	Last      time.Time          `json:"last,omitzero"`
	Next      []time.Time        `json:"next"`
	SessionID protocol.SessionID `json:"session_id,omitempty"`
	Outcome   string             `json:"outcome,omitempty" doc:"How the last turn or call ended."`
	Model     string             `json:"model,omitempty"`
	Prompt    string             `json:"prompt,omitempty"`
	Tool      string             `json:"tool,omitempty"`
}

func scheduleOf(s *fleet.Schedule) Schedule {
	return Schedule{s.Name, s.Cron, s.TimeZone, s.Missed, s.Paused, s.Created, s.Last, orEmpty(s.Next), s.SessionID, s.Outcome, s.Model, s.Prompt, s.Tool}
}

// NewSchedule adds a schedule: of a turn, or of a call.
type NewSchedule struct {
	Name     string             `json:"name" maxLength:"64" doc:"1 to 64 letters, digits, '-' and '_'."`
	Cron     string             `json:"cron" doc:"The five fields of crontab, @hourly, @daily, @weekly, @monthly, @yearly or @every 10m."`
	TimeZone string             `json:"time_zone,omitempty" doc:"Name of the IANA database. Default: UTC."`
	Missed   string             `json:"missed,omitempty" enum:"once,skip,all" doc:"What becomes of times at which no coordinator ran. Default: once."`
	Session  protocol.SessionID `json:"session_id,omitempty" doc:"Session of every turn or call. Default: a new one each."`
	Turn     *TurnRequest       `json:"turn,omitempty" doc:"The turn. One of turn and call is required."`
	Call     *CallRequest       `json:"call,omitempty" doc:"The call."`
}

// schedule adds one.
func (a *api) schedule(ctx context.Context, in *NewSchedule) (*answer[Schedule], error) {
	if (in.Turn == nil) == (in.Call == nil) {
		return nil, ofRequest(http.StatusUnprocessableEntity, "turn, call: one of them is required")
	}
	request := fleet.Schedule{Name: in.Name, Cron: in.Cron, TimeZone: in.TimeZone, Missed: in.Missed}
	var made fleet.Schedule
	if in.Turn != nil {
		started, err := turn(in.Turn, in.Session, "")
		if err == nil {
			made, err = a.Client.Schedules().Add(ctx, request, started)
		}
		return answered(scheduleOf(&made), err)
	}
	call, err := a.call(ctx, in.Call, "")
	if err == nil {
		call.ID = "" // each time has its own
		if call.Session == "" {
			call.Session = in.Session
		}
		made, err = a.Client.Schedules().AddCall(ctx, request, call)
	}
	return answered(scheduleOf(&made), err)
}
