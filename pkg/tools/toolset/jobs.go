package toolset

import (
	"encoding/json"
	"time"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// Limits of how long job_wait waits.
const (
	jobWaitTimeout    = time.Minute // if the call names none
	maxJobWaitTimeout = 10 * time.Minute
)

// jobsTools returns the tools by which a model follows the calls of tools that run in the
// background ([tools.Plan].Background).
func jobsTools() []tools.Tool {
	const one = `{
		"type": "object",
		"properties": {
			"job": {"type": "string", "minLength": 1, "description": "Handle of the job."}
		},
		"required": ["job"],
		"additionalProperties": false
	}`
	return []tools.Tool{
		{
			Metadata:   tools.Metadata{Effect: tools.Effect{Loop: true}},
			Definition: definition("job_cancel", "Stop a job that runs in the background. Returns how it ended.", one),
			Plan:       planJob(wire.JobCancel),
		},
		{
			Metadata: tools.Metadata{Effect: tools.Effect{Loop: true}},
			Definition: definition("job_status", "Ask how a job stands that runs in the background, or all jobs of this session.", `{
				"type": "object",
				"properties": {
					"job": {"type": "string", "description": "Handle of the job. Default: all jobs."}
				},
				"additionalProperties": false
			}`),
			Plan: planJob(wire.JobStatus),
		},
		{
			Metadata: tools.Metadata{Effect: tools.Effect{Loop: true}},
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
			Plan: planJob(wire.JobWait),
		},
	}
}

type jobArguments struct {
	Job     string  `json:"job"`
	Timeout float64 `json:"timeout"`
}

func planJob(verb wire.JobVerb) func(tools.Scope, json.RawMessage) (tools.Plan, *protocol.Error) {
	return tools.PlanOf(func(_ tools.Scope, args jobArguments) (tools.Plan, *protocol.Error) {
		return tools.Plan{Session: wire.JobRequest{Verb: verb, Job: args.Job, Timeout: min(seconds(args.Timeout, jobWaitTimeout), maxJobWaitTimeout)}}, nil
	})
}
