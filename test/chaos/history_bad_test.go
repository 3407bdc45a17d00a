package chaos

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

const ms = Time(time.Millisecond)

// story is a history that a test tells in a few words.
type story struct{ *History }

func tell() story {
	h := newHistory()
	h.Lease, h.Grace, h.Heed, h.ClockError = time.Second, 200*time.Millisecond, time.Second, ms
	return story{h}
}

func call(id, key string, access protocol.Access) *Call {
	return &Call{Accepted: true, Call: protocol.Call{
		ID: protocol.CallID(id), Delivery: protocol.Idempotent,
		Resources: []protocol.Use{{Key: protocol.ResourceKey(key), Access: access}},
	}}
}

// put adds an accepted call on the whole lane.
func (s story) put(id string) *Call {
	c := call(id, "l/1", protocol.Exclusive)
	s.Calls[c.ID] = c
	return c
}

// ran adds an execution from one millisecond to another; to 0 is without an end.
func (s story) ran(id, worker string, seq uint64, attempt int, from, to Time, status protocol.Status) {
	end := to * ms
	if to == 0 {
		end = Never
	}
	s.Executions = append(s.Executions, Execution{
		CallID: protocol.CallID(id), Worker: protocol.WorkerID(worker), Sequence: seq, Attempt: attempt,
		Start: from * ms, End: end, Status: status,
	})
}

// stored adds a result, and that the caller was told.
func (s story) stored(id, worker string, attempt int, at Time, status protocol.Status, code protocol.Code) {
	r := Result{Status: status, Code: code, Worker: protocol.WorkerID(worker), Attempt: attempt}
	s.Stored = append(s.Stored, Stored{CallID: protocol.CallID(id), At: at * ms, Result: r})
	if c := s.Calls[protocol.CallID(id)]; c != nil {
		c.Told = append(c.Told, Told{At: (at + 1) * ms, Result: r})
	}
}

// ok adds a call on the whole lane that ran and ended well.
func (s story) ok(id, worker string, seq uint64, from, to Time) {
	s.put(id)
	s.ran(id, worker, seq, 1, from, to, protocol.StatusOK)
	s.stored(id, worker, 1, to+1, protocol.StatusOK, "")
}

func (s story) killed(worker string, at Time) {
	s.Faults = append(s.Faults, Fault{Worker: protocol.WorkerID(worker), From: (at - 1) * ms, Until: at * ms, Killed: true})
}

func (s story) stopped(worker string, still, until Time) {
	s.Faults = append(s.Faults, Fault{
		Worker: protocol.WorkerID(worker), From: (still - 1) * ms, Still: still * ms, Until: until * ms, Stopped: true,
	})
}

// stalled adds that the machine kept a worker from running, or the server when it is "".
func (s story) stalled(worker string, from, until Time) {
	s.Faults = append(s.Faults, Fault{Worker: protocol.WorkerID(worker), From: from * ms, Still: from * ms, Until: until * ms, Stalled: true})
}

// blocked adds a record that a worker could not write for a while.
func (s story) blocked(worker string, from, until Time) {
	s.Faults = append(s.Faults, Fault{Worker: protocol.WorkerID(worker), From: from * ms, Until: until * ms, Blocked: true})
}

func TestCheck_TellsHowLongALaneStoodIdle(t *testing.T) {
	t.Parallel()
	s := tell()
	entered := func(id string, at Time) { s.Calls[protocol.CallID(id)].Entered = at * ms }
	s.ok("a", "w1", 1, 1010, 1100) // its result: 1101
	entered("a", 1000)
	s.ok("b", "w1", 2, 1300, 1400)
	entered("b", 1050)
	s.ok("c", "w1", 3, 1401, 1402)
	entered("c", 1250) // one call more is no progress
	s.ok("d", "w1", 4, 9000, 9001)
	entered("d", 8999) // before that nothing waited
	s.ok("e", "w1", 5, 20000, 20001)
	report := checkHistory(s.History)
	require.Equal(t, 199*time.Millisecond, report.Idle)
	require.Equal(t, protocol.Lane("l/1"), report.IdleLane)
}

