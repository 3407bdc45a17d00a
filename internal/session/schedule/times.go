package schedule

import (
	"strings"
	"time"

	"github.com/robfig/cron/v3"
)

// every has the times start + n periods, the same ones for every coordinator.
type every struct {
	start  time.Time
	period time.Duration
}

// Next implements [cron.Schedule].
func (e every) Next(after time.Time) time.Time {
	if after.Before(e.start) {
		return e.start.Add(e.period)
	}
	return e.start.Add((after.Sub(e.start)/e.period + 1) * e.period)
}

// once has one time; the zero time is none.
type once struct{ at time.Time }

// Next implements [cron.Schedule].
func (o once) Next(after time.Time) time.Time {
	if after.Before(o.at) {
		return o.at
	}
	return time.Time{}
}

func wholeSeconds(period string) bool {
	d, err := time.ParseDuration(strings.TrimSpace(period))
	return err == nil && d > 0 && d%time.Second == 0
}

// inZone returns the times of a cron text in a time zone. With a "*" for hours they follow the
// elapsed time, so that "*/15 * * * *" has four of them in each hour that passes. Others are local.
func inZone(spec *cron.SpecSchedule, zone *time.Location) cron.Schedule {
	const everyHour = 1<<24 - 1
	if spec.Hour&everyHour == everyHour {
		spec.Location = zone
		return spec
	}
	spec.Location = time.UTC
	return local{spec, zone}
}

// local has fixed local times. Each starts once, at the first moment at which the clocks show
// that time or a later one: a time that they show twice starts at first, and times that they skip
// start together at the change.
type local struct {
	clock *cron.SpecSchedule // as if local time were UTC
	zone  *time.Location
}

// Next implements [cron.Schedule].
func (l local) Next(after time.Time) time.Time {
	shown := asUTC(after.In(l.zone))
	for {
		if shown = l.clock.Next(shown); shown.IsZero() {
			return shown
		}
		if t := l.first(shown); t.After(after) {
			return t
		}
	}
}

// asUTC is the time in UTC whose clocks show what those of t show.
func asUTC(t time.Time) time.Time {
	_, offset := t.Zone()
	return t.Add(time.Duration(offset) * time.Second).UTC()
}

// first is the first moment at which the clocks of the zone show a time or a later one.
func (l local) first(shown time.Time) time.Time {
	const change = 26 * time.Hour // is more than clocks differ from UTC, and has one change at most
	before := shown.Add(-change).In(l.zone)
	_, offset := before.Zone()
	t := shown.Add(-time.Duration(offset) * time.Second)
	if _, changes := before.ZoneBounds(); !changes.IsZero() && !t.Before(changes) {
		_, offset := changes.Zone()
		t = shown.Add(-time.Duration(offset) * time.Second)
		if t.Before(changes) {
			t = changes
		}
	}
	return t.In(l.zone)
}
