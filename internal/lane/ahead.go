package lane

import (
	"github.com/toolfleet/toolfleet/internal/lane/core"
	"github.com/toolfleet/toolfleet/internal/lane/store"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Before a call starts its result is looked for, so that the same call, sent again after its
// result, does not run again. On a server of its own that is done for all calls in hand together
// when the first of them starts. It may be done early: a result that was stored before the call
// was accepted is found by whoever looks after it has read the call. From then on only the holder
// stores one, when it has run the call.
//
// The exception are calls that a holder before this one may have started. What that sent last may
// still arrive, so their results are looked for at the last moment.

// ahead is the lookups of results of calls in hand that have not started. One goroutine uses it.
type ahead struct {
	store  *store.Store
	asked  map[protocol.CallID]*store.Lookup
	direct bool // the server is on its own
}

func newAhead(s *store.Store) ahead {
	return ahead{store: s, asked: map[protocol.CallID]*store.Lookup{}, direct: !s.Clustered()}
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
	return a.direct && !e.MayHaveResult() && !e.MayHaveRun() && e.Call.Delivery != protocol.AtMostOnce
}

// drop forgets a call that is not in hand any more.
func (a *ahead) drop(e *core.Entry) { delete(a.asked, e.Call.ID) }
