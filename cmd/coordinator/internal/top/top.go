// Package top shows a fleet at a terminal, and what happens in it: workers, lanes and sessions,
// what waits and why. A person looks into a lane, a session or what a running call writes, and
// pauses, cancels or kills after a question.
//
// All that a cell or a line shows comes from others: it is made visible before it reaches the
// terminal, see package terminal. What is asked before an act names the object alone.
package top

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/colorprofile"

	"github.com/toolfleet/toolfleet/internal/overview"
	"github.com/toolfleet/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/pkg/fleet"
)

// Options of a screen.
type Options struct {
	Client   *fleet.Client
	Reader   *overview.Reader
	Interval time.Duration // between two readings
	Colors   bool
	In, Out  *os.File
	Reach    string // the flags by which another command reaches the fleet, with a space in front
	Environ  []string
}

// framesPerSecond is how often the screen is drawn at most.
const framesPerSecond = 10

// Run shows the fleet until the person ends it, or ctx ends.
func Run(ctx context.Context, o *Options) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	profile := colorprofile.ASCII
	if o.Colors {
		profile = colorprofile.ANSI
	}
	m := &model{ctx: ctx, options: o, tabs: append(tabs(), tab{name: "Failed", short: "Fail"}), began: time.Now()}
	m.views = make([]view, len(m.tabs))
	defer m.leaveAll()
	_, err := tea.NewProgram(m, tea.WithContext(ctx), tea.WithInput(o.In), tea.WithOutput(o.Out), tea.WithEnvironment(o.Environ),
		tea.WithColorProfile(profile), tea.WithFPS(framesPerSecond), tea.WithoutSignalHandler()).Run()
	if cause := context.Cause(ctx); cause != nil && errors.Is(err, tea.ErrProgramKilled) {
		return cause
	}
	return err
}

// Print prints a picture as text, every list below the other.
func Print(out io.Writer, p *overview.Picture, width int, colors bool) error {
	var b strings.Builder
	fmt.Fprintln(&b, terminal.Fit(heading(p), width))
	for _, missing := range p.Missing {
		fmt.Fprintln(&b, terminal.Fit(missed(&missing), width))
	}
	for _, tab := range tabs() {
		t := tab.of(p)
		fmt.Fprintf(&b, "\n%s\n", bold.paint(colors, tab.name))
		height := max(len(t.rows), 1) + 1
		if t.note != "" {
			height += 3 // more than it has on a small screen
		}
		v := view{paper: true}
		for _, line := range t.draw(&v, width, height, colors) {
			if line != "" {
				fmt.Fprintln(&b, line)
			}
		}
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// missed says what a picture does not have.
func missed(m *overview.Missing) string {
	if m.Denied {
		return "not seen: " + m.Part + " (no right to)"
	}
	return "not read: " + m.Part + ": " + m.Why
}
