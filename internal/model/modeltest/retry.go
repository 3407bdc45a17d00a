package modeltest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/model/endpoint"
	"github.com/toolfleet/toolfleet/pkg/loop"
)

func triesAgain(t *testing.T, d *Dialect) {
	t.Helper()
	good := Stream(d.Stream(d.Text("Hello"))...)
	tests := map[string]Answer{
		"rate limit":                Status(http.StatusTooManyRequests, `{"error":{"message":"Slow down","type":"requests"}}`),
		"server error":              Status(http.StatusInternalServerError, "oops"),
		"bad gateway":               Status(http.StatusBadGateway, "<html>bad gateway</html>", "Content-Type", "text/html"),
		"overloaded":                Status(529, `{"error":{"message":"Overloaded"}}`),
		"connection dropped":        func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"broke before the text":     CutOff(": wait"),
		"broke within the text":     CutOff(d.begun(d.Text("Hel"))...),
		"broke within a line":       CutOff(d.begun(d.Text("Hel"), d.Text("lo")[:len(d.Text("lo"))-4])...),
		"ended within the text":     Stream(d.begun(d.Text("Hel"))...),
		"ended at once":             Stream(),
		"nothing but its end":       Stream(d.Done),
		"only its beginning":        Stream(d.begun()...),
		"a chunk that is no JSON":   Stream(d.begun(d.Text("Hel"), `data: {"choices`)...),
		"error in the stream":       Stream(d.begun(d.Text("Hel"), `data: {"error":{"message":"The server had an error","type":"server_error"}}`, "")...),
		"error text in the stream":  Stream(d.begun(d.Text("Hel"), ": hi", `data: {"error":"worker died"}`)...),
		"flat error in the stream":  Stream(d.begun(d.Text("Hel"), `data: {"object":"error","message":"worker died","code":500}`)...),
		"bare error in the stream":  Stream(d.begun(d.Text("Hel"), `{"error":{"message":"worker died"}}`)...),
		"rate limit in the stream":  Stream(d.begun(d.Text("Hel"), `data: {"error":{"message":"Slow down","code":"rate_limit_exceeded"}}`)...),
		"aborted":                   Stream(d.Ended("abort", d.Text("Hel"))...),
		"an error as the end":       Stream(d.Ended("error", d.Text("Hel"))...),
		"network error":             Stream(d.Ended("network_error", d.Text("Hel"))...),
		"no resource":               Stream(d.Ended("insufficient_system_resource", d.Text("Hel"))...),
		"a call of no tool":         Stream(d.Ended("UNEXPECTED_TOOL_CALL", d.Text("Hel"))...),
		"too many calls":            Stream(d.Ended("TOO_MANY_TOOL_CALLS", d.Text("Hel"))...),
		"another reason":            Stream(d.Ended("OTHER", d.Text("Hel"))...),
		"a reply that is refused":   Status(http.StatusBadRequest, `{"error":{"message":"Tool call validation failed: tool call validation failed: parameters for tool bash did not match schema","type":"invalid_request_error","code":"tool_use_failed"}}`),
		"the same without a code":   Status(http.StatusBadRequest, `{"error":{"message":"Failed to call a function. Please adjust your prompt.","type":"invalid_request_error"}}`),
		"a refused reply, streamed": Stream(d.begun(d.Text("Hel"), `data: {"error":{"message":"parameters for tool bash did not match schema: errors: [missing properties]","type":"invalid_request_error"}}`)...),
		"malformed call":            Stream(d.Ended("MALFORMED_FUNCTION_CALL", d.Text("Hel"))...),
		"request timeout":           Status(http.StatusRequestTimeout, "too slow"),
		"conflict":                  Status(http.StatusConflict, `{"error":{"message":"try again"}}`),
		"error instead of a stream": Status(http.StatusOK, `{"error":{"message":"Overloaded","code":529}}`, "Content-Type", "application/json"),
	}
	for name, bad := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := Serve(t, d, bad, bad, good)
			var got Pieces
			reply := Reply(t, s.Model(t), Hello(), got.Add)
			require.Equal(t, "Hello", reply.Text)
			require.Len(t, s.Asked(), 3)
			require.True(t, strings.HasSuffix(got.String(), "Hello"), "the last attempt streams from the start")
		})
	}
}

