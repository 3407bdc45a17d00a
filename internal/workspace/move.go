package workspace

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// ErrMoving says that the bodies of a fleet are on their way to another place.
var ErrMoving = errors.New("the contents of workspaces are being moved")

// Moved is what [Move] did.
type Moved struct {
	From   string // the place where they were; what is there stays
	Copied int    // bodies that were not in the new place yet
}

// moves is how many bodies are copied side by side.
const moves = 8

// Move copies the bodies of a fleet to another place, and has it find them there: an S3 store as
// [Bind] takes, or "nats:", its own servers. The fleet has to stand still. While bodies are copied
// no process begins to use them, and idle, which is called then, returns an error when one does;
// then nothing is moved. A move that was cut short goes on with the same URL. The error wraps
// [ErrMoving] when a move to another place was begun.
func Move(ctx context.Context, nc *nats.Conn, fleet protocol.Fleet, url string, idle func(context.Context) error) (m Moved, err error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return m, err
	}
	places, err := js.KeyValue(ctx, wire.PlacesBucket(fleet))
	if err != nil {
		return m, fmt.Errorf("open %s: %w", wire.PlacesBucket(fleet), err)
	}
	have, err := bound(ctx, js, fleet)
	if err == nil && have == (record{}) {
		have, err = bind(ctx, js, record{Fleet: fleet, ID: uuid.NewString(), URL: inServers})
	}
	switch {
	case err != nil:
		return m, err
	case have.Moving == "" && have.URL == url:
		return m, fmt.Errorf("bodies of fleet %s are in %s already", fleet, url)
	case have.Moving != "" && have.Moving != url:
		return m, fmt.Errorf("bodies %s: %w to %s, finish that first", url, ErrMoving, have.Moving)
	}
	next := record{Fleet: have.Fleet, ID: have.ID, URL: url}
	from, err := have.open(ctx, js)
	if err != nil {
		return m, err
	}
	to, err := next.open(ctx, js)
	if err != nil {
		return m, err
	}
	if there, is := to.(*s3Bodies); is {
		if err := there.claim(ctx); err != nil {
			return m, err
		}
	}
	m.From = have.URL
	begun := have
	begun.Moving = url
	if err := replace(ctx, places, have, begun); err != nil {
		return m, err
	}
	if err := idle(ctx); err != nil {
		return m, errors.Join(err, replace(context.WithoutCancel(ctx), places, begun, have))
	}
	if m.Copied, err = copyBodies(ctx, from, to); err != nil {
		return m, fmt.Errorf("move bodies to %s: %w", url, err)
	}
	return m, replace(ctx, places, begun, next)
}

// replace has a record in the place of another one, which it must be still.
func replace(ctx context.Context, places jetstream.KeyValue, before, after record) error {
	entry, err := places.Get(ctx, bodiesKey)
	if err != nil {
		return fmt.Errorf("look where the bodies are: %w", err)
	}
	var have record
	if err := json.Unmarshal(entry.Value(), &have); err != nil {
		return fmt.Errorf("look where the bodies are: %w", err)
	}
	if have != before {
		return fmt.Errorf("%w by another process", ErrMoving)
	}
	body, err := json.Marshal(after)
	if err == nil {
		_, err = places.Update(ctx, bodiesKey, body, entry.Revision())
	}
	if err != nil {
		return fmt.Errorf("note where the bodies are: %w", err)
	}
	return nil
}

// copyBodies copies what the other place lacks, and returns how many bodies these were.
func copyBodies(ctx context.Context, from, to bodies) (int, error) {
	ever := time.Now().Add(24 * time.Hour)
	all, err := from.before(ctx, ever)
	if err != nil {
		return 0, err
	}
	there, err := to.before(ctx, ever)
	if err != nil {
		return 0, err
	}
	done := map[string]bool{}
	for _, body := range there {
		done[body.name] = true
	}
	copied := 0
	group, within := errgroup.WithContext(ctx)
	group.SetLimit(moves)
	for _, body := range all {
		if done[body.name] {
			continue
		}
		done[body.name] = true
		copied++
		group.Go(func() error {
			content, err := from.get(within, body.name)
			if errors.Is(err, ErrMissing) { // it was garbage, which a sweep has removed
				return nil
			}
			if err != nil {
				return err
			}
			return to.put(within, body.name, content)
		})
	}
	return copied, group.Wait()
}

// open opens the bodies where a record says that they are.
func (r record) open(ctx context.Context, js jetstream.JetStream) (bodies, error) {
	if r.URL != "" && r.URL != inServers {
		return openS3(r)
	}
	store, err := js.ObjectStore(ctx, wire.BodiesBucket(r.Fleet))
	if err != nil {
		return nil, fmt.Errorf("open object store %s: %w", wire.BodiesBucket(r.Fleet), err)
	}
	return natsBodies{js, store, r.Fleet, refresh}, nil
}
