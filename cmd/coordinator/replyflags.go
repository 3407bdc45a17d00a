package main

import (
	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/pkg/loop"
)

// replyFlags tune a model's replies. Those of serve are for turns that say nothing, and its
// --max-output bounds that of turns.
type replyFlags struct {
	Temperature *float64 `placeholder:"T" help:"How freely the model chooses its words, 0 to 2. Default: what its server takes."`
	Reasoning   string   `placeholder:"EFFORT" help:"How much the model thinks before it replies: none, minimal, low, medium, high, xhigh or max; each model knows some of them. Default: what its server takes."`
	MaxOutput   int64    `default:"0" placeholder:"N" help:"Output tokens of a reply at most, those of its reasoning included; 0 leaves it to the server."`
}

// settings checks the flags.
func (f *replyFlags) settings() (loop.Settings, error) {
	if f.MaxOutput < 0 {
		return loop.Settings{}, cli.Usagef("--max-output %d: must not be negative", f.MaxOutput)
	}
	s := loop.Settings{Temperature: f.Temperature, Effort: f.Reasoning, MaxOutput: f.MaxOutput}
	if err := s.Validate(); err != nil {
		return s, cli.Usagef("--%v", err)
	}
	return s, nil
}
