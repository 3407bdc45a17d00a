package top

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/session/timeline"
	"github.com/toolfleet/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// failures are the calls that failed last, by the log of calls. They are read while they are looked
// at: the first reading on a machine makes the index of the log.
type failures struct {
	log     *report.CallLog
	logErr  error
	reading bool // a reading runs, or is about to
}

// Messages about failures.
type (
	failedRead struct {
		log report.CallLog
		err error
	}
	failedAgain struct{}
)

const (
	// failedPeriod is the time between two readings of the log.
	failedPeriod = 3 * time.Second
	// failedTimeout bounds one: the log may have to be brought up to date.
	failedTimeout = 15 * time.Second
	// maxFailed is how many calls are listed.
	maxFailed = 100
)

// visit reads what the tab needs that pictures do not have.
func (m *model) visit() tea.Cmd {
	if m.tab != failedTab || m.reading {
		return nil
	}
	m.reading = true
	return m.readFailed
}

func (m *model) readFailed() tea.Msg {
	ctx, cancel := context.WithTimeout(m.ctx, failedTimeout)
	defer cancel()
	log, err := m.options.Client.Calls(ctx, fleet.CallQuery{
		Status: []protocol.Status{report.CallsExit, protocol.StatusFailed, protocol.StatusTimeout, protocol.StatusRejected, protocol.StatusOutcomeUnknown}, Limit: maxFailed,
	})
	return failedRead{log, err}
}

// updateFailed handles a message about failures.
func (f *failures) updateFailed(m *model, msg tea.Msg) tea.Cmd {
	switch msg := msg.(type) {
	case failedRead:
		if f.logErr = msg.err; msg.err == nil {
			f.log = &msg.log
		}
		return tea.Tick(max(failedPeriod, m.options.Interval), func(time.Time) tea.Msg { return failedAgain{} })
	case failedAgain:
		f.reading = false
		return m.visit()
	}
	return nil
}

func (f *failures) failedTable() *table {
	t := &table{
		columns: []column{
			{"ENDED", 6, 1, true},
			{"STATUS", 7, 0, false},
			{"TOOL", 6, 0, false},
			{"WHY", 14, 0, false},
			{"RAN", 6, 3, true},
			{"SESSION", 10, 2, false},
			{"LANE", 10, 4, false},
			{"WORKER", 8, 5, false},
		},
		empty: "no call has failed, as far as the log goes back",
	}
	switch {
	case f.logErr != nil:
		t.note = "the log of calls: " + f.logErr.Error()
	case f.log == nil:
		t.empty = "reading the log of calls ..."
	case f.log.Behind:
		t.note = "the log of calls is being brought up to date"
	}
	if f.log == nil {
		return t
	}
	for i := range f.log.Calls {
		c := &f.log.Calls[i]
		why := c.Output
		if c.Error != nil {
			why = string(c.Error.Code) + ": " + c.Error.Message
		}
		status := word(cmp.Or(c.Exit, string(c.Status)))
		t.rows = append(t.rows, row{string(c.SessionID) + " " + string(c.CallID), []cell{
			age(max(time.Since(c.FinishedAt).Milliseconds(), 1)), status, text(terminal.ToolName(c.Tool)), text(cmp.Or(why, "-")), age(int64(c.RunMS)),
			text(string(c.SessionID)), text(cmp.Or(c.Lane, "-")), text(cmp.Or(string(c.WorkerID), "-")),
		}, target{session: c.SessionID, call: c.CallID, tool: c.Tool, logged: true}})
	}
	return t
}

// newLoggedDetail shows a call of the log.
func newLoggedDetail(of target) *tailDetail {
	return &tailDetail{
		of: target{}, name: fmt.Sprintf("call %s, %s, session %s", of.call, cmp.Or(of.tool, "-"), of.session),
		help: "esc back  j k scroll  g begin  G end  ? keys  q quit", home: true,
		begin: func(ctx context.Context, m *model, _ target, to *tail) error {
			call, err := m.options.Client.LoggedCall(ctx, protocol.CallRef{SessionID: of.session, ID: of.call})
			if err == nil {
				_, _ = to.Write([]byte(loggedText(&call, m.width))) // it keeps all
			}
			return err
		},
	}
}

// loggedText is a call of the log as lines that are safe.
func loggedText(c *report.LoggedCall, width int) string {
	var lines []string
	add := func(name, value string) {
		if value != "" {
			lines = append(lines, terminal.Wrap(name+": "+value, max(width, 1), wholeLines)...)
		}
	}
	times := []string{cmp.Or(c.Exit, string(c.Status)), "ran " + terminal.Millis(c.RunMS), "waited " + terminal.Millis(c.Waits.TotalMS())}
	for _, p := range timeline.Waited(c) {
		times = append(times, p.Reason.Words()+" "+terminal.Millis(p.MS))
	}
	add("status", strings.Join(times, ", "))
	if c.Error != nil {
		add("error", string(c.Error.Code)+": "+c.Error.Message)
	}
	add("ended", c.FinishedAt.Local().Format(time.DateTime))
	add("lane", c.Lane)
	if c.WorkerID != "" {
		add("worker", fmt.Sprintf("%s, level %s, attempt %d", c.WorkerID, cmp.Or(c.Level, "-"), c.Attempt))
	}
	add("tenant", string(c.Tenant))
	for _, part := range [][2]string{{"input", c.Input}, {"output", c.Output}} {
		if part[1] != "" {
			lines = append(lines, "", part[0]+":")
			for _, line := range visibleLines(part[1]) {
				lines = append(lines, "│ "+line)
			}
		}
	}
	return strings.Join(lines, "\n") + "\n"
}

// visibleLines are the lines of what a program wrote, as a terminal would show them, and safe.
func visibleLines(s string) []string {
	lines := strings.Split(strings.TrimRight(prose.Screen(prose.Valid(s)), "\n"), "\n")
	for i, line := range lines {
		lines[i] = prose.Visible(strings.ReplaceAll(line, "\t", "    "))
	}
	return lines
}