func givesUp(t *testing.T, d *Dialect) {
	t.Helper()
	s := Serve(t, d, Status(http.StatusServiceUnavailable, `{"error":{"message":"Loading model"}}`))
	_, err := s.Model(t, func(o *endpoint.Options) { o.MaxAttempts = 3 }).Reply(t.Context(), Hello(), Ignore)
	RequireType(t, endpoint.TypeServerError, err)
	var fault *endpoint.Error
	require.ErrorAs(t, err, &fault)
	require.Equal(t, http.StatusServiceUnavailable, fault.Status)
	require.EqualError(t, err, "after 3 attempts: model m-1 at "+s.URL+d.Base+": 503 Service Unavailable: Loading model")
	require.Len(t, s.Asked(), 3)
}

// noRedirects: a redirect would send conversation and key to a server that no user named.
func noRedirects(t *testing.T, d *Dialect) {
	t.Helper()
	elsewhere := Serve(t, d, Stream(d.Stream(d.Text("Hello"))...))
	for _, status := range []int{http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect, http.StatusPermanentRedirect} {
		s := Serve(t, d, Status(status, "moved", "Location", elsewhere.URL+d.Base+"?key="+Key))
		_, err := s.Model(t).Reply(t.Context(), Hello(), Ignore)
		RequireType(t, endpoint.TypeInvalidRequest, err)
		require.ErrorContains(t, err, "redirects to "+elsewhere.URL+d.Base+"?xxxxx, but requests to models follow no redirects: set the base URL")
		require.Len(t, s.Asked(), 1, "and is not repeated")
		require.Empty(t, elsewhere.Asked())
	}
}

