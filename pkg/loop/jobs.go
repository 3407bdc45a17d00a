package loop

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/policy"
)

// job is a call that runs in the background, according to the journal.
type job struct {
	CallFields

	name       string // the handle
	turn, step int
	lane       string   // of its call
	bound      *Binding // of its call
	since      time.Time
	ended      *Event // nil while it runs
}

// jobName is the handle of the job at a place of the session.
func jobName(turn, step, index int) string { return fmt.Sprintf("job_%d_%d_%d", turn, step, index) }

// endJob notes the end of a job, and adds a note for the model unless it got the end already.
func (s *session) endJob(e *Event) error {
	t, j := s.open(), s.jobOf(e.CallID)
	switch {
	case j == nil:
		return fmt.Errorf("there is no job of call %s", e.CallID)
	case j.ended != nil:
		return fmt.Errorf("%s has ended already", j.name)
	case t == nil:
		return errors.New("turn is not open")
	}
	ended := *e
	j.ended = &ended
	if e.Told || s.turns[j.turn-1].rewound { // the conversation does not have it
		return nil
	}
	if last := t.last(); last != nil && j.Name == wire.AgentTool {
		last.continued = true
	}
	note := fmt.Sprintf("[%s (%s) has ended: %s]\n%s", j.name, j.Name, e.Status, e.Content)
	t.addNote(note)
	return nil
}

func (s *session) jobOf(id protocol.CallID) *job {
	for _, j := range s.jobs {
		if j.CallID == id {
			return j
		}
	}
	return nil
}

// appendNotes adds notes for the model after the results of its tool calls.
func appendNotes(messages []Message, notes []string) []Message {
	if len(notes) == 0 {
		return messages
	}
	return append(messages, Message{Role: RoleUser, Text: strings.Join(notes, "\n\n")})
}

// jobs returns copies of the session's jobs.
func (r *recorder) jobs() []job {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]job, len(r.session.jobs))
	for i, j := range r.session.jobs {
		out[i] = *j
	}
	return out
}

// followers are the jobs whose results this run waits for.
type followers struct {
	*turnRun

	ctx    context.Context //nolint:containedctx // of the turn; sub-agents outlive the step that starts them
	mu     pause.Mutex
	byCall map[protocol.CallID]*follower
	group  sync.WaitGroup
	ending pause.Mutex // held while the end of a job is journaled
}

// follower waits for the result of one job.
type follower struct {
	stop     context.CancelCauseFunc
	accepted chan struct{} // closed when the fleet has the call or cannot be reached, and behind done
	accept   func()        // closes it
	done     chan struct{} // closed when nothing comes any more
	// result, or else ended, is set once it is done; neither if the end was not learned, which err
	// says of a sub-agent, and counted what it used.
	result  *protocol.Result
	ended   *Event
	err     error
	counted protocol.Spending
	tool    *tools.Tool
	call    protocol.Call
	sent    Handle // of call; nil until it is sent
}

// knowsOutcome reports, once the job is done, whether its end is known.
func (f *follower) knowsOutcome() bool { return f.result != nil || f.ended != nil }

// failed reports whether nothing comes any more although the end was not learned.
func (f *follower) failed() bool {
	select {
	case <-f.done:
		return !f.knowsOutcome()
	default:
		return false
	}
}

var errJobCancelled = errors.New("the job was cancelled")

// startJobs journals the handles of new jobs and sends their calls, in their order and
// before the other calls of the step.
func (w *followers) startJobs(ctx context.Context, jobs []*pendingCall) error {
	for _, p := range jobs {
		event := p.localResult(protocol.StatusOK, "", nil, 0)
		event.Job = jobName(event.Turn, event.Step, event.Index)
		event.Content = fmt.Sprintf("[%s runs in the background. You will be told when it has ended; go on with something else.]", event.Job)
		if p.agent().Background {
			event.Content = fmt.Sprintf("[%s works in the background, as session %s. You will be told when it has ended; go on with something else.]", event.Job, event.CallID)
		}
		event.Content = p.tool.WithNote(event.Content, p.note)
		if err := w.record(ctx, event); err != nil {
			return err
		}
		f := w.startJob(ctx, p)
		select {
		case <-f.accepted:
		case <-ctx.Done():
		}
	}
	return nil
}

// startJob follows a call as a job; its step may have sent it.
func (w *followers) startJob(ctx context.Context, p *pendingCall) *follower {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p.agent().Background {
		return w.followAgent(p, nil) //nolint:contextcheck // it outlives the step
	}
	return w.follow(ctx, p, func(context.Context) (*protocol.Call, *Event, error) { return p.call, nil, nil })
}

