package endpoint_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/model/endpoint"
	"github.com/toolfleet/toolfleet/internal/model/lenient"
	"github.com/toolfleet/toolfleet/internal/model/modeltest"
	"github.com/toolfleet/toolfleet/pkg/loop"
)

// roundTrip is a transport without a network, for tests of time.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// model is one whose server is a function. Each event of a stream is a JSON text.
type model struct{ *endpoint.Endpoint }

func offline(t *testing.T, f roundTrip, change ...func(*endpoint.Options)) model {
	t.Helper()
	opts := endpoint.Options{Model: "m-1", APIKey: modeltest.Key, BaseURL: "http://offline", HTTPClient: &http.Client{Transport: f}}
	for _, f := range change {
		f(&opts)
	}
	e, err := endpoint.New(endpoint.API{}, opts)
	require.NoError(t, err)
	return model{e}
}

func (m model) reply(ctx context.Context, delta func(loop.Delta)) (loop.Reply, error) {
	return m.Reply(ctx, delta, func() (loop.Reply, error) {
		var parts endpoint.Assembler
		err := m.Stream(ctx, "", nil, nil, &parts, func(data []byte) error { parts.Text.Add(lenient.Piece(data)); return nil })
		if err != nil {
			return parts.Failed(), err
		}
		return m.Finish(&parts)
	})
}

func respond(code int, body io.Reader, headers ...string) *http.Response {
	header := http.Header{}
	for i := 0; i+1 < len(headers); i += 2 {
		header.Set(headers[i], headers[i+1])
	}
	return &http.Response{StatusCode: code, Header: header, Body: io.NopCloser(body)}
}

func goodBody() io.Reader { return strings.NewReader("data: \"ok\"\ndata: [DONE]\n") }

// silent is a body that says nothing until its request ends.
type silent struct{ ctx context.Context } //nolint:containedctx // a body belongs to its request

func (s silent) Read([]byte) (int, error) {
	<-s.ctx.Done()
	return 0, s.ctx.Err()
}

func TestReply_BacksOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var at []time.Duration
		start := time.Now()
		m := offline(t, func(*http.Request) (*http.Response, error) {
			at = append(at, time.Since(start))
			return respond(http.StatusBadGateway, strings.NewReader("")), nil
		})
		_, err := m.reply(t.Context(), modeltest.Ignore)
		modeltest.RequireType(t, endpoint.TypeServerError, err)
		require.Len(t, at, 6, "the default number of attempts")
		mean := 500 * time.Millisecond
		for i := 1; i < len(at); i++ {
			delay := at[i] - at[i-1]
			require.InDelta(t, mean.Seconds(), delay.Seconds(), mean.Seconds()/2+1e-6, "delay %d", i)
			mean *= 2
		}
	})
}

// A bound that is shorter than six attempts is kept.
func TestReply_WaitsShort(t *testing.T) {
	t.Parallel()
	for _, answer := range []http.Header{nil, {"Retry-After": {"30"}}} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			m := offline(t, func(*http.Request) (*http.Response, error) {
				down := respond(http.StatusServiceUnavailable, strings.NewReader("down"))
				maps.Copy(down.Header, answer)
				return down, nil
			}, func(o *endpoint.Options) { o.MaxWait = 2 * time.Second })
			_, err := m.reply(t.Context(), modeltest.Ignore)
			modeltest.RequireType(t, endpoint.TypeServerError, err)
			require.Equal(t, 2*time.Second, time.Since(start))
		})
	}
}

// A provider that is down is waited for, up to a bound, and the observer is notified.
func TestReply_WaitsForTheProvider(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		start, back := time.Now(), 5*time.Minute
		var waits []string
		m := offline(t, func(*http.Request) (*http.Response, error) {
			if time.Since(start) < back {
				return respond(http.StatusServiceUnavailable, strings.NewReader("down")), nil
			}
			return respond(http.StatusOK, goodBody()), nil
		}, func(o *endpoint.Options) { o.MaxWait = 10 * time.Minute })
		watch := func(piece loop.Delta) {
			if piece.Waits != "" {
				waits = append(waits, piece.Waits)
			}
		}
		_, err := m.reply(t.Context(), watch)
		require.NoError(t, err)
		require.Greater(t, len(waits), 6)
		require.Contains(t, waits[0], "503 Service Unavailable: down; next attempt in ")
		back = time.Hour
		start = time.Now()
		_, err = m.reply(t.Context(), modeltest.Ignore)
		modeltest.RequireType(t, endpoint.TypeServerError, err)
		require.InDelta(t, 10*time.Minute, time.Since(start), float64(2*time.Minute))
	})
}

func TestReply_Jitter(t *testing.T) {
	t.Parallel()
	for name, bad := range map[string]roundTrip{
		"back-off": func(*http.Request) (*http.Response, error) { return nil, errors.New("no route") },
		"what the server asks for": func(*http.Request) (*http.Response, error) {
			return respond(http.StatusTooManyRequests, strings.NewReader(""), "Retry-After", "10"), nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			seen := map[time.Duration]bool{}
			for range 5 {
				synctest.Test(t, func(t *testing.T) {
					start := time.Now()
					_, err := offline(t, bad, func(o *endpoint.Options) { o.MaxAttempts = 2 }).reply(t.Context(), modeltest.Ignore)
					require.Error(t, err)
					seen[time.Since(start)] = true
				})
			}
			require.Greater(t, len(seen), 1)
		})
	}
}

