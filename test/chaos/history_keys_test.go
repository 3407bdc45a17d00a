package chaos

import (
	"strings"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// best is the greatest value seen for something, and the execution that has it.
type best struct {
	value int64
	of    *span
}

// summary is the greatest of all, and the greatest among exclusive uses.
type summary struct{ any, exclusive best }

// index finds, among uses that were added, the greatest value among those
// that a use conflicts with, without comparing it with each.
type index struct {
	at    map[protocol.ResourceKey]*summary // uses of exactly this key
	below map[protocol.ResourceKey]*summary // uses of this key and all keys below it
}

func newIndex() *index {
	return &index{at: map[protocol.ResourceKey]*summary{}, below: map[protocol.ResourceKey]*summary{}}
}

// add records a value for the uses of an execution.
func (x *index) add(s *span, value int64) {
	for _, use := range s.call.Resources {
		update(x.at, use.Key, use.Access, best{value, s})
		for key := range prefixes(use.Key) {
			update(x.below, key, use.Access, best{value, s})
		}
	}
}

func update(m map[protocol.ResourceKey]*summary, key protocol.ResourceKey, access protocol.Access, b best) {
	have := m[key]
	if have == nil {
		have = &summary{}
		m[key] = have
	}
	have.any = greater(have.any, b)
	if access == protocol.Exclusive {
		have.exclusive = greater(have.exclusive, b)
	}
}

func greater(a, b best) best {
	if a.of == nil || b.of != nil && b.value > a.value {
		return b
	}
	return a
}

// greatest returns the greatest value among what conflicts with the execution.
func (x *index) greatest(s *span) best {
	var out best
	consider := func(have *summary, access protocol.Access) {
		if have == nil {
			return
		}
		if access == protocol.Exclusive {
			out = greater(out, have.any)
			return
		}
		out = greater(out, have.exclusive)
	}
	for _, use := range s.call.Resources {
		consider(x.below[use.Key], use.Access)
		for key := range prefixes(use.Key) {
			consider(x.at[key], use.Access)
		}
	}
	return out
}

// prefixes are the key itself and every key above it, down to its lane.
func prefixes(key protocol.ResourceKey) func(func(protocol.ResourceKey) bool) {
	return func(yield func(protocol.ResourceKey) bool) {
		lane := len(key.Lane())
		for yield(key) && len(key) > lane {
			key = key[:strings.LastIndexByte(string(key), '/')]
		}
	}
}