// promote makes jobs of the calls of a step that have not ended, and reports whether it did: not if
// one of them is of a kind that cannot be a job, or asks a person.
func (b *batch) promote(ctx context.Context) bool {
	var left []*pendingCall
	for _, p := range b.inOrder() {
		switch {
		case p.done:
		case p.derived || p.plan.Payload == nil || len(p.asked) > 0:
			return false
		default:
			left = append(left, p)
		}
	}
	if len(left) == 0 || len(b.remote) < len(b.sent) { // a fork is none of remote
		return false
	}
	for _, p := range left {
		event := p.localResult(protocol.StatusOK, "", nil, b.opts.PromoteAfter)
		event.Job = jobName(event.Turn, event.Step, event.Index)
		event.Content = p.tool.WithNote(fmt.Sprintf("[The call has not ended after %s and goes on as %s in the background. You will be told when it has ended; go on with something else.]",
			b.opts.PromoteAfter, event.Job), p.note)
		p.done = true
		if b.settle(event); ctx.Err() == nil {
			b.followed.startJob(ctx, p)
		}
	}
	return true
}

// follow sends the call of a job, or finds it in the fleet, unless its step has sent it, and waits
// for its result concurrently with everything else, also while the fleet cannot be reached for some
// time. The end of ctx does not stop it. resolve returns the call, or else how the job has ended.
// The lock is held.
func (w *followers) follow(ctx context.Context, p *pendingCall, resolve func(context.Context) (*protocol.Call, *Event, error)) *follower {
	jobCtx, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	f := w.newFollower(p.place.ID, stop)
	if f.tool = p.tool; p.sent != nil { // before the context of its step ends
		f.call, f.sent = *p.call, w.dispatcher.Send(jobCtx, nil, w.observer(jobCtx, f, p), p.sent)[0]
	}
	w.group.Go(func() {
		defer f.accept()
		defer close(f.done)
		for {
			stopped := jobCtx.Err() != nil // this try cancels the call
			err := w.attend(jobCtx, f, p, resolve)
			if f.knowsOutcome() || err == nil || stopped || detached(jobCtx) {
				return
			}
			f.accept()
			w.logger.WarnContext(jobCtx, "job cannot be followed, it is looked for again",
				slog.String("call_id", string(p.place.ID)), slog.Any("error", err))
			if !pause.For(jobCtx, pause.Resume) && detached(jobCtx) {
				return
			}
		}
	})
	return f
}

// attend waits for the result of a job. It first sends the call if that was not sent, or if the
// fleet could not be reached.
func (w *followers) attend(ctx context.Context, f *follower, p *pendingCall, resolve func(context.Context) (*protocol.Call, *Event, error)) error {
	if f.sent == nil || unreached(f.sent) {
		call, ended, err := resolve(ctx)
		if err != nil || ended != nil {
			f.ended = ended
			return err
		}
		f.call = *call
		f.call.Again = call.Again || f.sent != nil
		p.lane = laneOf(call)
		f.sent = w.dispatcher.Send(ctx, []protocol.Call{f.call}, w.observer(ctx, f, p))[0]
	}
	<-f.sent.Done()
	var err error
	f.result, err = f.sent.Result()
	return err
}

// observer notes that the fleet has the call of a job, and journals what the call asks a person.
// Once there is a result, done is closed first.
func (w *followers) observer(ctx context.Context, f *follower, p *pendingCall) func(Update) {
	return func(u Update) {
		if u.State != StateDone {
			f.accept()
		}
		if u.Question != nil || u.Answered != nil {
			w.question(p, u, func(e Event) { _ = w.record(ctx, e) }) // an error ends the run at its next event
		}
	}
}

// newFollower registers what waits for the job of a call. The lock is held.
func (w *followers) newFollower(id protocol.CallID, stop context.CancelCauseFunc) *follower {
	f := &follower{stop: stop, accepted: make(chan struct{}), done: make(chan struct{})}
	f.accept = sync.OnceFunc(func() { close(f.accepted) })
	if w.byCall == nil {
		w.byCall = make(map[protocol.CallID]*follower)
	}
	w.byCall[id] = f
	return f
}

// leaveJobs leaves the jobs that still run to themselves; the next run finds them.
func (w *followers) leaveJobs() {
	w.mu.Lock()
	for _, f := range w.byCall {
		f.stop(ErrDetached)
	}
	w.mu.Unlock()
	w.group.Wait()
}

// errRewound is the cause with which a sub-agent ends that a rewound turn started.
var errRewound = errors.New("the turn that started it was taken out of the conversation")

