//go:build linux

package blackbox

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// history is what is known at the end.
type history struct {
	calls    []*call
	stored   map[string][]result // by call, in the order of the stream
	replaced uint64              // results that are not there any more
	effects  map[string][]effect // by lane, in the order in which they were written
	logged   map[string][]logged // the log of calls
	kills    []kill
}

// effect is a line that a command wrote.
type effect struct{ what, call, run string }

// readEffects reads what commands wrote into their workspaces, sandboxes/NAME/workspace below a
// worker's data directory.
func readEffects(dir string) (map[string][]effect, error) {
	effects := map[string][]effect{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Name() != "effects" {
			return err
		}
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		defer func() { _ = file.Close() }()
		lane := "sandbox/" + filepath.Base(filepath.Dir(filepath.Dir(path)))
		for lines := bufio.NewScanner(file); lines.Scan(); {
			words := strings.Fields(lines.Text())
			if len(words) != 3 {
				return fmt.Errorf("%s: line %q is torn", path, lines.Text())
			}
			effects[lane] = append(effects[lane], effect{words[0], words[1], words[2]})
		}
		return nil
	})
	return effects, err
}

// slack is how long after it is due a call may be answered, on a machine that is busy.
const slack = 10 * time.Second

// checker collects what breaks a law.
type checker struct {
	*history

	violations []string
}

func (c *checker) fault(law, call, format string, args ...any) {
	c.violations = append(c.violations, fmt.Sprintf("%s: call %s: %s", law, call, fmt.Sprintf(format, args...)))
}

// check holds a history against the laws of docs/guarantees.md.
func check(h *history) []string {
	c := &checker{history: h}
	calls, begun, ended := map[string]*call{}, map[string]int{}, map[string]int{}
	for _, k := range h.calls {
		calls[k.ID] = k
	}
	for lane, effects := range h.effects {
		c.lane(lane, effects, calls)
		for _, e := range effects {
			switch e.what {
			case "begin":
				begun[e.call]++
			case "end":
				ended[e.call]++
			}
		}
	}
	for _, k := range h.calls {
		c.result(k)
		c.starts(k, begun[k.ID], ended[k.ID])
		c.log(k)
	}
	for id := range h.logged {
		if calls[id] == nil {
			c.fault("log", id, "it is in the log, and nobody has put it")
		}
	}
	for id := range h.stored {
		if calls[id] == nil {
			c.fault("L3", id, "it has a result, and nobody has put it")
		}
	}
	if h.replaced > 0 {
		c.fault("L3", "?", "%d results were replaced or removed", h.replaced)
	}
	slices.Sort(c.violations)
	return c.violations
}

// lane checks what the commands of one lane wrote, all of which exclude each other: nothing of a
// command comes after the beginning of another one, and they begin in stream order.
func (c *checker) lane(lane string, effects []effect, calls map[string]*call) {
	var now effect
	var latest *call // of those begun, the one that is latest in the stream
	for _, e := range effects {
		k := calls[e.call]
		if k == nil || k.lane != lane {
			c.fault("L3", e.call, "it ran in lane %s, and nobody has put it there", lane)
			continue
		}
		if e.what != "begin" {
			if e.run != now.run {
				c.fault("L1", e.call, "%q was written after call %s had begun", e.what, now.call)
			}
			continue
		}
		if now = e; latest != nil && k.high < latest.low {
			c.fault("L2", e.call, "it began after call %s, which the stream took later: %d, not before %d", latest.ID, k.high, latest.low)
		}
		if latest == nil || k.low > latest.low {
			latest = k
		}
	}
}

// result checks that a call has one result, the one that its caller was told, in time.
func (c *checker) result(k *call) {
	stored := c.stored[k.ID]
	if len(stored) != 1 {
		c.fault("L3", k.ID, "it was accepted, and has %d results", len(stored))
		return
	}
	if k.told.IsZero() {
		c.fault("L3", k.ID, "no result was told or found within %s", patience)
	} else if k.result != stored[0] {
		c.fault("L3", k.ID, "its caller was told %+v, stored is %+v", k.result, stored[0])
	}
	if late := c.lateness(k); late > slack {
		c.fault("L11", k.ID, "it was answered %s after it was due", late)
	}
}

