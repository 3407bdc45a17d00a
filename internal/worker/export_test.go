package worker

import (
	"context"
	"path/filepath"

	"github.com/gofrs/flock"
)

// Evict removes surplus copies of workspaces now.
func (w *Worker) Evict(ctx context.Context) error {
	return w.env.Sandboxes.Evict(ctx, flock.New(filepath.Join(w.options.Data, "lock")))
}
