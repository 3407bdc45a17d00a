package model_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/toolfleet/toolfleet/internal/model"
	"github.com/toolfleet/toolfleet/internal/model/endpoint"
	"github.com/toolfleet/toolfleet/internal/model/scripted"
	"github.com/toolfleet/toolfleet/internal/telemetry/genaiconv"
	"github.com/toolfleet/toolfleet/internal/telemetry/telemetrytest"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// environment looks variables up in pairs of names and values.
func environment(pairs ...string) func(string) string {
	return func(name string) string {
		for i := 0; i+1 < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1]
			}
		}
		return ""
	}
}

func hello() loop.Request {
	return loop.Request{Messages: []loop.Message{{Role: loop.RoleUser, Text: "hello"}}}
}

func TestOpen_Script(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "with: colon.json")
	require.NoError(t, os.WriteFile(path, []byte(`{"steps":[{"text":"hi"}]}`), 0o600))
	m, name, err := model.Open(" script:"+path+" ", nil)
	require.NoError(t, err)
	require.Equal(t, "script:"+path, name)
	reply, err := m.Reply(t.Context(), hello(), func(loop.Delta) {})
	require.NoError(t, err)
	require.Equal(t, "hi", reply.Text)
}

func TestOpen_RepliesAreMeasured(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "script.json")
	require.NoError(t, os.WriteFile(path, []byte(`{"steps":[{"text":"hi","usage":{"input_tokens":7,"output_tokens":2}}]}`), 0o600))
	meter := telemetrytest.NewMeter(t)
	m, name, err := model.Opener{Meter: meter}.Open("script:" + path)
	require.NoError(t, err)
	reply, err := m.Reply(t.Context(), hello(), func(loop.Delta) {})
	require.NoError(t, err)
	after := hello()
	after.Messages = append(after.Messages, loop.Message{Role: loop.RoleAssistant, Text: reply.Text})
	_, err = m.Reply(t.Context(), after, func(loop.Delta) {})
	require.Error(t, err)

	chat, of := "gen_ai.operation.name=chat,gen_ai.provider.name=script,gen_ai.request.model=", name
	require.Equal(t, map[string]int64{chat + of: 1, "error.type=script_ended," + chat + of: 1}, meter.Read(t, genaiconv.MetricModel))
	require.Equal(t, map[string]int64{chat + of + ",gen_ai.token.modality=unknown": 7}, meter.Read(t, genaiconv.MetricInputTokens))
	require.Equal(t, map[string]int64{chat + of + ",gen_ai.token.modality=unknown": 2}, meter.Read(t, genaiconv.MetricOutputTokens))
	require.Empty(t, meter.Read(t, genaiconv.MetricCacheReadTokens))
	require.Equal(t, map[string]int64{chat + of: 1}, meter.Read(t, genaiconv.MetricReplyInput))
	provider, is := m.(loop.Provider)
	require.True(t, is)
	require.Empty(t, provider.Provider())
}

func TestOpen_ServerOfTheEnvironment(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		env               []string
		key, organization string
	}{
		"with a key":    {[]string{"OPENAI_API_KEY", " sk-1\n", "OPENAI_ORG_ID", "org-1"}, "Bearer sk-1", "org-1"},
		"without a key": {nil, "", ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var header http.Header
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				header = r.Header
				_, _ = io.WriteString(w, "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"hi\"}}]}\n\ndata: [DONE]\n\n")
			}))
			t.Cleanup(server.Close)
			env := environment(append(test.env, "OPENAI_BASE_URL", server.URL+"/v1/")...)
			m, display, err := model.Opener{Env: env, HTTPClient: server.Client()}.Open("openai:llama3.2:3b")
			require.NoError(t, err)
			require.Equal(t, "openai:llama3.2:3b", display)
			reply, err := m.Reply(t.Context(), hello(), func(loop.Delta) {})
			require.NoError(t, err)
			require.Equal(t, "hi", reply.Text)
			require.Equal(t, test.key, header.Get("Authorization"))
			require.Equal(t, test.organization, header.Get("OpenAI-Organization"))
		})
	}
}

