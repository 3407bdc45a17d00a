package worker

import (
	"context"
	"path/filepath"

	"github.com/gofrs/flock"
)

// Evict removes copies of workspaces now that are too much.
func (w *Worker) Evict(ctx context.Context) error {
	return w.sandboxes.evict(ctx, flock.New(filepath.Join(w.sandboxes.options.Data, "lock")))
}
