// Package drivers chooses a sandbox driver by its name.
//
// The name "auto" stands for the driver that isolates most among those that work
// on this host. It never stands for "process", which isolates nothing and has to be
// asked for by its name.
package drivers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/sandbox/process"
)

// Auto is the name that stands for the best driver that isolates; it is the default.
const Auto = "auto"

// ErrUnknown says that there is no driver of that name.
var ErrUnknown = errors.New("unknown sandbox driver")

// Options are the settings of the drivers; nil and zero mean the defaults.
type Options struct {
	// Logger gets what happens to commands, at debug level; nil discards it.
	Logger *slog.Logger
	// Data is a directory below which sandboxes will have their workspaces, and need not exist yet.
	// What is proven is proven on its file system; "" is that of temporary files.
	Data string
}

// Names returns every name that [Open] knows, sorted.
func Names() []string { return []string{Auto, process.LandlockName, "ns", process.Name} }

// Valid returns an error that wraps [ErrUnknown] and names what is allowed, unless
// name is known. "" is [Auto].
func Valid(name string) error {
	if name == "" || slices.Contains(Names(), name) {
		return nil
	}
	return fmt.Errorf("%w %q: must be one of %s", ErrUnknown, name, strings.Join(Names(), ", "))
}

// Open returns the driver of that name after probing it, and what the probe proved.
// "" is [Auto]. The error wraps [ErrUnknown] for a name that is not known, and
// [isolation.ErrLevel] when [Auto] finds no driver that isolates.
func Open(ctx context.Context, name string, options *Options) (isolation.Driver, isolation.Caps, error) {
	if err := Valid(name); err != nil {
		return nil, isolation.Caps{}, err
	}
	if options == nil {
		options = &Options{}
	}
	if name == "" || name == Auto {
		return best(ctx, options)
	}
	for _, d := range append(isolating(options), process.New(&process.Options{Logger: options.Logger})) {
		if d.Name() == name {
			return probe(ctx, d)
		}
	}
	return nil, isolation.Caps{}, fmt.Errorf("%w: driver %s is not in this build", isolation.ErrLevel, name)
}

// best returns the first driver that works among those that isolate, and why those before
// it do not among its warnings.
func best(ctx context.Context, options *Options) (isolation.Driver, isolation.Caps, error) {
	var failures []error
	for _, candidate := range isolating(options) {
		d, caps, err := probe(ctx, candidate)
		if ctx.Err() != nil {
			return nil, isolation.Caps{}, ctx.Err()
		}
		if err == nil {
			for _, failure := range failures {
				caps.Warnings = append(caps.Warnings, failure.Error())
			}
			return d, caps, nil
		}
		failures = append(failures, err)
	}
	if slices.ContainsFunc(failures, func(failure error) bool { return !errors.Is(failure, isolation.ErrLevel) }) {
		return nil, isolation.Caps{}, fmt.Errorf("no isolating sandbox driver could be tried to its end in %s:%s", cmp.Or(options.Data, os.TempDir()), list(failures)) // a full disk says nothing about the host's isolation
	}
	return nil, isolation.Caps{}, fmt.Errorf("%w: no isolating sandbox driver works in this build and on this host; "+
		"to run commands without isolation, ask for it: --sandbox %s%s", isolation.ErrLevel, process.Name, list(failures))
}

// list puts each failure on a line of its own.
func list(failures []error) string {
	var text strings.Builder
	for _, failure := range failures {
		text.WriteString("\n  " + failure.Error())
	}
	return text.String()
}

func probe(ctx context.Context, d isolation.Driver) (isolation.Driver, isolation.Caps, error) {
	caps, err := d.Probe(ctx)
	if err != nil {
		return nil, isolation.Caps{}, fmt.Errorf("sandbox driver %s: %w", d.Name(), err)
	}
	return d, caps, nil
}
