package worker_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/telemetry"
	"github.com/toolfleet/toolfleet/internal/telemetry/genaiconv"
	"github.com/toolfleet/toolfleet/internal/telemetry/metrictest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// TestMetrics_TellWhatWasDone counts calls that ran, one way or the other, and one that was not
// run.
func TestMetrics_TellWhatWasDone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	m := metrictest.New(t)
	o := r.options()
	o.Meter, o.Slots, o.Linger, o.Alone = m, 3, patience, true
	_, stop := r.work(o)
	session := protocol.NewSessionID()
	requireOK(t, r.do(session, protocol.CommandRun{Command: "true"}))
	requireOK(t, r.do(session, protocol.CommandRun{Command: "exit 3"}))
	requireFault(t, r.do(session, protocol.CommandRun{Command: "sleep 60", Limits: protocol.Limits{Wall: 1}}), protocol.StatusTimeout, protocol.CodeRunTimeout)
	requireFault(t, r.do(session, protocol.FilesRead{Path: "missing"}), protocol.StatusFailed, protocol.CodeNotFound)
	refused := newCall(session, wire.Noop{})
	refused.MinLevel = isolation.LevelFull.String()
	requireFault(t, r.dispatch(t.Context(), refused), protocol.StatusRejected, codes.SandboxLevel)

	const test, none = "gen_ai.tool.name=test", "toolfleet.sandbox.driver=process,toolfleet.sandbox.level=none"
	const pool = "toolfleet.pool=default"
	require.Equal(t, map[string]int64{pool: 3}, m.Read(t, telemetry.MetricSlotLimit))
	require.Equal(t, map[string]int64{pool: 1}, m.Read(t, telemetry.MetricLaneHeld), "it lingers")
	require.Equal(t, map[string]int64{none: 1}, m.Read(t, telemetry.MetricSandboxCount))

	stop() // what was counted just behind the last result is there now
	require.Equal(t, map[string]int64{
		test + "," + pool + ",toolfleet.status=ok":                                     2,
		"error.type=run_timeout," + test + "," + pool + ",toolfleet.status=timeout":    1,
		"error.type=not_found," + test + "," + pool + ",toolfleet.status=failed":       1,
		"error.type=sandbox_level," + test + "," + pool + ",toolfleet.status=rejected": 1,
	}, m.Read(t, telemetry.MetricCallEnded))
	require.Equal(t, map[string]int64{
		test + "," + pool: 2, "error.type=run_timeout," + test + "," + pool: 1, "error.type=not_found," + test + "," + pool: 1,
		"error.type=sandbox_level," + test + "," + pool: 1,
	}, m.Read(t, genaiconv.MetricTool))
	require.Equal(t, map[string]int64{pool: 5}, m.Read(t, telemetry.MetricQueueTime))
	require.Equal(t, map[string]int64{pool: 5}, m.Read(t, telemetry.MetricLaneTime))
	require.Equal(t, map[string]int64{none: 1}, m.Read(t, telemetry.MetricSandboxOpening), "the one in which the worker looked for languages is none of a lane")
	require.Equal(t, map[string]int64{
		"toolfleet.reason=exited," + none: 2, "toolfleet.reason=timeout," + none: 1,
	}, m.Read(t, telemetry.MetricCommandEnded))
	require.Empty(t, m.Read(t, telemetry.MetricCallRepeated))
	require.Equal(t, map[string]int64{pool: 0}, m.Read(t, telemetry.MetricLeaseLost), "it begins before there is one")
	require.Equal(t, map[string]int64{none: 0}, m.Read(t, telemetry.MetricSandboxCount))
	require.Empty(t, m.Read(t, telemetry.MetricSlotLimit), "a worker that has ended tells nothing")
}
