package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/fleet/report"
)

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
