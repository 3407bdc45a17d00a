package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/fleet/report"
)

// TestCalls_AClockThatIsAheadHidesNoCall: --follow asks for what may still come from all workers,
// whatever the clock of one of them says.
func TestCalls_AClockThatIsAheadHidesNoCall(t *testing.T) {
	t.Parallel()
	now := time.Now()
	ahead, usual := report.LoggedCall{FinishedAt: now.Add(24 * time.Hour)}, report.LoggedCall{FinishedAt: now.Add(-time.Second)}
	require.Equal(t, now.Add(-followLate), followFrom(time.Time{}, now, []report.LoggedCall{ahead, usual}))
	require.Equal(t, usual.FinishedAt.Add(-followLate), followFrom(time.Time{}, now, []report.LoggedCall{usual}))
	require.Equal(t, now, followFrom(now, now, []report.LoggedCall{usual}), "never back")
}

// TestCalls_NoCellIsAFormula: a text of a model or a tool does nothing in a spreadsheet.
func TestCalls_NoCellIsAFormula(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"=1+1", "+1", "-1", "@SUM(1)", "\t=1", "\r=1", "\n=1", "＝1+1", "＠SUM(1)"} {
		row := cells(&report.LoggedCall{Output: text, Tool: text, Lane: text})
		require.Equal(t, "'"+text, row[len(row)-1])
		require.NotContains(t, row, text)
	}
	row := cells(&report.LoggedCall{Output: "é=1"})
	require.Equal(t, "é=1", row[len(row)-1])
}
