//go:build linux

package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/calls/channel"
	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/session"
	"github.com/toolfleet/toolfleet/internal/session/schedule"
	"github.com/toolfleet/toolfleet/internal/session/serve"
	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/internal/wire"
	public "github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// stage is a rig with coordinators and machines, on which sessions play.
type stage struct {
	*rig

	fleet        *fleet.Fleet
	slots        int // of each coordinator
	coordinators []*member
	machines     []*member
	leaders      atomic.Int32 // that were killed
	begin        time.Time
}

// newStage starts everything.
func newStage(t *testing.T, s setup, coordinators, machines, slots int) *stage {
	t.Helper()
	st := &stage{rig: newPlace(t, s), slots: slots, begin: time.Now()}
	_, _, err := natsio.EnsurePool(t.Context(), st.js, protocol.DefaultFleet, protocol.SessionPool, st.setup.lease)
	require.NoError(t, err)
	o := public.Options{URL: st.url(), Creds: st.creds(), Existing: true}
	o.Opened = func(opened *fleet.Fleet) { st.fleet = opened }
	client, err := public.Connect(t.Context(), o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	_, err = schedule.Open(t.Context(), st.js, protocol.DefaultFleet) // processes that make it at once could meet
	require.NoError(t, err)
	triggers, err := st.js.Stream(t.Context(), "KV_"+wire.SchedulesBucket(protocol.DefaultFleet))
	require.NoError(t, err)
	require.Equal(t, s.servers < 2, triggers.CachedInfo().Config.AllowDirect, "one of several servers answers from its past")
	_, err = channel.Open(t.Context(), st.js, protocol.DefaultFleet)
	require.NoError(t, err)
	require.NoError(t, os.Mkdir(st.path("tools"), 0o700))
	for name, revert := range map[string]string{"order": `"revert": {"tool": "undo", "arguments": {"n": "{n}"}},`, "undo": ""} {
		manifest := fmt.Sprintf(`{"name": %q, "description": "Does it.", %s "delivery": "at_most_once",
			"parameters": {"type": "object", "properties": {"n": {"type": "string"}}}, "command": ["sh", "-c", "line=$(cat); echo \"%s $line\" >> '%s'"]}`,
			name, revert, name, st.path("orders"))
		require.NoError(t, os.WriteFile(st.path("tools/"+name+".json"), []byte(manifest), 0o600))
	}
	for disk := range machines {
		st.machines = append(st.machines, st.startMachine(disk))
	}
	for range coordinators {
		st.coordinators = append(st.coordinators, st.startCoordinator())
	}
	return st
}

func (s *stage) startCoordinator() *member {
	s.t.Helper()
	s.begun++
	m := &member{id: protocol.WorkerID(fmt.Sprintf("c-%d", s.begun))}
	role := coordinatorRole{URL: s.url(), Creds: s.creds(), Dir: s.dir, ID: m.id, Slots: s.slots}
	m.process = spawn(s.t, "coordinator", &role, s.path(string(m.id)+".stderr"))
	return m
}

// perform has sessions play, some of them at the same time, with faults until all have ended.
func (s *stage) perform(sessions, atOnce int, play func(ctx context.Context, i int) error, pausing time.Duration, fault func()) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 10*patience)
	defer cancel()
	var playing sync.WaitGroup
	failures := make([]error, sessions)
	free := make(chan struct{}, atOnce)
	for i := range sessions {
		playing.Go(func() {
			free <- struct{}{}
			failures[i] = play(ctx, i)
			<-free
		})
	}
	done := make(chan struct{})
	go func() { playing.Wait(); close(done) }()
	for ended, injected := false, 0; !ended; {
		select {
		case <-done:
			ended = true
		case <-time.After(time.Duration(float64(pausing) * (0.2 + s.random.Float64()))):
			if injected < s.setup.faults || *callCount > 0 {
				fault()
				injected++
			}
		}
	}
	for i, err := range failures {
		require.NoError(s.t, err, "session %d", i)
	}
}

// turn has a session run a turn.
func (s *stage) turn(ctx context.Context, id protocol.SessionID, turn wire.TurnRun) error {
	turn.Toolsets = []string{"core", "agents", "channels", "triggers"}
	call := serve.NewCall(id, turn, 0)
	return insist(ctx, func() error { // the same call: it is accepted once
		result, err := s.fleet.Dispatcher.Call(ctx, &call)
		if err == nil && result.Error != nil {
			return fmt.Errorf("turn %q of session %s: %w", turn.Prompt, id, result.Error)
		}
		return err
	})
}

