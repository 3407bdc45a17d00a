package loop

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/ports"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// maxTriggers bounds the triggers of a session.
const maxTriggers = 20

// errNoTriggers is the result of tools about triggers where no coordinator serves the turns.
func errNoTriggers() error {
	return protocol.Errorf(protocol.CodeToolFailed, "Triggers begin turns on coordinators that serve them, and this session is not served: "+
		"the user has started it with coordinator run, or it is a sub-agent. Wait with a command such as sleep or with read_messages and its argument wait, "+
		"or end your turn and tell the user when to go on. The user can use coordinator serve with coordinator submit or coordinator schedule.")
}

// triggerStore returns the triggers of the session. The turns of a sub-agent are not served.
func (t *turnRun) triggerStore(ctx context.Context) (ports.Triggers, error) {
	store := ports.TriggersOf(ctx)
	if store == nil || t.lineage.parent != nil {
		return nil, errNoTriggers()
	}
	return store, nil
}

// addTrigger sets a trigger of the session.
func (t *turnRun) addTrigger(ctx context.Context, p *pendingCall, request wire.TriggerRequest) (string, error) {
	store, err := t.triggerStore(ctx)
	if err != nil {
		return "", err
	}
	t.mu.Lock()
	seed, position := t.session.seed, t.session.positions[request.Channel]
	t.mu.Unlock()
	trigger := ports.Trigger{
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
	all, err := store.List(ctx)
	if err != nil {
		return "", err
	}
	here := func(other ports.Trigger) bool { return other.ID == trigger.ID }
	if len(all) >= maxTriggers && !slices.ContainsFunc(all, here) {
		return "", protocol.Errorf(protocol.CodeLimitReached, "The session has %d triggers, which is the maximum: remove one first.", maxTriggers)
	}
	storing, cancel := context.WithTimeout(context.WithoutCancel(ctx), journalTimeout)
	defer cancel()
	if err := store.Add(storing, trigger); err != nil {
		return "", err
	}
	if request.Delay > 0 { // the time of a call that is made again is that of the first one
		return fmt.Sprintf("[trigger %s is set: it fires after %s]", trigger.ID, request.Delay), nil
	}
	if request.Channel != "" {
		return fmt.Sprintf("[trigger %s is set: a new turn begins when a message comes to channel %s. End your turn now, unless you have other work.]", trigger.ID, request.Channel), nil
	}
	return fmt.Sprintf("[trigger %s is set: %s]", trigger.ID, when(&trigger)), nil
}

// when says when a trigger fires.
func when(t *ports.Trigger) string {
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
	store, err := t.triggerStore(ctx)
	if err != nil {
		return "", err
	}
	if request.Remove != "" {
		return fmt.Sprintf("[trigger %s is removed]", request.Remove), store.Remove(ctx, request.Remove)
	}
	all, err := store.List(ctx)
	if err != nil {
		return "", err
	}
	if len(all) == 0 {
		return "[The session has no triggers]", nil
	}
	lines := make([]string, len(all))
	for i := range all {
		_, prompt, _ := strings.Cut(all[i].Prompt, "\n")
		lines[i] = strings.TrimRight(fmt.Sprintf("%s: %s: %s", all[i].ID, when(&all[i]), prompt), ": ")
	}
	return strings.Join(lines, "\n"), nil
}
