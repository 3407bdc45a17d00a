package cli

import (
	"fmt"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/natsio"
)

// Keep bounds what a fleet keeps of results that models were not shown whole, as flags. Like
// replicas they are of what does not exist yet.
type Keep struct {
	Age  time.Duration `default:"0s" help:"How long the results that were cut are kept at most, in a fleet that does not exist yet; 0 is until their session is removed."`
	Size Size          `default:"0" placeholder:"SIZE" help:"How much of them is kept in all, as in 50G, in a fleet that does not exist yet; 0 is 8G, or less where servers have less room. When it is reached, nothing more is kept."`
}

// Validate returns the fault of the flags.
func (k *Keep) Validate() error {
	if k.Age != 0 && k.Age < time.Second {
		return Usagef("--keep-age %s: must be 0 or at least 1s", k.Age)
	}
	return nil
}

// Results bound the stream of results, as flags.
type Results struct {
	Age  time.Duration `default:"0s" help:"How long results of calls are kept, 10m to 8760h, also in a fleet that exists, whose older results go at once; 0 takes what the fleet has, or 168h. A call that is sent again when its result is gone runs again."`
	Size Size          `default:"0" placeholder:"SIZE" help:"How much of them is kept in all, as in 8G, at least 64M, also in a fleet that exists; beyond it the oldest go. 0 takes what the fleet has, or 16G, less where servers have less room."`
}

// Validate returns every fault of the flags, as one.
func (r *Results) Validate() error {
	var faults []string
	if r.Age != 0 && (r.Age < natsio.MinResultAge || r.Age > natsio.MaxResultAge) {
		faults = append(faults, fmt.Sprintf("--result-age %s: must be 0 or 10m to 8760h", r.Age))
	}
	if r.Size != 0 && r.Size < natsio.MinResultSize {
		faults = append(faults, fmt.Sprintf("--result-size %d: must be 0 or at least 64M", int64(r.Size)))
	}
	if len(faults) > 0 {
		return Usagef("%s", strings.Join(faults, "; "))
	}
	return nil
}
