// Package moment reads points in time as people write them: a time, or how long ago or from now.
// Commands, HTTP and web pages accept the same texts.
package moment

import (
	"fmt"
	"strings"
	"time"
)

// day is a unit that [time.ParseDuration] does not have.
const day = 24 * time.Hour

// Sinces are the times that lists offer as filters.
func Sinces() []string { return []string{"15m", "1h", "24h", "7d", "30d"} }

// Moment is a time with its zone, or a duration before or after now; zero if neither was given.
type Moment struct {
	at       time.Time
	duration time.Duration
}

// UnmarshalText reads a moment. Durations have the units of Go and days, as in 1d12h.
func (m *Moment) UnmarshalText(text []byte) error {
	parsed, err := Parse(string(text))
	if err == nil {
		*m = parsed
	}
	return err
}

// Parse reads a moment.
func Parse(text string) (m Moment, err error) {
	if m.duration, err = parseDuration(text); err == nil {
		if m.duration < 0 {
			return Moment{}, fmt.Errorf("%.50q: must not be negative", text)
		}
		return m, nil
	}
	if m.at, err = time.Parse(time.RFC3339, text); err != nil {
		return Moment{}, fmt.Errorf("%.50q: must be a duration such as 15m, 24h or 7d, or a time with its zone such as 2026-12-01T07:00:00+01:00", text)
	}
	return m, nil
}

// parseDuration reads a duration that may begin with days.
func parseDuration(text string) (time.Duration, error) {
	days, rest, has := strings.Cut(text, "d")
	if !has {
		return time.ParseDuration(text)
	}
	d, err := time.ParseDuration(days + "h") // as many hours
	if err != nil || strings.Trim(days, "0123456789.") != "" || d > 1000*365*time.Hour {
		return 0, fmt.Errorf("%.50q: no number of days", text)
	}
	d *= day / time.Hour
	if rest == "" {
		return d, nil
	}
	more, err := time.ParseDuration(rest)
	if err == nil && (more < 0 || more > day) {
		err = fmt.Errorf("%.50q: must be less than a day", rest)
	}
	return d + more, err
}

// After is the moment for a process that begins at now, a duration later; zero if none was given.
func (m *Moment) After(now time.Time) time.Time { return m.from(now, m.duration) }

// Before is the moment for a process that looks back from now; zero if none was given, or 0.
func (m *Moment) Before(now time.Time) time.Time { return m.from(now, -m.duration) }

func (m *Moment) from(now time.Time, d time.Duration) time.Time {
	if d != 0 {
		return now.Add(d).UTC()
	}
	return m.at.UTC()
}
