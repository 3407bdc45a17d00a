package calls

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// RoutePool has another dispatcher, which has a connection of its own, carry the calls of a pool.
// It precedes the first call.
func (d *Dispatcher) RoutePool(pool protocol.Pool, to *Dispatcher) {
	if d.others == nil {
		d.others = map[protocol.Pool]*Dispatcher{}
	}
	d.others[pool] = to
}

// of is whose the calls of a pool are.
func (d *Dispatcher) of(pool protocol.Pool) *Dispatcher {
	if other := d.others[pool]; other != nil {
		return other
	}
	return d
}

// parts are the dispatcher itself and those that carry the calls of other pools, each once.
func (d *Dispatcher) parts() []*Dispatcher {
	parts := []*Dispatcher{d}
	for _, other := range d.others {
		if !slices.Contains(parts, other) {
			parts = append(parts, other)
		}
	}
	return parts
}

// bring copies what is stored of a call's result to where a call that reads it runs, if it is
// elsewhere.
func (d *Dispatcher) bring(ctx context.Context, read *protocol.Call) error {
	request, is := read.Payload.(wire.ResultRead)
	if !is {
		return nil
	}
	reader, session, of := d.of(read.Pool), read.SessionID, request.CallID
	names := []string{
		wire.KeptText(session, of), wire.KeptValue(session, of),
		wire.KeptPart(session, of, wire.PartStdout), wire.KeptPart(session, of, wire.PartStderr), wire.KeptPart(session, of, wire.PartMedia),
	}
	if there, err := reader.copyKept(ctx, reader, names); there || err != nil {
		return err
	}
	for _, part := range d.parts() {
		if part == reader {
			continue
		}
		if there, err := part.copyKept(ctx, reader, names); there || err != nil {
			return err
		}
		result, err := part.publisher.Result(ctx, session, of)
		if errors.Is(err, wire.ErrInvalidResult) || err == nil && (result == nil || result.Value == nil) {
			continue
		}
		var value []byte
		if err == nil {
			value, err = wire.EncodeValue(result.Value)
		}
		if err == nil {
			_, err = natsio.PutObject(ctx, reader.js, wire.KeptBucket(d.fleet), names[1], bytes.NewReader(value))
		}
		if err != nil {
			return fmt.Errorf("bring the result of call %s to pool %s: %w", of, read.Pool, err)
		}
		return nil
	}
	return nil
}

// copyKept copies those of some objects that are there, and reports whether there is one.
func (d *Dispatcher) copyKept(ctx context.Context, to *Dispatcher, names []string) (there bool, err error) {
	for _, name := range names {
		object, err := natsio.GetObject(ctx, d.js, wire.KeptBucket(d.fleet), name)
		if errors.Is(err, jetstream.ErrObjectNotFound) {
			continue
		}
		if err == nil && d != to {
			_, err = natsio.PutObject(ctx, to.js, wire.KeptBucket(d.fleet), name, object)
		}
		if object != nil {
			err = errors.Join(err, object.Close())
		}
		if err != nil {
			return there, fmt.Errorf("look for %s: %w", name, err)
		}
		there = true
	}
	return there, nil
}
