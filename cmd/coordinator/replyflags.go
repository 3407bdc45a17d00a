package main

import (
	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/pkg/loop"
)

// replyFlags tune a model's replies. Those of serve are for turns that say nothing, and its
// --max-output bounds that of turns.
type replyFlags struct {
	Temperature *float64 `placeholder:"T" help:"Sampling temperature, 0 to 2. Default: the server's."`
	Reasoning   string   `placeholder:"EFFORT" brief:"Reasoning effort, such as low, medium or high." help:"Reasoning effort: none, minimal, low, medium, high, xhigh or max; each model supports some of them. Default: the server's."`
	MaxOutput   int64    `default:"0" placeholder:"N" help:"Maximum output tokens of a reply, including reasoning; 0 means the server's default."`
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