// log checks that the log has a call once, with its result and what its caller has said.
func (c *checker) log(k *call) {
	all := c.logged[k.ID]
	switch {
	case len(c.stored[k.ID]) != 1: // L3
		return
	case len(all) != 1:
		c.fault("log", k.ID, "it has a result, and is %d times in the log", len(all))
		return
	}
	l := all[0]
	if l.result != c.stored[k.ID][0] {
		c.fault("log", k.ID, "the log has %+v, stored is %+v", l.result, c.stored[k.ID][0])
	}
	// A program that knows only the wire has no proof of its tenant: its calls are of none in the
	// log.
	if l.SessionID != k.SessionID || l.Lane != k.Pool+"/"+k.lane || l.Tool != k.Payload.Type ||
		l.Tenant != "" || l.WorkerID == "" || !slices.Equal(l.Resources, k.Resources) {
		c.fault("log", k.ID, "the log has %+v of it", l)
	}
	if !k.given(l.Input) {
		c.fault("log", k.ID, "its input is %.300q", l.Input)
	}
	if l.Accepted.After(l.Finished) || l.Accepted.Before(k.put.Add(-time.Second)) || !k.told.IsZero() && l.Finished.After(k.told.Add(time.Second)) {
		c.fault("log", k.ID, "the log has %s to %s, its caller %s to %s", l.Accepted, l.Finished, k.put, k.told)
	}
}

// given reports whether a text is the input of a call, as the log has it.
func (k *call) given(text string) bool {
	var input struct {
		Command   string `json:"command"`
		Arguments *work  `json:"arguments"`
		Server    string `json:"server"`
		Tool      string `json:"tool"`
	}
	of := k.Payload
	if json.Unmarshal([]byte(text), &input) != nil || input.Command != of.Command || input.Tool != of.Tool {
		return false
	}
	if of.Server != nil && input.Server != of.Server.Name {
		return false
	}
	return of.Arguments == nil || input.Arguments != nil && *input.Arguments == *of.Arguments
}

// lateness is how long after it was due a call was answered. A worker or server that was killed
// meanwhile excuses that.
func (c *checker) lateness(k *call) time.Duration {
	if k.due == 0 || c.killed(k) {
		return 0
	}
	return k.told.Sub(k.put.Add(k.due))
}

// killed reports whether a kill can have had to do with a call.
func (c *checker) killed(k *call) bool { return c.kill(k, "") > 0 }

// kill counts the kills that can have had to do with a call, of one kind, or of any.
func (c *checker) kill(k *call, what string) (n int) {
	for _, kill := range c.kills {
		if (what == "" || kill.what == what) && kill.from.Before(k.told) && k.put.Before(kill.until) {
			n++
		}
	}
	return n
}

// starts checks how often the command of a call began and ended against its result.
func (c *checker) starts(k *call, begun, ended int) {
	if k.Delivery == "at_most_once" && begun > 1 {
		c.fault("L8", k.ID, "it began %d times", begun)
	}
	if len(c.stored[k.ID]) != 1 {
		return
	}
	r, killed := c.stored[k.ID][0], c.killed(k)
	invented := func(why string) { c.fault("L3", k.ID, "result %+v is invented: %s", r, why) }
	// A call whose server of tools was killed starts once more in the same attempt.
	if begun > max(r.Attempt, 1)+c.kill(k, killedTool) || begun > 1 && !killed {
		invented(fmt.Sprintf("it began %d times", begun))
	}
	switch r.Status {
	case "ok":
		if ended == 0 {
			invented("it did not end")
		}
	case "timeout":
		if k.due == 0 {
			invented("it may take as long as it likes")
		}
	case "cancelled":
		if !k.cancelled {
			invented("nobody asked to cancel it")
		}
	case "rejected":
		if begun > 0 || k.due == 0 {
			invented("it began, or had all the time")
		}
	case "outcome_unknown", "failed": // the latter: it was begun as often as it may be, or its sandbox was lost
		if !killed {
			invented("nobody was killed")
		}
	default:
		invented("no such thing happened")
	}
}

