package top

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/toolfleet/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/internal/terminal/prompt"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// detail is something that is looked into.
type detail interface {
	title() string
	keys() string
	enter(m *model) tea.Cmd // also when it is looked at again
	leave()
	update(m *model, msg tea.Msg) tea.Cmd
	resized(m *model) tea.Cmd
	key(m *model, name string) tea.Cmd
	selected() (target, bool)
	draw(m *model, width, height int) []string
}

// laneDetail is a lane with its calls.
type laneDetail struct {
	of    target
	view  view
	shown *report.LaneCalls
	err   error
	left  bool
}

func newLaneDetail(of target) *laneDetail { return &laneDetail{of: of} }

type (
	// laneRead is the end of a reading of a lane.
	laneRead struct {
		of    *laneDetail
		shown *report.LaneCalls
		err   error
	}
	laneAgain struct{ of *laneDetail }
)

const (
	// lanePeriod is the time between two readings of a lane: each asks the workers, too.
	lanePeriod = 2 * time.Second
	// maxCalls is how many calls of a lane are listed.
	maxCalls = 200
)

func (d *laneDetail) title() string {
	return "lane " + string(d.of.lane) + ", pool " + string(d.of.pool)
}

func (d *laneDetail) keys() string {
	return "esc back  enter call's output  p pause  c cancel call  x kill  ? keys  q quit"
}

func (d *laneDetail) enter(m *model) tea.Cmd {
	d.left = false
	return d.read(m)
}

func (d *laneDetail) leave() { d.left = true }

func (d *laneDetail) read(m *model) tea.Cmd {
	return func() tea.Msg {
		ctx, cancel := context.WithTimeout(m.ctx, readTimeout)
		defer cancel()
		shown, err := m.options.Client.Lanes(d.of.pool).Show(ctx, d.of.lane, maxCalls)
		return laneRead{d, shown, err}
	}
}

func (d *laneDetail) update(m *model, msg tea.Msg) tea.Cmd {
	switch msg := msg.(type) {
	case laneRead:
		if msg.of != d {
			return nil
		}
		if d.err = msg.err; msg.err == nil || errors.Is(msg.err, fleet.ErrNotFound) {
			d.shown = msg.shown
		}
		return tea.Tick(max(lanePeriod, m.options.Interval), func(time.Time) tea.Msg { return laneAgain{d} })
	case laneAgain:
		if msg.of == d && !d.left {
			return d.read(m)
		}
	}
	return nil
}

func (d *laneDetail) resized(*model) tea.Cmd { return nil }

func (d *laneDetail) key(m *model, name string) tea.Cmd {
	rows := d.table().rows
	d.view.find(rows)
	if by, is := moves(name, m.height); is {
		d.view.move(rows, by)
		return nil
	}
	if to, is := d.selected(); is && name == "enter" && to.call != "" {
		return m.enter(newCallDetail(to, d.facts(to.call)))
	}
	return nil
}

// facts are what is known of a call: what it does, and what it needs.
func (d *laneDetail) facts(id protocol.CallID) (facts []string) {
	i := slices.IndexFunc(d.shown.Calls, func(c report.Call) bool { return c.CallID == id })
	if i < 0 {
		return nil
	}
	c := &d.shown.Calls[i]
	add := func(name, value string) {
		if value != "" {
			facts = append(facts, name+": "+value)
		}
	}
	uses := make([]string, len(c.Resources))
	for n, use := range c.Resources {
		uses[n] = string(use.Key)
	}
	state := c.State
	if c.RunningMS > 0 {
		state += " for " + age(c.RunningMS).text
	}
	add("state", state+", accepted "+c.AcceptedAt.Local().Format(time.TimeOnly))
	add("waits for", cmp.Or(c.WaitsFor, c.Fault))
	add("uses", strings.Join(uses, ", "))
	add("tenant", string(c.Tenant))
	add("owner", c.Owner)
	if c.Payload != nil {
		add("input", wire.AboutOf(&protocol.Call{Payload: c.Payload}, c.AcceptedAt).Input) // secrets are left out
	}
	return facts
}

// selected is the selected call, or the lane alone.
func (d *laneDetail) selected() (target, bool) {
	to := d.of
	if d.shown != nil {
		to.state = d.shown.State
	}
	rows := d.table().rows
	d.view.find(rows)
	if len(rows) > 0 {
		call := rows[d.view.at].to
		to.call, to.session, to.tool = call.call, call.session, call.tool
		if to.state != "paused" { // which a pause must know
			to.state = call.state
		}
	}
	return to, true
}

