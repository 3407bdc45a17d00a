package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/cli/environment"
	"github.com/toolfleet/toolfleet/internal/system/regular"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

const (
	// maxBatch bounds the calls of a batch, and maxBatchLine the bytes of a line.
	maxBatch     = 10_000
	maxBatchLine = 4 << 20
	// shownBadLines bounds the bad lines that are named.
	shownBadLines = 20
)

// batchLine is one call of a batch.
type batchLine struct {
	Tool      string          `json:"tool"`
	Arguments json.RawMessage `json:"arguments"`
	ID        string          `json:"id"`

	number int // from 1
	index  int // among the calls
	single *loop.Single
}

func (c *callCommand) checkBatch() error {
	switch {
	case c.Batch == "" && c.Tool == "":
		return cli.Usagef("expected the name of a tool, or --batch FILE")
	case c.Batch == "" && c.Ordered:
		return cli.Usagef("--ordered: only with --batch")
	case c.Batch != "" && (c.Tool != "" || c.Arguments != "" || c.ID != ""):
		return cli.Usagef("--batch %s: the lines of the file name the tools, arguments and ids; omit TOOL, ARGUMENTS and --id", c.Batch)
	}
	return nil
}

// runBatch makes the calls of a file together, and prints the result of each.
func (c *callCommand) runBatch(ctx context.Context, p program, with planning) error {
	bad := badLines{}
	lines, err := c.readBatch(p, bad)
	if err != nil {
		return err
	}
	printed := &batchPrinter{program: p, session: with.session}
	if c.Ordered {
		printed.ready = make([]*callOutput, len(lines))
	}
	var calls []protocol.Call
	byID := map[protocol.CallID]*batchLine{}
	plan := func() error {
		planBatch(ctx, with, lines, bad)
		if err := bad.err(c.Batch); err != nil {
			return err
		}
		for i := range lines {
			l := &lines[i]
			if l.single.Call == nil { // it ran in place
				if err := printed.add(l, l.single); err != nil {
					return err
				}
				continue
			}
			if err := c.bind(l.single.Call); err != nil {
				return err
			}
			calls, byID[l.single.Call.ID] = append(calls, *l.single.Call), l
		}
		return nil
	}
	inside := c.judgedInFleet(with)
	if !inside {
		if err := plan(); err != nil {
			return err
		}
	}
	if inside || len(calls) > 0 {
		err = c.inFleet(ctx, p, with.session, with.workspace, func(ctx context.Context, env *environment.Environment, show view) (*protocol.Call, error) {
			if inside {
				ledger := loop.NewLedger(env.Fleet.Journal)
				ledger.Hold()
				with.options.Ledger = ledger
				err := plan()
				if err == nil {
					err = ledger.Flush(ctx)
				}
				if err != nil || len(calls) == 0 {
					return nil, err
				}
			}
			var faults error
			err := env.Fleet.Dispatcher.Dispatch(ctx, calls, func(u loop.Update) {
				l := byID[u.CallID]
				if u.Waits != "" {
					show.warn(fmt.Sprintf("line %d, %s waits for: %s", l.number, l.Tool, u.Waits))
				}
				if u.Result != nil {
					faults = errors.Join(faults, printed.add(l, l.single.Finish(ctx, u.Result)))
				}
			})
			return &calls[0], errors.Join(err, faults)
		})
	}
	if err == nil && printed.failed {
		return &cli.ExitError{Code: cli.ExitFailed}
	}
	return err
}

