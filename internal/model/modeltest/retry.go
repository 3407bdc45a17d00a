package modeltest

import (
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/model/endpoint"
	"github.com/toolfleet/toolfleet/pkg/loop"
)

func triesAgain(t *testing.T, d *Dialect) {
	t.Helper()
	good := Stream(d.Stream(d.Text("Hello"))...)
	tests := map[string]Answer{
		"rate limit":               Status(http.StatusTooManyRequests, `{"error":{"message":"Slow down","type":"requests"}}`),
		"server error":             Status(http.StatusInternalServerError, "oops"),
		"bad gateway":              Status(http.StatusBadGateway, "<html>bad gateway</html>", "Content-Type", "text/html"),
		"overloaded":               Status(529, `{"error":{"message":"Overloaded"}}`),
		"connection dropped":       func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"broke before the text":    CutOff(": wait"),
		"broke within the text":    CutOff(d.begun(d.Text("Hel"))...),
		"broke within a line":      CutOff(d.begun(d.Text("Hel"), d.Text("lo")[:len(d.Text("lo"))-4])...),
		"ended within the text":    Stream(d.begun(d.Text("Hel"))...),
		"ended at once":            Stream(),
		"nothing but its end":      Stream(d.Done),
		"only its beginning":       Stream(d.begun()...),
		"a chunk that is no JSON":  Stream(d.begun(d.Text("Hel"), `data: {"choices`)...),
		"error in the stream":      Stream(d.begun(d.Text("Hel"), `data: {"error":{"message":"The server had an error","type":"server_error"}}`, "")...),
		"error text in the stream": Stream(d.begun(d.Text("Hel"), ": hi", `data: {"error":"worker died"}`)...),
		"flat error in the stream": Stream(d.begun(d.Text("Hel"), `data: {"object":"error","message":"worker died","code":500}`)...),
		"bare error in the stream": Stream(d.begun(d.Text("Hel"), `{"error":{"message":"worker died"}}`)...),
		"rate limit in the stream": Stream(d.begun(d.Text("Hel"), `data: {"error":{"message":"Slow down","code":"rate_limit_exceeded"}}`)...),
		"aborted":                  Stream(d.Ended("abort", d.Text("Hel"))...),
		"an error as the end":      Stream(d.Ended("error", d.Text("Hel"))...),
		"network error":            Stream(d.Ended("network_error", d.Text("Hel"))...),
		"no resource":              Stream(d.Ended("insufficient_system_resource", d.Text("Hel"))...),
		"a call of no tool":        Stream(d.Ended("UNEXPECTED_TOOL_CALL", d.Text("Hel"))...),
		"too many calls":           Stream(d.Ended("TOO_MANY_TOOL_CALLS", d.Text("Hel"))...),
		"another reason":           Stream(d.Ended("OTHER", d.Text("Hel"))...),
		"a reply that is refused":  Status(http.StatusBadRequest, `{"error":{"message":"Tool call validation failed: tool call validation failed: parameters for tool bash did not match schema","type":"invalid_request_error","code":"tool_use_failed"}}`),
		"the same without a code": Status(http.StatusBadRequest,
			`{"error":{"message":"Failed to call a function. Please adjust your prompt.","type":"invalid_request_error"}}`),
		"a refused reply, streamed": Stream(d.begun(d.Text("Hel"),
			`data: {"error":{"message":"parameters for tool bash did not match schema: errors: [missing properties]","type":"invalid_request_error"}}`)...),
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
		"a list of errors": {Status(400, `[{"error":{"message":"bad","code":400}}]`), endpoint.TypeInvalidRequest, []string{"400 Bad Request: bad"}},
		"no reason":        {Status(400, ""), endpoint.TypeInvalidRequest, []string{"the server gave no reason"}},
		"context length":   {Status(400, `{"error":{"message":"too long","code":"context_length_exceeded"}}`), endpoint.TypeContextLength, []string{"too long"}},
		"context of vLLM": {
			Status(400, `{"object":"error","message":"This model's maximum context length is 4096 tokens.","type":"BadRequestError","code":400}`),
			endpoint.TypeContextLength,
			[]string{"4096"},
		},
		"context of llama": {
			Status(400, `{"error":{"code":400,"message":"the request exceeds the available context size","type":"exceed_context_size_error"}}`),
			endpoint.TypeContextLength,
			[]string{"exceeds"},
		},
		"filtered prompt": {Status(400, `{"error":{"message":"filtered","code":"content_filter"}}`), endpoint.TypeContentFilter, []string{"filtered"}},
		"nothing left": {
			Status(429, `{"error":{"message":"You exceeded your quota","type":"insufficient_quota","code":null}}`),
			endpoint.TypeQuotaExceeded,
			[]string{"429 Too Many Requests: You exceeded", "billing"},
		},
		"moved":          {Status(304, ""), endpoint.TypeInvalidRequest, []string{"304 Not Modified"}},
		"unknown end":    {Stream(d.Ended("because", d.Text("a"))...), endpoint.TypeUnfinished, []string{`"because"`}},
		"filtered reply": {Stream(d.Ended("sensitive", d.Text("a"))...), endpoint.TypeContentFilter, []string{`"sensitive"`}},
		"a page": {
			Status(200, "<html>Welcome</html>", "Content-Type", "text/html"), endpoint.TypeInvalidResponse,
			[]string{`content type "text/html"`, "HTML page", "check the base URL"},
		},
		"no stream": {
			Status(200, `{"choices":[]}`, "Content-Type", "application/json"), endpoint.TypeInvalidResponse,
			[]string{`content type "application/json"`, `{"choices":[]}`},
		},
		"bad request later": {
			Stream(d.begun(d.Text("a"), `data: {"error":{"message":"bad grammar","type":"invalid_request_error"}}`)...),
			endpoint.TypeInvalidRequest,
			[]string{"bad grammar"},
		},
		"bad key later": {
			Stream(d.begun(d.Text("a"), `data: {"error":{"message":"bad key `+Key+`","code":401}}`)...),
			endpoint.TypeAuthentication,
			[]string{"bad key [redacted]"},
		},
		"a long message": {Status(400, strings.Repeat("ä\n", 5000)), endpoint.TypeInvalidRequest, []string{"ä ä", "..."}},
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

// begun is the beginning of a reply.
func (d *Dialect) begun(events ...string) []string { return append(slices.Clone(d.Begin), events...) }
