package prompt

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"sync"
)

// keyboard reads what is typed on a terminal, for one reader at a time. Nothing can interrupt the
// read of a terminal, so it continues after its reader has left, and the next reader gets the
// input.
type keyboard struct {
	file  *os.File
	begin sync.Once
	typed chan typed
	rest  []byte // the unread part of the last piece

	mu        sync.Mutex // held while a piece is read, so that it belongs to one side of a discard
	discarded int        // how often input was discarded
}

// typed is a piece of what was typed, and how often input had been discarded before it.
type typed struct {
	keys  []byte
	after int
	err   error
}

func newKeyboard(file *os.File) *keyboard { return &keyboard{file: file, typed: make(chan typed)} }

// next waits for the next piece; it returns [errResized] when the size of the terminal changes, and
// [errLeaves] when another reader wants it.
func (k *keyboard) next(ctx context.Context, resized <-chan os.Signal, wanted <-chan struct{}) (typed, error) {
	k.begin.Do(func() { go k.read() })
	select {
	case piece, open := <-k.typed:
		if !open {
			return typed{}, errNoInput
		}
		if piece.err != nil {
			return piece, errNoInput
		}
		return piece, nil
	case <-resized:
		return typed{}, errResized
	case <-wanted:
		return typed{}, errLeaves
	case <-ctx.Done():
		return typed{}, context.Cause(ctx)
	}
}

// read reads pieces until the terminal is gone; Ctrl-D alone does not end it.
func (k *keyboard) read() {
	defer close(k.typed)
	for {
		piece := k.piece()
		k.typed <- piece
		if piece.err != nil && !errors.Is(piece.err, io.EOF) {
			return
		}
	}
}

// piece reads what was typed. A read that waited with the lock would block the next question.
func (k *keyboard) piece() typed {
	buf := make([]byte, 4096)
	for waitForInput(k.file, forever) {
		k.mu.Lock()
		if waitForInput(k.file, 0) { // it was not discarded
			defer k.mu.Unlock()
			n, err := k.file.Read(buf)
			return typed{buf[:n], k.discarded, err}
		}
		k.mu.Unlock()
	}
	n, err := k.file.Read(buf)
	k.mu.Lock()
	defer k.mu.Unlock()
	return typed{buf[:n], k.discarded, err}
}

// forever is the time limit of [waitForInput] for none.
const forever = -1

// discard discards what was typed until now, and returns how often it has done so.
func (k *keyboard) discard() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.rest = nil
	discardInput(k.file)
	k.discarded++
	return k.discarded
}

// line waits for a line that was typed after a call of [keyboard.discard].
func (k *keyboard) line(ctx context.Context, after int) (string, error) {
	var line []byte
	for {
		piece, err := k.next(ctx, nil, nil)
		if err != nil {
			return "", err
		}
		if piece.after < after {
			continue
		}
		line = append(line, piece.keys...)
		if end := bytes.IndexByte(line, '\n'); end >= 0 {
			return string(line[:end]), nil
		}
	}
}

// reader reads pieces. For each new size of the terminal it returns [errResized], and at the end of
// ctx, or when another reader wants the terminal, [errLeaves].
func (k *keyboard) reader(ctx context.Context, resized <-chan os.Signal, wanted <-chan struct{}) io.Reader {
	return &keyReader{k, ctx, resized, wanted}
}

type keyReader struct {
	keys    *keyboard
	ctx     context.Context //nolint:containedctx // of one line, which io.Reader cannot be given
	resized <-chan os.Signal
	wanted  <-chan struct{}
}

// Read implements [io.Reader]. It returns one line at most, or what [laterKey] ends: what was typed
// ahead is for the next reader.
func (r *keyReader) Read(p []byte) (int, error) {
	if len(r.keys.rest) == 0 {
		piece, err := r.keys.next(r.ctx, r.resized, r.wanted)
		if err != nil && r.ctx.Err() != nil {
			err = errLeaves
		}
		if err != nil {
			return 0, err
		}
		r.keys.rest = piece.keys
	}
	line := r.keys.rest
	if end := bytes.IndexAny(line, "\r\n"+string(rune(laterKey))); end >= 0 {
		if line = line[:end+1]; bytes.HasPrefix(r.keys.rest[end:], []byte("\r\n")) {
			line = r.keys.rest[:end+2]
		}
	}
	n := copy(p, line)
	r.keys.rest = r.keys.rest[n:]
	return n, nil
}
