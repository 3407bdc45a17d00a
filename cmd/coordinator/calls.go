package main

import (
	"cmp"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/session/index"
	"github.com/toolfleet/toolfleet/internal/session/timeline"
	"github.com/toolfleet/toolfleet/internal/system/moment"
	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

type callsCommand struct {
	lookedAt

	ID      string        `arg:"" optional:"" name:"call" help:"Id of a call, or SESSION/CALL: show everything about it."`
	Session string        `placeholder:"ID" help:"Only calls of this session: its id, the beginning of its id, or last."`
	Tool    string        `placeholder:"NAME" help:"Only calls of this tool."`
	Status  []string      `placeholder:"STATUS" enum:"not_ok,exit,ok,failed,timeout,cancelled,rejected,outcome_unknown" help:"Only calls with these statuses: ok, failed, timeout, cancelled, rejected, outcome_unknown, exit (commands with another exit code than 0) or not_ok (all that did not end well)."`
	Lane    string        `placeholder:"LANE" help:"Only calls of this lane, such as sandbox/abc or POOL/sandbox/abc."`
	Tenant  string        `placeholder:"NAME" help:"Only calls of this tenant."`
	Worker  string        `placeholder:"ID" help:"Only calls that this worker answered."`
	Since   moment.Moment `placeholder:"TIME" help:"Only calls that ended within this time, such as 15m, 24h or 7d, or since a time such as 2026-12-01T07:00:00+01:00."`
	Text    string        `placeholder:"WORDS" help:"Only calls with these words in their input or output, as for session search."`
	Limit   int           `default:"100" help:"Maximum number of calls to print, the last ones; 0 means all."`
	Follow  bool          `help:"Then print calls as they end, until interrupted. The oldest is first."`
	JSON    bool          `name:"json" xor:"form" help:"Print each call as a line of JSON."`
	CSV     bool          `name:"csv" xor:"form" help:"Print the calls as CSV."`
	Timeout time.Duration `default:"60s" help:"Time limit of the command; --follow has none."`
}

// check checks the flags.
func (c *callsCommand) check() (q fleet.CallQuery, err error) {
	if err := checkTimeout(c.Timeout); err != nil {
		return q, err
	}
	if c.Limit < 0 {
		return q, cli.Usagef("--limit %d: must not be negative", c.Limit)
	}
	if c.ID != "" && (c.Follow || c.CSV) {
		return q, cli.Usagef("call %s: one call is not for --follow and --csv", c.ID)
	}
	q = fleet.CallQuery{Tool: c.Tool, Lane: c.Lane, Tenant: protocol.Tenant(c.Tenant), Worker: protocol.WorkerID(c.Worker), Since: c.Since.Before(time.Now()), Text: c.Text}
	for _, status := range c.Status {
		q.Status = append(q.Status, protocol.Status(status))
	}
	return q, nil
}

func (c *callsCommand) run(ctx context.Context, p program) error {
	q, err := c.check()
	if err != nil {
		return err
	}
	ctx, stop := cli.Signals(ctx, func() { os.Exit(cli.ExitInterrupted) })
	defer stop()
	short, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	all, err := c.open(short, p.logger(), "", false)
	if err != nil {
		return err
	}
	defer all.close()
	if c.Session != "" {
		id, err := protocol.ParseSessionID(c.Session)
		if err != nil {
			return cli.Usagef("--session: %v", err)
		}
		if q.Session, err = all.find(short, id); err != nil {
			return err
		}
	}
	switch {
	case c.ID != "":
		err = c.one(short, p, all.client, q.Session)
	case c.Follow:
		err = c.follow(ctx, p, all.client, q)
	default:
		err = c.list(short, p, all.client, q)
	}
	if errors.Is(err, fleet.ErrInvalid) {
		return cli.Usagef("%v", err)
	}
	return err
}

// one prints everything about a call.
func (c *callsCommand) one(ctx context.Context, p program, client *fleet.Client, session protocol.SessionID) error {
	ref := protocol.CallRef{SessionID: session, ID: protocol.CallID(c.ID)}
	if strings.Contains(c.ID, "/") {
		var err error
		if ref, err = protocol.ParseCallRef(c.ID); err != nil {
			return cli.Usagef("call: %v", err)
		}
	}
	for { // the first time, all is read
		call, err := client.LoggedCall(ctx, ref)
		switch {
		case errors.Is(err, index.ErrBehind) && pause.For(ctx, pause.Retry):
			continue
		case errors.Is(err, fleet.ErrNotFound):
			return fmt.Errorf("%w: it has calls that ended, and coordinator calls lists them; coordinator lane ls shows those that run or wait", err)
		case err != nil:
			return err
		case c.JSON:
			return printJSON(p, call)
		}
		return printCall(p.out(), &call)
	}
}

// caughtUp reads a page of the log: the first one when all is read.
func caughtUp(ctx context.Context, client *fleet.Client, q fleet.CallQuery) (report.CallLog, error) {
	for {
		page, err := client.Calls(ctx, q)
		if err != nil || !page.Behind || q.After+q.Position != "" || !pause.For(ctx, pause.Retry) {
			return page, err
		}
	}
}

// list prints the calls of the log, the last one first.
func (c *callsCommand) list(ctx context.Context, p program, client *fleet.Client, q fleet.CallQuery) error {
	out := c.printer(p)
	printed, page := 0, report.CallLog{}
	for left := c.Limit; ; {
		q.Limit = index.MaxCalls
		if c.Limit > 0 {
			q.Limit = min(left, index.MaxCalls)
		}
		var err error
		if page, err = caughtUp(ctx, client, q); err != nil {
			return err
		}
		if err := out.print(page.Calls); err != nil {
			return err
		}
		printed, left = printed+len(page.Calls), left-len(page.Calls)
		if q.After = page.Next; q.After == "" || c.Limit > 0 && left == 0 {
			break
		}
	}
	if err := out.flush(); err != nil {
		return err
	}
	if printed == 0 {
		_, _ = fmt.Fprintln(p.Stderr, "no such call has ended") // as every command prints
	}
	if page.Next != "" {
		_, _ = fmt.Fprintln(p.Stderr, "more calls are not printed (--limit)")
	}
	if page.Behind {
		_, _ = fmt.Fprintln(p.Stderr, "the log is not up to date: more calls will come")
	}
	if page.Since != nil && (q.Since.IsZero() || q.Since.Before(*page.Since)) {
		_, _ = fmt.Fprintf(p.Stderr, "calls before %s are not in the log any more\n", page.Since.Local().Format(time.DateTime))
	}
	return nil
}

const followPeriod = time.Second

// follow prints the last calls, and then those that the log takes in, in that order: a worker whose
// clock is wrong hides no call.
func (c *callsCommand) follow(ctx context.Context, p program, client *fleet.Client, q fleet.CallQuery) error {
	out := c.printer(p)
	q.Limit = min(cmp.Or(c.Limit, index.MaxCalls), index.MaxCalls)
	for {
		page, err := caughtUp(ctx, client, q)
		if err != nil {
			return err
		}
		if q.Position == "" {
			slices.Reverse(page.Calls)
		}
		if err := errors.Join(out.print(page.Calls), out.flush()); err != nil {
			return err
		}
		same := q.Position == page.Position
		q.Position, q.Since, q.Limit = page.Position, time.Time{}, index.MaxCalls
		if same && !pause.For(ctx, followPeriod) {
			return context.Cause(ctx)
		}
	}
}

// callPrinter prints calls in one form.
type callPrinter struct {
	print func(calls []report.LoggedCall) error
	flush func() error
}

func (c *callsCommand) printer(p program) callPrinter {
	switch {
	case c.JSON:
		return callPrinter{func(calls []report.LoggedCall) error {
			for i := range calls {
				if err := printJSON(p, calls[i]); err != nil {
					return err
				}
			}
			return nil
		}, func() error { return nil }}
	case c.CSV:
		table := csv.NewWriter(p.out())
		header := slices.Concat([]string{
			"finished_at", "accepted_at", "started_at", "session_id", "turn", "step", "index", "call_id", "tool", "attempt", "status", "exit",
			"code", "error", "lane", "resources", "tenant", "owner", "worker_id", "level", "checkpoint",
			"run_ms", "queue_ms",
		}, waitCells(&report.CallWaits{}, func(p *report.Part) string { return string(p.Reason) + "_ms" }), []string{"model_ms", "held_by", "limit", "input", "output"})
		return callPrinter{func(calls []report.LoggedCall) error {
			if header != nil {
				_ = table.Write(header) // Flush tells of errors
				header = nil
			}
			for i := range calls {
				_ = table.Write(cells(&calls[i]))
			}
			return nil
		}, func() error { table.Flush(); return table.Error() }}
	}
	table := tabwriter.NewWriter(p.out(), 0, 0, 2, ' ', 0)
	head := true
	return callPrinter{func(calls []report.LoggedCall) error {
		if head && len(calls) > 0 {
			_, _ = fmt.Fprintln(table, "ENDED\tSTATUS\tWHAT\tRAN\tWAITED\tTENANT\tLANE\tSESSION\tTURN\tCALL") // Flush tells of errors
			head = false
		}
		for i := range calls {
			call := &calls[i]
			turn := "-"
			if call.Turn > 0 {
				turn = strconv.Itoa(call.Turn)
			}
			_, _ = fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n",
				call.FinishedAt.Local().Format(time.DateTime), outcome(call),
				orDash(prose.OneLine(terminal.About(call.Tool, call.Input))), age(int64(call.RunMS)), waited(call),
				orDash(prose.OneLine(string(call.Tenant))),
				orDash(prose.OneLine(call.Lane)), prose.OneLine(string(call.SessionID)), turn, prose.OneLine(string(call.CallID)))
		}
		return nil
	}, table.Flush}
}

