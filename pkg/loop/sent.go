package loop

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/calls/ports"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// A call is journaled before it is sent, so a later run knows that it may have been sent, and with
// what. That run sends it again under the same id. If it has no such call now, or may not make it
// any more, it asks the fleet first: what the fleet has continues as the fleet has it.

// Binding is what binds a call on its worker. It is journaled before the call is sent, and a later
// run sends the call with the stronger of this and of what its own rules demand.
type Binding struct {
	Delivery protocol.Delivery `json:"delivery,omitempty"`
	MinLevel string            `json:"min_level,omitempty"`
	Roots    []protocol.Roots  `json:"roots,omitempty"` // all of them hold
	Tenant   protocol.Tenant   `json:"tenant,omitempty"`
}

// boundBy is the binding of a call that is about to be sent; nil for one that is not.
func boundBy(call *protocol.Call) *Binding {
	if call == nil {
		return nil
	}
	return &Binding{Delivery: call.Delivery, MinLevel: call.MinLevel, Roots: call.Roots, Tenant: call.Tenant}
}

// of is what is known of a call with a result that only the fleet knows: its kind and its delivery.
func (b *Binding) of(result *protocol.Result) *protocol.Call {
	call := &protocol.Call{Payload: protocol.UnknownPayload{Name: wire.ValueKindOf(result.Value)}}
	if b != nil {
		call.Delivery = b.Delivery
	}
	return call
}

// hold makes a call as bound as it was when it was journaled; nil changes nothing.
func (b *Binding) hold(call *protocol.Call) {
	if b == nil {
		return
	}
	strength := []protocol.Delivery{protocol.Idempotent, protocol.Rollback, protocol.AtMostOnce}
	if slices.Index(strength, b.Delivery) > slices.Index(strength, call.Delivery) {
		call.Delivery = b.Delivery
	}
	call.MinLevel, call.Tenant = wire.HigherLevel(call.MinLevel, b.MinLevel), cmp.Or(b.Tenant, call.Tenant)
	for _, roots := range b.Roots {
		if !slices.ContainsFunc(call.Roots, func(own protocol.Roots) bool { return reflect.DeepEqual(own, roots) }) {
			call.Roots = append(slices.Clip(call.Roots), roots)
		}
	}
}

// findTimeout bounds how long the fleet is asked for a call.
const findTimeout = 15 * time.Second

// find returns a call that was sent to a lane, as the fleet has it, or its result; neither if the
// fleet has none of both, or cannot be asked for calls. The end of ctx does not matter: a call of a
// turn that is stopped has to be found, too.
func (t *turnRun) find(ctx context.Context, lane string, id protocol.CallID) (*protocol.Call, *protocol.Result, error) {
	finder, is := t.dispatcher.(ports.Finder)
	if !is || lane == "" {
		return nil, nil, nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), findTimeout)
	defer cancel()
	pool, _, _ := strings.Cut(lane, "/")
	call, result, err := finder.Find(ctx, protocol.Pool(pool), protocol.CallRef{SessionID: t.id, ID: id})
	if err != nil {
		return nil, nil, fmt.Errorf("look for call %s: %w", id, err)
	}
	if call != nil {
		call.Again = true
	}
	return call, result, nil
}

// findOrVoid is find for a call that is refused if the fleet has neither it nor its result. A
// process that was stopped between journaling the call and sending it may send it still: it does
// not run then.
func (t *turnRun) findOrVoid(ctx context.Context, lane string, id protocol.CallID) (*protocol.Call, *protocol.Result, error) {
	call, result, err := t.find(ctx, lane, id)
	finder, is := t.dispatcher.(ports.Finder)
	if !is || lane == "" || call != nil || result != nil || err != nil {
		return call, result, err
	}
	fencing, cancel := context.WithTimeout(context.WithoutCancel(ctx), findTimeout)
	defer cancel()
	pool, key, _ := strings.Cut(lane, "/")
	if err := finder.Void(fencing, protocol.Pool(pool), protocol.Lane(key), protocol.CallRef{SessionID: t.id, ID: id}); err != nil {
		return nil, nil, fmt.Errorf("refuse call %s: %w", id, err)
	}
	return t.find(ctx, lane, id)
}

// wasSent reports whether a call that is journaled was sent: whether the fleet has it or its
// result, or its sub-agent has begun. It is true if that cannot be known. With final, a call that
// was not sent is refused, see findOrVoid.
func (t *turnRun) wasSent(ctx context.Context, name, lane string, id protocol.CallID, final bool) (bool, error) {
	if name == wire.AgentTool {
		child, err := t.Runner.journal.Load(ctx, protocol.SessionID(id))
		if final && err == nil && len(child.Events) == 0 {
			if err = t.fence(ctx, protocol.SessionID(id), child.Last); errors.Is(err, ErrJournalConflict) { // it has begun meanwhile
				return t.wasSent(ctx, name, lane, id, final)
			}
		}
		return len(child.Events) > 0, err
	}
	if _, is := t.dispatcher.(ports.Finder); !is || lane == "" {
		return true, nil
	}
	look := t.find
	if final {
		look = t.findOrVoid
	}
	call, result, err := look(ctx, lane, id)
	return call != nil || result != nil, err
}

// laneOf returns a call's pool and lane, as in the journal.
func laneOf(call *protocol.Call) string { return string(call.Pool) + "/" + string(call.Lane()) }

// lost returns the error of a call that an earlier run may have sent and that cannot be sent again
// as it was: failure is the reason, nil means that the call would go to another lane or pool now.
func lost(failure *protocol.Error) *protocol.Error {
	why := "its tool is another one now"
	if failure != nil {
		why = failure.Message
	}
	return protocol.Errorf(protocol.CodeOutcomeUnknown,
		"The call was sent before the session was interrupted, so it may have had effects, and its result cannot be read: %s", why)
}
