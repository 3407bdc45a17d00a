package fleet

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/pause"
	"github.com/toolfleet/toolfleet/internal/wire"
)

// secretKey is the key of the secret among the places of sandboxes, whose keys are hashes.
const secretKey = "secret"

// secretPause is the time between tries to read a secret that another process has just made.
const secretPause = 50 * time.Millisecond

// Secret returns a key that all coordinators of the fleet share, and that no client of theirs
// knows. The first one makes it.
func (f *Fleet) Secret(ctx context.Context) ([]byte, error) {
	records, err := f.JS.KeyValue(ctx, wire.PlacesBucket(f.Name))
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", wire.PlacesBucket(f.Name), err)
	}
	made := []byte(rand.Text())
	for {
		entry, err := records.Get(ctx, secretKey)
		if err == nil {
			return entry.Value(), nil
		}
		if errors.Is(err, jetstream.ErrKeyNotFound) {
			if _, err = records.Create(ctx, secretKey, made); err == nil {
				return made, nil
			}
		}
		if !errors.Is(err, jetstream.ErrKeyExists) {
			return nil, fmt.Errorf("secret of the fleet in %s: %w", wire.PlacesBucket(f.Name), err)
		}
		if !pause.For(ctx, secretPause) { // one of several servers may not know it yet
			return nil, context.Cause(ctx)
		}
	}
}