// readBatch reads the lines, and reports those that cannot be read.
func (c *callCommand) readBatch(p program, bad badLines) (lines []batchLine, err error) {
	source := p.Stdin
	if c.Batch != "-" {
		file, err := regular.Open(c.Batch)
		if err != nil {
			return nil, cli.Usagef("--batch %s: %v", c.Batch, errors.Unwrap(err))
		}
		defer func() { _ = file.Close() }() // it is only read
		source = file
	}
	scanner := bufio.NewScanner(source)
	scanner.Buffer(nil, maxBatchLine)
	ids := map[string]int{}
	for number := 1; scanner.Scan(); number++ {
		if len(bytes.TrimSpace(scanner.Bytes())) == 0 {
			continue
		}
		l := batchLine{number: number, index: len(lines)}
		if err := l.read(scanner.Bytes(), c.Session != ""); err != nil {
			bad[number] = err
		} else if first := ids[l.ID]; l.ID != "" && first > 0 {
			bad[number] = fmt.Errorf("id %q: line %d has it too", l.ID, first)
		}
		ids[l.ID] = number
		if lines = append(lines, l); len(lines) > maxBatch {
			return nil, cli.Usagef("--batch %s: more than %d calls", c.Batch, maxBatch)
		}
	}
	if err := scanner.Err(); errors.Is(err, bufio.ErrTooLong) {
		return nil, cli.Usagef("--batch %s: line %d: longer than %d bytes", c.Batch, len(lines)+1, maxBatchLine)
	} else if err != nil {
		return nil, fmt.Errorf("--batch %s: %w", c.Batch, err)
	}
	if len(lines) == 0 {
		return nil, cli.Usagef("--batch %s: no calls", c.Batch)
	}
	return lines, nil
}

func (l *batchLine) read(text []byte, mayHaveID bool) error {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(l); err != nil {
		return fmt.Errorf("%w: must be a JSON object with tool, arguments and id", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more than one JSON object")
	}
	switch {
	case l.Tool == "":
		return errors.New("tool: missing")
	case l.ID != "" && !mayHaveID:
		return fmt.Errorf("id %q: needs --session, because ids are those of a session; or omit the id", l.ID)
	case l.ID != "":
		_, err := protocol.ParseCallID(l.ID)
		return err
	}
	return nil
}

// planBatch plans all calls, and reports those that cannot be made.
func planBatch(ctx context.Context, with planning, lines []batchLine, bad badLines) {
	for i := range lines {
		l, own := &lines[i], with.options
		if bad[l.number] != nil {
			continue
		}
		if with.box.OnlyServerOf(l.Tool) {
			bad[l.number] = fmt.Errorf("tool %s: belongs to an MCP server, and a batch cannot call such tools", l.Tool)
			continue
		}
		own.ID = protocol.CallID(l.ID)
		arguments := string(l.Arguments)
		if arguments == "" {
			arguments = "{}"
		}
		l.single = loop.PlanSingle(ctx, with.box.Table, with.session, l.Tool, arguments, &own)
		if l.single.Call == nil && l.single.Error != nil {
			bad[l.number] = l.single.Error
		}
	}
}

// badLines says of lines of a batch why they cannot be called.
type badLines map[int]error

func (b badLines) err(file string) error {
	if len(b) == 0 {
		return nil
	}
	var all []error
	for _, number := range slices.Sorted(maps.Keys(b)) {
		if len(all) == shownBadLines {
			all = append(all, fmt.Errorf("and %d more lines", len(b)-shownBadLines))
			break
		}
		all = append(all, fmt.Errorf("line %d: %w", number, b[number]))
	}
	return cli.Usagef("--batch %s: no call was sent:\n%v", file, errors.Join(all...))
}

// batchPrinter prints results, as they come or in the order of their lines.
type batchPrinter struct {
	program program
	session protocol.SessionID
	ready   []*callOutput // in the order of the lines, what is not printed yet; nil without an order
	next    int           // the first line that is not printed
	failed  bool          // a result is not ok
}

func (b *batchPrinter) add(l *batchLine, outcome *loop.Single) error {
	output := &callOutput{Line: l.number, SessionID: b.session, Name: l.Tool}
	if err := output.take(outcome); err != nil {
		return err
	}
	b.failed = b.failed || output.Status != protocol.StatusOK
	if b.ready == nil {
		return printJSON(b.program, output)
	}
	b.ready[l.index] = output
	for b.next < len(b.ready) && b.ready[b.next] != nil {
		if err := printJSON(b.program, b.ready[b.next]); err != nil {
			return err
		}
		b.ready[b.next] = nil
		b.next++
	}
	return nil
}