func TestReply_WaitsAsAsked(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		headers []string
		atLeast time.Duration
		atMost  time.Duration
	}{
		"seconds":            {[]string{"Retry-After", "7"}, 7 * time.Second, 7100 * time.Millisecond},
		"milliseconds first": {[]string{"Retry-After", "7", "retry-after-ms", "1500"}, 1500 * time.Millisecond, 1600 * time.Millisecond},
		"a date": {
			[]string{"Retry-After", "Mon, 02 Jan 2006 15:04:35 GMT", "Date", "Mon, 02 Jan 2006 15:04:05 GMT"}, 30 * time.Second, 30100 * time.Millisecond,
		},
		"no longer than a cap":  {[]string{"Retry-After", "86400"}, time.Minute, time.Minute + 100*time.Millisecond},
		"no shorter than usual": {[]string{"retry-after-ms", "1"}, 250 * time.Millisecond, 751 * time.Millisecond},
		"nonsense":              {[]string{"Retry-After", "soon"}, 250 * time.Millisecond, 751 * time.Millisecond},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				asked := 0
				m := offline(t, func(*http.Request) (*http.Response, error) {
					if asked++; asked == 1 {
						return respond(http.StatusTooManyRequests, strings.NewReader("slow down"), test.headers...), nil
					}
					return respond(http.StatusOK, goodBody()), nil
				})
				start := time.Now()
				_, err := m.reply(t.Context(), modeltest.Ignore)
				require.NoError(t, err)
				require.GreaterOrEqual(t, time.Since(start), test.atLeast)
				require.LessOrEqual(t, time.Since(start), test.atMost)
			})
		})
	}
}

func TestReply_Silence(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		silence roundTrip
		after   time.Duration
		want    string
	}{
		"before the answer": {
			func(r *http.Request) (*http.Response, error) { <-r.Context().Done(); return nil, r.Context().Err() },
			10 * time.Minute, "no answer began within 10m0s",
		},
		"before the first byte": {
			func(r *http.Request) (*http.Response, error) { return respond(200, silent{r.Context()}), nil },
			10 * time.Minute, "no answer began within 10m0s",
		},
		"within the stream": {
			func(r *http.Request) (*http.Response, error) {
				return respond(200, io.MultiReader(strings.NewReader("data: \"a\"\n"), silent{r.Context()})), nil
			},
			2 * time.Minute, "the answer fell silent for 2m0s",
		},
		"within an error": {
			func(r *http.Request) (*http.Response, error) { return respond(400, silent{r.Context()}), nil },
			10 * time.Minute, "no answer began within 10m0s",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				asked := 0
				m := offline(t, func(r *http.Request) (*http.Response, error) {
					if asked++; asked == 1 {
						return test.silence(r)
					}
					return respond(http.StatusOK, goodBody()), nil
				})
				start := time.Now()
				reply, err := m.reply(t.Context(), modeltest.Ignore)
				require.NoError(t, err)
				require.Equal(t, "ok", reply.Text)
				require.InDelta(t, test.after.Seconds(), time.Since(start).Seconds(), 1)

				m = offline(t, test.silence, func(o *endpoint.Options) { o.MaxAttempts = 1 })
				_, err = m.reply(t.Context(), modeltest.Ignore)
				modeltest.RequireType(t, endpoint.TypeTimeout, err)
				require.ErrorContains(t, err, test.want)
			})
		})
	}
}

// slow delivers one line after each pause.
type slow struct {
	lines []string
	pause time.Duration
}

func (s *slow) Read(p []byte) (int, error) {
	if len(s.lines) == 0 {
		return 0, io.EOF
	}
	<-time.After(s.pause)
	n := copy(p, s.lines[0])
	s.lines = s.lines[1:]
	return n, nil
}

func TestReply_SlowIsNotSilent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := offline(t, func(*http.Request) (*http.Response, error) {
			lines := []string{"data: \"a\"\n", ": still here\n", ": still here\n", "data: \"b\"\ndata: [DONE]\n"}
			return respond(http.StatusOK, &slow{lines: lines, pause: 119 * time.Second}), nil
		}, func(o *endpoint.Options) { o.MaxAttempts = 1 })
		reply, err := m.reply(t.Context(), modeltest.Ignore)
		require.NoError(t, err)
		require.Equal(t, "ab", reply.Text)
	})
}

func TestReply_EndsWithItsContext(t *testing.T) {
	t.Parallel()
	stopped := errors.New("stopped by the user")
	tests := map[string]roundTrip{
		"while it waits to try again": func(*http.Request) (*http.Response, error) {
			return respond(http.StatusTooManyRequests, strings.NewReader("slow down"), "Retry-After", "50"), nil
		},
		"while it waits for an answer": func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		},
		"while it reads": func(r *http.Request) (*http.Response, error) {
			return respond(200, io.MultiReader(strings.NewReader("data: \"a\"\n"), silent{r.Context()})), nil
		},
	}
	for name, hang := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Second, stopped)
				defer cancel()
				start := time.Now()
				_, err := offline(t, hang).reply(ctx, modeltest.Ignore)
				require.ErrorIs(t, err, stopped)
				require.Equal(t, 10*time.Second, time.Since(start), "at once")
			})
		})
	}
}

func TestReply_LogsRetries(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	asked := 0
	m := offline(t, func(*http.Request) (*http.Response, error) {
		if asked++; asked == 1 {
			return respond(http.StatusTooManyRequests, strings.NewReader("slow down, "+modeltest.Key)), nil
		}
		return respond(http.StatusOK, goodBody()), nil
	}, func(o *endpoint.Options) {
		o.Logger, o.RetryDelay = slog.New(slog.NewTextHandler(&log, nil)), time.Microsecond
	})
	_, err := m.reply(t.Context(), modeltest.Ignore)
	require.NoError(t, err)
	require.Contains(t, log.String(), "level=WARN")
	require.Contains(t, log.String(), "error_type=rate_limited")
	require.Contains(t, log.String(), "attempt=1")
	require.NotContains(t, log.String(), modeltest.Key)
}
