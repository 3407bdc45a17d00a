package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/toolfleet/toolfleet/internal/session"
	"github.com/toolfleet/toolfleet/internal/terminal"
)

// printSessions prints a table of sessions.
func printSessions(w io.Writer, list []session.Info) error {
	if len(list) == 0 {
		_, err := fmt.Fprintln(w, "there are no sessions")
		return err
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "PROMPT\tSTATE\tCHANGED\tWHO\tTURNS\tSTEPS\tCALLS\tSESSION") // Flush tells of errors
	for i := range list {
		s := &list[i]
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%d\t%d\t%d\t%s\n", orDash(promptOf(s.Prompt, 40)), cmp.Or(string(s.State), "-"), ago(s.UpdatedAt),
			orDash(printableName(s.By)), s.Turns, s.Steps, s.ToolCalls, s.SessionID)
	}
	return table.Flush()
}

// printSession prints a session and a table of its turns.
func printSession(w io.Writer, s *session.Info) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := func(name, value string) {
		_, _ = fmt.Fprintf(table, "%s\t%s\n", name, value) // Flush tells of errors
	}
	line("session", string(s.SessionID))
	line("state", cmp.Or(string(s.State), "-"))
	for _, wait := range s.Waits {
		line("waits", printableName(wait))
	}
	if s.CreatedAt != nil {
		line("created", s.CreatedAt.UTC().Format(time.RFC3339)+" ("+ago(*s.CreatedAt)+" ago)")
	}
	line("changed", s.UpdatedAt.UTC().Format(time.RFC3339)+" ("+ago(s.UpdatedAt)+" ago)")
	line("model", orDash(printableName(s.Model)))
	line("workspace", orDash(printableName(s.Workspace)))
	line("work", terminal.Plural(s.Turns, "turn")+", "+terminal.Plural(s.Steps, "step")+", "+terminal.Plural(s.ToolCalls, "tool call"))
	line("tokens", fmt.Sprintf("%d input, %d output", s.Usage.InputTokens, s.Usage.OutputTokens))
	line("journal", fmt.Sprintf("%d messages, %s", s.Messages, bytesOf(s.JournalBytes)))
	line("results", strconv.FormatUint(s.Results, 10))
	line("kept", fmt.Sprintf("%d bodies, %s", s.Bodies, bytesOf(s.BodyBytes)))
	if s.DiskBytes > 0 {
		line("disk", bytesOf(s.DiskBytes))
	}
	if err := table.Flush(); err != nil || len(s.History) == 0 {
		return err
	}
	_, _ = fmt.Fprintln(w)
	traced, trace := slices.ContainsFunc(s.History, func(t session.Turn) bool { return t.TraceID != "" }), "TRACE\t"
	if !traced {
		trace = ""
	}
	_, _ = fmt.Fprintln(table, "TURN\tSTATE\tSTARTED\tSTEPS\tCALLS\t"+trace+"PROMPT")
	for _, t := range s.History {
		if traced {
			trace = orDash(printableName(t.TraceID)) + "\t"
		}
		_, _ = fmt.Fprintf(table, "%d\t%s\t%s\t%d\t%d\t%s%s\n", t.Turn, cmp.Or(string(t.State), "-"), t.StartedAt.UTC().Format(time.RFC3339), t.Steps, t.ToolCalls, trace, promptOf(t.Input, 60))
	}
	return table.Flush()
}

// promptOf is the beginning of a prompt, on one line.
func promptOf(text string, most int) string {
	text = strings.Join(strings.Fields(text), " ")
	if runes := []rune(text); len(runes) > most {
		text = string(runes[:most]) + "..."
	}
	return printableName(text)
}

// ago is how long something is ago, roughly.
func ago(at time.Time) string {
	d := max(time.Since(at), 0)
	switch {
	case d < time.Minute:
		return strconv.Itoa(int(d.Seconds())) + "s"
	case d < time.Hour:
		return strconv.Itoa(int(d.Minutes())) + "m"
	case d < 48*time.Hour:
		return strconv.Itoa(int(d.Hours())) + "h"
	default:
		return strconv.Itoa(int(d.Hours()/24)) + "d"
	}
}

// bytesOf is a size as people read it.
func bytesOf[N int64 | uint64](n N) string {
	const unit = 1024
	if n == 0 {
		return "-"
	}
	value, units := float64(n), []string{"B", "KiB", "MiB", "GiB", "TiB"}
	for value >= unit && len(units) > 1 {
		value, units = value/unit, units[1:]
	}
	if units[0] == "B" {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", value, units[0])
}
