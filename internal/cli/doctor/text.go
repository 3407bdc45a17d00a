package doctor

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
)

// ExitDegraded is the exit code of a host whose sandboxes isolate, but less than fully.
const ExitDegraded = 4

// Err is nil when sandboxes isolate fully; otherwise an error that asks for exit code 1
// when they do not isolate at all, and [ExitDegraded] when they do in part.
func (r Report) Err() error {
	level, _ := isolation.ParseLevel(r.Level) // it was made by Level.String
	switch {
	case level >= isolation.LevelFull:
		return nil
	case level > isolation.LevelNone:
		return &cli.ExitError{Code: ExitDegraded, Message: fmt.Sprintf("sandboxes reach only level %s, but workers should reach level %s", r.Level, isolation.LevelFull)}
	default:
		return &cli.ExitError{Code: cli.ExitFailed, Message: "no sandbox that isolates works on this host"}
	}
}

// Write prints the report for people.
func (r Report) Write(w io.Writer) error {
	var text strings.Builder
	if r.Driver == "" {
		text.WriteString("sandboxes: level none, nothing isolates\n")
	} else {
		fmt.Fprintf(&text, "sandboxes: level %s, proven by driver %s\n", r.Level, r.Driver)
	}
	text.WriteString("\ndrivers, each tried in a sandbox\n")
	for _, d := range r.Drivers {
		d.write(&text)
	}
	if len(r.Drivers) == 0 {
		text.WriteString("  none in this build\n")
	}
	text.WriteString("\nhost\n")
	for _, c := range r.Host {
		fmt.Fprintf(&text, "  %-8s %-16s %s\n", c.State, c.Name, c.Found)
		if c.Advice != "" {
			fmt.Fprintf(&text, "           %-16s -> %s\n", "", c.Advice)
		}
	}
	r.writeInPlace(&text)
	_, err := io.WriteString(w, text.String())
	return err
}

func (r Report) writeInPlace(text *strings.Builder) {
	if r.InPlace == nil {
		return
	}
	text.WriteString("\ntoolchains of your PATH that run and call show to commands, in addition to /usr\n")
	for _, t := range r.InPlace.Toolchains {
		fmt.Fprintf(text, "  %-9s %s\n", t.Name, t.Root)
	}
	if len(r.InPlace.Toolchains) == 0 {
		text.WriteString("  none\n")
	}
	for _, l := range r.InPlace.LeftOut {
		fmt.Fprintf(text, "  left out  %s %s\n", l.Entry, l.Why)
	}
}

func (d Driver) write(text *strings.Builder) {
	if d.Error != "" {
		fmt.Fprintf(text, "  %-9s does not work: %s\n", d.Name, d.Error)
		return
	}
	fmt.Fprintf(text, "  %-9s level %s", d.Name, d.Level)
	if d.Launcher != "" {
		fmt.Fprintf(text, ", started by %s", d.Launcher)
	}
	if d.Landlock > 0 {
		fmt.Fprintf(text, ", Landlock ABI %d", d.Landlock)
	}
	if d.Seccomp {
		text.WriteString(", system calls filtered")
	}
	text.WriteString("\n")
	fmt.Fprintf(text, "            network: %s; hosts of a list: %s\n", strings.Join(d.Networks, ", "), d.listedHosts())
	fmt.Fprintf(text, "            read-only commands: %s; protected paths: %s; user on the host: %s\n",
		choose(d.ReadOnly, "enforced", "refused"), choose(d.Protect, "enforced", "not possible"), choose(d.HostUID, "the worker's", "one for each sandbox"))
	var limits []string
	for _, name := range slices.Sorted(maps.Keys(d.Limits)) {
		limits = append(limits, name+" "+d.Limits[name])
	}
	fmt.Fprintf(text, "            limits: %s\n", strings.Join(limits, ", "))
	for _, warning := range d.Warnings {
		fmt.Fprintf(text, "            warning: %s\n", warning)
	}
}

// listedHosts says for whom --allow-net HOST works.
func (d Driver) listedHosts() string {
	switch {
	case d.Link:
		return "for every program"
	case slices.Contains(d.Networks, string(isolation.NetworkProxy)):
		return "for programs that use the proxy"
	default:
		return "not possible"
	}
}

func choose(condition bool, yes, no string) string {
	if condition {
		return yes
	}
	return no
}