// insist repeats what may be repeated until it goes well.
func insist(ctx context.Context, do func() error) error {
	for {
		err := do()
		if err == nil || !pause.For(ctx, 200*time.Millisecond) {
			return err
		}
	}
}

// played waits until a session has ended so many turns, and returns its journal.
func (s *stage) played(ctx context.Context, id protocol.SessionID, turns int) (history loop.History, err error) {
	err = insist(ctx, func() error {
		if history, err = s.fleet.Journal.Load(ctx, id); err != nil {
			return err
		}
		if ended := len(eventsOf(history.Events, loop.EventTurnEnded)); ended < turns {
			return fmt.Errorf("session %s has ended %d of %d turns", id, ended, turns)
		}
		return nil
	})
	return history, err
}

func eventsOf(events []loop.Event, kind loop.EventType) (all []loop.Event) {
	for i := range events {
		if events[i].Type == kind {
			all = append(all, events[i])
		}
	}
	return all
}

// stopCoordinator is SIGSTOP for longer than a lease: another coordinator takes over what the
// stopped one goes on with when it wakes up.
func (s *stage) stopCoordinator() {
	c := s.coordinators[s.random.IntN(len(s.coordinators))]
	c.freeze()
	pause.For(s.t.Context(), s.setup.lease+time.Duration(s.random.Int64N(int64(s.setup.lease))))
	c.thaw()
	s.counts["stop coordinator"]++
}

// killCoordinator is kill -9; another one takes its place.
func (s *stage) killCoordinator() {
	i := s.random.IntN(len(s.coordinators))
	s.coordinators[i].kill()
	s.coordinators[i] = s.startCoordinator()
	s.counts["kill coordinator"]++
}

// killMachine is kill -9 of a worker, which comes back with its disk.
func (s *stage) killMachine() {
	disk := s.random.IntN(len(s.machines))
	s.machines[disk].kill()
	s.machines[disk] = s.startMachine(disk)
	s.counts["kill worker"]++
}

func (s *stage) killSomething() { []func(){s.killCoordinator, s.killMachine}[s.random.IntN(2)]() }

// journals holds the journals of all sessions against what each of them promises, and returns them:
// each turn has ended well and was begun by one input, each call has one result, each summary is
// there once, and each sub-agent has a parent that has its result.
func (s *stage) journals() map[protocol.SessionID][]loop.Event {
	s.t.Helper()
	ctx, all := s.t.Context(), map[protocol.SessionID][]loop.Event{}
	reader, err := session.NewReader(ctx, s.fleet)
	require.NoError(s.t, err)
	ids, err := reader.IDs(ctx)
	require.NoError(s.t, err)
	for _, id := range ids {
		history, err := s.fleet.Journal.Load(ctx, id)
		require.NoError(s.t, err)
		all[id] = history.Events
	}
	for id, events := range all {
		counts := map[string]int{}
		for _, e := range events {
			switch e.Type {
			case loop.EventTurnStarted:
				counts["input "+string(e.CallID)]++
			case loop.EventToolCall, loop.EventToolResult:
				counts[fmt.Sprintf("%s of %s", e.Type, e.CallID)]++
			case loop.EventCompacted, loop.EventModelReply, loop.EventTurnEnded:
				counts[fmt.Sprintf("%s %d/%d", e.Type, e.Turn, e.Step)]++
			default:
			}
		}
		for what, n := range counts {
			require.Equal(s.t, 1, n, "session %s: %s", id, what)
		}
		started, ended := eventsOf(events, loop.EventTurnStarted), eventsOf(events, loop.EventTurnEnded)
		require.Len(s.t, ended, len(started), id)
		require.Len(s.t, eventsOf(events, loop.EventToolResult), len(eventsOf(events, loop.EventToolCall)), id)
		for _, e := range ended {
			require.Equal(s.t, string(loop.OutcomeAnswered), e.Status, "turn %d of session %s: %v", e.Turn, id, e.Error)
		}
		if parent := events[0].Parent; parent != nil {
			require.True(s.t, slices.ContainsFunc(all[parent.SessionID], func(e loop.Event) bool {
				return e.Type == loop.EventToolResult && e.CallID == parent.CallID && e.Status == string(protocol.StatusOK)
			}), "sub-agent %s has no parent that has its result", id)
		}
	}
	return all
}

