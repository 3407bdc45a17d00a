package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/cli/environment"
	"github.com/toolfleet/toolfleet/internal/inplace/gitguard"
	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/session/index"
	"github.com/toolfleet/toolfleet/internal/system/moment"
	"github.com/toolfleet/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/internal/terminal/prompt"
	"github.com/toolfleet/toolfleet/internal/workspace/backup"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func (c *sessionCommand) list(ctx context.Context, p program, all *opened) error {
	limit, since := c.Ls.Limit, c.Ls.Since.Before(time.Now())
	if c.Ls.State != "" || !since.IsZero() { // the filter may leave out any
		limit = math.MaxInt
	}
	of := all.List
	if all.local != nil {
		of = all.local.List
		if earlier := environment.EarlierSessions(); earlier != "" && c.Data == "" {
			p.warn(earlier)
		}
	}
	list, leftOut, err := of(ctx, limit)
	if err != nil {
		return err
	}
	list = slices.DeleteFunc(list, func(s report.Session) bool {
		return c.Ls.State != "" && report.StateWords(s.State) != report.StateWords(c.Ls.State) || s.UpdatedAt.Before(since)
	})
	if len(list) > c.Ls.Limit {
		leftOut, list = leftOut+len(list)-c.Ls.Limit, list[:c.Ls.Limit]
	}
	if c.JSON {
		if list == nil {
			list = []report.Session{}
		}
		err = printJSON(p, list)
	} else {
		err = printSessions(p.out(), list)
	}
	if leftOut > 0 && err == nil {
		_, err = fmt.Fprintf(p.Stderr, "%d more sessions are not printed (--limit)\n", leftOut)
	}
	return err
}

func (c *sessionCommand) show(ctx context.Context, p program, all *opened) error {
	info, err := all.Show(ctx, all.id)
	if err != nil {
		return err
	}
	info.Waits = append(info.Waits, c.waits(info)...)
	waiting := []string{report.StateOpen, report.StateInUse, report.StateWaitsForWorker, report.StateWaitsForCoordinator}
	if info.State == report.StateLost {
		info.Waits = append(info.Waits, fmt.Sprintf("the process that ran turn %d was lost; it continues with: coordinator run%s --session %s --model %s",
			info.Turns, c.Reach(), all.id, cli.ShellWord(info.Model)))
	} else if slices.Contains(waiting, info.State) {
		used(ctx, all, info)
	}
	if c.JSON {
		return printJSON(p, info)
	}
	return printSession(p.out(), info, c.Reach())
}

// used adds to an open session whether something of it runs or waits, and for what, if the user may
// look at lanes.
func used(ctx context.Context, all *opened, info *report.Session) {
	calls, err := all.Unfinished(ctx, info.SessionID)
	if err != nil || len(calls) == 0 {
		return
	}
	if info.State == report.StateOpen {
		info.State = report.StateInUse
	}
	for i := range calls {
		if calls[i].WaitsFor != "" {
			info.Waits = append(info.Waits, waitsFor(&calls[i]))
		}
	}
}

// attach follows the running or waiting turn of a session, as submit does, or shows the last one.
// Leaving it stops nothing.
func (c *sessionCommand) attach(ctx context.Context, p program, all *opened) error {
	ctx, stop := cli.Signals(ctx, func() { os.Exit(cli.ExitInterrupted) })
	defer stop()
	client := all.client
	show, err := newView(p, &viewFlags{JSON: c.JSON, Plain: c.Attach.Plain, fleet: true})
	if err != nil {
		return err
	}
	defer show.screen.Close()
	show.screen.DeferChanges()
	answers := prompt.NewAnswers(prompt.New(p.Stdin, show.screen, prompt.StoredFiles(client, all.id)), client, c.Reach(), show.warn)
	defer answers.Close()
	silent, err := show.output(ctx, client, all.id)
	if err != nil {
		return err
	}
	defer silent()
	result, err := all.Follow(ctx, all.id, show.observe, func(e loop.Event) { answers.Observe(ctx, e) })
	if ctx.Err() != nil {
		return &cli.ExitError{Code: cli.ExitInterrupted, Message: "detached; the turn continues (session cancel ends it)"}
	}
	if err != nil {
		return err
	}
	show.stored(ctx, client, all.id)
	return finish(ctx, show, all.id, result, nil, &gitguard.Report{}, "")
}

// history loads the journal of a session that exists.
func history(ctx context.Context, all *opened) (loop.History, error) {
	history, err := all.Log(ctx, all.id)
	if errors.Is(err, fleet.ErrNotFound) {
		if _, showErr := all.Show(ctx, all.id); showErr == nil { // no coordinator has begun its first turn
			err = fmt.Errorf("session %s: its turn waits for a coordinator; session show says for what, session attach follows it", all.id)
		}
	}
	return history, err
}