// outcome is the status of a call, with how its command ended, or the code of its error, if that
// says more.
func outcome(c *report.LoggedCall) string {
	if c.Exit != "" {
		return prose.OneLine(string(c.Status) + ", " + c.Exit)
	}
	if c.Error == nil || string(c.Error.Code) == string(c.Status) || c.Error.Code == "" {
		return prose.OneLine(string(c.Status))
	}
	return prose.OneLine(string(c.Status) + ":" + string(c.Error.Code))
}

// waited is what a call waited for most.
func waited(c *report.LoggedCall) string {
	all := timeline.Waited(c)
	if len(all) == 0 || !terminal.IsSaid(&all[0]) {
		return "-"
	}
	return age(int64(all[0].MS)) + " " + all[0].Reason.What()
}

// printCall prints everything about a call.
func printCall(w io.Writer, c *report.LoggedCall) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := func(name, value string) {
		if value != "" {
			_, _ = fmt.Fprintf(table, "%s\t%s\n", name, prose.OneLine(value)) // Flush tells of errors
		}
	}
	line("call", string(c.CallID))
	line("session", string(c.SessionID))
	if c.Turn > 0 {
		line("turn", fmt.Sprintf("%d, step %d, index %d", c.Turn, c.Step, c.Index))
	}
	line("tool", c.Tool)
	line("status", outcome(c))
	if c.Error != nil {
		line("error", c.Error.Message)
	}
	line("accepted", c.AcceptedAt.Local().Format(time.DateTime+".000"))
	if !c.StartedAt.IsZero() {
		line("started", c.StartedAt.Local().Format(time.DateTime+".000"))
	}
	line("finished", c.FinishedAt.Local().Format(time.DateTime+".000"))
	line("ran", age(int64(c.RunMS)))
	if c.SandboxMS+c.StoreMS >= 1 {
		line("", fmt.Sprintf("%s to open the sandbox, %s to store output and changes", age(int64(c.SandboxMS)), age(int64(c.StoreMS))))
	}
	for _, p := range timeline.Waited(c) {
		of := ""
		if p.For != "" {
			of = " (" + p.For + ")"
		}
		line(p.Reason.Words(), age(int64(p.MS))+of)
	}
	if ms := c.Waits.ModelMS; ms >= 1 {
		line("model", age(int64(ms)))
	}
	line("lane", c.Lane)
	line("resources", resources(report.Call{Resources: c.Resources}))
	line("tenant", string(c.Tenant))
	line("owner", c.Owner)
	line("worker", string(c.WorkerID))
	if c.Attempt > 1 {
		line("attempt", strconv.Itoa(c.Attempt))
	}
	line("level", c.Level)
	if c.Checkpoint > 0 {
		line("checkpoint", strconv.FormatUint(c.Checkpoint, 10))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, part := range [][2]string{{"input", c.Input}, {"output", c.Output}} {
		if part[1] == "" {
			continue
		}
		if _, err := fmt.Fprintf(w, "\n%s:\n%s\n", part[0], strings.TrimRight(prose.Plain(part[1]), "\n")); err != nil {
			return err
		}
	}
	return nil
}

