package toolset

import (
	"time"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// defaultMessages is how many messages read_messages returns if the call names no number.
const defaultMessages = 20

// channelProperty is the argument that names a channel.
const channelProperty = `"channel": {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$", "description": "Name of the channel: up to 64 letters, digits, - and _."}`

// channelTools returns the tools by which sessions send each other messages.
func channelTools() []tools.Tool {
	return []tools.Tool{{
		Metadata: tools.Metadata{
			Effect: tools.Effect{Loop: true},
			Hint:   "Use channels to exchange messages with other sessions, and with sub-agents while they work.",
			Help: `Sessions with one tenant share channels by their names. A channel exists once something was sent to it. It has the last 1,000 messages, in the order in which
they were sent, also after restarts. You do not read your own messages. What you read, others read as well: each session has its own position.`,
		},
		Definition: definition("send_message", "Send a message to a channel, which other sessions read.", `{
			"type": "object",
			"properties": {
				`+channelProperty+`,
				"text": {"type": "string", "minLength": 1, "maxLength": 16000, "description": "The message."}
			},
			"required": ["channel", "text"],
			"additionalProperties": false
		}`),
		Plan: tools.PlanOf(func(_ tools.Scope, args sendArguments) (tools.Plan, *protocol.Error) {
			return tools.Plan{Session: wire.SendRequest{Channel: args.Channel, Text: args.Text}}, nil
		}),
	}, {
		Metadata: tools.Metadata{Effect: tools.Effect{Loop: true}},
		Definition: definition("read_messages", "Read the messages that other sessions sent to a channel since you last read it, the oldest first.", `{
			"type": "object",
			"properties": {
				`+channelProperty+`,
				"all": {"type": "boolean", "description": "Read from the oldest message on, also what you have read. Default: false."},
				"limit": {"type": "integer", "minimum": 1, "maximum": 100, "description": "Maximum number of messages. Default: 20."},
				"wait": {"type": "number", "minimum": 0, "maximum": 600, "description": "Seconds to wait if there is no message. Default: 0."}
			},
			"required": ["channel"],
			"additionalProperties": false
		}`),
		Plan: tools.PlanOf(func(_ tools.Scope, args messagesArguments) (tools.Plan, *protocol.Error) {
			if args.Limit == 0 {
				args.Limit = defaultMessages
			}
			return tools.Plan{Session: wire.ReadRequest{
				Channel: args.Channel, All: args.All, Limit: args.Limit, Wait: seconds(args.Wait, 0),
			}}, nil
		}),
	}}
}

type sendArguments struct {
	Channel string `json:"channel"`
	Text    string `json:"text"`
}

type messagesArguments struct {
	Channel string  `json:"channel"`
	All     bool    `json:"all"`
	Limit   int     `json:"limit"`
	Wait    float64 `json:"wait"`
}

// promptProperty is the argument with what the session is asked then.
const promptProperty = `"prompt": {"type": "string", "minLength": 1, "maxLength": 4000, "description": "What you will be asked to do then."}`

// triggerTools returns the tools by which a session has turns of its own begin later.
func triggerTools() []tools.Tool {
	session := tools.Metadata{Effect: tools.Effect{Loop: true}}
	first := session
	first.Hint = "To wait for a time or a message, set a trigger and end your turn: a new turn of this session begins then, with all that you know now."
	first.Help = `Triggers work where a coordinator serves the session's turns. They fire once for each time, also after restarts. If a turn is open, the new turn begins after it.
The new turn has your model, tools, policies and limits. A session has at most 20 triggers. Triggers that fire too often without a person are postponed. After times at which no coordinator ran, a schedule fires once, late.`
	return []tools.Tool{
		{
			Metadata: first,
			Definition: definition("add_timer", "Have a new turn of this session begin once, after a time or at a time.", `{
				"type": "object",
				"properties": {
					"seconds": {"type": "number", "minimum": 1, "maximum": 31536000, "description": "Seconds from now. Give this or at."},
					"at": {"type": "string", "format": "date-time", "description": "The time, such as 2026-03-01T09:00:00Z."},
					`+promptProperty+`
				},
				"required": ["prompt"],
				"additionalProperties": false
			}`),
			Rules: func(arguments map[string]any) []string {
				_, delay := arguments["seconds"]
				if _, at := arguments["at"]; at == delay {
					return []string{"seconds, at: give one of them"}
				}
				return nil
			},
			Plan: tools.PlanOf(func(_ tools.Scope, args timerArguments) (tools.Plan, *protocol.Error) {
				return tools.Plan{Session: wire.TriggerRequest{At: args.At, Delay: seconds(args.Seconds, 0), Prompt: args.Prompt}}, nil
			}),
		},
		{
			Metadata: session,
			Definition: definition("add_schedule", "Have a new turn of this session begin at each of several times.", `{
				"type": "object",
				"properties": {
					"cron": {"type": "string", "minLength": 1, "maxLength": 200, "description": "The times: five fields of crontab (minute, hour, day, month, weekday), @hourly, @daily, or @every 10m."},
					"time_zone": {"type": "string", "description": "Time zone, such as Europe/Berlin. Default: UTC."},
					`+promptProperty+`
				},
				"required": ["cron", "prompt"],
				"additionalProperties": false
			}`),
			Plan: tools.PlanOf(func(_ tools.Scope, args scheduleArguments) (tools.Plan, *protocol.Error) {
				return tools.Plan{Session: wire.TriggerRequest{Cron: args.Cron, TimeZone: args.TimeZone, Prompt: args.Prompt}}, nil
			}),
		},
		{
			Metadata: session,
			Definition: definition("watch_channel", "Have a new turn of this session begin once, when another session sends a message to a channel. A message that you have not read counts. The turn begins with the messages, so you need not read them. End your turn after it.", `{
				"type": "object",
				"properties": {
					`+channelProperty+`,
					`+promptProperty+`
				},
				"required": ["channel"],
				"additionalProperties": false
			}`),
			Plan: tools.PlanOf(func(_ tools.Scope, args watchArguments) (tools.Plan, *protocol.Error) {
				return tools.Plan{Session: wire.TriggerRequest{Channel: args.Channel, Prompt: args.Prompt}}, nil
			}),
		},
		{
			Metadata:   session,
			Definition: definition("list_triggers", "List the triggers of this session: timers, schedules and watched channels.", `{"type": "object", "properties": {}, "additionalProperties": false}`),
			Plan: tools.PlanOf(func(tools.Scope, struct{}) (tools.Plan, *protocol.Error) {
				return tools.Plan{Session: wire.TriggersRequest{}}, nil
			}),
		},
		{
			Metadata: session,
			Definition: definition("remove_trigger", "Remove a trigger of this session.", `{
				"type": "object",
				"properties": {"trigger": {"type": "string", "minLength": 1, "description": "Its id, as add_timer, add_schedule, watch_channel and list_triggers return it."}},
				"required": ["trigger"],
				"additionalProperties": false
			}`),
			Plan: tools.PlanOf(func(_ tools.Scope, args removeArguments) (tools.Plan, *protocol.Error) {
				return tools.Plan{Session: wire.TriggersRequest{Remove: args.Trigger}}, nil
			}),
		},
	}
}

type timerArguments struct {
	Seconds float64   `json:"seconds"`
	At      time.Time `json:"at"`
	Prompt  string    `json:"prompt"`
}

type scheduleArguments struct {
	Cron     string `json:"cron"`
	TimeZone string `json:"time_zone"`
	Prompt   string `json:"prompt"`
}

type watchArguments struct {
	Channel string `json:"channel"`
	Prompt  string `json:"prompt"`
}

type removeArguments struct {
	Trigger string `json:"trigger"`
}