func (d *laneDetail) table() *table {
	t := &table{
		columns: []column{
			{"CALL", 10, 0, false},
			{"STATE", 7, 0, false},
			{"TOOL", 6, 0, false},
			{"AGE", 6, 1, true},
			{"RUNS", 6, 2, true},
			{"TRY", 3, 5, true},
			{"SESSION", 10, 3, false},
			{"WAITS FOR", 10, 4, false},
		},
		empty: "no call waits or runs",
	}
	if d.shown == nil {
		return t
	}
	for i := range d.shown.Calls {
		c := &d.shown.Calls[i]
		t.rows = append(t.rows, row{string(c.CallID), []cell{
			text(string(c.CallID)), word(c.State), text(cmp.Or(terminal.ToolName(c.Tool), "-")), age(c.AgeMS), age(c.RunningMS),
			number(c.Attempt), text(string(c.SessionID)), text(cmp.Or(c.WaitsFor, c.Fault, "-")),
		}, target{pool: d.of.pool, lane: d.of.lane, session: c.SessionID, call: c.CallID, tool: c.Tool, state: c.State}})
	}
	if d.shown.LeftOut > 0 {
		t.note = terminal.Plural(d.shown.LeftOut, "more call")
	}
	return t
}

func (d *laneDetail) draw(m *model, width, height int) []string {
	var lines []string
	add := func(st style, text string) {
		lines = append(lines, st.paint(m.options.Colors, terminal.Fit(text, max(width, 1))))
	}
	switch {
	case errors.Is(d.err, fleet.ErrNotFound):
		add(plain, "the lane has nothing any more")
		return lines
	case d.err != nil:
		add(red, "! "+d.err.Error())
	case d.shown == nil:
		add(plain, "reading ...")
	}
	if s := d.shown; s != nil {
		state := s.State
		switch {
		case s.SilentMS > 0:
			state += fmt.Sprintf(", held by %s, which has sent no heartbeat for %s", s.Holder, age(s.SilentMS).text)
		case s.Holder != "":
			state += fmt.Sprintf(", held by %s for %s", s.Holder, age(s.HeldMS).text)
		}
		add(colour(s.State), fmt.Sprintf("%s, %d running, %d waiting", state, len(s.Running), s.Waiting+s.Delayed))
		if s.WaitsFor != "" {
			add(yellow, "the next call waits for: "+s.WaitsFor)
		}
		lines = append(lines, d.table().draw(&d.view, width, max(height-len(lines), 2), m.options.Colors)...)
	}
	return lines
}

// newSessionDetail follows the conversation of a session.
func newSessionDetail(of target) *tailDetail {
	return &tailDetail{of: of, name: "session " + string(of.session), help: "esc back  j k scroll  G end  c cancel turn  ? keys  q quit", begin: followSession}
}

// newCallDetail shows facts of a call, and follows what it writes while it runs.
func newCallDetail(of target, facts []string) *tailDetail {
	return &tailDetail{
		facts: facts,
		of:    of, name: fmt.Sprintf("call %s, %s, session %s", of.call, cmp.Or(of.tool, "-"), of.session), begin: followCall,
		help: "esc back  j k scroll  G end  c cancel call  x kill  ? keys  q quit", wait: "waiting for output: what the call has written before is not shown",
	}
}

// followSession writes the events of a session as text, until ctx ends: also what it asks, as
// attach shows it, with the command that answers.
func followSession(ctx context.Context, m *model, of target, to *tail) error {
	show := terminal.New(to, &terminal.Options{Color: m.options.Colors, Width: m.width, Workers: true})
	defer show.Close()
	asked := map[protocol.CallID]func(){}
	defer func() {
		for _, answered := range asked {
			answered()
		}
	}()
	for passed, err := range m.options.Client.Sessions(protocol.DefaultPool).Events(ctx, of.session, "") {
		if err != nil {
			return err
		}
		e := passed.Event
		if e == nil {
			continue
		}
		if answered := asked[e.CallID]; answered != nil {
			answered()
			delete(asked, e.CallID)
		}
		show.Observe(*e)
		switch {
		case e.Type == loop.EventApprovalAsked:
			asked[e.CallID] = show.Ask(terminal.Question{
				Reason: e.Text, Tool: e.Name, Arguments: e.Arguments,
				Answers: fmt.Sprintf("It waits for approval: coordinator approve%s %s %s approves it; --deny refuses it.", m.options.Reach, of.session, e.CallID),
			})
		case e.Type == loop.EventQuestionAsked && e.Question != nil:
			show.Alert(prompt.WaitsForAnswer(&report.Question{SessionID: of.session, CallID: e.CallID, Tool: e.Name, Question: e.Question, Lane: e.Lane}, m.options.Reach))
		}
	}
	return nil
}