func TestCheck_LawfulHistories(t *testing.T) {
	t.Parallel()
	for name, what := range map[string]func(story){
		"nothing happened": func(story) {},
		"a caller is killed before anybody takes its call": func(s story) { s.put("a").Accepted = false },
		"a worker that is stalled stores what it has": func(s story) {
			s.ok("a", "w1", 1, 0, 2050)
			s.stalled("w1", 5, 2000)
		},
		"a result that was sent before a stop, to a server that was stalled": func(s story) {
			s.ok("a", "w1", 1, 0, 4)
			s.stopped("w1", 5, 2000)
			s.stalled("", 3, 2400)
			s.Stored[0].At = 2401 * ms
		},
		"a result that was being sent at a stop, and the next attempt": func(s story) {
			s.put("a")
			s.ran("a", "w1", 1, 1, 0, 4, protocol.StatusOK)
			s.stopped("w1", 5, 2000)
			s.stored("a", "w1", 1, 2028, protocol.StatusOK, "")
			s.ran("a", "w2", 1, 2, 2059, 2070, protocol.StatusOK)
		},
		"a call starts before its holder hears that it is cancelled": func(s story) {
			s.ok("a", "w1", 1, 1099, 1110)
			s.Calls["a"].Cancelled, s.Calls["a"].Heard = true, 100*ms
		},
		"a worker that cannot hear starts a cancelled call": func(s story) {
			s.ok("a", "w1", 1, 2000, 2010)
			s.Calls["a"].Cancelled, s.Calls["a"].Heard = true, 100*ms
			s.stalled("w1", 50, 200)
		},
		"one after the other": func(s story) {
			s.ok("a", "w1", 1, 0, 10)
			s.ok("b", "w2", 2, 20, 30)
		},
		"shared calls overlap": func(s story) {
			for i := range 3 {
				id := fmt.Sprint(i)
				s.ok(id, "w1", uint64(3-i), 0, 10)
				s.Calls[protocol.CallID(id)].Resources[0].Access = protocol.Shared
			}
		},
		"different parts overlap, out of order": func(s story) {
			s.ok("a", "w1", 2, 0, 10)
			s.ok("b", "w1", 1, 5, 10)
			s.Calls["a"].Resources[0].Key, s.Calls["b"].Resources[0].Key = "l/1/a", "l/1/ab"
		},
		"run again after a kill": func(s story) {
			s.put("a")
			s.ran("a", "w1", 1, 1, 0, 0, "")
			s.killed("w1", 10)
			s.ran("a", "w2", 1, 2, 1000, 1010, protocol.StatusOK)
			s.stored("a", "w2", 2, 1011, protocol.StatusOK, "")
		},
		"a worker is stopped directly before a call's first instruction": func(s story) {
			s.put("a")
			s.stopped("w1", 5, 2000)
			s.ran("a", "w2", 1, 2, 1100, 1110, protocol.StatusOK)
			s.stored("a", "w2", 2, 1111, protocol.StatusOK, "")
			s.ok("b", "w2", 2, 1200, 1300)
			s.ran("a", "w1", 1, 1, 2001, 2003, StatusLost)
		},
		"a worker starts a call as soon as it wakes, by a new claim": func(s story) {
			s.stopped("w1", 5, 2000)
			s.ok("a", "w1", 1, 2001, 2003)
			s.ok("b", "w1", 2, 2004, 2005)
			s.ok("c", "w1", 3, 2006, 2007)
		},
		"another call starts while the worker stands still": func(s story) {
			s.put("a").Delivery = protocol.AtMostOnce
			s.ran("a", "w1", 1, 1, 0, 2100, StatusLost)
			s.stopped("w1", 5, 2000)
			s.stored("a", "w2", 1, 1100, protocol.StatusOutcomeUnknown, protocol.CodeOutcomeUnknown)
			s.ok("b", "w2", 2, 1200, 1300)
		},
		"lost before it could write down that it starts": func(s story) {
			s.put("a")
			s.ran("a", "w1", 1, 1, 0, 2010, StatusLost)
			s.blocked("w1", 0, 2000)
			s.ran("a", "w2", 1, 2, 1100, 1110, protocol.StatusOK)
			s.stored("a", "w2", 2, 1111, protocol.StatusOK, "")
		},
		"cancelled, timed out, expired, given up": func(s story) {
			s.put("a").Cancelled = true
			s.stored("a", "w1", 0, 1, protocol.StatusCancelled, protocol.CodeCancelled)
			s.put("b").QueueTimeout = 5
			s.stored("b", "w1", 0, 10, protocol.StatusRejected, protocol.CodeQueueTimeout)
			s.put("c")
			s.ran("c", "w1", 3, 1, 20, 30, protocol.StatusTimeout)
			s.stored("c", "w1", 1, 31, protocol.StatusTimeout, protocol.CodeRunTimeout)
			s.put("d").MaxAttempts = 1
			s.ran("d", "w1", 4, 1, 40, 0, "")
			s.killed("w1", 50)
			s.stored("d", "w2", 1, 1050, protocol.StatusFailed, protocol.CodeAttemptsExhausted)
		},
		"cancelled after its worker was lost": func(s story) {
			s.put("a").Cancelled = true
			s.ran("a", "w1", 1, 1, 0, 0, "")
			s.killed("w1", 10)
			s.stored("a", "w2", 0, 1011, protocol.StatusOutcomeUnknown, protocol.CodeOutcomeUnknown)
		},
		"refused, and not there": func(s story) { s.put("a").Accepted = false },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := tell()
			what(s)
			require.Empty(t, checkHistory(s.History).Violations)
		})
	}
}

