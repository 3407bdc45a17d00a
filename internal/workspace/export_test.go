package workspace

import (
	"context"
	"time"
)

// SweepUploads is what [Store.Sweep] does about uploads.
func (s *Store) SweepUploads(ctx context.Context, since time.Time) error {
	return s.sweepUploads(ctx, since)
}

// Waits sets how long a store of bodies is waited for that is away.
func (s *Store) Waits(d time.Duration) { s.waits = d }

// Age has every body in the servers of the fleet be an old one.
func (s *Store) Age() {
	b, _ := s.bodies.(natsBodies)
	b.young = 0
	s.bodies = b
}
