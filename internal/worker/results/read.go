package results

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/modeltext/plain"
	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// A result that says it is kept is looked for so long, so often: in a cluster a server may
// answer that does not have it yet.
const (
	storedPatience = time.Second
	storedPeriod   = 50 * time.Millisecond
)

// Read returns lines of the result of an earlier call of a session: of what is stored of it until
// the session is removed, or else of the result itself, as long as the fleet has it.
func (k *Store) Read(
	ctx context.Context, session protocol.SessionID, p wire.ResultRead, find func(context.Context, protocol.SessionID, protocol.CallID) (*protocol.Result, error),
) (protocol.Value, error) {
	page, err := k.readStored(ctx, session, p)
	if page != nil || err != nil {
		return page, err
	}
	result, err := find(ctx, session, p.CallID)
	switch {
	case err != nil && !errors.Is(err, wire.ErrInvalidResult):
		return nil, err
	case result == nil || result.Value == nil && result.Kept == nil:
		return nil, protocol.Errorf(protocol.CodeNotFound, "there is no result of call %q with a value in this session. "+
			"A result that was cut is kept as long as its session; one that was shown whole is not.", p.CallID)
	case result.Kept != nil && p.Part != wire.PartValue:
		return k.awaitStored(ctx, session, p)
	}
	return partPage(p, result.Value)
}

// awaitStored reads what is stored, and not visible on every server yet.
func (k *Store) awaitStored(ctx context.Context, session protocol.SessionID, p wire.ResultRead) (protocol.Value, error) {
	for range storedPatience / storedPeriod {
		if !pause.For(ctx, storedPeriod) {
			return nil, ctx.Err()
		}
		if page, err := k.readStored(ctx, session, p); page != nil || err != nil {
			return page, err
		}
	}
	return nil, protocol.Errorf(protocol.CodeNotFound, "the result of call %q was kept, and is not any more: it is older than the fleet keeps, or was removed.", p.CallID)
}

// objectName is the object with a part of a result as text, if there is one; "" when there never
// is.
func objectName(session protocol.SessionID, p wire.ResultRead) string {
	switch p.Part {
	case wire.PartStdout, wire.PartStderr, wire.PartMedia:
		return wire.PartObject(session, p.CallID, p.Part)
	case "", wire.PartText, wire.PartOutput:
		return wire.PartObject(session, p.CallID, wire.PartText)
	default:
		return ""
	}
}

// readStored reads what is stored of a result; nil if there is nothing.
func (k *Store) readStored(ctx context.Context, session protocol.SessionID, p wire.ResultRead) (protocol.Value, error) {
	if name := objectName(session, p); name != "" {
		text, err := natsio.GetObject(ctx, k.js, k.bucket, name)
		if err == nil {
			defer text.Close()
			if p.Part == wire.PartMedia {
				return wholeMedia(p, text)
			}
			return page(p, cmp.Or(p.Part, wire.PartText), text, false)
		}
		if !errors.Is(err, jetstream.ErrObjectNotFound) {
			return nil, fmt.Errorf("get the text of call %s: %w", p.CallID, err)
		}
	}
	body, err := natsio.GetObjectBytes(ctx, k.js, k.bucket, wire.PartObject(session, p.CallID, wire.PartValue))
	if errors.Is(err, jetstream.ErrObjectNotFound) {
		return nil, nil //nolint:nilnil // nothing there is an answer
	}
	if err != nil {
		return nil, fmt.Errorf("get the value of call %s: %w", p.CallID, err)
	}
	value, err := wire.DecodeValue(body)
	if err != nil {
		return nil, err
	}
	return partPage(p, value)
}

// maxMedia is the maximum size of an image or document, in bytes.
const maxMedia = 4 << 20

// wholeMedia returns all of an image or document.
func wholeMedia(p wire.ResultRead, content io.Reader) (protocol.Value, error) {
	all, err := io.ReadAll(io.LimitReader(content, maxMedia+1))
	if err == nil && len(all) > maxMedia {
		err = protocol.Errorf(codes.PayloadTooLarge, "the %s of call %q is larger than %d bytes", p.Part, p.CallID, maxMedia)
	}
	return wire.ResultReadResult{CallID: p.CallID, Part: p.Part, Content: all, Bytes: int64(len(all))}, err
}

// partPage returns the lines that p asks for of a value.
func partPage(p wire.ResultRead, value protocol.Value) (protocol.Value, error) {
	part, content, truncated, err := partOf(value, p.Part)
	if err != nil {
		return nil, err
	}
	return page(p, part, bytes.NewReader(content), truncated)
}

// partOf returns the part of a value that was asked for, and whether some of it is not kept.
func partOf(v protocol.Value, part string) (name string, content []byte, truncated bool, err error) {
	e := plain.Execution(v)
	if part == "" {
		part = wire.PartText
		if _, isTool := v.(protocol.ToolRunResult); e != nil && !isTool {
			part = wire.PartOutput
		}
	}
	switch {
	case part == wire.PartValue:
		content, err = wire.EncodeValue(v)
	case part == wire.PartText:
		content, err = plain.Text(v)
	case e == nil:
		err = protocol.Errorf(protocol.CodeInvalidArguments, "the result is no command's: it has no %s, only %s and %s",
			part, wire.PartText, wire.PartValue)
	case part == wire.PartStdout:
		content, truncated = e.Stdout, e.Truncated && e.StdoutBytes > 0
	case part == wire.PartStderr:
		content, truncated = e.Stderr, e.Truncated && e.StderrBytes > 0
	case part == wire.PartOutput:
		content, truncated = plain.Written(e), e.Truncated
	default:
		err = protocol.Errorf(protocol.CodeInvalidArguments, "part %q: must be %s", part, strings.Join(
			[]string{wire.PartText, wire.PartStdout, wire.PartStderr, wire.PartOutput, wire.PartValue}, ", "))
	}
	return part, content, truncated, err
}

// page returns the lines that p asks for of a part.
func page(p wire.ResultRead, part string, content io.Reader, truncated bool) (protocol.Value, error) {
	got, err := prose.ReadPage(content, prose.Page{First: p.Offset, Column: p.Column, Limit: p.Limit})
	if err != nil {
		return nil, fmt.Errorf("read what is kept of call %s: %w", p.CallID, err)
	}
	r := wire.ResultReadResult{
		CallID: p.CallID, Part: part, Content: got.Content, Bytes: got.Bytes, TotalLines: got.Total, Lines: got.Lines, Truncated: truncated,
	}
	if got.Lines > 0 {
		r.FirstLine, r.LineBytes = max(p.Offset, 1), got.FirstBytes
		if p.Column > 1 {
			r.FirstColumn = got.Column
		}
	}
	return r, nil
}
