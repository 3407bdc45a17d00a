package loop

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Settings tune a model's replies. A zero field leaves it to the provider.
type Settings struct {
	// Temperature is how freely the model chooses its words, 0 to 2.
	Temperature *float64
	// Effort is how much the model thinks before it replies: one of [Efforts].
	Effort string
	// MaxOutput bounds the output tokens of a reply, those of its reasoning included.
	MaxOutput int64
}

// Efforts are the efforts that providers know; each of them knows some.
func Efforts() []string { return []string{"none", "minimal", "low", "medium", "high", "xhigh", "max"} }

// MaxTemperature is the highest temperature.
const MaxTemperature = 2

// Validate reports every setting out of its bounds.
func (s Settings) Validate() error {
	var faults []error
	if t := s.Temperature; t != nil && !(*t >= 0 && *t <= MaxTemperature) { // which NaN is not, either
		faults = append(faults, fmt.Errorf("temperature %v: must be 0 to %d", *t, MaxTemperature))
	}
	if s.Effort != "" && !slices.Contains(Efforts(), s.Effort) {
		faults = append(faults, fmt.Errorf("reasoning %q: must be %s", s.Effort, strings.Join(Efforts(), ", ")))
	}
	if s.MaxOutput < 0 {
		faults = append(faults, fmt.Errorf("max output %d: must not be negative", s.MaxOutput))
	}
	return errors.Join(faults...)
}

// Or is s with what it leaves open taken from others; the lesser MaxOutput holds.
func (s Settings) Or(others Settings) Settings {
	if s.Temperature == nil {
		s.Temperature = others.Temperature
	}
	if s.Effort == "" {
		s.Effort = others.Effort
	}
	s.MaxOutput = least(s.MaxOutput, others.MaxOutput)
	return s
}