// lines are those of a file that commands have logged to, sorted.
func (s *stage) lines(name string) []string {
	s.t.Helper()
	content, err := os.ReadFile(s.path(name))
	require.NoError(s.t, err)
	return slices.Sorted(strings.Lines(string(content)))
}

// tell logs what a test did.
func (s *stage) tell(format string, args ...any) {
	s.t.Helper()
	s.t.Logf("-seed=%d: %s, faults %v, %s in all", *seed, fmt.Sprintf(format, args...), s.counts, time.Since(s.begin).Round(time.Second))
}

// Two coordinators fight over sessions: one of them is stopped again and again for longer than a
// lease, and goes on when the other one has its sessions. The sessions have sub-agents on forks and
// in their workspace, timers, messages that begin turns, summaries, reverts and merges. No command
// runs twice, no sub-agent, trigger or merge is lost or is there twice.
func TestChaos_CoordinatorsAreStopped(t *testing.T) { //nolint:paralleltest // see side
	side(t)
	sessions := 2
	if *callCount > 0 {
		sessions = max(2, *callCount/1000)
	}
	s := newStage(t, setup{faults: 4}, 2, 1, sessions+2)
	ids := make([]protocol.SessionID, sessions)
	for i := range ids {
		ids[i] = protocol.NewSessionID()
	}
	forks := make([]protocol.SessionID, sessions)
	s.perform(sessions, 4, func(ctx context.Context, i int) (err error) {
		forks[i], err = s.fight(ctx, ids[i], i, sessions)
		return err
	}, 300*time.Millisecond, s.stopCoordinator)

	all := s.journals()
	require.Len(t, all, 5*sessions, "each has three sub-agents and a fork")
	compacted := 0
	var started, orders []string
	for i, id := range ids {
		var inputs []string
		for _, e := range eventsOf(all[id], loop.EventTurnStarted) {
			input, _, _ := strings.Cut(e.Input, "\n\n") // behind it are messages of a channel
			inputs = append(inputs, input[strings.LastIndex(input, "\n")+1:])
		}
		require.ElementsMatch(t, []string{fmt.Sprintf("begin %d %d", i, (i+1)%sessions), fmt.Sprint("woken ", i), fmt.Sprint("told ", i), fmt.Sprint("again ", i)}, inputs)
		compacted += len(eventsOf(all[id], loop.EventCompacted))
		require.Len(t, eventsOf(all[id], loop.EventRevertEnded), 1)
		require.Len(t, eventsOf(all[id], loop.EventSessionMerged), 1)
		for _, e := range eventsOf(all[id], loop.EventToolResult) {
			if e.Name == wire.AgentTool && strings.Contains(e.Content, "is done") {
				require.Contains(t, e.Content, "[Merged into the workspace:\nchanged: ")
			}
		}
		for name, want := range map[string]string{
			"both": "one\n2\n3\n4\nfive\n6\n7\n8\nnine\n", "left": "left\n", "with": "with\n", "after": "after\n",
			"woken": "woken\n", "told": "told\n", "fork": "fork\n", "again": "again\n",
		} {
			s.requireFile(id, name, want)
		}
		for _, what := range []string{"begin", "after", "left", "left-again", "right", "with", "woken", "told", "forked", "again"} {
			started = append(started, fmt.Sprintf("%d %s\n", i, what))
		}
		for _, what := range []string{"order", "undo"} {
			orders = append(orders, fmt.Sprintf("%s {\"n\":\"%d\"}\n", what, i))
		}
	}
	require.Positive(t, compacted)
	require.Equal(t, slices.Sorted(slices.Values(started)), s.lines("started"), "each command runs once")
	require.Equal(t, slices.Sorted(slices.Values(orders)), s.lines("orders"), "each order is made once, and undone once")
	s.requireNoTriggers()
	s.tell("%d sessions, %d commands once, %d summaries", sessions, len(started)+len(orders), compacted)
}

