package driver

import (
	"github.com/toolfleet/toolfleet/pkg/sandbox"
	"github.com/toolfleet/toolfleet/pkg/sandbox/landlock"
	"github.com/toolfleet/toolfleet/pkg/sandbox/ns"
)

// isolating are the drivers that isolate, best first.
func isolating(o *Options) []sandbox.Driver {
	return []sandbox.Driver{ns.New(&ns.Options{Logger: o.Logger, Dir: place(o.Data)}), landlock.New(&landlock.Options{Logger: o.Logger})}
}
