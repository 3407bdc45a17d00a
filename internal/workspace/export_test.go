package workspace

import (
	"context"
	"time"
)

// SweepUploads is what [Store.Sweep] does about uploads.
func (s *Store) SweepUploads(ctx context.Context, since time.Time) error {
	return s.sweepUploads(ctx, since)
}