// followerOf returns what waits for a job that has not ended. It begins to wait for one of an
// earlier run; a job has one follower at a time. If the last one could not learn the end, another
// one tries once more: for a sub-agent only if the model has asked about it, since the error ends
// the run.
func (w *followers) followerOf(ctx context.Context, j *job, asked bool) *follower {
	w.mu.Lock()
	defer w.mu.Unlock()
	if f := w.byCall[j.CallID]; f != nil {
		if !f.failed() || f.err != nil && (!asked || errors.Is(f.err, ErrJournalConflict)) {
			return f
		}
		w.account.add(subtract(protocol.Spending{}, f.counted)) // the next one counts it
	}
	w.recorder.mu.Lock() // results of the step may be journaled meanwhile
	defer w.recorder.mu.Unlock()
	scope, begun := w.scope(w.id), &w.session.turns[j.turn-1]
	tool, plan, failure := w.table.Plan(scope, j.Name, j.Arguments)
	p := &pendingCall{tool: tool, plan: plan, event: Event{Turn: j.turn, Step: j.step, CallFields: j.CallFields}, input: j.Arguments}
	p.event.Arguments, p.place = "", tools.Place{ID: j.CallID, Turn: j.turn, Step: j.step, Index: j.Index}
	bound, err := w.under(begun.terms)
	var judged policy.Verdict
	if failure == nil && err == nil {
		judged = bound.judge(policy.Call{Tool: j.Name, Plan: plan}, "") // it was let through; what binds it on its worker does so still
	}
	var denied *protocol.Error
	if judged.Decision == policy.Denied {
		denied = policyDenied(judged.Reason)
	}
	if failure == nil && p.agent().Background {
		f := w.followAgent(p, denied) //nolint:contextcheck // it outlives the step
		if begun.rewound {
			f.stop(errRewound)
		}
		return f
	}
	var call protocol.Call
	if failure == nil && plan.Payload != nil {
		call, failure = plan.Call(scope, p.place, j.ToolCallID, j.Name, time.Now().UTC())
	}
	if failure == nil && err == nil && plan.Payload != nil && (j.lane == "" || j.lane == laneOf(&call)) {
		call.Again = true
		w.bind(ctx, &call, binding(judged))
		j.bound.applyTo(&call)
		return w.follow(ctx, p, w.resolved(p, j, &call, denied))
	}
	return w.follow(ctx, p, w.resolved(p, j, nil, nil))
}

// resolved returns the call of a job of an earlier run: as it is planned now, or else, if it would
// be sent differently now, as the fleet has it. One that is denied now is sent again only if it was
// sent before. A job ends here if the fleet does not have its call.
func (w *followers) resolved(p *pendingCall, j *job, planned *protocol.Call, denied *protocol.Error) func(context.Context) (*protocol.Call, *Event, error) {
	name, lane, bound := j.Name, j.lane, j.bound
	return func(ctx context.Context) (*protocol.Call, *Event, error) {
		if planned != nil {
			sent := denied == nil
			var err error
			if !sent {
				sent, err = w.wasSent(ctx, name, lane, p.place.ID, true)
			}
			if sent || err != nil {
				return planned, nil, err
			}
			ended := p.localResult(protocol.StatusRejected, "", denied, 0)
			return nil, &ended, nil
		}
		call, result, err := w.findOrVoid(ctx, lane, p.place.ID)
		if call != nil || err != nil {
			return call, nil, err
		}
		ended := p.localResult(protocol.StatusOutcomeUnknown, "", protocol.Errorf(protocol.CodeOutcomeUnknown,
			"The tool %s of this job is not there any more, or another one, so its result cannot be read.", name), 0)
		if result != nil {
			ended = p.result(result)
			ended.Effect = w.effectOf(ctx, w.scope(w.id), p.tool, bound.of(result), result)
		}
		return nil, &ended, nil
	}
}

// resumeJobs waits again for the jobs of an earlier run, whose coordinator may be lost: its
// sub-agents in the background go on while the calls of the step run, and end with the turn.
func (w *followers) resumeJobs(ctx context.Context) {
	for _, j := range w.jobs() {
		if j.ended == nil && !w.opts.Replay.has(&ToolCall{Name: j.Name}) {
			w.followerOf(ctx, &j, false)
		}
	}
}

// recordEndedJobs journals the ends of jobs that have arrived, so that the model gets them in
// its next step, and sees that all others are waited for.
func (w *followers) recordEndedJobs(ctx context.Context) error {
	if err := w.record(ctx, w.recordedEnds()...); err != nil {
		return err
	}
	for _, j := range w.jobs() {
		if j.ended != nil || w.opts.Replay.has(&ToolCall{Name: j.Name}) {
			continue
		}
		f := w.followerOf(ctx, &j, false)
		if !f.hasEnded(ctx) || !f.knowsOutcome() {
			continue // it runs, or the fleet could not be reached
		}
		if _, err := w.endJob(ctx, &j, f, false); err != nil {
			return err
		}
	}
	return nil
}

// storedWait bounds the wait for the fleet to say whether a job of an earlier turn has its result.
const storedWait = 5 * time.Second

