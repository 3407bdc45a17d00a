package top

import (
	"context"
	"fmt"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/toolfleet/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// question is an act that a person confirms.
type question struct {
	text string
	act  func(ctx context.Context) (done string, err error)
}

// actTimeout bounds an act.
const actTimeout = 30 * time.Second

// run does what was confirmed.
func (q *question) run(ctx context.Context) tea.Cmd {
	return func() tea.Msg {
		ctx, cancel := context.WithTimeout(ctx, actTimeout)
		defer cancel()
		done, err := q.act(ctx)
		return acted{done, err}
	}
}

// ask asks about the act of a key on what is selected.
func (m *model) ask(key string) {
	to, _ := m.selected()
	switch {
	case key == "p" && to.lane != "":
		m.question = m.pause(to)
	case key == "c" && to.lane != "" && to.call != "":
		m.question = m.cancelCall(to)
	case key == "x" && to.lane != "":
		m.question = m.kill(to)
	case key == "c" && to.session != "" && to.call == "":
		m.question = m.cancelTurn(to)
	default:
		m.notice, m.failed = map[string]string{
			"p": "p pauses a lane: select one in the list of lanes",
			"c": "c cancels a call of a lane, or the turn of a session: enter looks into a lane",
			"x": "x kills what runs in a lane: select one in the list of lanes",
		}[key], false
	}
}

// name is a name of others in a question, which a screen of any width shows whole enough.
func name(s string) string { return terminal.Fit(s, 40) }

func (m *model) pause(to target) *question {
	lanes := m.options.Client.Lanes(to.pool)
	if to.state == "paused" {
		return &question{fmt.Sprintf("Resume lane %s? Its calls start again.", name(string(to.lane))), func(ctx context.Context) (string, error) {
			_, err := lanes.Resume(ctx, to.lane)
			return "lane " + string(to.lane) + " is resumed", err
		}}
	}
	return &question{fmt.Sprintf("Pause lane %s? No further call starts.", name(string(to.lane))), func(ctx context.Context) (string, error) {
		confirmed, err := lanes.Pause(ctx, to.lane)
		if !confirmed {
			return "lane " + string(to.lane) + " is paused, but its holder does not answer, and may start calls until its lease ends", err
		}
		return "lane " + string(to.lane) + " is paused", err
	}}
}

func (m *model) cancelCall(to target) *question {
	verb := "Cancel"
	if to.state == "running" {
		verb = "Kill running"
	}
	return &question{fmt.Sprintf("%s call %s of %s?", verb, to.call, name(to.tool)), func(ctx context.Context) (string, error) {
		return "call " + string(to.call) + " is cancelled", m.options.Client.Lanes(to.pool).Cancel(ctx, to.lane, to.call)
	}}
}

func (m *model) kill(to target) *question {
	return &question{fmt.Sprintf("Kill what runs in lane %s?", name(string(to.lane))), func(ctx context.Context) (string, error) {
		killed, err := m.options.Client.Lanes(to.pool).CancelRunning(ctx, to.lane)
		ids := make([]string, len(killed))
		for i := range killed {
			ids[i] = string(killed[i].CallID)
		}
		return "killed: " + strings.Join(ids, " "), err
	}}
}

func (m *model) cancelTurn(to target) *question {
	return &question{fmt.Sprintf("Cancel the turn of session %s?", name(string(to.session))), func(ctx context.Context) (string, error) {
		ended, err := m.options.Client.Sessions(protocol.DefaultPool).Cancel(ctx, to.session)
		if len(ended) == 0 {
			return "session " + string(to.session) + " has no turn that runs or waits", err
		}
		return "the turn of session " + string(to.session) + " is cancelled", err
	}}
}