// followCall writes what a call writes, until ctx ends.
func followCall(ctx context.Context, m *model, of target, to *tail) error {
	stop, err := m.options.Client.Sessions(cmp.Or(of.pool, protocol.DefaultPool)).Output(ctx, of.session, func(call protocol.CallID, out fleet.Output) {
		if call == of.call {
			to.output(out.Data)
		}
	})
	if err != nil {
		return err
	}
	<-ctx.Done()
	stop()
	return nil
}

// tailDetail is the end of a text that grows.
type tailDetail struct {
	of         target
	name, help string
	facts      []string // above the text
	wait       string   // instead of a text that is still empty
	begin      func(ctx context.Context, m *model, of target, to *tail) error

	tail *tail
	stop context.CancelFunc
	up   int  // lines by which it is scrolled up
	home bool // its beginning is shown until a key scrolls it
	err  error
}

type (
	tailTick  struct{ of *tail }
	tailEnded struct {
		of  *tail
		err error
	}
)

// tailPeriod is how often a text that grows is drawn at most.
const tailPeriod = 250 * time.Millisecond

func (d *tailDetail) title() string { return d.name }
func (d *tailDetail) keys() string  { return d.help }

func (d *tailDetail) enter(m *model) tea.Cmd {
	ctx, stop := context.WithCancel(m.ctx)
	t := &tail{}
	d.tail, d.stop, d.err = t, stop, nil
	follow := func() tea.Msg {
		err := d.begin(ctx, m, d.of, t)
		if ctx.Err() != nil {
			err = nil
		}
		return tailEnded{t, err}
	}
	return tea.Batch(follow, t.tick())
}

func (d *tailDetail) leave() {
	if d.stop != nil {
		d.stop()
	}
}

func (d *tailDetail) update(_ *model, msg tea.Msg) tea.Cmd {
	switch msg := msg.(type) {
	case tailTick:
		if msg.of == d.tail {
			return d.tail.tick()
		}
	case tailEnded:
		if msg.of == d.tail {
			d.err = msg.err
		}
	}
	return nil
}

// resized begins again, because the lines of a conversation are as wide as the screen was.
func (d *tailDetail) resized(m *model) tea.Cmd {
	if d.of.call != "" {
		return nil
	}
	d.leave()
	return d.enter(m)
}

func (d *tailDetail) key(m *model, name string) tea.Cmd {
	if by, is := moves(name, m.height); is {
		d.up, d.home = max(d.up-by, 0), false
	}
	return nil
}

func (d *tailDetail) selected() (target, bool) { return d.of, true }

func (d *tailDetail) draw(m *model, width, height int) []string {
	var drawn []string
	for _, fact := range d.facts {
		for _, line := range terminal.Wrap(fact, max(width, 1), wholeLines) {
			drawn = append(drawn, dim.paint(m.options.Colors, line))
		}
	}
	drawn = drawn[:min(len(drawn), height/2)]
	height -= len(drawn)
	lines := d.tail.lines()
	var last string
	switch {
	case d.err != nil:
		last = red.paint(m.options.Colors, terminal.Fit("! "+d.err.Error(), max(width, 1)))
	case len(lines) == 0:
		last = terminal.Fit(cmp.Or(d.wait, "reading ..."), max(width, 1))
	}
	if last != "" {
		height--
	}
	if d.home {
		d.up = len(lines)
	}
	if d.up = max(min(d.up, len(lines)-height), 0); d.up > 0 {
		height--
		last = dim.paint(m.options.Colors, terminal.Fit(fmt.Sprintf("%s below: G", terminal.Plural(d.up, "line")), max(width, 1)))
	}
	end := len(lines) - d.up
	for _, line := range lines[max(end-height, 0):end] {
		drawn = append(drawn, strings.TrimRight(cut(line, width), " "))
	}
	if last != "" {
		drawn = append(drawn, last)
	}
	return drawn
}
