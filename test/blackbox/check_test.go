//go:build linux

package blackbox

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// lawful is two calls of one lane that ran one after the other.
func lawful() *history {
	start := time.Unix(1000, 0)
	h := &history{stored: map[string][]result{}, effects: map[string][]effect{}}
	for i, id := range []string{"a", "b"} {
		k := &call{lane: "sandbox/s", put: start, told: start.Add(time.Second), low: uint64(i + 5), high: uint64(i + 5)}
		k.ID, k.Delivery, k.result = id, "idempotent", result{CallID: id, Status: "ok", Attempt: 1}
		h.calls = append(h.calls, k)
		h.stored[id] = []result{k.result}
		h.effects[k.lane] = append(h.effects[k.lane], effect{"begin", id, "run-" + id}, effect{"end", id, "run-" + id})
	}
	return h
}

// answer changes the result of a call.
func (h *history) answer(call int, status string, attempt int) {
	k := h.calls[call]
	k.result.Status, k.result.Attempt = status, attempt
	h.stored[k.ID] = []result{k.result}
}

// killed adds a kill that has to do with every call.
func (h *history) killed() { h.kills = []kill{{from: time.Unix(1000, 1), until: time.Unix(1010, 0)}} }

func TestCheck(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(*history)
		want   string // part of the only violation; "" for none
	}{
		"lawful": {func(*history) {}, ""},
		"begun again after a kill": {func(h *history) {
			h.killed()
			h.answer(0, "ok", 2)
			h.effects["sandbox/s"] = append([]effect{{"begin", "a", "lost"}}, h.effects["sandbox/s"]...)
		}, ""},
		"order is not known": {func(h *history) {
			h.calls[0].low, h.calls[0].high = 1, 9
			e := h.effects["sandbox/s"]
			h.effects["sandbox/s"] = append(e[2:4:4], e[:2]...)
		}, ""},
		"overlap": {func(h *history) {
			e := h.effects["sandbox/s"]
			e[1], e[2] = e[2], e[1]
		}, `L1: call a: "end" was written after call b had begun`},
		"a lost attempt goes on beside the next one": {func(h *history) {
			h.killed()
			h.answer(0, "ok", 2)
			e := h.effects["sandbox/s"]
			h.effects["sandbox/s"] = append([]effect{{"begin", "a", "lost"}, e[0], {"during", "a", "lost"}}, e[1:]...)
		}, `L1: call a: "during" was written after call a had begun`},
		"out of order": {func(h *history) {
			e := h.effects["sandbox/s"]
			h.effects["sandbox/s"] = append(e[2:4:4], e[:2]...)
		}, "L2: call a: it began after call b, which the stream took later: 5, not before 6"},
		"lost":          {func(h *history) { delete(h.stored, "a") }, "L3: call a: it was accepted, and has 0 results"},
		"double":        {func(h *history) { h.stored["a"] = append(h.stored["a"], h.stored["a"]...) }, "L3: call a: it was accepted, and has 2 results"},
		"replaced":      {func(h *history) { h.replaced = 1 }, "L3: call ?: 1 results were replaced or removed"},
		"never told":    {func(h *history) { h.calls[0].told = time.Time{} }, "L3: call a: no result was told"},
		"told another":  {func(h *history) { h.calls[0].result.Attempt = 2 }, "L3: call a: its caller was told"},
		"put by nobody": {func(h *history) { h.stored["x"] = []result{{CallID: "x"}} }, "L3: call x: it has a result"},
		"run by nobody's wish": {func(h *history) {
			h.effects["sandbox/t"] = []effect{{"begin", "a", "other"}}
			h.effects["sandbox/s"] = h.effects["sandbox/s"][2:]
			h.answer(0, "timeout", 1)
			h.calls[0].due = time.Hour
		}, "L3: call a: it ran in lane sandbox/t"},
		"ok without an end": {func(h *history) {
			h.effects["sandbox/s"] = append(h.effects["sandbox/s"][:1:1], h.effects["sandbox/s"][2:]...)
		}, "L3: call a: result {CallID:a Status:ok Attempt:1 Error:{Code:}} is invented: it did not end"},
		"begun again without a kill": {func(h *history) {
			h.answer(0, "ok", 2)
			h.effects["sandbox/s"] = append([]effect{{"begin", "a", "other"}}, h.effects["sandbox/s"]...)
		}, "is invented: it began 2 times"},
		"begun more often than its result says": {func(h *history) {
			h.killed()
			h.effects["sandbox/s"] = append([]effect{{"begin", "a", "other"}}, h.effects["sandbox/s"]...)
		}, "is invented: it began 2 times"},
		"timeout":         {func(h *history) { h.answer(0, "timeout", 1) }, "it may take as long as it likes"},
		"cancelled":       {func(h *history) { h.answer(0, "cancelled", 1) }, "nobody asked to cancel it"},
		"rejected":        {func(h *history) { h.answer(0, "rejected", 0); h.calls[0].due = time.Hour }, "it began, or had all the time"},
		"outcome unknown": {func(h *history) { h.answer(0, "outcome_unknown", 1) }, "nobody was killed"},
		"failed":          {func(h *history) { h.answer(0, "failed", 1) }, "nobody was killed"},
		"no status":       {func(h *history) { h.answer(0, "", 1) }, "no such thing happened"},
		"twice": {func(h *history) {
			h.killed()
			h.calls[0].Delivery = "at_most_once"
			h.answer(0, "ok", 2)
			h.effects["sandbox/s"] = append([]effect{{"begin", "a", "other"}}, h.effects["sandbox/s"]...)
		}, "L8: call a: it began 2 times"},
		"late": {func(h *history) {
			h.calls[0].due, h.calls[0].told = time.Second, h.calls[0].put.Add(12*time.Second)
		}, "L11: call a: it was answered 11s after it was due"},
		"late, and somebody was killed": {func(h *history) {
			h.killed()
			h.calls[0].due, h.calls[0].told = time.Second, h.calls[0].put.Add(12*time.Second)
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := lawful()
			test.change(h)
			violations := check(h)
			if test.want == "" {
				require.Empty(t, violations)
				return
			}
			require.Len(t, violations, 1, "%q", violations)
			require.Contains(t, violations[0], test.want)
		})
	}
}
