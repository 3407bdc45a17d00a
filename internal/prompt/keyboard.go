package prompt

import (
	"bytes"
	"context"
	"io"
	"os"
	"sync"
	"time"
)

// keyboard reads what is typed on a terminal, for one reader at a time. Nothing can interrupt the
// read of a terminal, so it continues after its reader has left, and the next reader gets the
// input.
type keyboard struct {
	file  *os.File
	begin sync.Once
	typed chan typed
	rest  []byte // the unread part of the last piece
}

// typed is a piece of what was typed, and when it was read.
type typed struct {
	keys []byte
	at   time.Time
	err  error
}

func newKeyboard(file *os.File) *keyboard { return &keyboard{file: file, typed: make(chan typed)} }

// next waits for the next piece; it returns [errResized] when the size of the terminal changes.
func (k *keyboard) next(ctx context.Context, resized <-chan os.Signal) (typed, error) {
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
	case <-ctx.Done():
		return typed{}, context.Cause(ctx)
	}
}

// read reads pieces until the terminal is gone; Ctrl-D alone does not end it.
func (k *keyboard) read() {
	defer close(k.typed)
	for {
		buf := make([]byte, 4096)
		n, err := k.file.Read(buf)
		k.typed <- typed{buf[:n], time.Now(), err}
		if err != nil && err != io.EOF {
			return
		}
	}
}

// discard discards what was typed and not read.
func (k *keyboard) discard() {
	k.rest = nil
	discardInput(k.file)
	select {
	case <-k.typed:
	default:
	}
}

// line waits for a line that was typed after a moment.
func (k *keyboard) line(ctx context.Context, after time.Time) (string, error) {
	var line []byte
	for {
		piece, err := k.next(ctx, nil)
		if err != nil {
			return "", err
		}
		if !piece.at.After(after) {
			continue
		}
		line = append(line, piece.keys...)
		if end := bytes.IndexByte(line, '\n'); end >= 0 {
			return string(line[:end]), nil
		}
	}
}

// reader reads pieces until ctx ends, and for each new size of the terminal returns [errResized].
func (k *keyboard) reader(ctx context.Context, resized <-chan os.Signal) io.Reader {
	return &keyReader{k, ctx, resized}
}

type keyReader struct {
	keys    *keyboard
	ctx     context.Context //nolint:containedctx // of one line, which io.Reader cannot be given
	resized <-chan os.Signal
}

// Read implements [io.Reader].
func (r *keyReader) Read(p []byte) (int, error) {
	if len(r.keys.rest) == 0 {
		piece, err := r.keys.next(r.ctx, r.resized)
		if err != nil {
			return 0, err
		}
		r.keys.rest = piece.keys
	}
	n := copy(p, r.keys.rest)
	r.keys.rest = r.keys.rest[n:]
	return n, nil
}
