// Package doctor finds out how much the sandboxes of this host isolate, and what to do where
// they could isolate more.
//
// Only trials count: each driver opens a sandbox and proves its promises
// ([isolation.Driver].Probe). Settings of the host are looked at only to explain why a driver does
// not work, or works with less than it could.
package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/inplace/hostenv"
	"github.com/toolfleet/toolfleet/internal/sandbox/drivers"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/sandbox/process"
)

// Report is what was found.
type Report struct {
	// Level and Driver are what workers on this host get by default; none and "" when no
	// driver isolates.
	Level  string `json:"level"`
	Driver string `json:"driver,omitempty"`
	// Drivers are all that isolate, best first, whether they work or not.
	Drivers []Driver `json:"drivers"`
	// Host is what was found of the host.
	Host []Check `json:"host"`
	// InPlace is what sandboxes have of the user's toolchains where a directory is worked on in
	// place; nil when it was not looked for.
	InPlace *hostenv.Found `json:"in_place,omitempty"`
}

// Driver is what a driver has proven.
type Driver struct {
	Name string `json:"name"`
	// Error says why the driver does not work; the rest is empty then.
	Error    string            `json:"error,omitempty"`
	Level    string            `json:"level,omitempty"`
	Launcher string            `json:"launcher,omitempty"`
	Landlock int               `json:"landlock,omitempty"`
	Seccomp  bool              `json:"seccomp,omitempty"`
	ReadOnly bool              `json:"read_only,omitempty"`
	Protect  bool              `json:"protect,omitempty"`
	HostUID  bool              `json:"host_uid,omitempty"`
	Networks []string          `json:"networks,omitempty"`
	Link     bool              `json:"link,omitempty"`
	Limits   map[string]string `json:"limits,omitempty"`
	Warnings []string          `json:"warnings,omitempty"`
}

// State is how a part of the host is.
type State string

// The states.
const (
	OK      State = "ok"
	Limited State = "limited" // there, but less than it could be
	Missing State = "missing"
)

// Check is one part of the host.
type Check struct {
	Name  string `json:"name"`
	State State  `json:"state"`
	Found string `json:"found"`
	// Advice says what to do; "" when nothing has to be done.
	Advice string `json:"advice,omitempty"`
}

// Open probes a driver; [drivers.Open] does.
type Open func(ctx context.Context, name string) (isolation.Caps, error)

// Examine probes every driver that isolates, and looks at the host, for workers with their data
// below a directory that need not exist; "" is that of temporary files.
func Examine(ctx context.Context, data string) Report {
	return examine(ctx, drivers.Names(), func(ctx context.Context, name string) (isolation.Caps, error) {
		_, caps, err := drivers.Open(ctx, name, &drivers.Options{Data: data})
		return caps, err
	}, thisHost(data))
}

func examine(ctx context.Context, names []string, open Open, h host) Report {
	report := Report{Level: isolation.LevelNone.String()}
	best := isolation.LevelNone
	for _, name := range names {
		if name == drivers.Auto || name == process.Name {
			continue
		}
		caps, err := open(ctx, name)
		if err != nil {
			report.Drivers = append(report.Drivers, Driver{Name: name, Error: strings.TrimPrefix(err.Error(), "sandbox driver "+name+": ")})
			continue
		}
		report.Drivers = append(report.Drivers, proven(caps))
		if caps.Level > best {
			best, report.Level, report.Driver = caps.Level, caps.Level.String(), caps.Driver
		}
	}
	slices.SortStableFunc(report.Drivers, func(a, b Driver) int { return rank(b) - rank(a) })
	report.Host = h.checks(best)
	return report
}

// rank orders drivers by what they have proven.
func rank(d Driver) int {
	if d.Error != "" {
		return -1
	}
	level, _ := isolation.ParseLevel(d.Level) // it was made by Level.String
	return int(level)
}

func proven(c isolation.Caps) Driver {
	d := Driver{
		Name: c.Driver, Level: c.Level.String(), Launcher: c.Launcher, Landlock: c.Landlock, Seccomp: c.Seccomp,
		ReadOnly: c.ReadOnly, Protect: c.Protect, HostUID: c.HostUID, Link: c.Link, Limits: c.Limits.Words(), Warnings: c.Warnings,
	}
	for _, mode := range c.Networks {
		d.Networks = append(d.Networks, string(mode))
	}
	return d
}

// Run examines this host for workers with their data below a directory, prints what it found, for
// people or as JSON, and returns [Report.Err]. With inPlace it also looks for the user's
// toolchains.
func Run(ctx context.Context, data string, inPlace bool, w io.Writer, asJSON bool) error {
	report := Examine(ctx, data)
	if ctx.Err() != nil { // what was not tried is not missing
		return ctx.Err()
	}
	if inPlace {
		report.InPlace = report.toolchains()
	}
	if err := show(w, report, asJSON); err != nil {
		return err
	}
	return report.Err()
}

// toolchains are those of this user, as the best driver shows them.
func (r Report) toolchains() *hostenv.Found {
	level, _ := isolation.ParseLevel(r.Level) // it was made by Level.String
	home, _ := os.UserHomeDir()               // "" is none
	found := hostenv.Find(hostenv.Host{
		Path: os.Getenv("PATH"), Home: home, Env: os.Getenv, View: hostenv.ViewOf(isolation.Caps{Driver: r.Driver, Level: level}),
	}, nil)
	return &found
}

func show(w io.Writer, report Report, asJSON bool) error {
	if !asJSON {
		return report.Write(w)
	}
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(report)
}

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