func TestCheck_FindsWhatIsBroken(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		tell func(story)
		want string // law and words of one violation
	}{
		"overlap": {func(s story) {
			s.ok("a", "w1", 1, 0, 10)
			s.ok("b", "w2", 2, 9, 20)
		}, "L1 exclusive: call b: started by w2"},
		"overlap with one that went on when it could write": {func(s story) {
			s.put("a")
			s.ran("a", "w1", 1, 1, 0, 2500, StatusLost)
			s.blocked("w1", 0, 2000)
			s.ran("a", "w2", 1, 2, 1100, 1110, protocol.StatusOK)
			s.stored("a", "w2", 2, 1111, protocol.StatusOK, "")
		}, "L1 exclusive: call a: attempt 2 started by w2"},
		"overlap with a long one, behind a short one": {func(s story) {
			s.ok("a", "w1", 1, 0, 100)
			s.ok("b", "w1", 2, 5, 10)
			s.Calls["a"].Resources[0].Key, s.Calls["b"].Resources[0].Key = "l/1/a", "l/1/b"
			s.ok("c", "w2", 3, 50, 60)
		}, "L1 exclusive: call c"},
		"a file below a directory in use": {func(s story) {
			s.ok("a", "w1", 1, 0, 10)
			s.ok("b", "w1", 2, 5, 10)
			s.Calls["a"].Resources[0] = protocol.Use{Key: "l/1/d", Access: protocol.Shared}
			s.Calls["b"].Resources[0].Key = "l/1/d/e/f"
		}, "L1 exclusive: call b"},
		"a directory above a file in use": {func(s story) {
			s.ok("a", "w1", 1, 0, 10)
			s.ok("b", "w1", 2, 5, 10)
			s.Calls["a"].Resources[0].Key = "l/1/d/e/f"
			s.Calls["b"].Resources[0] = protocol.Use{Key: "l/1/d", Access: protocol.Shared}
		}, "L1 exclusive: call b"},
		"the second of several keys": {func(s story) {
			s.ok("a", "w1", 1, 0, 10)
			s.ok("b", "w1", 2, 5, 10)
			s.Calls["a"].Resources = []protocol.Use{{Key: "l/1/a", Access: protocol.Shared}, {Key: "l/1/b", Access: protocol.Shared}}
			s.Calls["b"].Resources = []protocol.Use{{Key: "l/1/c", Access: protocol.Shared}, {Key: "l/1/b", Access: protocol.Exclusive}}
		}, "L1 exclusive: call b"},
		"overlap with one that was killed": {func(s story) {
			s.put("a").Delivery = protocol.AtMostOnce
			s.ran("a", "w1", 1, 1, 0, 0, "")
			s.killed("w1", 100)
			s.stored("a", "w2", 1, 90, protocol.StatusOutcomeUnknown, "")
			s.ok("b", "w2", 2, 99, 120)
		}, "L1 exclusive: call b"},
		"overlap with one that neither ended nor was killed": {func(s story) {
			s.put("a").Accepted = false
			s.ran("a", "w1", 1, 1, 0, 0, "")
			s.ok("b", "w2", 2, 99999, 100000)
		}, "L1 exclusive: call b"},
		"a short stop is no excuse": {func(s story) {
			s.ok("a", "w1", 1, 0, 900)
			s.stopped("w1", 5, 800)
			s.ok("b", "w2", 2, 500, 600)
		}, "L1 exclusive: call b"},
		"attempts of one shared call overlap": {func(s story) {
			s.put("a").Resources[0].Access = protocol.Shared
			s.ran("a", "w1", 1, 1, 0, 10, StatusLost)
			s.ran("a", "w2", 1, 2, 9, 20, protocol.StatusOK)
			s.stored("a", "w2", 2, 21, protocol.StatusOK, "")
		}, "L1 exclusive: call a: attempt 2 started"},
		"out of order": {func(s story) {
			s.ok("b", "w1", 2, 0, 10)
			s.ok("a", "w1", 1, 20, 30)
		}, "L2 order: call a: sequence 1 started by w1 (attempt 1), 20ms after sequence 2"},
		"run again after a later one": {func(s story) {
			s.put("a")
			s.ran("a", "w1", 1, 1, 0, 10, protocol.StatusOK)
			s.killed("w1", 11)
			s.ok("b", "w2", 2, 1100, 1110)
			s.ran("a", "w2", 1, 2, 1200, 1210, protocol.StatusOK)
			s.stored("a", "w2", 2, 1211, protocol.StatusOK, "")
		}, "L2 order: call a"},
		"lost": {func(s story) { s.put("a") }, "L3 one result: call a: accepted, and it has no result"},
		"lost with its caller": {
			func(s story) { c := s.put("a"); c.Accepted, c.Entered = false, 5*ms }, "L3 one result: call a: accepted, and it has no result",
		},
		"run, and lost with its caller": {func(s story) {
			s.put("a").Accepted = false
			s.ran("a", "w1", 1, 1, 5, 6, protocol.StatusOK)
		}, "L3 one result: call a: accepted, and it has no result"},
		"two results": {func(s story) {
			s.ok("a", "w1", 1, 0, 10)
			s.stored("a", "w1", 1, 12, protocol.StatusOK, "")
		}, "2 results are stored"},
		"told something else": {func(s story) {
			s.ok("a", "w1", 1, 0, 10)
			s.Calls["a"].Told[0].Worker = "w2"
		}, "L3 one result: call a: the caller was told"},
		"told what is not stored": {func(s story) {
			s.ok("a", "w1", 1, 0, 10)
			s.Stored = nil
		}, "nothing is stored"},
		"result of a call that nobody put": {func(s story) {
			s.stored("a", "w1", 1, 10, protocol.StatusOK, "")
		}, "nobody has put it"},
		"execution of a call that nobody put": {func(s story) {
			s.ran("a", "w1", 1, 1, 0, 10, protocol.StatusOK)
		}, "it was started by w1, and nobody has put it"},
		"ok, and never ran": {func(s story) {
			s.put("a")
			s.stored("a", "w1", 1, 10, protocol.StatusOK, "")
		}, "there was no such execution"},
		"ok of another attempt": {func(s story) {
			s.ok("a", "w1", 1, 0, 10)
			s.Stored[0].Attempt, s.Calls["a"].Told[0].Attempt = 2, 2
		}, "there was no such execution"},
		"ok of a killed execution": {func(s story) {
			s.put("a")
			s.ran("a", "w1", 1, 1, 0, 0, "")
			s.killed("w1", 5)
			s.stored("a", "w1", 1, 10, protocol.StatusOK, "")
		}, `that execution ended ""`},
		"ok of one that ended otherwise": {func(s story) {
			s.ok("a", "w1", 1, 0, 10)
			s.Executions[0].Status = protocol.StatusTimeout
		}, `that execution ended "timeout"`},
		"ok before the end": {func(s story) {
			s.ok("a", "w1", 1, 0, 10)
			s.Stored[0].At = 5 * ms
		}, "before that execution ended"},
		"cancelled, and nobody asked": {func(s story) {
			s.put("a")
			s.stored("a", "w1", 0, 10, protocol.StatusCancelled, protocol.CodeCancelled)
		}, "nobody asked to cancel it"},
		"cancelled before it started, and it ran": {func(s story) {
			s.put("a").Cancelled = true
			s.ran("a", "w1", 1, 1, 0, 10, protocol.StatusOK)
			s.stored("a", "w1", 0, 11, protocol.StatusCancelled, protocol.CodeCancelled)
		}, "it is said not to have started"},
		"expired without a limit": {func(s story) {
			s.put("a")
			s.stored("a", "w1", 0, 10, protocol.StatusRejected, protocol.CodeQueueTimeout)
		}, "the call has no such limit"},
		"expired, and it ran": {func(s story) {
			s.put("a").QueueTimeout = 5
			s.ran("a", "w1", 1, 1, 0, 10, protocol.StatusOK)
			s.stored("a", "w1", 0, 11, protocol.StatusRejected, protocol.CodeQueueTimeout)
		}, "it is said not to have started"},
		"unknown outcome of what may run again": {func(s story) {
			s.put("a")
			s.stored("a", "w1", 1, 10, protocol.StatusOutcomeUnknown, "")
		}, "the call may be run again"},
		"unknown outcome, and the worker is well": {func(s story) {
			s.put("a").Delivery = protocol.AtMostOnce
			s.ran("a", "w1", 1, 1, 0, 10, protocol.StatusOK)
			s.stored("a", "w2", 1, 10, protocol.StatusOutcomeUnknown, "")
		}, "no worker was lost"},
		"unknown outcome of what was not started, and nothing happened": {func(s story) {
			s.put("a").Delivery = protocol.AtMostOnce
			s.stored("a", "w2", 1, 10, protocol.StatusOutcomeUnknown, "")
		}, "no worker was lost"},
		"expired without having run, after an execution that was lost": {func(s story) {
			s.put("a").QueueTimeout = 5
			s.ran("a", "w1", 1, 1, 0, 0, "")
			s.killed("w1", 10)
			s.stored("a", "w2", 0, 1011, protocol.StatusRejected, protocol.CodeQueueTimeout)
		}, "it is said not to have started"},
		"cancelled before it started, after an execution that was lost": {func(s story) {
			s.put("a").Cancelled = true
			s.ran("a", "w1", 1, 1, 0, 0, "")
			s.killed("w1", 10)
			s.stored("a", "w2", 0, 1011, protocol.StatusCancelled, protocol.CodeCancelled)
		}, "it is said not to have started"},
		"given up early": {func(s story) {
			s.put("a")
			s.stored("a", "w1", 2, 10, protocol.StatusFailed, protocol.CodeAttemptsExhausted)
		}, "given up after 2 attempts of 5"},
		"given up, and the worker is well": {func(s story) {
			s.put("a").MaxAttempts = 1
			s.ran("a", "w1", 1, 1, 0, 10, protocol.StatusOK)
			s.stored("a", "w1", 1, 10, protocol.StatusFailed, protocol.CodeAttemptsExhausted)
		}, "one of their workers was not lost"},
		"started after its result": {func(s story) {
			s.ok("a", "w1", 1, 0, 10)
			s.killed("w1", 11)
			s.ran("a", "w2", 1, 2, 1000, 1010, protocol.StatusOK)
		}, "after the result was stored"},
		"run again without a loss": {func(s story) {
			s.put("a")
			s.ran("a", "w1", 1, 1, 0, 10, protocol.StatusOK)
			s.ran("a", "w2", 1, 2, 1000, 1010, protocol.StatusOK)
			s.stored("a", "w2", 2, 1011, protocol.StatusOK, "")
		}, "L6 crash: call a: attempt 2 started by w2, and worker w1 of the attempt before was not lost"},
		"run again after another's loss": {func(s story) {
			s.put("a")
			s.ran("a", "w1", 1, 1, 0, 10, protocol.StatusOK)
			s.killed("w3", 10)
			s.ran("a", "w2", 1, 2, 1000, 1010, protocol.StatusOK)
			s.stored("a", "w2", 2, 1011, protocol.StatusOK, "")
		}, "was not lost"},
		"the same attempt twice": {func(s story) {
			s.put("a")
			s.ran("a", "w1", 1, 1, 0, 10, StatusLost)
			s.ran("a", "w2", 1, 1, 1000, 1010, protocol.StatusOK)
			s.stored("a", "w2", 1, 1011, protocol.StatusOK, "")
		}, "L6 crash: call a: attempt 1 by w2 came after attempt 1 by w1"},
		"too many attempts": {func(s story) {
			s.put("a").MaxAttempts = 1
			s.ran("a", "w1", 1, 1, 0, 10, StatusLost)
			s.ran("a", "w2", 1, 2, 1000, 1010, protocol.StatusOK)
			s.stored("a", "w2", 2, 1011, protocol.StatusOK, "")
		}, "L6 crash: call a: started 2 times of 1"},
		"at most once, twice": {func(s story) {
			s.put("a").Delivery = protocol.AtMostOnce
			s.ran("a", "w1", 1, 1, 0, 0, "")
			s.killed("w1", 10)
			s.ran("a", "w2", 1, 2, 1000, 1010, protocol.StatusOK)
			s.stored("a", "w2", 2, 1011, protocol.StatusOK, "")
		}, "L8 at most once: call a: started 2 times"},
		"a cancelled call starts": {func(s story) {
			s.ok("a", "w1", 1, 1100, 1110)
			s.Calls["a"].Cancelled, s.Calls["a"].Heard = true, 100*ms
			s.killed("w2", 500)
		}, "cancel: call a: attempt 1 started by w1 1s after it was cancelled"},
		"a zombie goes on": {func(s story) {
			s.put("a").Accepted = false
			s.ran("a", "w1", 1, 1, 0, 2201, StatusLost)
			s.stopped("w1", 5, 2000)
		}, "L7 zombie: call a: attempt 1 by w1 went on for 201ms"},
		"a zombie goes on after the machine kept it from waking": {func(s story) {
			s.put("a").Accepted = false
			s.ran("a", "w1", 1, 1, 0, 3201, StatusLost)
			s.stopped("w1", 5, 2000)
			s.stalled("w1", 6, 2400)
			s.stalled("w1", 2500, 3000)
		}, "L7 zombie: call a: attempt 1 by w1 went on for 201ms"},
		"a zombie starts what it held": {func(s story) {
			for seq, id := range []string{"a", "b"} {
				s.put(id)
				s.ran(id, "w2", uint64(seq), 2, 1100+10*Time(seq), 1105+10*Time(seq), protocol.StatusOK)
				s.stored(id, "w2", 2, 1106+10*Time(seq), protocol.StatusOK, "")
				s.ran(id, "w1", uint64(seq), 1, 2001, 2003, StatusLost)
			}
			s.stopped("w1", 5, 2000)
		}, "L3 one result: call a: attempt 1 started by w1"},
		"a zombie starts a call long after it wakes": {func(s story) {
			s.ok("a", "w2", 1, 1100, 1110)
			s.ok("b", "w2", 2, 1200, 1300)
			s.stopped("w1", 5, 2000)
			s.ran("a", "w1", 1, 1, 2021, 2023, StatusLost)
		}, "L2 order: call a: sequence 1 started by w1"},
		"a zombie's result counts": {func(s story) {
			s.ok("a", "w1", 1, 0, 2050)
			s.stopped("w1", 5, 2000)
		}, "of a worker that slept through its lease"},
		"a zombie's result is stored late, and the server was stalled before": {func(s story) {
			s.ok("a", "w1", 1, 0, 100)
			s.stopped("w1", 151, 2000)
			s.stalled("", 3, 1400)
			s.Stored[0].At = 2001 * ms
		}, "L7 zombie: call a: result"},
		"a zombie's result is stored late": {func(s story) {
			s.ok("a", "w1", 1, 0, 100)
			s.stopped("w1", 151, 2000)
			s.Stored[0].At = 2001 * ms
		}, "L7 zombie: call a: result"},
		"a zombie's result is stored long after it wakes": {func(s story) {
			s.ok("a", "w1", 1, 0, 100)
			s.stopped("w1", 101, 2000)
			s.Stored[0].At = 2201 * ms
		}, "L7 zombie: call a: result"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := tell()
			test.tell(s)
			var found []string
			for _, v := range checkHistory(s.History).Violations {
				found = append(found, v.String())
			}
			require.Contains(t, strings.Join(found, "\n"), test.want)
		})
	}
}

