package endpoint

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
)

// Bounds of one reply's stream, in bytes.
const (
	maxLine   = 8 << 20
	maxStream = 64 << 20
)

// ErrNotDone ends a stream that closed without its final [DONE]. Whether something is
// missing, the reader must tell from what it got.
var ErrNotDone = errors.New("the stream ended without [DONE]")

// Events is the body of a streamed answer, reduced to its data. Comments, keep-alives and other
// fields are left out. Data may stand on several lines, and lines may end in CR, LF or both. An
// error object ends it with an [*Error], and so does everything else that breaks it.
type Events struct {
	body     io.Closer
	lines    *bufio.Reader
	endpoint *Endpoint
	dog      *watchdog
	size     int    // of all lines so far
	afterCR  bool   // the last line ended in CR: an LF belongs to it
	part     []byte // the data of an event whose lines have not all come
	end      error  // once set, returned for ever
}

func newEvents(body io.ReadCloser, e *Endpoint, dog *watchdog) *Events {
	return &Events{body: body, lines: bufio.NewReader(watchedReader{body, dog}), endpoint: e, dog: dog}
}

// watchedReader reports every read to the watchdog.
type watchedReader struct {
	io.Reader

	dog *watchdog
}

func (r watchedReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if n > 0 {
		r.dog.restart()
	}
	return n, err
}

// Close implements [io.Closer].
func (e *Events) Close() error {
	e.dog.stop()
	return e.body.Close()
}

// Next returns the data of the next event, and io.EOF behind the last.
func (e *Events) Next() ([]byte, error) {
	for e.end == nil {
		line, err := e.line()
		if err != nil {
			e.end = err
			if !errors.Is(err, ErrNotDone) {
				break // what stands on a broken line is not whole
			}
		}
		data := e.data(line)
		if len(data) == 0 && err != nil {
			data = e.take()
		}
		if reported, ok := e.serverError(data); ok {
			e.end = reported
		} else if len(data) > 0 {
			return data, nil
		}
	}
	return nil, e.end
}

// data takes the next line in, and returns the data that is whole with it, if any. Data that is
// whole on its first line is returned without the empty line behind: not every server sends one.
func (e *Events) data(line []byte) []byte {
	line = bytes.TrimSpace(bytes.TrimPrefix(line, []byte("\uFEFF")))
	data, isData := bytes.CutPrefix(line, []byte("data:"))
	data = bytes.TrimSpace(data)
	if !isData {
		if len(line) == 0 {
			return e.take()
		}
		if _, bare := e.serverError(line); bare { // of a server that reports errors without the form of an event
			return line
		}
		return nil
	}
	switch {
	case string(data) == "[DONE]":
		e.end = io.EOF
		return e.take()
	case len(e.part) == 0 && json.Valid(data):
		return data
	case len(e.part) > 0:
		e.part = append(e.part, '\n')
	}
	e.part = append(e.part, data...)
	return nil
}

// take returns the data of the lines that have come.
func (e *Events) take() []byte {
	part := e.part
	e.part = nil
	return part
}

func (e *Events) serverError(data []byte) (*Error, bool) {
	if !bytes.Contains(data, []byte(`"error"`)) {
		return nil, false // every form has it; this saves decoding each chunk twice
	}
	reported, ok := parseError(data, true)
	if !ok {
		return nil, false
	}
	return e.endpoint.serverError(typeInStream(reported), reported), true
}

// line reads up to the next end of a line, which it leaves out, or what stands before the end.
func (e *Events) line() ([]byte, error) {
	var line []byte
	for {
		c, err := e.lines.ReadByte()
		skip := err == nil && c == '\n' && e.afterCR
		e.afterCR = false
		switch {
		case errors.Is(err, io.EOF):
			return line, ErrNotDone
		case err != nil:
			failure := e.endpoint.NewError(TypeStreamBroken, "the answer broke off: "+err.Error())
			failure.cause = err
			return nil, e.dog.explain(failure)
		case skip:
			continue
		case c == '\n', c == '\r':
			e.afterCR = c == '\r'
			return line, nil
		}
		line = append(line, c)
		if e.size++; len(line)+len(e.part) > maxLine || e.size > maxStream {
			return nil, e.endpoint.NewError(TypeInvalidResponse, "the reply is too long")
		}
	}
}
