package webui_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"github.com/toolfleet/toolfleet/internal/session/timeline"
	"github.com/toolfleet/toolfleet/internal/webui"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// TestPlots_DrawTheNumbers: the bars of a minute add up to its calls.
func TestPlots_DrawTheNumbers(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 30, 14, 0, 0, 0, time.UTC)
	rates := report.CallRates{StepMS: 60_000, Buckets: []report.CallRate{
		{At: at, Calls: 10, Failed: 4, RunP50MS: 20, RunP95MS: 40, WaitP50MS: 1, WaitP95MS: 2},
		{At: at.Add(time.Minute)},
		{
			At: at.Add(2 * time.Minute), Calls: 5, RunP50MS: 10, RunP95MS: 80,
			Waits: report.CallWaits{Waits: protocol.Waits{SlotMS: 300, LaneMS: 500, AfterMS: 100, LimitMS: 50, RateMS: 50}, PersonMS: 1000},
		},
	}}
	bars := webui.Bars(rates)
	require.Equal(t, map[string][]float64{"bad": {32, 0, 0}, "ok": {48, 0, 40}}, bars[0])
	require.Equal(t, map[string][]float64{"run2": {40, 0, 80}, "run": {20, 0, 10}}, bars[1])
	require.Equal(t, map[string][]float64{"w1": {0, 0, 12}, "w2": {0, 0, 24}, "w3": {0, 0, 4}, "w5": {0, 0, 40}}, bars[3])
	require.Empty(t, webui.Bars(report.CallRates{Buckets: []report.CallRate{{}, {}}})[0], "nothing ended")
}

// TestPlots_HaveEachWait: a wait that the log has is in a plot, but for the start time that a call
// has asked for.
func TestPlots_HaveEachWait(t *testing.T) {
	t.Parallel()
	logged := []report.Reason{}
	for _, p := range timeline.Waits(&report.CallWaits{}, 0) {
		if p.Reason != report.ReasonNotBefore {
			logged = append(logged, p.Reason)
		}
	}
	require.ElementsMatch(t, logged, webui.PlottedWaits())
}

// TestPlots_AreOfTheLog: the page of the fleet has the plots of what ended, with their numbers.
func TestPlots_AreOfTheLog(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.signIn(operator)
	s.run("work", "go", calls("bash", `{"command": "true"}`), calls("read", `{"path": "none"}`), says("Done."))
	s.until("/calls", "read none")
	_, body, _ := s.get("/fleet/plots")
	require.Contains(t, body, "2 calls ended, 1 of them not with ok")
	root, err := html.Parse(strings.NewReader(body))
	require.NoError(t, err)
	drawn := 0
	for node := range root.Descendants() {
		if node.Data == "svg" && len(node.Attr) > 0 {
			for _, a := range node.Attr {
				if a.Key == "aria-label" {
					drawn++
				}
				require.NotEqual(t, "style", a.Key)
			}
		}
	}
	require.Equal(t, 4, drawn)
}
