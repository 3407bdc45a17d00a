package endpoint

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	tests := map[string]struct {
		header map[string]string
		want   time.Duration
	}{
		"no wish":              {nil, 0},
		"whole seconds":        {map[string]string{"Retry-After": "3"}, 3 * time.Second},
		"parts of seconds":     {map[string]string{"Retry-After": " 0.25 "}, 250 * time.Millisecond},
		"milliseconds win":     {map[string]string{"Retry-After": "3", "Retry-After-Ms": "12.5"}, 12500 * time.Microsecond},
		"bad milliseconds":     {map[string]string{"Retry-After": "3", "Retry-After-Ms": "x"}, 3 * time.Second},
		"negative":             {map[string]string{"Retry-After": "-3"}, 0},
		"not a number":         {map[string]string{"Retry-After": "NaN"}, 0},
		"for ever":             {map[string]string{"Retry-After": "+Inf"}, 1<<62 - 1 + 1},
		"date, our clock":      {map[string]string{"Retry-After": "Fri, 02 Jan 2026 03:04:15 GMT"}, 10 * time.Second},
		"date, server's clock": {map[string]string{"Retry-After": "Fri, 02 Jan 2026 03:04:15 GMT", "Date": "Fri, 02 Jan 2026 03:04:14 GMT"}, time.Second},
		"date in the past":     {map[string]string{"Retry-After": "Fri, 02 Jan 2026 03:04:01 GMT"}, 0},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			header := http.Header{}
			for name, value := range test.header {
				header.Set(name, value)
			}
			require.Equal(t, test.want, retryAfter(header, now))
		})
	}
}

func TestExcerpt(t *testing.T) {
	t.Parallel()
	require.Equal(t, "a b", excerpt(" a\n\tb "))
	require.Equal(t, "a\uFFFD", excerpt("a\xff"))
	long := excerpt(strings.Repeat("é", maxMessage))
	require.Equal(t, strings.Repeat("é", maxMessage/2)+"...", long)
	require.Equal(t, "x"+strings.Repeat("é", maxMessage/2-1)+"...", excerpt("x"+strings.Repeat("é", maxMessage)))
}

func testEvents(tb testing.TB, body io.Reader) *Events {
	tb.Helper()
	e, err := New(API{}, Options{Model: "m", BaseURL: "http://x", StartTimeout: time.Hour, IdleTimeout: time.Hour})
	require.NoError(tb, err)
	_, cancel := context.WithCancelCause(tb.Context())
	stream := newEvents(io.NopCloser(body), e, e.watch(cancel))
	tb.Cleanup(func() { _ = stream.Close() })
	return stream
}

// all reads a stream to its end, its data each on a line.
func all(e *Events) (string, error) {
	var lines strings.Builder
	for {
		data, err := e.Next()
		switch {
		case err == nil:
			lines.WriteString("data: " + strings.ReplaceAll(string(data), "\n", "\ndata: ") + "\n\n")
		case errors.Is(err, io.EOF):
			return lines.String() + "data: [DONE]\n", nil
		default:
			return lines.String(), err
		}
	}
}

func TestEvents_PartsDoNotMatter(t *testing.T) {
	t.Parallel()
	const stream = ": hi\n\nevent: x\ndata: {\"a\":1}\r\n\r\ndata:{\"b\":2}\nretry: 5\ndata: [DONE]\ndata: {\"late\":1}\n"
	const want = "data: {\"a\":1}\n\ndata: {\"b\":2}\n\ndata: [DONE]\n"
	for name, reader := range map[string]io.Reader{
		"at once":         strings.NewReader(stream),
		"byte by byte":    iotest.OneByteReader(strings.NewReader(stream)),
		"end with data":   iotest.DataErrReader(strings.NewReader(stream)),
		"half at a time":  iotest.HalfReader(strings.NewReader(stream)),
		"no last newline": strings.NewReader(strings.TrimSuffix(stream, "\ndata: {\"late\":1}\n")),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := all(testEvents(t, reader))
			require.NoError(t, err)
			require.Equal(t, want, got)
		})
	}
}

// A stream is the same in every form that the specification of event streams allows.
func TestEvents_FormsDoNotMatter(t *testing.T) {
	t.Parallel()
	const want = "data: {\"a\":\ndata: 1}\n\ndata: {\"b\":2}\n\ndata: [DONE]\n"
	const plain = "data: {\"a\":\ndata: 1}\n\n: hi\ndata: {\"b\":2}\n\ndata: [DONE]\n\n"
	for name, stream := range map[string]string{
		"LF":                                    plain,
		"CR LF":                                 strings.ReplaceAll(plain, "\n", "\r\n"),
		"CR":                                    strings.ReplaceAll(plain, "\n", "\r"),
		"a byte order mark":                     "\uFEFF" + plain,
		"no empty line behind the last":         strings.TrimSuffix(plain, "\n\n"),
		"no empty line where the line is whole": "data: {\"a\":\ndata: 1}\n\ndata: {\"b\":2}\ndata: [DONE]",
		"no empty line before the end":          "data: {\"a\":\ndata: 1}\n\ndata:\ndata: {\ndata:\"b\":2}\ndata: [DONE]",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := all(testEvents(t, iotest.OneByteReader(strings.NewReader(stream))))
			require.NoError(t, err)
			require.Equal(t, want, strings.ReplaceAll(got, "data: {\ndata: \"b\":2}", "data: {\"b\":2}"))
		})
	}
}

// A line that ends in CR is returned at once, not when the next byte comes.
func TestEvents_CarriageReturnEndsALine(t *testing.T) {
	t.Parallel()
	r, w := io.Pipe()
	stream := testEvents(t, r)
	go func() { _, _ = io.WriteString(w, "data: {}\r") }()
	data, err := stream.Next()
	require.NoError(t, err)
	require.Equal(t, "{}", string(data))
}

func FuzzEvents(f *testing.F) {
	f.Add([]byte("data: {\"choices\":[]}\n\ndata: [DONE]\n"))
	f.Add([]byte("data: {\"error\":{\"message\":\"x\",\"code\":429}}"))
	f.Add([]byte("\uFEFFdata: {\rdata:\rdata: }\r\rdata: [DONE]"))
	f.Add([]byte("{\"error\":[1]}\n: c\r\ndata:x"))
	f.Fuzz(func(t *testing.T, body []byte) {
		got, err := all(testEvents(t, bytes.NewReader(body)))
		if err != nil && !errors.Is(err, ErrNotDone) {
			var fault *Error
			require.ErrorAs(t, err, &fault)
			require.NotEmpty(t, fault.Message)
		}
		again, err := all(testEvents(t, strings.NewReader(got)))
		if err == nil || errors.Is(err, ErrNotDone) {
			require.Equal(t, got, again, "what is clean must stay as it is")
		}
	})
}
