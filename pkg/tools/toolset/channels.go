package toolset

import (
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
