package loop

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// runJobTool carries out a tool call about jobs.
func (t *turnRun) runJobTool(ctx context.Context, p *pendingCall, settle func(Event)) {
	ctx, span := t.startTool(ctx, p)
	defer span.End()
	start := time.Now()
	status, text, fault := t.aboutJob(ctx, *p.plan.Job)
	if detached(ctx) {
		return // whoever goes on with the session asks again
	}
	if fault != nil {
		failSpan(span, fault)
	}
	settle(p.local(status, text, fault, time.Since(start)))
}

// aboutJob answers a request about jobs.
func (t *turnRun) aboutJob(ctx context.Context, request tools.JobRequest) (protocol.Status, string, *protocol.Error) {
	all := t.jobs()
	if request.Verb == tools.JobStatus && request.Job == "" {
		return protocol.StatusOK, listJobs(all), nil
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
		return protocol.StatusRejected, "", protocol.Errorf(protocol.CodeNotFound, "There is no job %q. %s", request.Job, have)
	}
	if found.ended != nil {
		return protocol.StatusOK, endedText(found.ended), nil
	}
	f := t.followerOf(ctx, found)
	if f == nil {
		return t.jobEnd(ctx, found, nil)
	}
	switch request.Verb {
	case tools.JobWait:
		timer := time.NewTimer(request.Timeout)
		defer timer.Stop()
		select {
		case <-f.done:
		case <-timer.C:
		case <-ctx.Done():
		}
	case tools.JobCancel:
		f.stop(errJobCancelled)
		select {
		case <-f.done:
		case <-ctx.Done():
		}
	case tools.JobStatus:
	}
	select {
	case <-f.done:
		if f.result != nil {
			return t.jobEnd(ctx, found, f)
		}
	default:
	}
	return protocol.StatusOK, runningText(found), nil
}

// jobEnd journals the end of a job, of which the model hears by this answer.
func (t *turnRun) jobEnd(ctx context.Context, j *job, f *follower) (protocol.Status, string, *protocol.Error) {
	ended, err := t.endJob(ctx, j, f, true)
	if err != nil { // which is the end of this run, too
		return protocol.StatusFailed, "", protocol.Errorf(protocol.CodeFleetUnavailable, "%v", err)
	}
	return protocol.StatusOK, endedText(&ended), nil
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
