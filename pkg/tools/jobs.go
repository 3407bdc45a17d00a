package tools

import (
	"encoding/json"
	"time"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// JobsToolset is the name of the toolset that [Jobs] returns.
const JobsToolset = "jobs"

// JobVerb is what is done about a job: a call of a tool that runs in the background.
type JobVerb string

// The verbs.
const (
	JobStatus JobVerb = "status"
	JobWait   JobVerb = "wait"
	JobCancel JobVerb = "cancel"
)

// JobRequest is the plan of a tool about jobs. The session's loop carries it out.
type JobRequest struct {
	Verb JobVerb
	// Job is the handle of the job; "" of status means all jobs of the session.
	Job string
	// Timeout is how long wait waits.
	Timeout time.Duration
}

// Bounds of how long job_wait waits.
const (
	JobWaitTimeout    = time.Minute // when the call names none
	MaxJobWaitTimeout = 10 * time.Minute
)

// Jobs returns the tools by which a model follows the calls of tools that run in the
// background ([Plan].Background).
func Jobs() []Tool {
	const one = `{
		"type": "object",
		"properties": {
			"job": {"type": "string", "minLength": 1, "description": "Handle of the job."}
		},
		"required": ["job"],
		"additionalProperties": false
	}`
	return []Tool{
		{
			Definition: definition("job_cancel", "Stop a job that runs in the background. Returns how it ended.", one),
			Plan:       planJob(JobCancel),
		},
		{
			Definition: definition("job_status", "Ask how a job stands that runs in the background, or all jobs of this session.", `{
				"type": "object",
				"properties": {
					"job": {"type": "string", "description": "Handle of the job. Default: all jobs."}
				},
				"additionalProperties": false
			}`),
			Plan: planJob(JobStatus),
		},
		{
			Definition: definition("job_wait",
				"Wait until a job that runs in the background has ended, and get its result. You are told of its end in any case: wait only when you can do nothing else.", `{
				"type": "object",
				"properties": {
					"job": {"type": "string", "minLength": 1, "description": "Handle of the job."},
					"timeout": {"type": "number", "exclusiveMinimum": 0, "maximum": 600, "description": "Seconds to wait at most. Default: 60."}
				},
				"required": ["job"],
				"additionalProperties": false
			}`),
			Plan: planJob(JobWait),
		},
	}
}

type jobArguments struct {
	Job     string  `json:"job"`
	Timeout float64 `json:"timeout"`
}

func planJob(verb JobVerb) func(Scope, json.RawMessage) (Plan, *protocol.Error) {
	return planOf(func(_ Scope, args jobArguments) (Plan, *protocol.Error) {
		return Plan{Job: &JobRequest{Verb: verb, Job: args.Job, Timeout: min(seconds(args.Timeout, JobWaitTimeout), MaxJobWaitTimeout)}}, nil
	})
}
