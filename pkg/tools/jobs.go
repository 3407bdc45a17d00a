package tools

import (
	"time"
)

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
