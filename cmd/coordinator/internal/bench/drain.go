package bench

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Drain is how fast the calls ran that waited in one lane when the workers started, and how long
// calls of another lane took meanwhile, made one after the other with a pause between.
type Drain struct {
	Calls      int     `json:"calls"`
	CallsPerS  float64 `json:"calls_per_s"`
	RatioToPub float64 `json:"ratio_to_publish"`
	Probes     int     `json:"probes"`
	ProbeP50US float64 `json:"probe_p50_us"`
	ProbeP99US float64 `json:"probe_p99_us"`
	ProbeMaxUS float64 `json:"probe_max_us"`
}

// probePause keeps the probes from being a load of their own.
const probePause = 10 * time.Millisecond

// fill puts the calls that wait, as many publishers do.
func fill(ctx context.Context, nc *nats.Conn, o Options) error {
	publisher, err := lane.NewPublisher(ctx, nc, o.Fleet)
	if err != nil {
		return err
	}
	session := protocol.NewSessionID()
	faults := make([]error, publishers)
	var group sync.WaitGroup
	for i := range publishers {
		group.Go(func() {
			for n := i; n < o.Waiting && faults[i] == nil; n += publishers {
				call := newCall(session, deepKey, o.body())
				faults[i] = publisher.Enqueue(ctx, []lane.Outgoing{{Call: call}})[0]
			}
		})
	}
	group.Wait()
	return cmp.Or(faults...)
}

// drain waits until the calls have run that wait.
func (l *load) drain(ctx context.Context, w *witness) *Drain {
	session := protocol.NewSessionID()
	var took []time.Duration
	begun := time.Now()
	for open := true; open && ctx.Err() == nil; {
		start := time.Now()
		if l.call(ctx, session, probeKey, wire.Noop{}) {
			took = append(took, time.Since(start))
		} else {
			l.faults.Add(1)
		}
		select {
		case <-w.drained:
			open = false
		case <-time.After(probePause):
		case <-ctx.Done():
		}
	}
	slices.Sort(took)
	d := &Drain{Calls: l.options.Waiting, Probes: len(took), CallsPerS: float64(l.options.Waiting) / time.Since(begun).Seconds()}
	if len(took) > 0 {
		d.ProbeP50US, d.ProbeP99US = micros(took[len(took)/2]), micros(took[len(took)*99/100])
		d.ProbeMaxUS = micros(took[len(took)-1])
	}
	return d
}
