package webui

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/session/timeline"
	"github.com/toolfleet/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
)

const (
	plotEvery = 15 * time.Second
	plotTime  = time.Hour
	plotStep  = time.Minute
	plotWidth = 600
	plotHigh  = 80
)

// series are the values of a plot that have one meaning.
type series struct {
	Name   string
	Class  string // of its colour
	Values []float64
}

// rectangle is a bar of a plot.
type rectangle struct {
	Class      string
	X, Y, W, H float64
}

// plot is a plot of a time, with bars for each step.
type plot struct {
	Title  string
	Series []series
	Bars   []rectangle
	Most   string // what the whole height is
	Last   string // the values of the last step
}

// plotsPage has the plots of the last hour, and their numbers.
type plotsPage struct {
	report.CallRates

	Plots  []plot
	Calls  int
	Failed int
}

// newPlot draws series as bars: on each other, or each before the one behind it.
func newPlot(title string, stacked bool, unit func(float64) string, all ...series) plot {
	p := plot{Title: title, Series: all}
	if len(all) == 0 || len(all[0].Values) == 0 {
		return p
	}
	steps, most := len(all[0].Values), 0.0
	for step := range steps {
		sum := 0.0
		for _, s := range all {
			if sum += s.Values[step]; !stacked {
				sum = s.Values[step]
			}
			most = max(most, sum)
		}
	}
	p.Most = unit(most)
	for i, s := range all {
		if i > 0 {
			p.Last += ", "
		}
		p.Last += s.Name + " " + unit(s.Values[steps-1])
	}
	if most == 0 {
		return p
	}
	wide := float64(plotWidth) / float64(steps)
	for step := range steps {
		under := 0.0
		for _, s := range all {
			high := s.Values[step] / most * plotHigh
			if high <= 0 {
				continue
			}
			high = max(high, 1)
			p.Bars = append(p.Bars, rectangle{s.Class, float64(step)*wide + wide/10, plotHigh - under - high, wide * 8 / 10, high})
			if stacked {
				under = min(under+high, plotHigh-1)
			}
		}
	}
	return p
}

// plottedWaits are the waits that have a colour of their own together. A start time is left out:
// the call has asked for it, and hours of it would hide all other waits.
var plottedWaits = []struct { //nolint:gochecknoglobals // a constant
	class   string
	reasons []report.Reason
}{
	{"w1", []report.Reason{report.ReasonSlot}},
	{"w2", []report.Reason{report.ReasonLane, report.ReasonAfter}},
	{"w3", []report.Reason{report.ReasonLimit, report.ReasonRate}},
	{"bad", []report.Reason{report.ReasonLost}},
	{"w4", []report.Reason{report.ReasonPause}},
	{"w5", []report.Reason{report.ReasonPerson}},
}

// waitSeries are the reasons for which calls wait, as the plots and their table have them.
func waitSeries(buckets []report.CallRate) []series {
	all := make([]series, len(plottedWaits))
	for i, w := range plottedWaits {
		words := make([]string, len(w.reasons))
		for k, reason := range w.reasons {
			words[k] = reason.What()
		}
		all[i] = series{strings.Join(words, " or "), w.class, make([]float64, len(buckets))}
	}
	for j := range buckets {
		for _, p := range timeline.Waits(&buckets[j].Waits, 0) {
			for i, w := range plottedWaits {
				if slices.Contains(w.reasons, p.Reason) {
					all[i].Values[j] += p.MS
				}
			}
		}
	}
	return all
}

// plotsOf draws what the log says of a time.
func plotsOf(rates report.CallRates) *plotsPage {
	p := &plotsPage{CallRates: rates}
	values := func(of func(b *report.CallRate) float64) []float64 {
		all := make([]float64, len(rates.Buckets))
		for i := range rates.Buckets {
			all[i] = of(&rates.Buckets[i])
		}
		return all
	}
	for i := range rates.Buckets {
		p.Calls, p.Failed = p.Calls+rates.Buckets[i].Calls, p.Failed+rates.Buckets[i].Failed
	}
	whole := func(n float64) string { return grouped(fmt.Sprintf("%.0f", n)) }
	p.Plots = []plot{
		newPlot("Calls a minute", true, whole,
			series{"failed", "bad", values(func(b *report.CallRate) float64 { return float64(b.Failed) })},
			series{"ok", "ok", values(func(b *report.CallRate) float64 { return float64(b.Calls - b.Failed) })}),
		newPlot("How long calls ran", false, terminal.Millis,
			series{"95 of 100 calls", "run2", values(func(b *report.CallRate) float64 { return b.RunP95MS })},
			series{"half of the calls", "run", values(func(b *report.CallRate) float64 { return b.RunP50MS })}),
		newPlot("How long calls waited", false, terminal.Millis,
			series{"95 of 100 calls", "wait2", values(func(b *report.CallRate) float64 { return b.WaitP95MS })},
			series{"half of the calls", "wait", values(func(b *report.CallRate) float64 { return b.WaitP50MS })}),
		newPlot("What calls waited for, in sum", true, terminal.Millis, waitSeries(rates.Buckets)...),
	}
	return p
}

// Waited are the sums of the reasons in a step, for the table.
func (p *plotsPage) Waited(step int) []string {
	all := p.Plots[len(p.Plots)-1].Series
	words := make([]string, len(all))
	for i := range all {
		if ms := all[i].Values[step]; ms > 0 {
			words[i] = terminal.Millis(ms)
		}
	}
	return words
}

// rates follows the plots.
func (u *ui) rates() followed {
	return followed{thing: "rates", every: plotEvery, open: func() func(context.Context) (any, error) {
		return func(ctx context.Context) (any, error) {
			until := time.Now().Truncate(plotStep).Add(plotStep)
			rates, err := u.Client.CallRates(ctx, fleet.CallQuery{Since: until.Add(-plotTime), Until: until}, plotStep)
			if err != nil {
				return nil, err
			}
			return plotsOf(rates), nil
		}
	}}
}

// plots shows the plots of the last hour, as a part of the page of the fleet.
func (u *ui) plots(ctx context.Context, w http.ResponseWriter, r *http.Request) error {
	p, err := look[*plotsPage](ctx, u, u.rates())
	if err != nil {
		return err
	}
	u.write(w, r, http.StatusOK, "plots", "plots", view{Data: p})
	return nil
}