// summary says in one line what happened.
func summary(h *history) string {
	statuses, late, slowest := map[string]int{}, time.Duration(0), time.Duration(0)
	c, begun, lost, double := checker{history: h}, 0, 0, 0
	for _, k := range h.calls {
		late, slowest = max(late, c.lateness(k)), max(slowest, k.told.Sub(k.put))
		switch len(h.stored[k.ID]) {
		case 0:
			lost++
		case 1:
			statuses[h.stored[k.ID][0].Status]++
		default:
			double++
		}
	}
	for _, effects := range h.effects {
		for _, e := range effects {
			if e.what == "begin" {
				begun++
			}
		}
	}
	var counts []string
	for _, status := range slices.SortedFunc(maps.Keys(statuses), cmp.Compare) {
		counts = append(counts, fmt.Sprintf("%d %s", statuses[status], status))
	}
	return fmt.Sprintf("%d calls (%s), begun %d times, %d lost, %d double, slowest %s, answered at most %s after they were due",
		len(h.calls), strings.Join(counts, ", "), begun, lost, double, slowest.Round(time.Millisecond), late.Round(time.Millisecond))
}

// lawful is two calls of one lane that ran one after the other.
func lawful() *history {
	start := time.Unix(1000, 0)
	h := &history{stored: map[string][]result{}, effects: map[string][]effect{}, logged: map[string][]logged{}}
	for i, id := range []string{"a", "b"} {
		k := &call{lane: "sandbox/s", put: start, told: start.Add(time.Second), low: uint64(i + 5), high: uint64(i + 5)}
		k.ID, k.Delivery, k.result = id, "idempotent", result{CallID: id, Status: "ok", Attempt: 1}
		h.calls = append(h.calls, k)
		h.stored[id] = []result{k.result}
		k.Pool, k.Payload = "default", payload{Type: "command_run", Command: "say"}
		h.log(k)
		h.effects[k.lane] = append(h.effects[k.lane], effect{"begin", id, "run-" + id}, effect{"end", id, "run-" + id})
	}
	return h
}

// answer changes the result of a call.
func (h *history) answer(call int, status string, attempt int) {
	k := h.calls[call]
	k.result.Status, k.result.Attempt = status, attempt
	h.stored[k.ID] = []result{k.result}
	h.log(k)
}

// log has a call in the log as its caller knows it.
func (h *history) log(k *call) {
	h.logged[k.ID] = []logged{{
		Lane: "default/" + k.lane, Tool: "command_run", Input: `{"command":"say"}`, WorkerID: "w", Accepted: k.put, Finished: k.put.Add(time.Second / 2), result: k.result,
	}}
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
		"lost":          {func(h *history) { delete(h.stored, "a"); delete(h.logged, "a") }, "L3: call a: it was accepted, and has 0 results"},
		"double":        {func(h *history) { h.stored["a"] = append(h.stored["a"], h.stored["a"]...) }, "L3: call a: it was accepted, and has 2 results"},
		"not logged":    {func(h *history) { delete(h.logged, "a") }, "log: call a: it has a result, and is 0 times in the log"},
		"logged twice":  {func(h *history) { h.logged["a"] = append(h.logged["a"], h.logged["a"]...) }, "log: call a: it has a result, and is 2 times in the log"},
		"logged wrong":  {func(h *history) { h.logged["a"][0].Status = "failed" }, "log: call a: the log has"},
		"logged late":   {func(h *history) { h.logged["a"][0].Finished = time.Unix(1100, 0) }, "log: call a: the log has"},
		"not its input": {func(h *history) { h.logged["a"][0].Input = "{}" }, "log: call a: its input is"},
		"not its lane":  {func(h *history) { h.logged["a"][0].Lane = "default/sandbox/t" }, "log: call a: the log has"},
		"logged by nobody": {func(h *history) {
			h.logged["x"] = h.logged["a"]
		}, "log: call x: it is in the log, and nobody has put it"},
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
		"begun again in its attempt, as its tool was killed": {func(h *history) {
			h.killed()
			h.kills[0].what = killedTool
			h.effects["sandbox/s"] = append([]effect{{"begin", "a", "other"}}, h.effects["sandbox/s"]...)
		}, ""},
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