func finalErrors(t *testing.T, d *Dialect) {
	t.Helper()
	tests := map[string]struct {
		answer   Answer
		wantType string
		want     []string
	}{
		"bad request": {
			Status(400, `{"error":{"message":"Invalid schema for function 'x'","type":"invalid_request_error"}}`),
			endpoint.TypeInvalidRequest,
			[]string{"400 Bad Request: Invalid schema for function 'x'"},
		},
		"bad key": {
			Status(401, `{"error":{"message":"Incorrect API key provided: `+Key+`","code":"invalid_api_key"}}`),
			endpoint.TypeAuthentication,
			[]string{"401 Unauthorized: Incorrect API key provided: [redacted]", "check the API key"},
		},
		"forbidden": {Status(403, `{"message":"not for you"}`), endpoint.TypePermission, []string{"403 Forbidden: not for you"}},
		"unknown model": {
			Status(404, `{"error":"model \"m-1\" not found"}`),
			endpoint.TypeNotFound,
			[]string{`404 Not Found: model "m-1" not found`, "check the model name"},
		},
		"another server": {
			Status(404, "<!doctype html><html>...</html>", "Content-Type", "text/html; charset=utf-8"),
			endpoint.TypeNotFound,
			[]string{"404 Not Found: the server answered with an HTML page", "check the model name, and the base URL"},
		},
		"validation": {
			Status(422, `{"detail":[{"loc":["body"],"msg":"extra"}]}`),
			endpoint.TypeInvalidRequest,
			[]string{`422 Unprocessable Entity: [{"loc":["body"],"msg":"extra"}]`},
		},
		"a list of errors":  {Status(400, `[{"error":{"message":"bad","code":400}}]`), endpoint.TypeInvalidRequest, []string{"400 Bad Request: bad"}},
		"no reason":         {Status(400, ""), endpoint.TypeInvalidRequest, []string{"the server gave no reason"}},
		"context length":    {Status(400, `{"error":{"message":"too long","code":"context_length_exceeded"}}`), endpoint.TypeContextLength, []string{"too long"}},
		"context of vLLM":   {Status(400, `{"object":"error","message":"This model's maximum context length is 4096 tokens.","type":"BadRequestError","code":400}`), endpoint.TypeContextLength, []string{"4096"}},
		"context of llama":  {Status(400, `{"error":{"code":400,"message":"the request exceeds the available context size","type":"exceed_context_size_error"}}`), endpoint.TypeContextLength, []string{"exceeds"}},
		"filtered prompt":   {Status(400, `{"error":{"message":"filtered","code":"content_filter"}}`), endpoint.TypeContentFilter, []string{"filtered"}},
		"nothing left":      {Status(429, `{"error":{"message":"You exceeded your quota","type":"insufficient_quota","code":null}}`), endpoint.TypeQuotaExceeded, []string{"429 Too Many Requests: You exceeded", "billing"}},
		"moved":             {Status(304, ""), endpoint.TypeInvalidRequest, []string{"304 Not Modified"}},
		"unknown end":       {Stream(d.Ended("because", d.Text("a"))...), endpoint.TypeUnfinished, []string{`"because"`}},
		"filtered reply":    {Stream(d.Ended("sensitive", d.Text("a"))...), endpoint.TypeContentFilter, []string{`"sensitive"`}},
		"a page":            {Status(200, "<html>Welcome</html>", "Content-Type", "text/html"), endpoint.TypeInvalidResponse, []string{`content type "text/html"`, "HTML page", "check the base URL"}},
		"no stream":         {Status(200, `{"choices":[]}`, "Content-Type", "application/json"), endpoint.TypeInvalidResponse, []string{`content type "application/json"`, `{"choices":[]}`}},
		"bad request later": {Stream(d.begun(d.Text("a"), `data: {"error":{"message":"bad grammar","type":"invalid_request_error"}}`)...), endpoint.TypeInvalidRequest, []string{"bad grammar"}},
		"bad key later":     {Stream(d.begun(d.Text("a"), `data: {"error":{"message":"bad key `+Key+`","code":401}}`)...), endpoint.TypeAuthentication, []string{"bad key [redacted]"}},
		"a long message":    {Status(400, strings.Repeat("ä\n", 5000)), endpoint.TypeInvalidRequest, []string{"ä ä", "..."}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := Serve(t, d, test.answer)
			_, err := s.Model(t).Reply(t.Context(), Hello(), Ignore)
			RequireType(t, test.wantType, err)
			for _, want := range append(test.want, "model m-1 at "+s.URL+d.Base+": ") {
				require.ErrorContains(t, err, want)
			}
			require.Len(t, s.Asked(), 1)
			require.Less(t, len(err.Error()), 2500)
			require.NotContains(t, err.Error(), "\n")
		})
	}
}

