package lane

import (
	"github.com/toolfleet/toolfleet/internal/lane/core"
	"github.com/toolfleet/toolfleet/internal/lane/store"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Before a call starts its result is looked for, so that the same call, sent again after its
// result, does not run again. Where results can be asked for together, that is done for all calls
// in hand when the first of them starts. It may be done early: a result that was stored before the
// call was accepted is found by whoever has read the call, and from then on only the holder stores
// one. The results of calls that a lost holder may have started are looked for at the last moment:
// what that sent last may still arrive.

// ahead is the lookups of results of calls in hand that have not started. One goroutine uses it.
type ahead struct {
	store *store.Store
	asked map[protocol.CallID]*store.Lookup
}

func newAhead(s *store.Store) ahead {
	return ahead{store: s, asked: map[protocol.CallID]*store.Lookup{}}
}

// of returns the lookup of a call that starts, and asks for others together with it. It is nil when
// the call has to be looked for at the last moment.
func (a *ahead) of(e *core.Entry, inHand []*core.Entry) *store.Lookup {
	if !a.serves(e) {
		return nil
	}
	if a.asked[e.Call.ID] == nil {
		var calls []*protocol.Call
		for _, other := range inHand {
			if !other.Running && a.asked[other.Call.ID] == nil && a.serves(other) {
				calls = append(calls, other.Call)
			}
		}
		a.ask(calls...)
	}
	lookup := a.asked[e.Call.ID]
	delete(a.asked, e.Call.ID)
	return lookup
}

// ask asks for the results of calls that were read after the claim was stored.
func (a *ahead) ask(calls ...*protocol.Call) {
	lookup := a.store.LookUpResults(calls...)
	for _, call := range calls {
		a.asked[call.ID] = lookup
	}
}

// serves reports whether the result of a call may be looked for before its turn comes.
func (a *ahead) serves(e *core.Entry) bool {
	return !e.MayHaveResult() && !e.MayHaveRun() && e.Call.Delivery != protocol.AtMostOnce
}

func (a *ahead) drop(e *core.Entry) { delete(a.asked, e.Call.ID) }
