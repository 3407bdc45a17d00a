package workspace

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/internal/wire"
)

// What keeps a body
//
// A body is needed while a checkpoint, or an upload that waits for a worker, names it. A sweep
// lists old bodies first, then reads what is needed, and removes the difference. So a body that
// nothing names yet must be young until it is named:
//
//	Put ► a body is stored, or one of that name is younger than refresh (20 min)
//	Keep ► each body that was put more than keepAfter (15 min) ago becomes new, or is missing
//	checkpoint, upload ► is stored only behind a Keep: what it names was new at most 40 min ago
//	Sweep ► removes what is SweepAge (60 min) old and not needed

// SweepAge is how old a body is at least that is removed as garbage.
const SweepAge = time.Hour

// SweepEvery is the time between two sweeps of [KeepSwept], half of it at least.
const SweepEvery = time.Hour

// KeepSwept calls sweep now and then until ctx ends; failed has what goes wrong.
func KeepSwept(ctx context.Context, sweep func(context.Context) error, failed func(error)) {
	for pause.For(ctx, SweepEvery/2+rand.N(SweepEvery)) { //nolint:gosec // spreads them, no secret
		if err := sweep(ctx); err != nil && ctx.Err() == nil {
			failed(err)
		}
	}
}

// Sweep removes the bodies that no checkpoint needs and that are at least age old, and returns how
// many these were. They are left by commits that never happened and by workspaces that were
// removed. It can run at any time, and in several processes. If it cannot be known what is needed,
// nothing is removed.
func (s *Store) Sweep(ctx context.Context, age time.Duration) (int, error) {
	if err := s.sweepUploads(ctx, time.Now().Add(-uploadsKept)); err != nil {
		return 0, fmt.Errorf("sweep uploads: %w", err)
	}
	old, err := s.bodies.before(ctx, time.Now().Add(-age))
	if err != nil {
		return 0, fmt.Errorf("sweep workspaces: %w", err)
	}
	if len(old) == 0 {
		return 0, nil
	}
	needed, err := s.needed(ctx) // after the list: what is stored from now on is too young to be in it
	if err != nil {
		return 0, fmt.Errorf("sweep workspaces: %w", err)
	}
	old = slices.DeleteFunc(old, func(o stored) bool { return needed[o.name] && !o.copy })
	if err := s.bodies.remove(ctx, old); err != nil {
		return 0, fmt.Errorf("sweep workspaces: %w", err)
	}
	return len(old), nil
}

// needed are the names of the bodies that checkpoints need, and uploads that wait for a worker.
func (s *Store) needed(ctx context.Context) (map[string]bool, error) {
	needed := map[string]bool{}
	if err := s.waiting(ctx, needed); err != nil { // first: an upload is removed when a checkpoint has what it names
		return nil, err
	}
	info, err := s.stream.Info(ctx)
	if err != nil {
		return nil, err
	}
	if info.State.Msgs == 0 {
		return needed, nil
	}
	consumer, err := s.stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{HeadersOnly: true})
	if err != nil {
		return nil, err
	}
	messages, err := consumer.Messages()
	if err != nil {
		return nil, err
	}
	defer messages.Stop()
	for {
		msg, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return nil, err
		}
		meta, err := msg.Metadata()
		if err == nil {
			err = s.namesOf(ctx, msg.Headers(), needed)
		}
		if err != nil {
			return nil, fmt.Errorf("checkpoint %d of %s %s: %w", meta.Sequence.Stream, msg.Subject(), laneOf(msg.Headers()), err)
		}
		if meta.NumPending > 0 {
			continue
		}
		// The server's count can be too low while messages are removed, and what is missed loses
		// its bodies: a request says whether a message follows.
		_, err = s.stream.GetMsg(ctx, meta.Sequence.Stream+1, jetstream.WithGetMsgSubject(wire.WorkspaceSubject(s.fleet, "*")))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return needed, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

const (
	// maxNames bounds the names of bodies in the header of a checkpoint, in bytes: all headers of a
	// message have 64 KiB at most.
	maxNames = 32 << 10
	// maxNamed is more than the names of the bodies of any tree have.
	maxNamed = 1 << 30
)

