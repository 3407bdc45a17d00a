package cli

import "time"

// Keep bounds what a fleet keeps of results that models were not shown whole, as flags. Like
// replicas they are of what does not exist yet.
type Keep struct {
	Age  time.Duration `default:"0s" help:"How long the results that were cut are kept at most, in a fleet that does not exist yet; 0 is until their session is removed."`
	Size Size          `default:"0" placeholder:"SIZE" help:"How much of them is kept in all, as in 50G, in a fleet that does not exist yet; 0 is no bound. When it is reached, nothing more is kept."`
}

// Validate returns the fault of the flags.
func (k *Keep) Validate() error {
	if k.Age != 0 && k.Age < time.Second {
		return Usagef("--keep-age %s: must be 0 or at least 1s", k.Age)
	}
	return nil
}
