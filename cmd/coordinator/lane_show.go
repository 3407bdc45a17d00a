package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
)

// printLanes prints a table of lanes.
func printLanes(w io.Writer, lanes []report.Lane) error {
	if len(lanes) == 0 {
		_, err := fmt.Fprintln(w, "no lane has calls, a holder or a pause")
		return err
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "LANE\tPOOL\tSTATE\tWAITING\tOLDEST\tHOLDER\tHELD\tRUNNING") // Flush tells of errors
	for _, s := range lanes {
		name := prose.OneLine(string(s.Lane))
		if s.Lane == "" {
			name = "(hash " + s.Hash + ")"
		}
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\n",
			name, s.Pool, s.State, s.Waiting, age(s.OldestMS), orDash(string(s.Holder)), age(s.HeldMS), running(s.Running))
	}
	return table.Flush()
}

// printLane prints a lane and a table of its calls.
func printLane(w io.Writer, v *report.LaneCalls) error {
	_, _ = fmt.Fprintf(w, "lane %s, pool %s: %s", prose.OneLine(string(v.Lane.Lane)), v.Pool, v.State) // Flush tells of errors
	if v.Holder != "" {
		_, _ = fmt.Fprintf(w, ", held by %s for %s", v.Holder, age(v.HeldMS))
	}
	_, _ = fmt.Fprintf(w, ", %d running, %d waiting", len(v.Running), v.Waiting)
	if v.Delayed > 0 {
		_, _ = fmt.Fprintf(w, ", %d delayed", v.Delayed)
	}
	if v.WaitsFor != "" {
		_, _ = fmt.Fprintf(w, "; the next call waits for: %s", prose.OneLine(v.WaitsFor))
	}
	_, _ = fmt.Fprintln(w)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if len(v.Calls) > 0 {
		_, _ = fmt.Fprintln(table, "CALL\tTOOL\tSESSION\tSTATE\tACCEPTED\tAGE\tATTEMPT\tSTARTS\tRESOURCES")
	}
	for _, c := range v.Calls {
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n",
			c.CallID, orDash(prose.OneLine(c.Tool)), c.SessionID, state(c), c.AcceptedAt.UTC().Format(time.RFC3339), age(c.AgeMS),
			attempt(c), starts(c.Starts), resources(c))
	}
	for i := range v.Calls {
		if c := &v.Calls[i]; c.WaitsFor != "" {
			_, _ = fmt.Fprintln(table, waitsFor(c))
		}
	}
	return table.Flush()
}

func state(c report.Call) string {
	if !c.NotBefore.IsZero() {
		return c.State + " until " + c.NotBefore.UTC().Format(time.RFC3339)
	}
	return c.State
}

func attempt(c report.Call) string {
	if c.Attempt == 0 {
		return "-"
	}
	return fmt.Sprintf("%d (%s)", c.Attempt, age(c.RunningMS))
}

func starts(marks []report.Start) string {
	words := make([]string, len(marks))
	for i, mark := range marks {
		words[i] = fmt.Sprintf("%d by %s", mark.Attempt, prose.OneLine(string(mark.WorkerID)))
	}
	return orDash(strings.Join(words, ", "))
}

// shownUses bounds the resources of a call in a table.
const shownUses = 3

func resources(c report.Call) string {
	if c.Fault != "" {
		return "(not readable: " + prose.OneLine(c.Fault) + ")"
	}
	words := make([]string, 0, len(c.Resources))
	for i, use := range c.Resources {
		if i == shownUses {
			words = append(words, fmt.Sprintf("and %d more", len(c.Resources)-i))
			break
		}
		words = append(words, string(use.Access)+" "+prose.OneLine(string(use.Key)))
	}
	return strings.Join(words, ", ")
}

// running names the call that has been running longest.
func running(calls []report.RunningCall) string {
	if len(calls) == 0 {
		return "-"
	}
	first := calls[0]
	name := prose.OneLine(first.Tool)
	if name == "" {
		name = string(first.CallID)
	}
	text := fmt.Sprintf("%s (attempt %d, %s)", name, first.Attempt, age(first.RunningMS))
	if more := len(calls) - 1; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// age formats a duration in milliseconds.
func age(ms int64) string {
	d := time.Duration(ms) * time.Millisecond
	switch {
	case ms == 0:
		return "-"
	case d < time.Second:
		return d.String()
	case d < 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// waitsFor is a sentence about a call that waits for a worker that meets its requirements.
func waitsFor(c *report.Call) string {
	return fmt.Sprintf("%s, call %s, waits for: %s", prose.OneLine(c.Tool), c.CallID, prose.OneLine(c.WaitsFor))
}
