package openai

import (
	"bufio"
	"bytes"
	"errors"
	"io"
)

// Bounds of one reply's stream, in bytes.
const (
	maxLine   = 8 << 20
	maxStream = 64 << 20
)

// errNotDone ends a stream that closed without its final [DONE]. Whether something is
// missing, the reader must tell from what it got.
var errNotDone = errors.New("the stream ended without [DONE]")

// events is the body of a streamed answer, reduced to its data. Comments, keep-alives and other
// fields are left out. An error object ends it with an [*Error], and so does everything else that
// breaks it.
type events struct {
	body     io.Closer
	lines    *bufio.Reader
	endpoint *endpoint
	dog      *watchdog
	size     int   // of all lines so far
	end      error // once set, returned for ever
}

func newEvents(body io.ReadCloser, e *endpoint, dog *watchdog) *events {
	return &events{body: body, lines: bufio.NewReader(heardReader{body, dog}), endpoint: e, dog: dog}
}

// heardReader tells the watchdog about every arrival.
type heardReader struct {
	io.Reader

	dog *watchdog
}

func (r heardReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if n > 0 {
		r.dog.heard()
	}
	return n, err
}

// Close implements [io.Closer].
func (e *events) Close() error {
	e.dog.stop()
	return e.body.Close()
}

// next returns the data of the next event, and io.EOF behind the last.
func (e *events) next() ([]byte, error) {
	for e.end == nil {
		line, err := e.line()
		if err != nil {
			e.end = err
			if !errors.Is(err, errNotDone) {
				break // what stands on a broken line is not whole
			}
		}
		line = bytes.TrimSpace(line)
		data, isData := bytes.CutPrefix(line, []byte("data:"))
		data = bytes.TrimSpace(data)
		switch {
		case isData && string(data) == "[DONE]":
			e.end = io.EOF
		case isData && len(data) > 0, bytes.HasPrefix(line, []byte("{")):
			if !isData {
				data = line // a server that reports an error without the form of an event
			}
			if told, ok := e.fault(data); ok {
				e.end = told
			} else if isData {
				return data, nil
			}
		}
	}
	return nil, e.end
}

func (e *events) fault(data []byte) (*Error, bool) {
	if !bytes.Contains(data, []byte(`"error"`)) {
		return nil, false // every form has it; this saves decoding each chunk twice
	}
	told, ok := parseFault(data, true)
	if !ok {
		return nil, false
	}
	return e.endpoint.serverError(typeInStream(told), told), true
}

// line reads up to and with the next newline, or what stands before the end.
func (e *events) line() ([]byte, error) {
	var line []byte
	for {
		part, err := e.lines.ReadSlice('\n')
		line = append(line, part...)
		if e.size += len(part); len(line) > maxLine || e.size > maxStream {
			return nil, e.endpoint.fault(TypeInvalidResponse, "the reply is too long")
		}
		switch {
		case err == nil:
			return line, nil
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF):
			return line, errNotDone
		default:
			fault := e.endpoint.fault(TypeStreamBroken, "the answer broke off: "+err.Error())
			fault.cause = err
			return nil, e.dog.explain(fault)
		}
	}
}