// nameBodies has the header of a checkpoint name bodies: in itself, or in bodies, which are
// returned.
func (s *Store) nameBodies(ctx context.Context, header nats.Header, bodies []string) (stored []string, err error) {
	slices.Sort(bodies)
	names := strings.Join(slices.Compact(bodies), ",")
	if len(names) > maxNames {
		var parts []snapshot.Part
		if parts, stored, err = snapshot.StoreBytes(ctx, s, []byte(names)); err != nil {
			return nil, err
		}
		at, err := json.Marshal(parts)
		if err != nil {
			return nil, err
		}
		header.Set(headerNames, string(at))
		names = strings.Join(stored, ",")
	}
	if names != "" {
		header.Set(headerBodies, names)
	}
	return stored, nil
}

// namesOf adds the bodies that the header of a checkpoint names.
func (s *Store) namesOf(ctx context.Context, header nats.Header, names map[string]bool) error {
	for name := range strings.SplitSeq(header.Get(headerBodies), ",") {
		names[name] = true
	}
	at := header.Get(headerNames)
	if at == "" {
		return nil
	}
	var parts []snapshot.Part
	if err := json.Unmarshal([]byte(at), &parts); err != nil {
		return fmt.Errorf("header %s: %w: %w", headerNames, ErrInvalid, err)
	}
	list, err := snapshot.LoadBytes(ctx, s, parts, maxNamed)
	for name := range strings.SplitSeq(string(list), ",") {
		names[name] = true
	}
	return err
}

// waiting adds the bodies of uploads that no worker has received yet.
func (s *Store) waiting(ctx context.Context, names map[string]bool) error {
	bucket := wire.BlobsBucket(s.fleet)
	uploads, err := natsio.ListObjects(ctx, s.js, bucket, wire.IsUploadBlob)
	if err != nil {
		return err
	}
	for _, upload := range uploads {
		if upload.Deleted {
			continue
		}
		if err := s.waitingFor(ctx, bucket, upload.Name, names); err != nil {
			return fmt.Errorf("upload %s: %w", upload.Name, err)
		}
	}
	return nil
}

func (s *Store) waitingFor(ctx context.Context, bucket, name string, names map[string]bool) error {
	blob, err := natsio.GetObject(ctx, s.js, bucket, name)
	if errors.Is(err, jetstream.ErrObjectNotFound) { // received meanwhile
		return nil
	}
	if err != nil {
		return err
	}
	upload, err := ReadUpload(io.LimitReader(blob, maxNamed))
	switch {
	case errors.Is(err, ErrInvalid), errors.Is(err, jetstream.ErrDigestMismatch), errors.Is(err, jetstream.ErrMsgNotFound): // no worker receives it, either; or it is removed meanwhile
		return blob.Close()
	case err != nil:
		return errors.Join(err, blob.Close())
	}
	for _, body := range upload.Delta.Set.Bodies() {
		names[body] = true
	}
	return blob.Close()
}

// keepers is how many bodies are kept at once.
const keepers = 16

// Keep implements [snapshot.Keeper]. The error wraps [ErrMissing] when one of the bodies is not
// there any more.
func (s *Store) Keep(ctx context.Context, names []string) error {
	s.mu.Lock()
	old := slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		at, is := s.renewed[name]
		return is && since(at) < keepAfter
	})
	s.mu.Unlock()
	return s.renew(ctx, old)
}

// renew is Keep for bodies that another process may have stored.
func (s *Store) renew(ctx context.Context, names []string) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(keepers)
	for _, name := range names {
		group.Go(func() error {
			begun := time.Now()
			err := s.persist(ctx, func(ctx context.Context) error { return s.bodies.keep(ctx, name) })
			if err == nil {
				s.note(name, begun)
			}
			return err
		})
	}
	return group.Wait()
}

// maxRenewed is how many bodies are remembered before old ones are forgotten.
const maxRenewed = 1 << 14

// note remembers that a body was young at a time.
func (s *Store) note(name string, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.renewed == nil {
		s.renewed = map[string]time.Time{}
	}
	if s.renewed[name] = at; len(s.renewed)%maxRenewed == 0 {
		maps.DeleteFunc(s.renewed, func(_ string, at time.Time) bool { return since(at) >= keepAfter })
	}
}

// since is the time since then, also while the machine was suspended, in which some clocks stand
// still.
func since(at time.Time) time.Duration {
	return max(time.Since(at), time.Now().Round(0).Sub(at.Round(0)))
}
