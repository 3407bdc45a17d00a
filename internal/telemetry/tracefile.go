package telemetry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"sync"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/toolfleet/toolfleet/internal/system"
)

// maxTraceFile bounds a file of spans, in bytes: some 100,000 spans.
const maxTraceFile = 256 << 20

// traceLine begins each line of a file of spans.
const traceLine = `{"resourceSpans":`

// traceFile is a file of spans in the OTLP file format (JSON Lines): each line is a batch, as it
// would be sent to a collector. A line is written by one write, so the file can be read at any
// time, also when a process that has written to it was killed, and several processes may append to
// it.
//
// It is an HTTP transport below the exporter of OpenTelemetry, which encodes the batches.
type traceFile struct {
	file   *os.File
	most   int64
	logger *slog.Logger

	mu   sync.Mutex
	full bool
}

var _ http.RoundTripper = (*traceFile)(nil)

// openTraceFile opens a file of spans, and makes it if there is none. It refuses what is no file of
// this user, or has something else in it.
func openTraceFile(path string, most int64, logger *slog.Logger) (_ *traceFile, err error) {
	if info, err := os.Lstat(path); err == nil && !info.Mode().IsRegular() { // opening a device may have effects
		return nil, fmt.Errorf("%s: is no regular file", path)
	}
	file, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND|os.O_CREATE|system.NoFollow|system.NonBlock, 0o600)
	if err != nil {
		return nil, err // names the path
	}
	defer func() {
		if err != nil {
			_ = file.Close() // it has not been written to
		}
	}()
	info, err := file.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s: is no regular file", path)
	}
	if err := system.CheckOwner(path, info); err != nil {
		return nil, err
	}
	begins := make([]byte, min(info.Size(), int64(len(traceLine))))
	if _, err := file.ReadAt(begins, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if !bytes.HasPrefix([]byte(traceLine), begins) {
		return nil, fmt.Errorf("%s: has something else than spans; name a new file", path)
	}
	if err := file.Chmod(0o600); err != nil { // one that was there may be readable by others
		return nil, err
	}
	return &traceFile{file: file, most: most, logger: logger}, cutPartial(file, info.Size())
}

// cutPartial removes a last line that has no end, as after a loss of power: viewers would refuse
// the file. One that is whole gets its end.
func cutPartial(file *os.File, size int64) error {
	block := make([]byte, 64<<10)
	begins := int64(0) // the last line
	for end := size; end > 0 && begins == 0; {
		from := max(end-int64(len(block)), 0)
		read := block[:end-from]
		if _, err := file.ReadAt(read, from); err != nil {
			return err
		}
		begins = from + int64(bytes.LastIndexByte(read, '\n')) + 1
		if end = from; begins == from { // it has no line end
			begins = 0
		}
	}
	if begins == size {
		return nil
	}
	if size-begins > maxTraceFile {
		return fmt.Errorf("%s: has a line of %d bytes; name a new file", file.Name(), size-begins)
	}
	line := make([]byte, size-begins)
	if _, err := file.ReadAt(line, begins); err != nil {
		return err
	}
	if json.Valid(line) {
		_, err := file.Write([]byte{'\n'})
		return err
	}
	return file.Truncate(begins)
}

// newTraceFileExporter makes an exporter that writes to a file.
func newTraceFileExporter(ctx context.Context, file *traceFile) (sdktrace.SpanExporter, error) {
	exporter, err := otlptracehttp.New(ctx, // what OTEL_EXPORTER_OTLP_* say is for a collector
		otlptracehttp.WithEndpointURL("http://file/"), otlptracehttp.WithEncoding(otlptracehttp.EncodingJSON),
		otlptracehttp.WithCompression(otlptracehttp.NoCompression), otlptracehttp.WithRetry(otlptracehttp.RetryConfig{}),
		otlptracehttp.WithHTTPClient(&http.Client{Transport: file}))
	if err != nil {
		return nil, err
	}
	return &fileExporter{exporter, file}, nil
}

// fileExporter closes the file at its end.
type fileExporter struct {
	sdktrace.SpanExporter

	file *traceFile
}

// Shutdown implements [sdktrace.SpanExporter].
func (e *fileExporter) Shutdown(ctx context.Context) error {
	return errors.Join(e.SpanExporter.Shutdown(ctx), e.file.file.Close())
}

// RoundTrip implements [http.RoundTripper]: it appends the body of a request as a line.
func (t *traceFile) RoundTrip(request *http.Request) (*http.Response, error) {
	defer request.Body.Close()
	line, err := io.ReadAll(request.Body)
	if err == nil {
		err = t.append(request.Context(), append(line, '\n'))
	}
	if err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Header: http.Header{}, Request: request}, nil
}

// append writes a line, or nothing. What comes when the file is full is left out.
func (t *traceFile) append(ctx context.Context, line []byte) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	info, err := t.file.Stat() // others append to it, too
	if err != nil {
		return err
	}
	if info.Size()+int64(len(line)) > t.most {
		if !t.full {
			t.full = true
			t.logger.WarnContext(ctx, "the trace file is full: further spans are not written to it; name another file",
				slog.String("file", t.file.Name()), slog.Int64("bytes", t.most))
		}
		return nil
	}
	n, err := t.file.Write(line)
	if now, statErr := t.file.Stat(); err != nil && n > 0 && statErr == nil && now.Size() == info.Size()+int64(n) {
		err = errors.Join(err, t.file.Truncate(info.Size())) // half a line, on a disk that is full
	}
	return err
}
