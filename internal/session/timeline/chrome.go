package timeline

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"

	"github.com/toolfleet/toolfleet/pkg/fleet/report"
)

// chromeEvent is an event of the Trace Event Format, which Perfetto, chrome://tracing and others
// open. Times are in microseconds.
type chromeEvent struct {
	Name  string         `json:"name"`
	Class string         `json:"cat,omitempty"`
	Phase string         `json:"ph"` // "X" has a duration, "M" names a process or a track
	At    float64        `json:"ts"`
	Took  float64        `json:"dur,omitempty"`
	PID   int            `json:"pid"`
	Track int            `json:"tid"`
	Args  map[string]any `json:"args,omitempty"`
}

// WriteChrome writes a trace in the Trace Event Format: a track for each of the spans that overlap,
// with their parts below them.
func WriteChrome(to io.Writer, t *report.Trace) error {
	events := []chromeEvent{{Name: "process_name", Phase: "M", Args: map[string]any{"name": fmt.Sprintf("session %s, turn %d", t.SessionID, t.Turn)}}}
	var free []float64 // when the last span of each track ends
	for i := range t.Spans {
		s := &t.Spans[i]
		track := slices.IndexFunc(free, func(end float64) bool { return end <= s.StartMS })
		if track < 0 {
			track, free = len(free), append(free, 0)
		}
		free[track] = s.StartMS + s.DurationMS
		args := map[string]any{"state": s.State, "session_id": s.SessionID, "step": s.Step}
		for key, value := range map[string]string{"call_id": string(s.CallID), "worker_id": string(s.WorkerID), "lane": s.Lane, "code": string(s.Code), "level": s.Level} {
			if value != "" {
				args[key] = value
			}
		}
		events = append(events, chromeEvent{
			Name: cmp.Or(s.About, s.Name), Class: string(s.Kind), Phase: "X", At: micros(s.StartMS), Took: micros(s.DurationMS), Track: track, Args: args,
		})
		for _, p := range s.Parts {
			e := chromeEvent{Name: p.Reason.Words(), Class: string(p.Reason.Class()), Phase: "X", At: micros(p.StartMS), Took: micros(p.MS), Track: track}
			if p.For != "" {
				e.Args = map[string]any{"for": p.For}
			}
			events = append(events, e)
		}
	}
	encoder := json.NewEncoder(to)
	return encoder.Encode(map[string]any{
		"traceEvents": events, "displayTimeUnit": "ms",
		"otherData": map[string]any{"started_at": t.StartedAt, "state": t.State, "model": t.Model},
	})
}

func micros(ms float64) float64 { return rounded(ms * 1000) }
