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

// Age has every body be an old one.
func (s *Store) Age() {
	switch b := s.bodies.(type) {
	case natsBodies:
		b.young = 0
		s.bodies = b
	case *s3Bodies:
		b.young = 0
	}
}

// Later has what the store did be long ago.
func (s *Store) Later() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.renewed = nil
}
