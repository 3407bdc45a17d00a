package model_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/model"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

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
