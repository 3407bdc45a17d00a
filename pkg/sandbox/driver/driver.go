// Package driver chooses a sandbox driver by its name.
//
// The name "auto" stands for the driver that isolates most among those that work
// on this host. It never stands for "process", which isolates nothing and has to be
// asked for by its name.
package driver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
	"github.com/toolfleet/toolfleet/pkg/sandbox/process"
)

// Auto is the name that stands for the best driver that isolates; it is the default.
const Auto = "auto"

// ErrUnknown says that there is no driver of that name.
var ErrUnknown = errors.New("unknown sandbox driver")

// Options are the settings of the drivers; nil and zero mean the defaults.
type Options struct {
	// Logger gets what happens to commands, at debug level; nil discards it.
	Logger *slog.Logger
}

// Names returns every name that [Open] knows, sorted.
func Names() []string { return []string{Auto, process.Name} }

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
// [sandbox.ErrLevel] when [Auto] finds no driver that isolates.
func Open(ctx context.Context, name string, options *Options) (sandbox.Driver, sandbox.Caps, error) {
	if err := Valid(name); err != nil {
		return nil, sandbox.Caps{}, err
	}
	if options == nil {
		options = &Options{}
	}
	if name != process.Name {
		return nil, sandbox.Caps{}, fmt.Errorf("%w: no isolating sandbox driver works in this build and on this host; "+
			"to run commands without isolation, ask for it: --sandbox %s", sandbox.ErrLevel, process.Name)
	}
	d := process.New(&process.Options{Logger: options.Logger})
	caps, err := d.Probe(ctx)
	if err != nil {
		return nil, sandbox.Caps{}, fmt.Errorf("sandbox driver %s: %w", d.Name(), err)
	}
	return d, caps, nil
}
