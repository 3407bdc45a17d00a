//go:build linux

package blackbox

import (
	"bufio"
	"cmp"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// history is what is known at the end.
type history struct {
	calls    []*call
	stored   map[string][]result // by call, in the order of the stream
	replaced uint64              // results that are not there any more
	effects  map[string][]effect // by lane, in the order in which they were written
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

// lateness is how long after it was due a call was answered. A worker or server that was killed
// meanwhile excuses that.
func (c *checker) lateness(k *call) time.Duration {
	if k.due == 0 || c.killed(k) {
		return 0
	}
	return k.told.Sub(k.put.Add(k.due))
}

// killed reports whether a kill can have had to do with a call.
func (c *checker) killed(k *call) bool {
	return slices.ContainsFunc(c.kills, func(kill kill) bool { return kill.from.Before(k.told) && k.put.Before(kill.until) })
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
	if begun > max(r.Attempt, 1) || begun > 1 && !killed {
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