// hasEnded reports whether nothing comes any more of a job. It waits for the fleet, which has the
// call or its result, so that a turn begins with the ends of jobs that came between turns.
func (f *follower) hasEnded(ctx context.Context) bool {
	timer := time.NewTimer(storedWait)
	defer timer.Stop()
	select {
	case <-f.done:
		return true
	case <-f.accepted:
	case <-timer.C:
	case <-ctx.Done():
	}
	select {
	case <-f.done:
		return true
	default:
		return false
	}
}

// endJob journals the end of a job once, as its follower has learned it, and returns it.
func (w *followers) endJob(ctx context.Context, j *job, f *follower, told bool) (Event, error) {
	w.ending.Lock()
	defer w.ending.Unlock()
	for _, known := range w.jobs() {
		if known.CallID == j.CallID && known.ended != nil {
			return *known.ended, nil
		}
	}
	event := Event{Type: EventJobEnded, Turn: j.turn, Step: j.step, CallFields: j.CallFields, HandleFields: HandleFields{Job: j.name, Told: told}}
	event.Arguments = ""
	switch {
	case f.ended != nil:
		event.Status, event.ResultFields, event.ReplyFields = f.ended.Status, f.ended.ResultFields, f.ended.ReplyFields
	default:
		event.Status, event.ResultFields = string(f.result.Status), resultFields(f.result, f.tool.Text(f.result))
		event.Checkpoint = f.result.Checkpoint
		event.Effect = w.effectOf(ctx, w.scope(w.id), f.tool, &f.call, f.result)
	}
	w.hookResult(context.WithoutCancel(ctx), j.Arguments, &event)
	return event, w.record(ctx, event)
}

// answerJobRequest answers a request about jobs.
func (w *followers) answerJobRequest(ctx context.Context, request wire.JobRequest, noted *Event) (string, error) {
	all := w.jobs()
	if request.Verb == wire.JobStatus && request.Job == "" {
		return listJobs(all), nil
	}
	var found *job
	names := make([]string, len(all))
	for i := range all {
		if names[i] = all[i].name; names[i] == request.Job {
			found = &all[i]
		}
	}
	if found == nil {
		have := "This session has none."
		if len(names) > 0 {
			have = "The jobs are: " + strings.Join(names, ", ") + "."
		}
		noted.Status = string(protocol.StatusRejected)
		return "", protocol.Errorf(protocol.CodeNotFound, "There is no job %q. %s", request.Job, have)
	}
	if found.ended != nil {
		return endedText(found.ended), nil
	}
	f := w.followerOf(ctx, found, true)
	switch request.Verb {
	case wire.JobWait:
		limited, cancel := context.WithTimeout(ctx, request.Timeout)
		defer cancel()
		f = w.await(limited, found, f)
	case wire.JobCancel:
		f.stop(errJobCancelled)
		select {
		case <-f.done:
		case <-ctx.Done():
		}
	case wire.JobStatus:
	}
	if detached(ctx) {
		return "", context.Cause(ctx) // the next run of the session asks again
	}
	select {
	case <-f.done:
		if f.knowsOutcome() {
			ended, err := w.endJob(ctx, found, f, true)
			if err != nil { // which is the end of this run, too
				return "", protocol.Errorf(protocol.CodeFleetUnavailable, "%v", err)
			}
			return endedText(&ended), nil
		}
		if request.Verb == wire.JobCancel {
			return "", protocol.Errorf(protocol.CodeFleetUnavailable, "The fleet could not be reached, so the job may go on: cancel it again.")
		}
	default:
	}
	return runningText(found), nil
}

// await waits for the end of a job until ctx ends, also if a follower could not learn it. It
// returns the last follower.
func (w *followers) await(ctx context.Context, j *job, f *follower) *follower {
	for {
		select {
		case <-f.done:
		case <-ctx.Done():
			return f
		}
		if f.knowsOutcome() || !pause.For(ctx, pause.Resume) {
			return f
		}
		next := w.followerOf(ctx, j, true)
		if next == f { // another process has it
			return f
		}
		f = next
	}
}

func endedText(e *Event) string {
	return fmt.Sprintf("[%s has ended: %s]\n%s", e.Job, e.Status, e.Content)
}

func runningText(j *job) string {
	return fmt.Sprintf("[%s (%s) runs, since %s]", j.name, j.Name, j.since.Format(time.RFC3339))
}

// listJobs says how every job stands.
func listJobs(all []job) string {
	if len(all) == 0 {
		return "[no jobs]"
	}
	lines := make([]string, len(all))
	for i := range all {
		if lines[i] = runningText(&all[i]); all[i].ended != nil {
			lines[i] = fmt.Sprintf("[%s (%s) has ended: %s]", all[i].name, all[i].Name, all[i].ended.Status)
		}
	}
	return strings.Join(lines, "\n")
}
