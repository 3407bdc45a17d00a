package webui

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// pageBytes is how much of an output a page shows, maxHits how many lines with the words that are
// looked for, and maxFind bounds these, in bytes.
const (
	pageBytes = 64 << 10
	maxHits   = 200
	maxFind   = 200
)

// outputPage is a page of all that a call has printed or returned, or of its arguments.
type outputPage struct {
	*sessionPage

	Part     string // output or arguments
	Text     string
	At, Size int64
	Prev     int64 // -1 is none
	Next     int64 // 0 is none
	LastAt   int64
	Find     string
	Hits     []hit
	MoreHits bool
}

// To is the last byte that the page shows.
func (o *outputPage) To() int64 { return o.At + int64(len(o.Text)) }

// hit is a line with the words that are looked for.
type hit struct {
	Line, At int64
	Text     string
}

// source passes on a text and its size.
type source = func(ctx context.Context, read func(io.Reader, int64) error) error

// outputOf passes on the whole output of a call: what is stored, or else what its result has.
func (u *ui) outputOf(p *sessionPage, part string) source {
	text := p.Call.Content
	if part == "arguments" {
		text = pretty(p.Call.Arguments)
	}
	own := func(_ context.Context, read func(io.Reader, int64) error) error {
		return read(strings.NewReader(text), int64(len(text)))
	}
	if part == "arguments" {
		return own
	}
	return func(ctx context.Context, read func(io.Reader, int64) error) error {
		err := u.of(ctx, p.Session).WholeOutput(ctx, p.Session, p.Call.ID, read)
		if errors.Is(err, fleet.ErrNotFound) {
			return own(ctx, read)
		}
		return err
	}
}

// wholeSize is the size of a call's stored output; 0 if none is stored.
func (u *ui) wholeSize(ctx context.Context, id protocol.SessionID, call protocol.CallID) (size int64) {
	_ = u.of(ctx, id).WholeOutput(ctx, id, call, func(_ io.Reader, n int64) error { // the page is complete without it
		size = n
		return nil
	})
	return size
}

// outputPages registers the pages of outputs.
func (u *ui) outputPages() {
	for _, part := range []string{"output", "arguments"} {
		u.page("GET /sessions/{session}/calls/{call}/"+part, func(ctx context.Context, w http.ResponseWriter, r *http.Request) error {
			return u.output(ctx, w, r, part)
		})
	}
}

// output shows a page of an output, finds words in all of it, or sends all of it as a file.
func (u *ui) output(ctx context.Context, w http.ResponseWriter, r *http.Request, part string) error {
	p, err := u.load(ctx, r)
	if err == nil {
		err = p.find(protocol.CallID(r.PathValue("call")))
	}
	if err == nil && part == "output" {
		err = u.wholeResult(ctx, p)
	}
	if err != nil {
		return err
	}
	p.Tab = "call"
	from := u.outputOf(p, part)
	if r.URL.Query().Has("file") {
		return from(r.Context(), func(output io.Reader, _ int64) error {
			asFile(w, "application/octet-stream", "call-"+string(p.Call.ID)+"-"+part+".txt")
			_, _ = io.Copy(w, output) // the browser has gone
			return nil
		})
	}
	o := &outputPage{sessionPage: p, Part: part, Prev: -1, Find: strings.ToValidUTF8(strings.TrimSpace(r.URL.Query().Get("find")), "�")}
	if len(o.Find) > maxFind {
		return fmt.Errorf("%w: find: %d bytes, must be at most %d", fleet.ErrInvalid, len(o.Find), maxFind)
	}
	at, _ := strconv.ParseInt(r.URL.Query().Get("at"), 10, 64)
	err = from(ctx, func(output io.Reader, size int64) error {
		if o.Size = size; o.Find != "" {
			return o.search(output)
		}
		return o.read(output, at)
	})
	if err != nil {
		return err
	}
	u.showSession(w, r, p, "output", o)
	return nil
}

// read reads the page at a position.
func (o *outputPage) read(output io.Reader, at int64) error {
	o.LastAt = max(0, (o.Size-1)/pageBytes*pageBytes)
	o.At = min(max(0, at), o.LastAt)
	if _, err := io.CopyN(io.Discard, output, o.At); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read output: %w", err)
	}
	text, err := io.ReadAll(io.LimitReader(output, pageBytes))
	if err != nil {
		return fmt.Errorf("read output: %w", err)
	}
	o.Text = string(text)
	if o.At > 0 {
		o.Prev = max(0, o.At-pageBytes)
	}
	if o.To() < o.Size {
		o.Next = o.To()
	}
	return nil
}

// search finds the lines that have a text, whatever its case; of a very long line, each part that
// has it.
func (o *outputPage) search(output io.Reader) error {
	lines := bufio.NewReaderSize(output, pageBytes)
	want := regexp.MustCompile("(?i)" + regexp.QuoteMeta(o.Find)) // of text that is valid
	var line, at int64
	var before []byte // the end of the part before, of the same line
	for begins := true; ; {
		piece, err := lines.ReadSlice('\n')
		if begins && len(piece) > 0 {
			line++
		}
		part := slices.Concat(before, piece)
		if found := want.FindIndex(part); found != nil {
			if len(o.Hits) == maxHits {
				o.MoreHits = true
				return nil
			}
			from := max(0, found[0]-100)
			text := strings.ToValidUTF8(string(part[from:min(len(part), from+300)]), "�")
			o.Hits = append(o.Hits, hit{line, at - int64(len(before)) + int64(from), text})
		}
		at += int64(len(piece))
		if begins = err == nil; begins {
			before = before[:0]
		} else {
			before = bytes.Clone(part[max(0, len(part)-len(o.Find)+1):])
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil && !errors.Is(err, bufio.ErrBufferFull):
			return fmt.Errorf("read output: %w", err)
		}
	}
}
