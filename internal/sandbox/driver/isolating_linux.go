package driver

import (
	"github.com/toolfleet/toolfleet/internal/sandbox/landlock"
	"github.com/toolfleet/toolfleet/internal/sandbox/ns"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// isolating are the drivers that isolate, best first.
func isolating(o *Options) []sandbox.Driver {
	return []sandbox.Driver{ns.New(&ns.Options{Logger: o.Logger, Dir: place(o.Data)}), landlock.New(&landlock.Options{Logger: o.Logger})}
}
