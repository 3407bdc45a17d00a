package worker

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/singleflight"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker/spool"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
	"github.com/toolfleet/toolfleet/pkg/tools/plain"
)

// keepTimeout bounds the storing of what does not fit into a result: it may be 128 MiB.
const keepTimeout = 2 * time.Minute

// partial is a value of which a message carries less than there is, or a reader may be
// shown less.
type partial struct {
	protocol.Value

	keep keepFunc
}

// keepFunc stores all of the value of a call.
type keepFunc func(ctx context.Context, s *keeper, c *protocol.Call) (*protocol.Kept, error)

// keeper stores what is kept of sessions until they are removed.
type keeper struct {
	jetstream.ObjectStore

	js      jetstream.JetStream
	bucket  string
	storing singleflight.Group // of files, by the names of their objects
}

func (k *keeper) put(ctx context.Context, name string, content io.Reader) (*jetstream.ObjectInfo, error) {
	return natsio.PutObject(ctx, k.js, k.bucket, name, content)
}

// keep stores the whole of a result that a reader may not be shown at once, and says so in
// it. One that cannot be stored is as it is: the reader is told that no more is kept.
func (w *Worker) keep(ctx context.Context, c *protocol.Call, r *protocol.Result) {
	var store keepFunc
	switch value := r.Value.(type) {
	case nil:
		if r.Error == nil || len(r.Error.Message) <= plain.MaxError {
			return
		}
		store = keepText([]byte(r.Error.Message), &protocol.Kept{})
	case partial:
		r.Value, store = value.Value, value.keep
	default:
		if !w.isLong(c, value) {
			return
		}
		store = keepValue(value)
	}
	// A call that was stopped has a result, too; only one that was lost has none.
	storing, cancel := context.WithTimeout(context.WithoutCancel(ctx), keepTimeout)
	defer cancel()
	lost := context.AfterFunc(ctx, func() {
		if errors.Is(context.Cause(ctx), lane.ErrLost) {
			cancel()
		}
	})
	defer lost()
	kept, err := store(storing, w.kept, c)
	if err != nil {
		w.options.Logger.WarnContext(ctx, "result cannot be kept whole", slog.String("call_id", string(c.ID)), slog.Any("error", err))
		return
	}
	r.Kept = kept
}

// keepText keeps a text.
func keepText(text []byte, kept *protocol.Kept) keepFunc {
	return func(ctx context.Context, s *keeper, c *protocol.Call) (*protocol.Kept, error) {
		_, err := s.put(ctx, wire.KeptText(c.SessionID, c.ID), bytes.NewReader(text))
		return kept, err
	}
}

// keepValue keeps a value, from which any part of it can be read.
func keepValue(whole protocol.Value) keepFunc {
	return func(ctx context.Context, s *keeper, c *protocol.Call) (*protocol.Kept, error) {
		body, err := wire.EncodeValue(whole)
		if err != nil {
			return nil, err
		}
		_, err = s.put(ctx, wire.KeptValue(c.SessionID, c.ID), bytes.NewReader(body))
		return &protocol.Kept{}, err
	}
}

// keepOutput keeps all that a command wrote, in its order, and each stream apart, and closes it.
func keepOutput(written *spool.Spool) keepFunc {
	return func(ctx context.Context, s *keeper, c *protocol.Call) (*protocol.Kept, error) {
		defer written.Close()
		if err := written.Err(); err != nil {
			return nil, err
		}
		both := []sandbox.Stream{sandbox.Stdout, sandbox.Stderr}
		text, err := s.put(ctx, wire.KeptText(c.SessionID, c.ID), written.Reader(both...))
		if err != nil {
			return nil, err
		}
		for part, stream := range map[string]sandbox.Stream{protocol.PartStdout: sandbox.Stdout, protocol.PartStderr: sandbox.Stderr} {
			name := wire.KeptStream(c.SessionID, c.ID, part)
			if written.Total(stream) == written.Total(both...) { // the other one is empty
				_, err = s.AddLink(ctx, name, text)
			} else {
				_, err = s.put(ctx, name, written.Reader(stream))
			}
			if err != nil {
				return nil, err
			}
		}
		return &protocol.Kept{Truncated: written.Missing(both...) > 0}, nil
	}
}

// isLong reports whether a reader may be shown less than all of a call's value.
func (w *Worker) isLong(c *protocol.Call, v protocol.Value) bool {
	if k := w.kinds[wire.KindOf(c.Payload)]; k != nil && k.long != nil {
		return k.long(v)
	}
	body, err := wire.EncodeValue(v)
	return err == nil && len(body) > plain.MaxError
}

// maxCarried is how many entries of a list a message carries when the call names no limit,
// and mostCarried when it does.
const (
	maxCarried  = 2000
	mostCarried = 5000
)

// listed is a list of n entries, of which there are total, as a message carries it: first
// returns the first of them. It is kept when that, or what a reader is shown, is not all.
func listed[V protocol.Value](all V, n, total, limit int, first func(V, int) V) (protocol.Value, error) {
	carried := maxCarried
	if limit > 0 {
		carried = min(limit, mostCarried)
	}
	text, err := plain.Text(all)
	if err != nil {
		return nil, err
	}
	short := first(all, min(n, carried))
	if total <= min(carried, plain.MaxListed) && len(text) <= plain.MaxShown && !cut(short) {
		return short, nil
	}
	return partial{Value: short, keep: keepText(text, &protocol.Kept{Lines: n, Truncated: n < total})}, nil
}

// cut reports whether a value is a list with a line that is cut.
func cut(v protocol.Value) bool {
	search, isSearch := v.(protocol.FilesSearchResult)
	for i := range search.Matches {
		if isSearch && search.Matches[i].Cut > 0 {
			return true
		}
	}
	return false
}

// keepJSON keeps a JSON text that may be shown cut.
func keepJSON(v protocol.FilesJSONReadResult) protocol.Value {
	if len(v.Value) <= plain.MaxShown {
		return v
	}
	lines := bytes.Count(v.Value, []byte{'\n'}) + 1
	return partial{Value: v, keep: keepText(v.Value, &protocol.Kept{Lines: lines})}
}