// fight is the life of one session, and of its fork, whose id it returns.
func (s *stage) fight(ctx context.Context, id protocol.SessionID, i, sessions int) (fork protocol.SessionID, err error) {
	if err := s.turn(ctx, id, wire.TurnRun{Prompt: fmt.Sprintf("begin %d %d", i, (i+1)%sessions)}); err != nil {
		return "", err
	}
	history, err := s.played(ctx, id, 3)
	if err != nil {
		return "", err
	}
	point := session.At{Call: eventsOf(history.Events, loop.EventToolCall)[0].CallID}
	var reverting sync.WaitGroup
	failures := make([]error, 2)
	for n := range failures { // two persons at once
		reverting.Go(func() {
			failures[n] = insist(ctx, func() error {
				effects, err := session.Effects(ctx, s.fleet.Journal, id, point)
				if err != nil {
					return err
				}
				return session.Revert(ctx, s.fleet, id, "", effects)
			})
		})
	}
	reverting.Wait()
	if err := errors.Join(failures...); err != nil {
		return "", err
	}
	files, err := session.OpenFiles(ctx, s.fleet, protocol.DefaultPool)
	if err != nil {
		return "", err
	}
	fork = protocol.NewSessionID()
	if _, err := files.Fork(ctx, s.fleet.Journal, id, session.At{}, fork); err != nil {
		return "", err
	}
	for _, step := range []func() error{
		func() error { return s.turn(ctx, fork, wire.TurnRun{Prompt: fmt.Sprint("forked ", i)}) },
		func() error {
			return insist(ctx, func() error {
				_, err := session.Merge(ctx, s.fleet, fork, id, "")
				return err
			})
		},
		func() error { return s.turn(ctx, id, wire.TurnRun{Compact: true}) },
		func() error { return s.turn(ctx, id, wire.TurnRun{Prompt: fmt.Sprint("again ", i)}) },
	} {
		if err := step(); err != nil {
			return "", err
		}
	}
	return fork, nil
}

// read is a file of a session's workspace as it is now.
func (s *stage) read(id protocol.SessionID, name string) string {
	s.t.Helper()
	files, err := session.OpenFiles(s.t.Context(), s.fleet, protocol.DefaultPool)
	require.NoError(s.t, err)
	got, err := files.Read(s.t.Context(), id, name, "")
	require.NoError(s.t, err)
	return string(got)
}

func (s *stage) requireFile(id protocol.SessionID, name, want string) {
	s.t.Helper()
	got := s.read(id, name)
	history, err := s.fleet.Journal.Load(s.t.Context(), id)
	require.NoError(s.t, err)
	require.Equal(s.t, want, got, "%s of session %s; calls that are not ok: %q", name, id, notOK(history.Events))
}

// notOK are the results of a journal that may explain other files than expected.
func notOK(events []loop.Event) (failed []string) {
	for _, e := range eventsOf(events, loop.EventToolResult) {
		if e.Status != string(protocol.StatusOK) {
			failed = append(failed, fmt.Sprintf("%s %s, attempt %d: %s", e.CallID, e.Status, e.Attempt, e.Content))
		}
	}
	return failed
}

func (s *stage) requireNoTriggers() {
	s.t.Helper()
	store, err := schedule.Open(s.t.Context(), s.js, protocol.DefaultFleet)
	require.NoError(s.t, err)
	require.Eventually(s.t, func() bool { // a trigger is removed after its turn was accepted
		left, err := store.List(s.t.Context())
		return err == nil && len(left) == 0
	}, patience, 50*time.Millisecond)
}

// A session has sub-agents change files on forks, while workers and coordinators are killed. What
// is merged back is what the same tree makes without a fault, conflict included.
func TestChaos_AgentsOnForks(t *testing.T) { //nolint:paralleltest // see side
	side(t)
	agents, files := 4, 4
	if *callCount > 0 {
		agents, files = 50, 20
	}
	s := newStage(t, setup{faults: 6}, 2, 2, 8)
	every := s.setup.lease / 2
	if *callCount > 0 { // a call that loses five workers fails, and the files take a slow machine longer to restore
		every = 2 * s.setup.lease
	}
	calm, hit := protocol.NewSessionID(), protocol.NewSessionID()
	prompt := wire.TurnRun{Prompt: fmt.Sprintf("tree %d %d", agents, files)}
	require.NoError(t, s.turn(t.Context(), calm, prompt))
	s.perform(1, 1, func(ctx context.Context, _ int) error { return s.turn(ctx, hit, prompt) }, every, s.killSomething)

	all := s.journals()
	require.Len(t, all, 2*(1+agents))
	for _, id := range []protocol.SessionID{calm, hit} {
		merged, conflicts := 0, 0
		for _, e := range eventsOf(all[id], loop.EventToolResult) {
			if e.Name == wire.AgentTool {
				require.Contains(t, e.Content, "[Merged into the workspace:\nchanged: ")
				merged++
				conflicts += strings.Count(e.Content, "CONFLICTS")
			}
		}
		require.Equal(t, []int{agents, 1}, []int{merged, conflicts})
	}
	want, err := (&builder{dispatcher: s.fleet.Dispatcher, session: calm}).run(t.Context(), everything)
	require.NoError(t, err)
	require.Contains(t, want, "clash.toolfleet-theirs")
	require.Contains(t, want, fmt.Sprintf("d%d/f3.moved f 755", agents-1))
	got, err := (&builder{dispatcher: s.fleet.Dispatcher, session: hit}).run(t.Context(), everything)
	require.NoError(t, err)
	for id, events := range all {
		require.Empty(t, notOK(events), "session %s", id)
	}
	require.Equal(t, want, got)
	s.tell("%d sub-agents that change %d files each", agents, files)
}