// cells are a call as a row of CSV. A text that a spreadsheet would take for a formula has a quote
// before it.
func cells(c *report.LoggedCall) []string {
	text := func(s string) string {
		if first, _ := utf8.DecodeRuneInString(s); s != "" && strings.ContainsRune("=+-@\t\r\n＝＋－＠", first) {
			return "'" + s
		}
		return s
	}
	at := func(t time.Time) string {
		if t.IsZero() {
			return ""
		}
		return t.Format(time.RFC3339Nano)
	}
	ms := func(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }
	code, message := "", ""
	if c.Error != nil {
		code, message = string(c.Error.Code), c.Error.Message
	}
	uses := make([]string, len(c.Resources))
	for i, use := range c.Resources {
		uses[i] = string(use.Access) + " " + string(use.Key)
	}
	w := &c.Waits
	return slices.Concat([]string{
		at(c.FinishedAt), at(c.AcceptedAt), at(c.StartedAt), text(string(c.SessionID)), strconv.Itoa(c.Turn), strconv.Itoa(c.Step),
		strconv.Itoa(c.Index), text(string(c.CallID)), text(c.Tool), strconv.Itoa(c.Attempt),
		string(c.Status), text(c.Exit), text(code), text(message), text(c.Lane), text(strings.Join(uses, ", ")), text(string(c.Tenant)),
		text(c.Owner), text(string(c.WorkerID)), text(c.Level), strconv.FormatUint(c.Checkpoint, 10),
		ms(c.RunMS), ms(w.QueueMS),
	}, waitCells(w, func(p *report.Part) string { return ms(p.MS) }), []string{ms(w.ModelMS), text(string(w.HeldBy)), text(w.Limit), text(c.Input), text(c.Output)})
}

// waitCells is a cell for each reason for which a call may have waited.
func waitCells(w *report.CallWaits, cell func(*report.Part) string) (cells []string) {
	for _, p := range timeline.Waits(w, 0) {
		cells = append(cells, cell(&p))
	}
	return cells
}
