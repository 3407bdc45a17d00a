package loop

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

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
	Secret   protocol.Seed
	At       time.Time // also the next time of Cron
	Cron     string
	TimeZone string // of Cron; "" is UTC
	Channel  string // its full name
	After    uint64 // the sequence of the channel behind which a message counts
	Prompt   string // of the turn
}

// maxTriggers bounds the triggers of a session.
const maxTriggers = 20

// errNoTriggers is the result of tools about triggers where no coordinator serves the turns.
func errNoTriggers() error {
	return protocol.Errorf(protocol.CodeToolFailed, "Triggers begin turns on coordinators that serve them, and this session is not served: "+
		"the user has started it with coordinator run, or it is a sub-agent. Wait with a command such as sleep or with read_messages and its argument wait, "+
		"or end your turn and tell the user when to go on. The user can use coordinator serve with coordinator submit or coordinator schedule.")
}

// addTrigger sets a trigger of the session.
func (t *turnRun) addTrigger(ctx context.Context, p *pendingCall, request wire.TriggerRequest) (string, error) {
	if t.opts.Triggers == nil {
		return "", errNoTriggers()
	}
	t.mu.Lock()
	seed, position := t.session.seed, t.session.positions[request.Channel]
	t.mu.Unlock()
	trigger := Trigger{
		ID: "t-" + string(p.event.CallID), Call: p.event.CallID, Secret: wire.SeedOf(seed, p.event.CallID),
		At: request.At, Cron: request.Cron, TimeZone: request.TimeZone,
	}
	name := "The trigger " + trigger.ID
	switch {
	case request.Delay > 0:
		trigger.At = time.Now().UTC().Add(request.Delay).Round(time.Millisecond)
		fallthrough
	case request.Cron == "" && request.Channel == "":
		trigger.Prompt = "[" + name + " has fired: its time has come. It is removed.]"
	case request.Cron != "":
		trigger.Prompt = fmt.Sprintf("[%s has fired: a time of %q. It stays until remove_trigger.]", name, request.Cron)
	default:
		trigger.Channel, trigger.After = wire.ChannelName(ctx, request.Channel), position
		trigger.Prompt = fmt.Sprintf("[%s has fired: channel %s has messages for read_messages. It is removed; watch_channel waits for more.]", name, request.Channel)
	}
	if request.Prompt != "" {
		trigger.Prompt += "\n" + request.Prompt
	}
	all, err := t.opts.Triggers.List(ctx)
	if err != nil {
		return "", err
	}
	here := func(other Trigger) bool { return other.ID == trigger.ID }
	if len(all) >= maxTriggers && !slices.ContainsFunc(all, here) {
		return "", protocol.Errorf(protocol.CodeLimitReached, "The session has %d triggers, which is the maximum: remove one first.", maxTriggers)
	}
	storing, cancel := context.WithTimeout(context.WithoutCancel(ctx), journalTimeout)
	defer cancel()
	if err := t.opts.Triggers.Add(storing, trigger); err != nil {
		return "", err
	}
	if request.Delay > 0 { // the time of a call that is made again is that of the first one
		return fmt.Sprintf("[trigger %s is set: it fires after %s]", trigger.ID, request.Delay), nil
	}
	if request.Channel != "" {
		return fmt.Sprintf("[trigger %s is set: a new turn begins when a message comes to channel %s. End your turn now, unless you have other work.]", trigger.ID, request.Channel), nil
	}
	return fmt.Sprintf("[trigger %s is set: %s]", trigger.ID, trigger.when()), nil
}

// when says when a trigger fires.
func (t *Trigger) when() string {
	at := t.At.UTC().Format(time.RFC3339)
	switch {
	case t.Channel != "":
		_, name, _ := strings.Cut(t.Channel, ".")
		return "at a message in channel " + name
	case t.Cron == "":
		return "at " + at
	case t.At.IsZero():
		return fmt.Sprintf("at the times %q", t.Cron)
	default:
		return fmt.Sprintf("at the times %q, next at %s", t.Cron, at)
	}
}

// triggers lists or removes triggers of the session.
func (t *turnRun) triggers(ctx context.Context, request wire.TriggersRequest) (string, error) {
	if t.opts.Triggers == nil {
		return "", errNoTriggers()
	}
	if request.Remove != "" {
		return fmt.Sprintf("[trigger %s is removed]", request.Remove), t.opts.Triggers.Remove(ctx, request.Remove)
	}
	all, err := t.opts.Triggers.List(ctx)
	if err != nil {
		return "", err
	}
	if len(all) == 0 {
		return "[The session has no triggers]", nil
	}
	lines := make([]string, len(all))
	for i := range all {
		_, prompt, _ := strings.Cut(all[i].Prompt, "\n")
		lines[i] = strings.TrimRight(fmt.Sprintf("%s: %s: %s", all[i].ID, all[i].when(), prompt), ": ")
	}
	return strings.Join(lines, "\n"), nil
}