func TestOpen_SaysWhatCanBeGiven(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad.json")
	require.NoError(t, os.WriteFile(bad, []byte(`{}`), 0o600))
	forms := []string{"script:FILE", "openai:NAME", "anthropic:NAME", "google:NAME"}
	tests := map[string]struct {
		spec string
		env  func(string) string
		is   error
		want []string
	}{
		"nothing":             {"", nil, model.ErrInvalidSpec, append(forms, "none was given")},
		"only space":          {" \n", nil, model.ErrInvalidSpec, append(forms, "none was given")},
		"only a name":         {"gpt-5", nil, model.ErrInvalidSpec, append(forms, `unknown provider "gpt-5"`)},
		"unknown provider":    {"clever:x", nil, model.ErrInvalidSpec, append(forms, `unknown provider "clever"`)},
		"no model name":       {"openai:", environment("OPENAI_API_KEY", "k"), model.ErrInvalidSpec, append(forms, "the name of the model or file is missing")},
		"no file name":        {"script: ", nil, model.ErrInvalidSpec, append(forms, "the name of the model or file is missing")},
		"missing script":      {"script:" + dir + "/none.json", nil, os.ErrNotExist, []string{"none.json"}},
		"bad script":          {"script:" + bad, nil, scripted.ErrInvalidScript, []string{"bad.json", "needs one step"}},
		"no key":              {"openai:m", nil, model.ErrNoAPIKey, []string{"model openai:m", "OPENAI_API_KEY", "OPENAI_BASE_URL"}},
		"no key of Anthropic": {"anthropic:m", nil, model.ErrNoAPIKey, []string{"model anthropic:m", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"}},
		"no key for the default server": {
			"openai:m", environment("OPENAI_BASE_URL", "https://api.openai.com/v1/"), model.ErrNoAPIKey, []string{"OPENAI_BASE_URL"},
		},
		"bad server": {"openai:m", environment("OPENAI_BASE_URL", "localhost:11434"), nil, []string{`OPENAI_BASE_URL: openai options: base URL "localhost:11434"`}},
		"bad API":    {"openai:m", environment("OPENAI_API_KEY", "k", "OPENAI_API", "soap"), nil, []string{`OPENAI_API "soap": must be auto, responses or chat`}},
		"bad images": {"openai:m", environment("OPENAI_API_KEY", "k", "OPENAI_IMAGES", "maybe"), nil, []string{`OPENAI_IMAGES "maybe": must be true or false`}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m, _, err := model.Open(test.spec, test.env)
			require.Nil(t, m)
			if test.is != nil {
				require.ErrorIs(t, err, test.is)
			}
			for _, want := range test.want {
				require.ErrorContains(t, err, want)
			}
		})
	}
}

// TestCheckLane_NamesTheNearestProvider: a limit of a misspelled provider would bind nothing.
func TestCheckLane_NamesTheNearestProvider(t *testing.T) {
	t.Parallel()
	for _, lane := range []string{"", "account/*", "model/openai", "model/*", "model/o*"} {
		require.NoError(t, model.CheckLane(lane), lane)
	}
	require.EqualError(t, model.CheckLane("model/opnai"),
		`lane "model/opnai": there is no such provider of models: must be one of openai, anthropic, google; did you mean "model/openai"?`)
}

func TestPrices_OfThisVersion(t *testing.T) {
	t.Parallel()
	prices, err := model.LoadPrices("")
	require.NoError(t, err)
	require.NotEmpty(t, prices.Sources)
	price, window := prices.Of("openai:gpt-4.1-2025-04-14")
	require.Equal(t, &loop.Price{Input: 2, Output: 8, Tools: map[string]float64{"code_interpreter": 0.03, "image_generation": 0.25, "web_search": 0.025}}, price)
	require.Equal(t, int64(1_047_576), window)
	require.InDelta(t, 10.0, price.Of(protocol.Usage{InputTokens: 1e6, OutputTokens: 1e6}), 1e-9)
	price, _ = prices.Of("openai:gpt-4.1-mini")
	require.InDelta(t, 0.4, price.Input, 1e-9)
	for _, name := range []string{"openai:gpt-4.1-2", "openai:qwen3", "script:x.json", ""} {
		price, window = prices.Of(name)
		require.Nil(t, price, name)
		require.Zero(t, window, name)
	}
}

func TestPrices_OfAFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "prices.json")
	load := func(content string) (*model.Prices, error) {
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		return model.LoadPrices(path)
	}
	prices, err := load(`{"as_of": "2026-12-31", "models": {"openai:qwen3": {"input": 0, "output": 0}, "openai:phi": {"window": 8000}}}`)
	require.NoError(t, err)
	price, _ := prices.Of("openai:qwen3")
	require.NotNil(t, price, "free is not unknown")
	require.Zero(t, price.Of(protocol.Usage{InputTokens: 1e6, OutputTokens: 1e6}))
	require.InDelta(t, 0.025, price.Tools["web_search"], 1e-9, "those of this version")
	price, window := prices.Of("openai:phi")
	require.Nil(t, price)
	require.Equal(t, int64(8000), window)
	price, _ = prices.Of("openai:gpt-4.1")
	require.Nil(t, price, "the file replaces all prices")

	prices, err = load(`{"as_of": "2026-12-31", "models": {"x:y": {"input": 0, "output": 0}}, "tools": {"x:find": 2}}`)
	require.NoError(t, err)
	price, _ = prices.Of("x:y")
	require.Equal(t, &loop.Price{Tools: map[string]float64{"find": 2}}, price)

	for content, want := range map[string]string{
		`[]`:                "must be an object with as_of and models",
		`{"as_of": "soon"}`: `as_of "soon": must be a day such as 2026-12-31`,
		`{"prices": {}}`:    `unknown field "prices"`,
		`{"as_of": "2026-12-31", "models": {"a": {"input": 1}}}`:               "a: input and output must both be",
		`{"as_of": "2026-12-31", "models": {"a": {"input": -1, "output": 1}}}`: "a: input and output must both be",
		`{"as_of": "2026-12-31", "models": {"a": {"window": -1}}}`:             "a: window -1: must not be negative",
	} {
		_, err = load(content)
		require.ErrorContains(t, err, want)
	}
	_, err = model.LoadPrices(filepath.Join(t.TempDir(), "none"))
	require.EqualError(t, err, "no such file or directory")
}