// Every server has its own words for a conversation that is too long.
func tooLong(t *testing.T, d *Dialect) {
	t.Helper()
	for name, test := range map[string]struct {
		code    int
		message string
	}{
		"OpenAI":        {400, "Your input exceeds the context window of this model. Please adjust your input and try again."},
		"vLLM":          {400, "You passed 5000 input tokens and requested 100 output tokens. However, the model's context length is only 4096 tokens, resulting in a maximum input length of 3996 tokens."},
		"vLLM, prompt":  {400, "The decoder prompt (length 5000) is longer than the maximum model length of 4096."},
		"vLLM, no room": {400, "max_tokens must be at least 1, got -904."},
		"SGLang":        {400, "The input (5000 tokens) is longer than the model's context length (4096 tokens)."},
		"SGLang, input": {400, "Input length (5000 tokens) exceeds the maximum allowed length (4090 tokens)."},
		"xAI":           {400, "This model's maximum prompt length is 131072 but the request contains 140000 tokens."},
		"Gemini":        {400, "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)."},
		"Gemini, bytes": {400, "Request payload size exceeds the limit: 20971520 bytes."},
		"Anthropic":     {400, "prompt is too long: 210000 tokens > 200000 maximum"},
		"Anthropic, 2":  {400, "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000"},
		"Bedrock":       {400, "ValidationException: Input is too long for requested model."},
		"TGI":           {422, "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens and 100 `max_new_tokens`"},
		"Cohere":        {400, "too many tokens: size limit exceeded by 500 tokens"},
		"Groq":          {400, "Please reduce the length of the messages or completion."},
		"Qwen":          {400, "Range of input length should be [1, 30720]"},
		"Zhipu":         {400, "Prompt exceeds max length"},
		"Moonshot":      {400, "Invalid request: Your request exceeded model token limit: 131072"},
		"MiniMax":       {400, "invalid params, context window exceeds limit (2013)"},
		"LM Studio":     {400, "The number of tokens to keep from the initial prompt is greater than the context length"},
		"Copilot":       {400, "prompt token count of 100000 exceeds the limit of 64000"},
		"413 of limits": {413, "Request too large for model x on tokens per minute (TPM): Limit 6000, Requested 9000"},
		"429 of limits": {429, "Request too large for gpt-4o on tokens per min (TPM): Limit 30000, Requested 40000."},
		"a bad status":  {500, "litellm.ContextWindowExceededError: This model's maximum context length is 8192 tokens"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			body, err := json.Marshal(map[string]any{"error": map[string]string{"message": test.message}})
			require.NoError(t, err)
			inStream := Stream(d.begun(d.Text("a"), "data: "+string(body))...)
			for _, answer := range []Answer{Status(test.code, string(body)), inStream} {
				s := Serve(t, d, answer)
				_, err = s.Model(t).Reply(t.Context(), Hello(), Ignore)
				RequireType(t, endpoint.TypeContextLength, err)
				require.ErrorIs(t, err, loop.ErrTooLong)
				require.Len(t, s.Asked(), 1)
			}
		})
	}
	_, err := Serve(t, d, Status(413, "<html>")).Model(t).Reply(t.Context(), Hello(), Ignore)
	require.ErrorIs(t, err, loop.ErrTooLong)
	for code, message := range map[int]string{
		429: "Too many tokens, please wait before trying again.",
		400: "max_tokens is too large: 100000. This model supports at most 16384 completion tokens",
		422: "Invalid 'messages[1].tool_calls[0].id': string too long. Expected a string with maximum length 40",
	} {
		_, err := Serve(t, d, Status(code, message)).Model(t).Reply(t.Context(), Hello(), Ignore)
		require.NotErrorIs(t, err, loop.ErrTooLong, message)
	}
}

func secrets(t *testing.T, d *Dialect) {
	t.Helper()
	short := Serve(t, d, Status(400, "no such thing"))
	_, err := short.Model(t, func(o *endpoint.Options) { o.APIKey = "s" }).Reply(t.Context(), Hello(), Ignore)
	require.ErrorContains(t, err, "no such thing")
}

func noListener(t *testing.T, d *Dialect) {
	t.Helper()
	m, err := d.New(endpoint.Options{
		Model: "m-1", APIKey: Key, BaseURL: "http://token-1234:hunter2@127.0.0.1:1" + d.Base,
		MaxAttempts: 2, RetryDelay: time.Microsecond,
	})
	require.NoError(t, err)
	_, err = m.Reply(t.Context(), Hello(), Ignore)
	RequireType(t, endpoint.TypeConnection, err)
	require.ErrorContains(t, err, "after 2 attempts")
	require.ErrorContains(t, err, "connection refused (check the base URL")
	require.NotContains(t, err.Error(), "hunter2")
	require.NotContains(t, err.Error(), "token-1234", "some have no password")
	require.NotContains(t, err.Error(), "Post", "the URL stands there once")
	var operation *net.OpError
	require.ErrorAs(t, err, &operation)
}

func badCertificate(t *testing.T, d *Dialect) {
	t.Helper()
	s := httptest.NewUnstartedServer(http.NotFoundHandler())
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	s.StartTLS()
	t.Cleanup(s.Close)
	m, err := d.New(endpoint.Options{Model: "m-1", APIKey: Key, BaseURL: s.URL})
	require.NoError(t, err)
	_, err = m.Reply(t.Context(), Hello(), Ignore)
	RequireType(t, endpoint.TypeConnection, err)
	require.NotContains(t, err.Error(), "attempts")
	require.ErrorContains(t, err, "certificate")
}

