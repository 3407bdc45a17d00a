package toolset_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

func TestJobs_Plans(t *testing.T) {
	t.Parallel()
	table := newTable(t, named("jobs")...)
	for _, test := range []struct {
		tool, arguments string
		want            wire.JobRequest
	}{
		{"job_status", `{}`, wire.JobRequest{Verb: wire.JobStatus, Timeout: time.Minute}},
		{"job_wait", `{"job":"j","timeout":"2.5"}`, wire.JobRequest{Verb: wire.JobWait, Job: "j", Timeout: 2500 * time.Millisecond}},
		{"job_cancel", `{"job":"j"}`, wire.JobRequest{Verb: wire.JobCancel, Job: "j", Timeout: time.Minute}},
	} {
		_, plan, refusal := table.Plan(tools.Scope{Session: "s", Sandbox: "s"}, test.tool, test.arguments)
		require.Nil(t, refusal, test.tool)
		require.Equal(t, test.want, plan.Session)
		_, refusal = plan.Call(tools.Scope{Session: "s", Sandbox: "s"}, tools.Place{}, "", test.tool, time.Now())
		require.Equal(t, protocol.CodeInternal, refusal.Code, "it is nothing for a worker")
	}
	for _, arguments := range []string{`{}`, `{"job":""}`, `{"job":"j","timeout":0}`, `{"job":"j","timeout":601}`} {
		_, _, refusal := table.Plan(tools.Scope{}, "job_wait", arguments)
		require.NotNil(t, refusal, arguments)
	}
}