// What the checks find with their index is what comparing each with each finds.
func TestCheck_AgreesWithComparingAll(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	keys := []protocol.ResourceKey{"l/1", "l/1/a", "l/1/a/b", "l/1/a/c", "l/1/ab", "l/2", "l/2/a"}
	broken := 0
	for range 5000 {
		s := tell()
		for i := range 2 + r.IntN(4) {
			id, from := fmt.Sprint(i), Time(r.IntN(60))
			s.ok(id, "w1", uint64(1+r.IntN(20)), from, from+Time(1+r.IntN(10)))
			c := s.Calls[protocol.CallID(id)]
			c.Resources[0] = protocol.Use{Key: keys[r.IntN(len(keys))], Access: []protocol.Access{protocol.Shared, protocol.Exclusive}[r.IntN(2)]}
		}
		want := false
		for i := range s.Executions {
			for k := range s.Executions {
				a, b := &s.Executions[i], &s.Executions[k]
				if i == k || !s.Calls[a.CallID].ConflictsWith(&s.Calls[b.CallID].Call) || a.Start >= b.Start {
					continue
				}
				want = want || a.End > b.Start || a.Sequence > b.Sequence
			}
			for k := range i { // which of two that start at once is first is open
				if s.Executions[i].Start == s.Executions[k].Start {
					want = want || s.Calls[s.Executions[i].CallID].ConflictsWith(&s.Calls[s.Executions[k].CallID].Call)
				}
			}
		}
		found := len(checkHistory(s.History).Violations) > 0
		require.Equal(t, want, found, "%+v", s.Executions)
		if want {
			broken++
		}
	}
	require.Greater(t, broken, 500)
	require.Less(t, broken, 4500)
}

