package worker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// keepTimeout bounds the storing of an output that does not fit into its result.
const keepTimeout = 15 * time.Second

// keepWhole stores the value of a call with all of its output in the fleet's object
// store, where it ages out with the results. It returns the object's name, "" when
// it cannot be stored: the result has the head and the tail all the same.
func (w *Worker) keepWhole(ctx context.Context, c *protocol.Call, v protocol.Value) string {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), keepTimeout) // a call that was stopped has output, too
	defer cancel()
	name := protocol.OutputBlob(c.SessionID, c.ID)
	body, err := protocol.EncodeValue(v)
	if err == nil {
		_, err = w.blobs.PutBytes(ctx, name, body)
	}
	if err != nil {
		w.options.Logger.WarnContext(ctx, "output cannot be kept whole", slog.String("call_id", string(c.ID)), slog.Any("error", err))
		return ""
	}
	return name
}

// maxKeptBytes is the most of a kept result that one read returns.
const maxKeptBytes = 256 << 10

// resultRead returns lines of the stored result of an earlier call of the session.
func (w *Worker) resultRead(ctx context.Context, session protocol.SessionID, p protocol.ResultRead) (protocol.Value, error) {
	result, err := w.holder.Result(ctx, session, p.CallID)
	if err != nil && !errors.Is(err, protocol.ErrInvalidResult) {
		return nil, err
	}
	if result == nil || result.Value == nil {
		return nil, protocol.Errorf(protocol.CodeNotFound,
			"there is no result of call %q with a value in this session; results are kept for a limited time", p.CallID)
	}
	value, err := w.whole(ctx, result.Value)
	if err != nil {
		return nil, err
	}
	part, content, truncated, err := partOf(value, p.Part)
	if err != nil {
		return nil, err
	}
	r := protocol.ResultReadResult{CallID: p.CallID, Part: part, Bytes: int64(len(content)), Truncated: truncated}
	cutLines(&r, content, max(p.Offset, 1), p.Limit)
	return r, nil
}

// whole returns a value with all of its output, where that was kept apart.
func (w *Worker) whole(ctx context.Context, v protocol.Value) (protocol.Value, error) {
	e := executionIn(v)
	if e == nil || e.Whole == "" {
		return v, nil
	}
	body, err := w.blobs.GetBytes(ctx, e.Whole)
	if errors.Is(err, jetstream.ErrObjectNotFound) {
		return v, nil // the head and the tail are what is left
	}
	if err != nil {
		return nil, fmt.Errorf("get %s: %w", e.Whole, err)
	}
	return protocol.DecodeValue(body)
}

func executionIn(v protocol.Value) *protocol.Execution {
	switch v := v.(type) {
	case protocol.CommandRunResult:
		return &v.Execution
	case protocol.CodeRunResult:
		return &v.Execution
	default:
		return nil
	}
}

// partOf returns the part of a value that was asked for, and whether some of it is not kept.
func partOf(v protocol.Value, part string) (name string, content []byte, truncated bool, err error) {
	e := executionIn(v)
	if part == "" {
		if part = protocol.PartValue; e != nil {
			part = protocol.PartOutput
		}
	}
	switch {
	case part == protocol.PartValue:
		content, err = protocol.EncodeValue(v)
	case e == nil:
		err = protocol.Errorf(protocol.CodeInvalidArguments, "the result is no command's: it has no %s, only %s", part, protocol.PartValue)
	case part == protocol.PartStdout:
		content, truncated = e.Stdout, e.Truncated
	case part == protocol.PartStderr:
		content, truncated = e.Stderr, e.Truncated
	case part == protocol.PartOutput:
		if content, truncated = e.Combined, e.Truncated; len(content) == 0 {
			content = slices.Concat(e.Stdout, e.Stderr) // one of them is empty
		}
	default:
		err = protocol.Errorf(protocol.CodeInvalidArguments, "part %q: must be stdout, stderr, output or value", part)
	}
	return part, content, truncated, err
}

// cutLines puts limit lines from offset on into r; 0 is as many as fit.
func cutLines(r *protocol.ResultReadResult, content []byte, offset, limit int) {
	for line := range keptLines(content) {
		r.TotalLines++
		wanted := r.TotalLines >= offset && (limit <= 0 || r.Lines < limit)
		// Once a line does not fit, none after it is taken.
		if !wanted || r.TotalLines != offset+r.Lines || len(r.Content)+len(line) > maxKeptBytes {
			continue
		}
		if r.Lines == 0 {
			r.FirstLine = offset
		}
		r.Content = append(r.Content, line...)
		if line[len(line)-1] != '\n' { // a piece of one, or the last
			r.Content = append(r.Content, '\n')
		}
		r.Lines++
	}
}

// keptLines yields lines, those that are too long in pieces.
func keptLines(content []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for line := range bytes.Lines(content) {
			for len(line) > protocol.MaxKeptLine {
				n := protocol.MaxKeptLine
				for n > protocol.MaxKeptLine-utf8.UTFMax && !utf8.RuneStart(line[n]) {
					n--
				}
				if !yield(line[:n]) {
					return
				}
				line = line[n:]
			}
			if !yield(line) {
				return
			}
		}
	}
}