// roundTrip is a transport without a network, for tests of time.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// offline is a model whose server is a function.
func offline(t *testing.T, d *Dialect, f roundTrip, change ...func(*endpoint.Options)) loop.Model {
	t.Helper()
	opts := endpoint.Options{Model: "m-1", APIKey: Key, BaseURL: "http://offline" + d.Base, HTTPClient: &http.Client{Transport: f}}
	for _, f := range change {
		f(&opts)
	}
	m, err := d.New(opts)
	require.NoError(t, err)
	return m
}

func respond(code int, body io.Reader, headers ...string) *http.Response {
	header := http.Header{}
	for i := 0; i+1 < len(headers); i += 2 {
		header.Set(headers[i], headers[i+1])
	}
	return &http.Response{StatusCode: code, Header: header, Body: io.NopCloser(body)}
}

func (d *Dialect) goodBody() io.Reader {
	return strings.NewReader(strings.Join(d.Stream(d.Text("ok")), "\n") + "\n")
}

// begun is the beginning of a reply.
func (d *Dialect) begun(events ...string) []string { return append(slices.Clone(d.Begin), events...) }

// silent is a body that says nothing until its request ends.
type silent struct{ ctx context.Context } //nolint:containedctx // a body belongs to its request

func (s silent) Read([]byte) (int, error) {
	<-s.ctx.Done()
	return 0, s.ctx.Err()
}

func backsOff(t *testing.T, d *Dialect) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var at []time.Duration
		start := time.Now()
		m := offline(t, d, func(*http.Request) (*http.Response, error) {
			at = append(at, time.Since(start))
			return respond(http.StatusBadGateway, strings.NewReader("")), nil
		})
		_, err := m.Reply(t.Context(), Hello(), Ignore)
		RequireType(t, endpoint.TypeServerError, err)
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
func waitsShort(t *testing.T, d *Dialect) {
	t.Helper()
	for _, answer := range []http.Header{nil, {"Retry-After": {"30"}}} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			m := offline(t, d, func(*http.Request) (*http.Response, error) {
				down := respond(http.StatusServiceUnavailable, strings.NewReader("down"))
				maps.Copy(down.Header, answer)
				return down, nil
			}, func(o *endpoint.Options) { o.MaxWait = 2 * time.Second })
			_, err := m.Reply(t.Context(), Hello(), Ignore)
			RequireType(t, endpoint.TypeServerError, err)
			require.Equal(t, 2*time.Second, time.Since(start))
		})
	}
}

// A provider that is down is waited for, up to a bound, and the observer is notified.
func waitsForProvider(t *testing.T, d *Dialect) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		start, back := time.Now(), 5*time.Minute
		var waits []string
		m := offline(t, d, func(*http.Request) (*http.Response, error) {
			if time.Since(start) < back {
				return respond(http.StatusServiceUnavailable, strings.NewReader("down")), nil
			}
			return respond(http.StatusOK, d.goodBody()), nil
		}, func(o *endpoint.Options) { o.MaxWait = 10 * time.Minute })
		watch := func(piece loop.Delta) {
			if piece.Waits != "" {
				waits = append(waits, piece.Waits)
			}
		}
		Reply(t, m, Hello(), watch)
		require.Greater(t, len(waits), 6)
		require.Contains(t, waits[0], "503 Service Unavailable: down; next attempt in ")
		back = time.Hour
		start = time.Now()
		_, err := m.Reply(t.Context(), Hello(), Ignore)
		RequireType(t, endpoint.TypeServerError, err)
		require.InDelta(t, 10*time.Minute, time.Since(start), float64(2*time.Minute))
	})
}

func jitter(t *testing.T, d *Dialect) {
	t.Helper()
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
					_, err := offline(t, d, bad, func(o *endpoint.Options) { o.MaxAttempts = 2 }).Reply(t.Context(), Hello(), Ignore)
					require.Error(t, err)
					seen[time.Since(start)] = true
				})
			}
			require.Greater(t, len(seen), 1)
		})
	}
}

