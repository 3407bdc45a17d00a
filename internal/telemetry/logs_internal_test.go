package telemetry

import (
	"errors"
	"log/slog"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLogHandler_RedactsWhateverHasAText: also a pointer that is nil, whose methods cannot be
// called, and what is said about the export itself.
func TestLogHandler_RedactsWhateverHasAText(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	redact := func(text string) string { return strings.ReplaceAll(text, "secret", "xxx") }
	logger := slog.New(NewLogHandler(slog.NewTextHandler(&out, nil), redact))
	logger.InfoContext(t.Context(), "a secret", slog.Any("url", (*url.URL)(nil)), slog.Any("other", &url.URL{Path: "/secret"}), slog.Any("error", errors.New("secret")))
	require.Contains(t, out.String(), `msg="a xxx" url=<nil> other=/xxx error=xxx`)
	out.Reset()
	localOnly(logger).InfoContext(t.Context(), "export to secret")
	require.Contains(t, out.String(), `msg="export to xxx"`)
}
