package sandboxes

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
	"github.com/toolfleet/toolfleet/internal/workspace"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

const (
	// locationTimeout bounds one try to record or read a location, locationPause is the time
	// between two.
	locationTimeout = 5 * time.Second
	locationPause   = 100 * time.Millisecond
)

// locations records which data directory has the workspace of a lane, where the fleet does not
// store workspaces.
type locations struct {
	bucket     jetstream.KeyValue
	workspaces *workspace.Store // nil in tests without
	durability Durability
	disk       string // id of this data directory
}

// claim checks that the workspace is here, or records that it begins here. While the fleet does not
// answer it tries again, until ctx ends.
func (s *locations) claim(ctx context.Context, l protocol.Lane, workspace string) error {
	for {
		err := s.tryClaim(ctx, l, workspace)
		if _, answered := errors.AsType[*protocol.Error](err); err == nil || answered || errors.Is(err, nats.ErrConnectionClosed) {
			return err
		}
		if !pause.For(ctx, locationPause) {
			return err
		}
	}
}

// tryClaim is one try of claim. It also finds the record of a try whose answer was lost.
func (s *locations) tryClaim(ctx context.Context, l protocol.Lane, workspace string) error {
	ctx, cancel := context.WithTimeout(ctx, locationTimeout)
	defer cancel()
	records := s.durability != DurabilityNone
	if records {
		_, err := s.bucket.Create(ctx, string(wire.HashLane(l)), []byte(s.disk))
		if err == nil {
			return s.checkNew(ctx, l)
		}
		if refused, is := errors.AsType[*jetstream.APIError](err); is && natsio.NoRoom(refused) {
			return protocol.Errorf(protocol.CodeFleetFull,
				"the fleet has no room to record where the workspace of %s is (%s): make room in KV_%s", l, refused.Description, s.bucket.Bucket())
		}
		if !errors.Is(err, jetstream.ErrKeyExists) {
			return fmt.Errorf("record the location of %s: %w", l, err)
		}
	} else if err := s.checkNew(ctx, l); err != nil {
		return err
	}
	disk, err := s.of(ctx, l)
	if err == nil && records && disk == "" {
		err = jetstream.ErrKeyNotFound // it was removed meanwhile
	}
	if err != nil {
		return fmt.Errorf("read the location of %s: %w", l, err)
	}
	if disk != s.disk && disk != "" {
		return protocol.Errorf(protocol.CodeWorkspaceUnavailable,
			"the workspace of %s is in another data directory (%s) than this worker's (%s), and no worker with that one is there; start one with that --data",
			l, disk, s.disk)
	}
	if _, err := os.Stat(workspace); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return protocol.Errorf(protocol.CodeWorkspaceUnavailable, "the workspace of %s: %v", l, err)
	}
	return nil
}

// checkNew refuses a new workspace here if the fleet stores one of the lane.
func (s *locations) checkNew(ctx context.Context, l protocol.Lane) error {
	if s.workspaces == nil {
		return nil
	}
	stored, err := s.workspaces.Has(ctx, wire.HashLane(l))
	if err == nil && !stored {
		return nil
	}
	if s.durability != DurabilityNone {
		if purgeErr := s.bucket.Purge(ctx, string(wire.HashLane(l))); err != nil || purgeErr != nil {
			err = errors.Join(err, purgeErr)
		}
	}
	if err != nil {
		return fmt.Errorf("look for checkpoints of %s: %w", l, err)
	}
	return protocol.Errorf(protocol.CodeWorkspaceUnavailable,
		"the workspace of %s is stored with the fleet, and this worker has --durability %s; start it without", l, s.durability)
}

// of is the id of the data directory that is recorded for a lane; "" if none is.
func (s *locations) of(ctx context.Context, l protocol.Lane) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, locationTimeout)
	defer cancel()
	disk, err := s.bucket.Get(ctx, string(wire.HashLane(l)))
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	return string(disk.Value()), nil
}

// forget removes the record of a lane.
func (s *locations) forget(ctx context.Context, l protocol.Lane) error {
	ctx, cancel := context.WithTimeout(ctx, locationTimeout)
	defer cancel()
	if err := s.bucket.Purge(ctx, string(wire.HashLane(l))); err != nil && !errors.Is(err, jetstream.ErrKeyNotFound) {
		return fmt.Errorf("forget the location of %s: %w", l, err)
	}
	return nil
}

// OnlyAt names the data directory that alone has a lane's workspace; "" if the sandbox is open
// here, no directory has it, or the fleet stores it.
func (s *Set) OnlyAt(ctx context.Context, l protocol.Lane) string {
	if _, inPlace := s.InPlace(l); inPlace || s.options.Durability != DurabilityLocal || ID(l) == "" || s.Box(l) != nil {
		return ""
	}
	for {
		disk, err := s.locations.of(ctx, l)
		if err == nil || !pause.For(ctx, locationPause) {
			return disk
		}
	}
}

// LastAt names the data directory that had a lane's workspace last; "" if the sandbox is open here,
// or no directory had it.
func (s *Set) LastAt(ctx context.Context, l protocol.Lane) string {
	if !s.Checkpoints() || ID(l) == "" || s.Box(l) != nil {
		return ""
	}
	disk, err := s.options.Workspaces.LastDisk(ctx, wire.HashLane(l))
	if err != nil { // the claim reports it
		return ""
	}
	return disk
}