func TestRead_RecordsOfProcesses(t *testing.T) {
	t.Parallel()
	h := newHistory()
	require.NoError(t, h.Read(strings.NewReader(`{"kind":"put","at":5,"call_id":"a","call":{"id":"a","resources":[{"key":"l/1","access":"exclusive"}]}}
{"kind":"accepted","at":6,"call_id":"a"}
{"kind":"cancel","at":7,"call_id":"a"}
{"kind":"heard","at":8,"call_id":"a"}
{"kind":"put","at":8,"call_id":"a","call":{"id":"a"}}
{"kind":"refused","at":9,"call_id":"a"}
{"kind":"told","at":10,"call_id":"a","status":"ok","worker":"w1","attempt":2}
{"kind":"gave_up","at":11,"call_id":"a"}
{"kind":"trouble","at":11,"message":"help"}
{"kind":"stall","at":60,"until":70,"worker":"w1"}
{"kind":"blocked","at":80,"until":90,"worker":"w1"}
`)))
	require.NoError(t, h.Read(strings.NewReader(`{"kind":"start","at":20,"call_id":"a","worker":"w1","seq":7,"attempt":1}
{"kind":"start","at":30,"call_id":"a","worker":"w1","seq":7,"attempt":2}
{"kind":"end","at":40,"call_id":"a","worker":"w1","attempt":2,"status":"ok"}
{"kind":"end","at":50,"ca`)))
	c := h.Calls["a"]
	require.Equal(t, Time(5), c.FirstPut)
	require.Equal(t, protocol.Lane("l/1"), c.Lane())
	require.True(t, c.Accepted && c.Cancelled && c.GaveUp)
	require.Equal(t, Time(8), c.Heard)
	require.Equal(t, []Told{{At: 10, Result: Result{Status: "ok", Worker: "w1", Attempt: 2}}}, c.Told)
	require.Equal(t, []string{"help"}, h.Troubles)
	require.Equal(t, []Fault{
		{Worker: "w1", From: 60, Until: 70, Stalled: true, Still: 60},
		{Worker: "w1", From: 80, Until: 90, Still: 80, Blocked: true},
	}, h.Faults)
	require.Equal(t, []Execution{
		{CallID: "a", Worker: "w1", Sequence: 7, Attempt: 1, Start: 20, End: Never},
		{CallID: "a", Worker: "w1", Sequence: 7, Attempt: 2, Start: 30, End: 40, Status: "ok"},
	}, h.Executions)
	for _, bad := range []string{
		"garbage\n", `{"kind":"end","call_id":"a","attempt":9}` + "\n", `{"kind":"told","call_id":"b"}` + "\n", `{"kind":"x","call_id":"a"}` + "\n",
	} {
		require.Error(t, h.Read(strings.NewReader(bad)), bad)
	}
}