// shared are limits that have the first requests wait.
type shared struct {
	waits     []time.Duration
	err       error
	taken     int64
	corrected int64
}

func (s *shared) SpendModel(_ context.Context, provider string, tokens int64) (time.Duration, error) {
	if len(s.waits) > 0 {
		wait := s.waits[0]
		s.waits = s.waits[1:]
		return wait, nil
	}
	if provider == "script" {
		s.taken += tokens
	}
	return 0, s.err
}

func (s *shared) CorrectModel(_ context.Context, _ string, tokens int64) error {
	s.corrected += tokens
	return nil
}

// A request waits for the limit of its provider, the screen says so, and what it used is settled.
func TestGate_WaitsForTheLimit(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "script.json")
	require.NoError(t, os.WriteFile(file, []byte(`{"steps":[{"text":"a","usage":{"input_tokens":70,"output_tokens":30}},{"text":"b"}]}`), 0o600))
	var gate model.Gate
	m, _, err := model.Opener{Gate: &gate}.Open("script:" + file)
	require.NoError(t, err)
	ask := loop.Request{Messages: []loop.Message{{Role: loop.RoleUser, Text: "12345678"}}}
	synctest.Test(t, func(t *testing.T) {
		limits := &shared{waits: []time.Duration{20 * time.Second, 10 * time.Second}}
		gate.Bind(limits)
		var waits []string
		begun := time.Now()
		reply, err := m.Reply(t.Context(), ask, func(d loop.Delta) {
			if d.Waits != "" {
				waits = append(waits, d.Waits)
			}
		})
		require.NoError(t, err)
		require.Equal(t, 30*time.Second, time.Since(begun))
		require.Equal(t, []string{"the limit of model/script is used up; next request in 20s", "the limit of model/script is used up; next request in 10s"}, waits)
		require.Equal(t, int64(3), limits.taken)
		require.Equal(t, reply.Usage.Total(), limits.taken+limits.corrected)

		stop := errors.New("stopped")
		limits.waits = []time.Duration{time.Hour}
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, stop)
		defer cancel()
		_, err = m.Reply(ctx, ask, func(loop.Delta) {})
		require.ErrorIs(t, err, stop)

		limits.err = errors.New("no server")
		_, err = m.Reply(t.Context(), ask, func(loop.Delta) {})
		require.NoError(t, err, "limits that cannot be asked stop nothing")
	})
}

// failing replies with its name, or fails.
type failing struct {
	name  string
	err   error
	asked int
}

func (f *failing) Reply(context.Context, loop.Request, func(loop.Delta)) (loop.Reply, error) {
	f.asked++
	return loop.Reply{Text: f.name}, f.err
}

func (f *failing) Provider() string { return f.name }

// Another model replies while the provider is down, and the first one again when it is back.
func TestFallback_RepliesWhileTheProviderIsDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		first := &failing{name: "first", err: &endpoint.Error{Type: endpoint.TypeServerError, Message: "Overloaded"}}
		other := &failing{name: "other"}
		m := model.WithFallback(first, "openai:a", other, loop.Fallback{Model: "anthropic:b", Price: &loop.Price{Input: 1}})
		var waits []string
		ask := func() (loop.Reply, error) {
			return m.Reply(t.Context(), hello(), func(d loop.Delta) { waits = append(waits, d.Waits) })
		}
		for range 3 {
			reply, err := ask()
			require.NoError(t, err)
			require.Equal(t, "other", reply.Text)
			require.Equal(t, "anthropic:b", reply.Fallback.Model)
		}
		require.Equal(t, 1, first.asked, "a provider that was down is left alone for a while")
		require.Contains(t, waits[0], "Overloaded; anthropic:b replies instead")
		first.err = nil
		time.Sleep(time.Minute)
		reply, err := ask()
		require.NoError(t, err)
		require.Equal(t, "first", reply.Text)
		require.Nil(t, reply.Fallback)

		first.err, other.err = &endpoint.Error{Type: endpoint.TypeQuotaExceeded, Message: "Nothing left"}, errors.New("down, too")
		_, err = ask()
		require.ErrorIs(t, err, first.err)
		require.ErrorIs(t, err, other.err)
	})
}

// What is not the provider's failure is not the other model's to answer.
func TestFallback_OtherErrorsStay(t *testing.T) {
	t.Parallel()
	for kind := range strings.FieldsSeq("authentication invalid_request content_filter context_length_exceeded not_found") {
		first, other := &failing{name: "first", err: &endpoint.Error{Type: kind}}, &failing{name: "other"}
		m := model.WithFallback(first, "a", other, loop.Fallback{Model: "b"})
		_, err := m.Reply(t.Context(), hello(), func(loop.Delta) {})
		require.Equal(t, first.err, err)
		require.Zero(t, other.asked, kind)
		require.Equal(t, "first", m.(loop.Provider).Provider()) //nolint:errcheck // it panics
	}
}
