// Package ports has what a session asks of a fleet and of its journal in addition to carrying calls
// and storing events. The interfaces are internal: programs use a fleet's dispatcher, and their own
// in tests only.
package ports

import (
	"context"
	"time"

	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Fleet is a [github.com/toolfleet/toolfleet/pkg/loop.Dispatcher] of a fleet. A session with any
// other one cuts the texts that a model is shown, without storing them; its tools that ask a person
// or send messages fail; and each call that an earlier process may have sent counts as sent.
type Fleet interface {
	// StoreText stores the whole text of a tool that ran in place, if the model sees only a part,
	// until the session is removed. A wire.ResultRead finds it. Storing it again replaces it.
	StoreText(ctx context.Context, session protocol.SessionID, call protocol.CallID, text string) error
	// StoreMedia does the same for an image or document.
	StoreMedia(ctx context.Context, session protocol.SessionID, call protocol.CallID, data []byte) error

	// Ask waits for a person's answer to the question of a call, and returns it, or the error of
	// ctx. It calls listening as soon as answers can arrive; an error of that ends it. An answer
	// that fits refuses with an error is rejected with it, and the question stays.
	Ask(
		ctx context.Context, session protocol.SessionID, call protocol.CallID, question protocol.Question,
		fits func(protocol.Answer) error, listening func() error,
	) (protocol.Answer, error)

	// GivenUp reports whether the call of a turn, by the id of its input, has a result that ends
	// the turn, such as a cancel while no coordinator had the session. A turn found open then ends
	// as interrupted, and its calls are cancelled. An error ends the run.
	GivenUp(ctx context.Context, session protocol.SessionID, id protocol.CallID) (bool, error)

	// Find returns a call as the fleet has it, or its result; neither if the fleet has none of
	// both.
	Find(ctx context.Context, pool protocol.Pool, ref protocol.CallRef) (*protocol.Call, *protocol.Result, error)
	// Void fences a call that was not found: if it comes later, it does not run. One that came
	// before is found.
	Void(ctx context.Context, pool protocol.Pool, lane protocol.Lane, ref protocol.CallRef) error

	// SendMessage adds a message to the end of a channel, once for each Call: a later one of the
	// same Call changes nothing. Sequence and Time are the channel's to set. A [protocol.Error] is
	// the result of the call; any other error leaves the call without result, and the next run of
	// the session makes it again.
	SendMessage(ctx context.Context, channel string, message ChannelMessage) error
	// ReadMessages returns messages in their order. None is no error. Its errors are those of
	// SendMessage.
	ReadMessages(ctx context.Context, channel string, read ChannelRead) ([]ChannelMessage, error)

	// SearchSessions returns passages of sessions of an owner, but for one of these sessions. The
	// error wraps [codes.ErrInvalid] for a query that is not understood.
	SearchSessions(ctx context.Context, query wire.SessionSearchRequest, owner judge.Owner, except protocol.SessionID) (report.Found, error)
}

// Fencer is a journal that has sub-agents refused. Without one, a sub-agent that is refused may
// still be begun by a process that was stopped before.
type Fencer interface {
	// Fence has no process begin a session that has read its journal, which is empty behind the
	// sequence expected, or that was stopped before it did so. An error wraps
	// [loop.ErrJournalConflict] if the session has begun.
	Fence(ctx context.Context, session protocol.SessionID, expected uint64) error
}

// ChannelMessage is a message of a channel.
type ChannelMessage struct {
	Sequence uint64 // grows with each message
	Time     time.Time
	From     protocol.SessionID
	Call     protocol.CallID // that sent it
	Text     string
}

// ChannelRead says which messages of a channel are read.
type ChannelRead struct {
	Reader protocol.SessionID // whose own messages are left out
	After  uint64             // the sequence behind which it reads
	Limit  int                // maximum number of messages
	Wait   time.Duration      // for a message, if there is none
}

// Triggers begin turns of one session later, whether or not this process still runs: each time
// once, behind a turn that is open. A [protocol.Error] is the result of the call; any other error
// leaves the call without result, and the next run of the session makes it again.
type Triggers interface {
	// Add stores a trigger. The same one added once more, also after it has fired or was removed,
	// changes nothing.
	Add(ctx context.Context, trigger Trigger) error
	// List returns the triggers of the session, in the order in which they were added.
	List(ctx context.Context) ([]Trigger, error)
	// Remove removes a trigger. One that is not there is no error.
	Remove(ctx context.Context, id string) error
}

// Trigger begins a turn once At a time or at a message of a Channel, or at each time of Cron.
type Trigger struct {
	ID   string
	Call protocol.CallID // that set it
	// Secret seeds the ids of the calls for its turns. It is the same whenever Call is run.
	Secret   string
	At       time.Time // also the next time of Cron
	Cron     string
	TimeZone string // of Cron; "" is UTC
	Channel  string // its full name
	After    uint64 // the sequence of the channel behind which a message counts
	Prompt   string // of the turn
	// Firing is what the turn knows of what began it.
	Firing Firing
}

// Firing is what begins a turn instead of a person.
type Firing struct {
	// Name is that of the trigger that the model has set, or of a user's schedule.
	Name string
	// By is the tool call that set the trigger; "" of a user's schedule.
	By protocol.CallID
	// Channel is a channel of the session's tenant with whose unread messages the turn begins; ""
	// for none.
	Channel string
}

// Unattended bounds what a session does without a person.
type Unattended struct {
	// Floor is the least time between the beginnings of two turns, and PerHour their maximum number
	// in an hour; 0 does not bound them. Turns of user's schedules count, and are not held up.
	Floor   time.Duration
	PerHour int
	// Most is what the session may use in 24 hours, or since the last turn that a person began.
	Most protocol.Spending
	// Firing is what begins the turn of the input; nil if a person does.
	Firing *Firing
}

type unattendedKey struct{}

// WithUnattended returns a context for the turns of a session.
func WithUnattended(ctx context.Context, u *Unattended) context.Context {
	return context.WithValue(ctx, unattendedKey{}, u)
}

// UnattendedOf returns what [WithUnattended] was given; nil without it.
func UnattendedOf(ctx context.Context) *Unattended {
	u, _ := ctx.Value(unattendedKey{}).(*Unattended)
	return u
}

type triggersKey struct{}

// WithTriggers returns a context for the turn of a session that may set triggers, which the caller
// starts. In other turns tools that set triggers fail.
func WithTriggers(ctx context.Context, triggers Triggers) context.Context {
	return context.WithValue(ctx, triggersKey{}, triggers)
}

// TriggersOf returns what [WithTriggers] was given; nil without any.
func TriggersOf(ctx context.Context) Triggers {
	triggers, _ := ctx.Value(triggersKey{}).(Triggers)
	return triggers
}