// log prints a session as run shows it, with --json as run --json does.
func (c *sessionCommand) log(ctx context.Context, p program, all *opened) error {
	history, err := history(ctx, all)
	if err != nil {
		return err
	}
	printed := newJSONEvents(terminal.JSONWriter(p.Stdout))
	if c.JSON {
		for _, e := range history.Events {
			printed.observe(e)
		}
		return printed.failed
	}
	view := terminal.New(p.Stdout, &terminal.Options{Color: terminal.ColorWanted(p.Stdout, p.Getenv), Width: terminal.Width(p.Stdout)})
	for _, e := range behindReplies(history.Events) {
		view.Observe(e)
	}
	info, err := all.Show(ctx, all.id)
	if err != nil {
		return err
	}
	for _, wait := range c.waits(info) {
		view.Notice("%s", wait)
	}
	return nil
}

// behindReplies moves calls that started while their reply was streaming behind that reply, which
// says what they are for.
func behindReplies(events []loop.Event) []loop.Event {
	ordered := make([]loop.Event, 0, len(events))
	var replied loop.Event
	var early []loop.Event
	for _, e := range events {
		if e.Type == loop.EventToolCall && (e.Turn != replied.Turn || e.Step != replied.Step) {
			early = append(early, e)
			continue
		}
		if ordered = append(ordered, e); e.Type == loop.EventModelReply {
			ordered, early, replied = append(ordered, early...), nil, e
		}
	}
	return append(ordered, early...)
}

// waits are sentences about what a session asks a person.
func (c *sessionCommand) waits(info *report.Session) (waits []string) {
	if a := info.Approval; a != nil && info.State == report.StateWaitsForApproval {
		waits = append(waits, prompt.WaitsForApproval(loop.ApprovalRequest{
			SessionID: a.SessionID, CallID: a.CallID, Tool: a.Tool, Arguments: a.Arguments, Reason: a.Reason,
		}, c.Reach()))
	}
	if info.State == report.StateWaitsForAnswer {
		for i := range info.Questions {
			waits = append(waits, prompt.WaitsForAnswer(&info.Questions[i], c.Reach()))
		}
	}
	return waits
}

// export prints the journal, or the transcript.
func (c *sessionCommand) export(ctx context.Context, p program, all *opened) error {
	history, err := history(ctx, all)
	if err != nil {
		return err
	}
	if c.Export.Transcript {
		return history.Transcript(terminal.JSONWriter(p.Stdout))
	}
	return history.Export(terminal.JSONWriter(p.Stdout), all.id)
}

// printSessions prints a table of sessions.
func printSessions(w io.Writer, list []report.Session) error {
	if len(list) == 0 {
		_, err := fmt.Fprintln(w, "there are no sessions")
		return err
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "PROMPT\tSTATE\tCHANGED\tWHO\tTURNS\tSTEPS\tCALLS\tSESSION") // Flush tells of errors
	eachBelow(list, func(s *report.Session, depth int) {
		who := s.By
		if s.State == report.StateWorkspaceOnly {
			who = string(s.Tenant)
		}
		_, _ = fmt.Fprintf(table, "%s%s\t%s\t%s\t%s\t%d\t%d\t%d\t%s\n", strings.Repeat("  ", depth),
			orDash(promptOf(s.Prompt, 40)), cmp.Or(report.StateWords(s.State), "-"), terminal.Ago(s.UpdatedAt),
			orDash(prose.OneLine(who)), s.Turns, s.Steps, s.ToolCalls, prose.OneLine(string(s.SessionID)))
	})
	return table.Flush()
}

// eachBelow calls do for each session, and right after it for its sub-agents and forks in the list.
func eachBelow(list []report.Session, do func(s *report.Session, depth int)) {
	below := map[protocol.SessionID][]int{}
	for i := range list {
		parent := list[i].Parent
		if parent == list[i].SessionID || !slices.ContainsFunc(list, func(s report.Session) bool { return s.SessionID == parent }) {
			parent = ""
		}
		below[parent] = append(below[parent], i)
	}
	var each func(parent protocol.SessionID, depth int)
	each = func(parent protocol.SessionID, depth int) {
		for _, i := range below[parent] {
			do(&list[i], depth)
			each(list[i].SessionID, depth+1)
		}
	}
	each("", 0)
}

