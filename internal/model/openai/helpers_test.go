package openai_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/toolfleet/toolfleet/internal/model/modeltest"
	"github.com/toolfleet/toolfleet/internal/model/openai"
	"github.com/toolfleet/toolfleet/pkg/loop"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const key = modeltest.Key

// server is one of chat completions.
type server struct{ *modeltest.Server }

func serve(t *testing.T, answers ...modeltest.Answer) *server {
	t.Helper()
	return &server{modeltest.Serve(t, chat(), answers...)}
}

// model is one of the server, with delays too short to notice.
func (s *server) model(t *testing.T, change ...func(*openai.Options)) *openai.Model {
	t.Helper()
	opts := openai.Options{Options: s.Options()}
	for _, f := range change {
		f(&opts)
	}
	m, err := openai.New(opts)
	require.NoError(t, err)
	return m
}

// Parts of a stream.
const (
	done = "data: [DONE]"
	stop = `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`
)

func text(s string) string {
	quoted, _ := json.Marshal(s)
	return fmt.Sprintf(`data: {"model":"m-1-2026","choices":[{"index":0,"delta":{"content":%s}}]}`, quoted)
}

func toolCalls(pieces string) string {
	return `data: {"choices":[{"index":0,"delta":{"tool_calls":` + pieces + `}}]}`
}

func finish(reason string) string {
	return `data: {"choices":[{"index":0,"delta":{},"finish_reason":"` + reason + `"}]}`
}

func usage(in, out int) string {
	return fmt.Sprintf(`data: {"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d}}`, in, out)
}

// pieces collects what a model streams.
type pieces []string

func (p *pieces) add(piece loop.Delta) { *p = append(*p, piece.Text) }

func (p *pieces) String() string { return strings.Join(*p, "|") }
