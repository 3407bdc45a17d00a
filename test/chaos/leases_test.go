//go:build linux

package chaos

import (
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// leases is what is heard of the workers' heartbeats.
type leases struct {
	mu   sync.Mutex
	last map[string]Time // when each life was stored or renewed last
	lost []Fault
}

// watchLeases notes whose lease ended. A machine that is busy enough brings a renewal or its answer
// too late without anybody being kept from running for [longTick]. That explains what a worker does
// not finish, and allows nothing else.
func (r *rig) watchLeases() {
	r.t.Helper()
	r.leases.last = map[string]Time{}
	_, destination := wire.BeatMapping(protocol.DefaultFleet)
	_, err := r.nc.Subscribe(destination, func(msg *nats.Msg) {
		beat, err := wire.DecodeHeartbeat(msg.Data)
		stored, timeErr := time.Parse(time.RFC3339Nano, msg.Header.Get("Nats-Time-Stamp"))
		if err != nil || timeErr != nil {
			return
		}
		at := Time(stored.UnixNano() - int64(r.offset))
		r.leases.mu.Lock()
		defer r.leases.mu.Unlock()
		if beat.Expired {
			from := max(r.leases.last[msg.Subject], at-Time(2*r.setup.lease))
			r.leases.lost = append(r.leases.lost, Fault{Worker: beat.WorkerID, From: from, Until: at})
		}
		r.leases.last[msg.Subject] = at
	})
	require.NoError(r.t, err)
}

// addLostLeases adds to a history the leases that ended, but for those of workers that were killed.
func (r *rig) addLostLeases(h *History) {
	r.leases.mu.Lock()
	defer r.leases.mu.Unlock()
	for _, lost := range r.leases.lost {
		if !slices.ContainsFunc(r.faults, func(f Fault) bool { return f.Killed && f.Worker == lost.Worker }) {
			h.Faults = append(h.Faults, lost)
		}
	}
}

// lostLease reports whether a lease of a worker ended.
func (r *rig) lostLease(worker protocol.WorkerID) bool {
	r.leases.mu.Lock()
	defer r.leases.mu.Unlock()
	return slices.ContainsFunc(r.leases.lost, func(f Fault) bool { return f.Worker == worker })
}