func waitsAsAsked(t *testing.T, d *Dialect) {
	t.Helper()
	tests := map[string]struct {
		headers []string
		atLeast time.Duration
		atMost  time.Duration
	}{
		"seconds":               {[]string{"Retry-After", "7"}, 7 * time.Second, 7100 * time.Millisecond},
		"milliseconds first":    {[]string{"Retry-After", "7", "retry-after-ms", "1500"}, 1500 * time.Millisecond, 1600 * time.Millisecond},
		"a date":                {[]string{"Retry-After", "Mon, 02 Jan 2006 15:04:35 GMT", "Date", "Mon, 02 Jan 2006 15:04:05 GMT"}, 30 * time.Second, 30100 * time.Millisecond},
		"no longer than a cap":  {[]string{"Retry-After", "86400"}, time.Minute, time.Minute + 100*time.Millisecond},
		"no shorter than usual": {[]string{"retry-after-ms", "1"}, 250 * time.Millisecond, 751 * time.Millisecond},
		"nonsense":              {[]string{"Retry-After", "soon"}, 250 * time.Millisecond, 751 * time.Millisecond},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				asked := 0
				m := offline(t, d, func(*http.Request) (*http.Response, error) {
					if asked++; asked == 1 {
						return respond(http.StatusTooManyRequests, strings.NewReader("slow down"), test.headers...), nil
					}
					return respond(http.StatusOK, d.goodBody()), nil
				})
				start := time.Now()
				Reply(t, m, Hello(), Ignore)
				require.GreaterOrEqual(t, time.Since(start), test.atLeast)
				require.LessOrEqual(t, time.Since(start), test.atMost)
			})
		})
	}
}

func silence(t *testing.T, d *Dialect) {
	t.Helper()
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
				return respond(200, io.MultiReader(strings.NewReader(d.Text("a")+"\n"), silent{r.Context()})), nil
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
				m := offline(t, d, func(r *http.Request) (*http.Response, error) {
					if asked++; asked == 1 {
						return test.silence(r)
					}
					return respond(http.StatusOK, d.goodBody()), nil
				})
				start := time.Now()
				reply := Reply(t, m, Hello(), Ignore)
				require.Equal(t, "ok", reply.Text)
				require.InDelta(t, test.after.Seconds(), time.Since(start).Seconds(), 1)

				m = offline(t, d, test.silence, func(o *endpoint.Options) { o.MaxAttempts = 1 })
				_, err := m.Reply(t.Context(), Hello(), Ignore)
				RequireType(t, endpoint.TypeTimeout, err)
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

func slowIsNotSilent(t *testing.T, d *Dialect) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := offline(t, d, func(*http.Request) (*http.Response, error) {
			lines := []string{d.Text("a") + "\n", ": still here\n", ": still here\n", strings.Join(d.Stream(d.Text("b"))[len(d.Begin):], "\n") + "\n"}
			return respond(http.StatusOK, &slow{lines: lines, pause: 119 * time.Second}), nil
		}, func(o *endpoint.Options) { o.MaxAttempts = 1 })
		reply := Reply(t, m, Hello(), Ignore)
		require.Equal(t, "ab", reply.Text)
	})
}

func endsWithContext(t *testing.T, d *Dialect) {
	t.Helper()
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
			return respond(200, io.MultiReader(strings.NewReader(d.Text("a")+"\n"), silent{r.Context()})), nil
		},
	}
	for name, hang := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Second, stopped)
				defer cancel()
				start := time.Now()
				_, err := offline(t, d, hang).Reply(ctx, Hello(), Ignore)
				require.ErrorIs(t, err, stopped)
				require.Equal(t, 10*time.Second, time.Since(start), "at once")
			})
		})
	}
}

func logsRetries(t *testing.T, d *Dialect) {
	t.Helper()
	var log bytes.Buffer
	s := Serve(t, d, Status(http.StatusTooManyRequests, "slow down, "+Key), Stream(d.Stream(d.Text("ok"))...))
	m := s.Model(t, func(o *endpoint.Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	Reply(t, m, Hello(), Ignore)
	require.Contains(t, log.String(), "level=WARN")
	require.Contains(t, log.String(), "error_type=rate_limited")
	require.Contains(t, log.String(), "attempt=1")
	require.NotContains(t, log.String(), Key)
}