// Many sessions over three coordinators and three workers, which are killed: all end. The rate of
// their steps is compared with that of bare durable publishes of what they append.
func TestChaos_ManySessions(t *testing.T) { //nolint:paralleltest // see side
	if *callCount == 0 {
		t.Skip("a rate of few sessions says nothing: make chaos runs it")
	}
	side(t)
	sessions := max(10, *callCount/200)
	const slots, steps = 22, 10 // 64 sessions in turns
	s := newStage(t, setup{}, 3, 3, slots)
	begin := time.Now()
	s.perform(sessions, sessions, func(ctx context.Context, i int) error {
		return s.turn(ctx, protocol.SessionID(fmt.Sprint("many-", i)), wire.TurnRun{Prompt: fmt.Sprintf("work %d %d", i, steps)})
	}, s.setup.lease/2, s.killSomething)
	took := time.Since(begin)
	all := s.journals()
	require.Len(t, all, sessions)
	lost := 0
	for id, events := range all {
		require.Len(t, eventsOf(events, loop.EventModelReply), steps+1)
		// A call that loses five workers fails, as documented, and what it did may remain or not.
		exhausted := 0
		for _, failed := range notOK(events) {
			require.Contains(t, failed, protocol.CodeAttemptsExhausted, "session %s", id)
			exhausted++
		}
		lines := s.read(id, "lines")
		require.Empty(t, strings.ReplaceAll(lines, "line\n", ""), "session %s", id)
		require.LessOrEqual(t, strings.Count(lines, "\n"), steps, "session %s", id)
		require.GreaterOrEqual(t, strings.Count(lines, "\n"), steps-exhausted, "session %s", id)
		lost += exhausted
	}
	// Each kill of a worker takes the calls of at most its slots, and each such call needs five.
	require.LessOrEqual(t, lost, s.counts["kill worker"]*s.setup.slots/5)
	appends, bare := s.publishBare(3 * slots)
	s.tell("%d sessions, %d calls lost five workers, %.0f steps/s, %d events in %s, bare publishes of them take %s: ratio %.1f",
		sessions, lost, float64(sessions*(steps+1))/took.Seconds(), appends, took.Round(time.Millisecond), bare.Round(time.Millisecond), took.Seconds()/bare.Seconds())
}

// publishBare publishes all events once more, to a stream of no fleet, by so many publishers.
func (s *stage) publishBare(publishers int) (events int, took time.Duration) {
	s.t.Helper()
	ctx := s.t.Context()
	_, err := s.js.CreateStream(ctx, jetstream.StreamConfig{Name: "BARE", Subjects: []string{"bare.>"}})
	require.NoError(s.t, err)
	stored, err := s.js.Stream(ctx, wire.SessionsStream(protocol.DefaultFleet))
	require.NoError(s.t, err)
	bodies := make(chan []byte, stored.CachedInfo().State.Msgs)
	for seq := range stored.CachedInfo().State.LastSeq {
		msg, err := stored.GetMsg(ctx, seq+1)
		require.NoError(s.t, err)
		bodies <- msg.Data
	}
	close(bodies)
	events = len(bodies)
	begin := time.Now()
	var publishing sync.WaitGroup
	failures := make([]error, publishers)
	for i := range publishers {
		publishing.Go(func() {
			for body := range bodies {
				_, err := s.js.Publish(ctx, fmt.Sprint("bare.", i), body)
				failures[i] = errors.Join(failures[i], err)
			}
		})
	}
	publishing.Wait()
	require.NoError(s.t, errors.Join(failures...))
	return events, time.Since(begin)
}

