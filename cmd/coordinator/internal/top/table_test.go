package top

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/overview"
	"github.com/toolfleet/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// sample is a picture with long names, and texts that would act on a terminal.
func sample() *overview.Picture {
	rate := 12.5
	hostile := "\x1b[2J\u202e" + strings.Repeat("long ", 50)
	return &overview.Picture{
		Workers: []overview.Worker{
			{Worker: report.Worker{WorkerID: protocol.WorkerID("w" + hostile), Pool: "default", Slots: 4, Running: 3, Ended: 1000}, State: overview.Serving, CallsPerS: &rate},
		},
		Lanes: []report.Lane{
			{Lane: "account/" + protocol.Lane(strings.Repeat("x", 100)), Hash: "h", Pool: "default", State: "held", Waiting: 12, OldestMS: 61_000, Holder: "w", WaitsFor: hostile},
		},
		Sessions: []report.Session{{SessionID: "s", State: report.StateInUse, Prompt: strings.Repeat("日本語\n", 1_000_000), Model: hostile}},
		Waits:    []overview.Wait{{WaitsFor: hostile, Wait: report.Wait{Reason: report.ReasonLimit}, Calls: 3, Lanes: 1}},
		Looks:    []overview.Look{{Kind: overview.KindLane, State: "stalled", What: hostile, Why: hostile, AgeMS: 5000}},
	}
}

// No line is wider than the screen, and every screen has as many lines as it is high, at any size.
func TestTable_FitsAtAnySize(t *testing.T) {
	t.Parallel()
	for _, tab := range tabs() {
		made := tab.of(sample())
		made.note = "a note"
		for width := 1; width < 130; width++ {
			for _, height := range []int{1, 2, 5, 10, 24} {
				lines := made.draw(&view{}, width, height, false)
				require.Len(t, lines, height, "%s at %dx%d", tab.name, width, height)
				for _, line := range lines[1:] {
					require.False(t, strings.ContainsAny(line, "\x1b\u202e\n"), "%q", line)
					require.LessOrEqual(t, terminal.Columns(line), max(width, 40), "%s at %dx%d: %q", tab.name, width, height, line)
				}
			}
		}
	}
}

// What a narrow screen cuts, or leaves out, is shown below for the selected row.
func TestTable_ShowsWhatIsCut(t *testing.T) {
	t.Parallel()
	made := &table{
		columns: []column{{"NAME", 4, 0, false}, {"WHY", 6, 0, false}, {"POOL", 7, 1, false}},
		rows: []row{
			{"a", []cell{text("one"), text("it waits for the second one"), text("default")}, target{}},
			{"b", []cell{text("two"), text("it is so"), text("gpu")}, target{}},
		},
	}
	screen := strings.Join(made.draw(&view{cursor: "a"}, 20, 12, false), "\n")
	require.Equal(t, `  NAME  WHY
> one   it waits fo…
  two   it is so






  why: it waits for
  the second one;
  pool: default`, strings.ReplaceAll(screen, " \n", "\n"))
	require.Contains(t, strings.Join(made.draw(&view{cursor: "b"}, 20, 12, false), "\n"), "\n  pool: gpu\n")
}

// The selection stays on its row when others come before it, and is near when it has gone.
func TestView_SelectionStays(t *testing.T) {
	t.Parallel()
	rows := func(keys string) (all []row) {
		for _, key := range keys {
			all = append(all, row{key: string(key)})
		}
		return all
	}
	v := &view{}
	v.find(rows("abcd"))
	require.Equal(t, "a", v.cursor)
	v.move(rows("abcd"), 2)
	require.Equal(t, "c", v.cursor)
	v.settle(rows("xyzabcd"), 3)
	require.Equal(t, "c", v.cursor)
	require.Equal(t, 5, v.at)
	require.Equal(t, 3, v.offset)
	v.find(rows("xyzabd"))
	require.Equal(t, "d", v.cursor)
	v.move(rows("xyzabd"), 1<<30)
	require.Equal(t, "d", v.cursor)
	v.find(nil)
	require.Empty(t, v.cursor)
}

// What a program writes is as a terminal would show it; nothing of it acts. A text that grows is
// bounded.
func TestTail_IsSafeAndBounded(t *testing.T) {
	t.Parallel()
	var of tail
	of.output([]byte("a\x1b]0;owned\x07b\r\n10 %\r100 %\n\x1b[31mred\x1b[0m\u202e\tx\n"))
	require.Equal(t, []string{"ab", "100 %", "red<U+202E>    x"}, of.lines())
	for range 10 * maxTail / 8 {
		of.output([]byte("1234567\n"))
	}
	of.output([]byte("last"))
	lines := of.lines()
	require.Equal(t, "last", lines[len(lines)-1])
	require.LessOrEqual(t, len(lines), maxTail/8+1)
	require.LessOrEqual(t, len(of.text), 2*maxTail+8)
	require.Equal(t, "1234567", lines[0])
}

// The whole screen fits at any size, whatever is looked into.
func TestModel_FitsAtAnySize(t *testing.T) {
	t.Parallel()
	made := func() *model {
		m := &model{options: &Options{}, tabs: append(tabs(), tab{name: "Failed", short: "Fail"}), picture: sample()}
		m.views = make([]view, len(m.tabs))
		return m
	}
	call := report.Call{CallID: "c", SessionID: "s", Tool: "bash", State: "waiting", WaitsFor: strings.Repeat("a worker ", 50)}
	shown := &laneDetail{of: target{lane: "account/a", pool: "default"}, shown: &report.LaneCalls{Calls: []report.Call{call, call}}}
	running := newCallDetail(target{call: "c"}, shown.facts("c"))
	running.tail = &tail{}
	running.tail.output([]byte(strings.Repeat("日本語\x1b[2J\n", 100)))
	logged := newLoggedDetail(target{call: "c"})
	logged.tail = &tail{}
	_, _ = logged.tail.Write([]byte(loggedText(&report.LoggedCall{
		Output: strings.Repeat("x\u202e", 500), Error: protocol.Errorf(protocol.CodeInternal, "%s", strings.Repeat("no ", 200)),
	}, 50)))
	for name, m := range map[string]*model{
		"lists": made(), "lane": made(), "call": made(), "log": made(), "help": made(), "away": made(), "question": made(), "filter": made(), "nothing": made(),
	} {
		switch name {
		case "lane":
			m.details = []detail{shown}
		case "call":
			m.details = []detail{running}
		case "log":
			m.details = []detail{logged}
		case "help":
			m.help = true
		case "away":
			m.away = errors.New("\x1b[2J" + strings.Repeat("away ", 30))
			m.picture.Missing = []overview.Missing{{Part: "lanes", Why: strings.Repeat("no ", 30)}, {Part: "limits", Denied: true}}
		case "question":
			m.tab = lanesTab
			m.ask("c")
		case "filter":
			m.filtering, m.views[0].filter = true, strings.Repeat("a", 100)
		case "nothing":
			m.picture = nil
		}
		for width := 1; width < 100; width += 3 {
			for _, height := range []int{1, 2, 3, 5, 10, 20, 40} {
				m.size = size{width, height}
				lines := m.draw()
				require.Len(t, lines, height, "%s at %dx%d", name, width, height)
				for _, line := range lines {
					require.False(t, strings.ContainsAny(line, "\x1b\u202e\n"), "%s: %q", name, line)
					require.LessOrEqual(t, terminal.Columns(line), max(width, 40), "%s at %dx%d: %q", name, width, height, line)
				}
			}
		}
	}
}
