package worker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/pause"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

const (
	// placeTimeout bounds one try to record or read a place, placePause is the time between two.
	placeTimeout = 5 * time.Second
	placePause   = 100 * time.Millisecond
)

// claimPlace checks that the workspace is here, or records that it begins here. A
// fleet that does not answer is no fault of the call: it is asked again until ctx ends.
func (s *sandboxes) claimPlace(ctx context.Context, l protocol.Lane, workspace string) error {
	for {
		err := s.tryPlace(ctx, l, workspace)
		if _, answered := errors.AsType[*protocol.Error](err); err == nil || answered || errors.Is(err, nats.ErrConnectionClosed) {
			return err
		}
		if !pause.For(ctx, placePause) {
			return err
		}
	}
}

// tryPlace is one try of claimPlace. The record of an answer that was lost is found by the next
// one.
func (s *sandboxes) tryPlace(ctx context.Context, l protocol.Lane, workspace string) error {
	ctx, cancel := context.WithTimeout(ctx, placeTimeout)
	defer cancel()
	key := string(wire.HashLane(l))
	claims := s.options.Durability != DurabilityNone
	if claims {
		_, err := s.places.Create(ctx, key, []byte(s.dataID))
		if err == nil {
			return s.isNew(ctx, l, key)
		}
		if refused, is := errors.AsType[*jetstream.APIError](err); is && natsio.NoRoom(refused) {
			return protocol.Errorf(protocol.CodeFleetFull,
				"the fleet has no room to record where the workspace of %s is (%s): make room in KV_%s", l, refused.Description, s.places.Bucket())
		}
		if !errors.Is(err, jetstream.ErrKeyExists) {
			return fmt.Errorf("record the place of %s: %w", l, err)
		}
	} else if err := s.isNew(ctx, l, key); err != nil {
		return err
	}
	place, err := s.placeOf(ctx, key)
	if err == nil && claims && place == "" {
		err = jetstream.ErrKeyNotFound // it was removed meanwhile
	}
	if err != nil {
		return fmt.Errorf("read the place of %s: %w", l, err)
	}
	if place != s.dataID && place != "" {
		return protocol.Errorf(protocol.CodeWorkspaceUnavailable,
			"the workspace of %s is in another data directory (%s) than this worker's (%s), and no worker with that one is there; start one with that --data",
			l, place, s.dataID)
	}
	if _, err := os.Stat(workspace); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return protocol.Errorf(protocol.CodeWorkspaceUnavailable, "the workspace of %s: %v", l, err)
	}
	return nil
}

// isNew refuses a workspace of which nothing is here, and which the fleet has.
func (s *sandboxes) isNew(ctx context.Context, l protocol.Lane, key string) error {
	if s.workspaces == nil {
		return nil
	}
	there, err := s.workspaces.Has(ctx, wire.HashLane(l))
	if err == nil && !there {
		return nil
	}
	if s.options.Durability != DurabilityNone {
		if forgot := s.places.Purge(ctx, key); err != nil || forgot != nil {
			err = errors.Join(err, forgot)
		}
	}
	if err != nil {
		return fmt.Errorf("look for checkpoints of %s: %w", l, err)
	}
	return protocol.Errorf(protocol.CodeWorkspaceUnavailable,
		"the workspace of %s is kept with the fleet, and this worker has --durability %s; start it without", l, s.options.Durability)
}

// remove closes the sandbox of a lane and removes its directory, unless that is in another data
// directory. The record goes last, so that a removal which was cut short is found again. Once ctx
// has ended the directory may be that of another worker: what is left of it stays.
func (s *sandboxes) remove(ctx context.Context, l protocol.Lane) error {
	if s.workspaces != nil {
		if err := s.workspaces.Remove(ctx, wire.HashLane(l)); err != nil {
			return err
		}
	}
	key := string(wire.HashLane(l))
	place, err := s.placeOf(ctx, key)
	if err != nil {
		return fmt.Errorf("read the place of %s: %w", l, err)
	}
	if place != "" && place != s.dataID {
		return protocol.Errorf(protocol.CodeWorkspaceUnavailable,
			"the workspace of %s is in another data directory (%s) than this worker's (%s)", l, place, s.dataID)
	}
	if err := s.close(l); err != nil {
		return fmt.Errorf("close the sandbox: %w", err)
	}
	if err := removeWhile(ctx.Err, s.home(l)); err != nil { // takes its time where there is much
		if ctx.Err() != nil {
			return fmt.Errorf("remove the workspace: %w", err)
		}
		return protocol.Errorf(protocol.CodeWorkspaceUnavailable, "remove the workspace: %v", err)
	}
	ctx, cancel := context.WithTimeout(ctx, placeTimeout)
	defer cancel()
	if err := s.places.Purge(ctx, key); err != nil && !errors.Is(err, jetstream.ErrKeyNotFound) {
		return fmt.Errorf("forget the place of %s: %w", l, err)
	}
	return nil
}

// placeOf is the id of the data directory that is recorded under a key; "" when none is.
func (s *sandboxes) placeOf(ctx context.Context, key string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, placeTimeout)
	defer cancel()
	place, err := s.places.Get(ctx, key)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	return string(place.Value()), nil
}
