package mcpserver

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// malformed is what is wrong with a message, or with a batch of them; nil is nothing.
func malformed(body []byte) *jsonrpc.Error {
	var batch []json.RawMessage
	switch trimmed := bytes.TrimSpace(body); {
	case !json.Valid(trimmed):
		return &jsonrpc.Error{Code: jsonrpc.CodeParseError, Message: "the message is not JSON"}
	case trimmed[0] != '[':
		batch = []json.RawMessage{trimmed}
	default:
		_ = json.Unmarshal(trimmed, &batch) // it is an array
	}
	if len(batch) == 0 {
		return &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: "the batch is empty"}
	}
	for _, message := range batch {
		if _, err := jsonrpc.DecodeMessage(message); err != nil {
			return &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: err.Error()}
		}
	}
	return nil
}

// unanswerable is what keeps the SDK from answering a batch of a stream, and all that comes after
// it: it waits for an answer to each request, by its id.
func unanswerable(line []byte) *jsonrpc.Error {
	var batch []struct {
		ID     json.RawMessage
		Method string
	}
	if bytes.TrimSpace(line)[0] == '[' {
		_ = json.Unmarshal(line, &batch) // it is an array of messages
	}
	seen := map[string]bool{}
	for _, message := range batch {
		id := string(message.ID)
		if message.Method != "" && (id == "" || id == "null" || seen[id]) {
			return &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: "in a batch each message must be a request with an id of its own"}
		}
		seen[id] = true
	}
	return nil
}

// refusal answers a message of which not even the id can be relied on.
func refusal(fault *jsonrpc.Error) []byte {
	body, _ := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": nil, "error": fault}) // it has nothing that JSON has not
	return append(body, '\n')
}

// wellFormed lets requests through whose body is a message that arrives within some time, and
// refuses others in the words of JSON-RPC.
func wellFormed(within time.Duration, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			next.ServeHTTP(w, r)
			return
		}
		body, err := readBody(w, r, within)
		status, fault := http.StatusBadRequest, (*jsonrpc.Error)(nil)
		if _, giant := errors.AsType[*http.MaxBytesError](err); giant {
			status, fault = http.StatusRequestEntityTooLarge, errGiant
		} else if errors.Is(err, os.ErrDeadlineExceeded) {
			status = http.StatusRequestTimeout
			fault = &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: fmt.Sprintf("the message did not arrive within %s", within)}
		} else {
			fault = malformed(body)
		}
		if fault != nil {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(status)
			_, _ = w.Write(refusal(fault)) // a client that has gone hears nothing
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		next.ServeHTTP(w, r)
	})
}

var errGiant = &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: fmt.Sprintf("the message has more than %d bytes", MaxBody)}

// Stdio is a transport of messages, one a line. What is no message, or has more than [MaxBody]
// bytes, is refused, and those after it are read. It closes neither r nor w.
func Stdio(r io.Reader, w io.Writer) mcp.Transport {
	out := &lineWriter{w: w}
	return &mcp.IOTransport{Reader: io.NopCloser(&lineReader{in: bufio.NewReader(r), out: out}), Writer: out}
}

// lineWriter writes whole lines from several goroutines.
type lineWriter struct {
	mu sync.Mutex
	w  io.Writer
}

// Write implements [io.Writer].
func (l *lineWriter) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(line)
}

// Close implements [io.Closer].
func (*lineWriter) Close() error { return nil }

// lineReader passes on the lines that are messages.
type lineReader struct {
	in   *bufio.Reader
	out  io.Writer // gets refusals
	rest []byte    // of a line
	err  error     // after rest
}

// Read implements [io.Reader].
func (l *lineReader) Read(p []byte) (int, error) {
	for len(l.rest) == 0 {
		if l.err != nil {
			return 0, l.err
		}
		var fault *jsonrpc.Error
		if l.rest, fault, l.err = l.line(); fault == nil && len(bytes.TrimSpace(l.rest)) > 0 {
			if fault = malformed(l.rest); fault == nil {
				fault = unanswerable(l.rest)
			}
		}
		if fault != nil {
			l.rest = nil
			if _, err := l.out.Write(refusal(fault)); err != nil {
				return 0, err
			}
		}
	}
	n := copy(p, l.rest)
	l.rest = l.rest[n:]
	return n, nil
}

// line reads a line, of which it keeps no more than may be.
func (l *lineReader) line() (line []byte, fault *jsonrpc.Error, err error) {
	for {
		part, err := l.in.ReadSlice('\n')
		if len(line)+len(part) > MaxBody {
			line, fault = nil, errGiant
		}
		if fault == nil {
			line = append(line, part...)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, fault, err
		}
	}
}