// printSession prints a session and a table of its turns. reach are the flags of other commands.
func printSession(w io.Writer, s *report.Session, reach string) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := func(name, value string) {
		_, _ = fmt.Fprintf(table, "%s\t%s\n", name, value) // Flush tells of errors
	}
	line("session", string(s.SessionID))
	line("state", cmp.Or(report.StateWords(s.State), "-"))
	if s.Parent != "" {
		line("parent", string(s.Parent))
	}
	if s.Tenant != "" {
		line("tenant", string(s.Tenant))
	}
	if s.Owner != "" {
		line("owner", prose.OneLine(s.Owner))
	}
	for _, wait := range s.Waits {
		line("waits", prose.OneLine(wait))
	}
	for _, u := range s.Unknown {
		line("unknown",
			fmt.Sprintf("call %s of %s: coordinator session resolve%s %s %s --happened, or --did-not", u.CallID, prose.OneLine(u.Tool), reach, s.SessionID, u.CallID))
	}
	if s.CreatedAt != nil {
		line("created", s.CreatedAt.UTC().Format(time.RFC3339)+" ("+terminal.Ago(*s.CreatedAt)+" ago)")
	}
	line("changed", s.UpdatedAt.UTC().Format(time.RFC3339)+" ("+terminal.Ago(s.UpdatedAt)+" ago)")
	line("model", orDash(prose.OneLine(s.Model)))
	line("workspace", orDash(prose.OneLine(s.Workspace)))
	line("work", terminal.Plural(s.Turns, "turn")+", "+terminal.Plural(s.Steps, "step")+", "+terminal.Plural(s.ToolCalls, "tool call"))
	line("tokens", fmt.Sprintf("%d input, %d output", s.Usage.InputTokens, s.Usage.OutputTokens))
	if cost := "unknown: this model has no price (--price)"; s.CostUSD != nil {
		line("cost", fmt.Sprintf("$%.4f", *s.CostUSD))
	} else if s.Usage.Total() > 0 {
		line("cost", cost)
	}
	line("journal", fmt.Sprintf("%d messages, %s", s.Messages, bytesOf(s.JournalBytes)))
	line("results", strconv.FormatUint(s.Results, 10))
	line("kept", fmt.Sprintf("%d bodies, %s", s.Bodies, bytesOf(s.BodyBytes)))
	if len(s.StoredTurns) > 0 {
		line("files", "stored at the end of "+backup.TurnsText(s.StoredTurns))
	}
	if s.DiskBytes > 0 {
		line("disk", bytesOf(s.DiskBytes))
	}
	if err := table.Flush(); err != nil || len(s.History) == 0 {
		return err
	}
	_, _ = fmt.Fprintln(w)
	traced, trace := slices.ContainsFunc(s.History, func(t report.Turn) bool { return t.TraceID != "" }), "TRACE\t"
	if !traced {
		trace = ""
	}
	_, _ = fmt.Fprintln(table, "TURN\tSTATE\tSTARTED\tSTEPS\tCALLS\t"+trace+"PROMPT")
	for _, t := range s.History {
		if traced {
			trace = orDash(prose.OneLine(t.TraceID)) + "\t"
		}
		_, _ = fmt.Fprintf(table, "%d\t%s\t%s\t%d\t%d\t%s%s\n", t.Turn, cmp.Or(report.StateWords(t.State), "-"),
			t.StartedAt.UTC().Format(time.RFC3339), t.Steps, t.ToolCalls, trace, promptOf(t.Input, 60))
	}
	return table.Flush()
}

// promptOf is the beginning of a prompt, on one line.
func promptOf(text string, most int) string {
	return prose.OneLine(prose.Short(strings.Join(strings.Fields(text), " "), most))
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

type sessionSearch struct {
	Words []string      `arg:"" help:"Words that must all be in a passage. Quotes inside an argument keep words together ('\"no such file\"'), and word* is all words that begin like it."`
	Since moment.Moment `placeholder:"TIME" help:"Only passages of this time, such as 24h or 7d, or since a time such as 2026-12-01T07:00:00+01:00."`
	Limit int           `default:"20" help:"Maximum number of passages to print, up to 1000."`
}

// check checks the flags.
func (c *sessionSearch) check() error {
	if c.Limit < 1 || c.Limit > index.MaxPassages {
		return cli.Usagef("--limit %d: must be 1 to %d", c.Limit, index.MaxPassages)
	}
	return nil
}

func (c *sessionCommand) search(ctx context.Context, p program, all *opened) error {
	search := fleet.Search{Words: strings.Join(c.Search.Words, " "), Since: c.Search.Since.Before(time.Now()), Limit: c.Search.Limit}
	found, err := all.Search(ctx, search)
	switch {
	case errors.Is(err, fleet.ErrInvalid):
		return cli.Usagef("%v", err)
	case err != nil:
		return err
	}
	if c.JSON {
		return printJSON(p, found)
	}
	for i := range found.Passages {
		if err := printPassage(p, &found.Passages[i]); err != nil {
			return err
		}
	}
	if len(found.Passages) == 0 {
		_, _ = fmt.Fprintln(p.Stderr, "no session has these words")
	}
	if found.More {
		_, _ = fmt.Fprintln(p.Stderr, "more passages are not printed (--limit)")
	}
	if found.Since != nil {
		_, _ = fmt.Fprintf(p.Stderr, "texts before %s are not searched: the index has reached its size\n", found.Since.Local().Format(time.DateTime))
	}
	return nil
}

// printPassage prints where a passage is, and its text below.
func printPassage(p program, passage *report.Passage) error {
	what := strings.TrimSpace(string(passage.Role) + " " + passage.Tool)
	_, err := fmt.Fprintf(p.out(), "%s  turn %d  %s  %s\n    %s\n", prose.OneLine(string(passage.SessionID)), passage.Turn, passage.Time.Local().Format(time.DateTime),
		prose.OneLine(what), strings.Join(strings.Fields(prose.Plain(passage.Text)), " "))
	return err
}