// Sessions send messages to a channel of three servers, and set timers; another one reads the
// channel, with a turn for each trigger, while the servers that lead its streams are killed. The
// messages are read in order, each once, and each trigger begins one turn.
func TestChaos_ClusterMessages(t *testing.T) { //nolint:paralleltest // see side
	side(t)
	talkers, messages, kills := 2, 3, 1
	if *callCount > 0 {
		talkers, messages, kills = 16, max(5, *callCount/10000), max(5, *callCount/5000)
	}
	s := newStage(t, setup{servers: 3, lease: serverLease, faults: kills}, 2, 1, talkers+2)
	const listener = protocol.SessionID("listener")
	require.NoError(t, s.turn(t.Context(), listener, wire.TurnRun{Prompt: "listen x"}))
	s.perform(talkers+1, talkers+1, func(ctx context.Context, i int) error {
		if i == talkers {
			return insist(ctx, func() error {
				history, err := s.fleet.Journal.Load(ctx, listener)
				if read := len(readBy(history.Events)); err == nil && (read < talkers*messages || int(s.leaders.Load()) < kills) {
					err = fmt.Errorf("%d of %d messages are read", read, talkers*messages)
				}
				return err
			})
		}
		id := protocol.SessionID(fmt.Sprint("talker-", i))
		if err := s.turn(ctx, id, wire.TurnRun{Prompt: fmt.Sprintf("talk %d %d", i, messages)}); err != nil {
			return err
		}
		_, err := s.played(ctx, id, 2)
		return err
	}, 2*time.Second, s.killLeader)

	read := map[string][]string{}
	require.Eventually(t, func() bool { // the last turn of the listener
		history, err := s.fleet.Journal.Load(t.Context(), listener)
		return err == nil && history.Events[len(history.Events)-1].Type == loop.EventTurnEnded
	}, patience, 50*time.Millisecond)
	all := s.journals()
	sequences := []string{}
	for _, m := range readBy(all[listener]) {
		sequences, read[m[2]] = append(sequences, fmt.Sprintf("%09s", m[1])), append(read[m[2]], m[3])
	}
	require.True(t, slices.IsSorted(sequences))
	require.Len(t, read, talkers)
	for i := range talkers {
		var want []string
		for n := range messages {
			want = append(want, fmt.Sprintf("%d %d", i, n))
		}
		id := protocol.SessionID(fmt.Sprint("talker-", i))
		require.Equal(t, want, read[string(id)])
		require.Len(t, eventsOf(all[id], loop.EventTurnStarted), 2, "its own turn, and that of its timer")
	}
	fired := map[string]int{}
	for _, e := range eventsOf(all[listener], loop.EventTurnStarted)[1:] {
		fired[strings.Fields(e.Input)[2]]++
	}
	for trigger, n := range fired {
		require.Equal(t, 1, n, trigger)
	}
	s.tell("%d messages of %d sessions in order, each once, %d turns by triggers", talkers*messages, talkers, len(fired)+talkers)
}

// readBy are the messages that a session has read: sequence, sender, text.
func readBy(events []loop.Event) (messages [][]string) {
	for _, e := range events {
		text := e.Input // of a turn that a watch began
		if e.Type == loop.EventToolResult && e.Name == "read_messages" {
			text = e.Content
		}
		messages = append(messages, readMessage.FindAllStringSubmatch(text, -1)...)
	}
	return messages
}

var readMessage = regexp.MustCompile(`(?m)^\[message (\d+), from session (\S+), .*\]\n(.*)$`)

// killLeader is kill -9 of the server that leads what triggers, messages, journals or calls are in.
func (s *stage) killLeader() {
	fleet := protocol.DefaultFleet
	name := []string{wire.ChannelsStream(fleet), "KV_" + wire.SchedulesBucket(fleet), wire.SessionsStream(fleet), wire.CallsStream(fleet)}[s.random.IntN(4)]
	leader := ""
	require.Eventually(s.t, func() bool {
		if stream, err := s.js.Stream(s.t.Context(), name); err == nil && stream.CachedInfo().Cluster != nil {
			leader = stream.CachedInfo().Cluster.Leader
		}
		return leader != ""
	}, patience, 50*time.Millisecond, "no leader")
	for i, server := range s.servers {
		if server.role.Name == leader {
			server.kill()
			s.startServer(i)
			s.counts["kill leader"]++
			s.leaders.Add(1)
		}
	}
	s.awaitReplicas()
}
