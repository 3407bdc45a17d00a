package telemetrytest_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/telemetry/telemetrytest"
)

func TestReceiver_RefusesWhatIsNoExport(t *testing.T) {
	t.Parallel()
	receiver := telemetrytest.Start(t)
	for name, c := range map[string]struct{ path, kind, body string }{
		"another path":  {"/v1/profiles", "application/x-protobuf", ""},
		"JSON":          {"/v1/traces", "application/json", "{}"},
		"not a message": {"/v1/traces", "application/x-protobuf", "\xff\xff"},
		"no metrics":    {"/v1/metrics", "application/x-protobuf", "\xff\xff"},
		"no logs":       {"/v1/logs", "application/x-protobuf", "\xff\xff"},
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, receiver.URL+c.path, strings.NewReader(c.body))
		require.NoError(t, err)
		req.Header.Set("Content-Type", c.kind)
		response, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		require.Equal(t, http.StatusBadRequest, response.StatusCode, name)
	}
	require.Equal(t, 5, receiver.Requests())
	require.Empty(t, receiver.Spans())
	require.Empty(t, receiver.Points())
	require.Empty(t, receiver.Records())
}

func TestTree_ShowsParents(t *testing.T) {
	t.Parallel()
	root := &telemetrytest.Span{Name: "root", TraceID: "t", SpanID: "1", Service: "a"}
	child := &telemetrytest.Span{Name: "child", TraceID: "t", SpanID: "2", ParentID: "1", Service: "b", Failed: true, Message: "why"}
	lost := &telemetrytest.Span{Name: "lost", TraceID: "t", SpanID: "3", ParentID: "gone"}
	tree := telemetrytest.Tree([]*telemetrytest.Span{child, root, lost})
	require.Contains(t, tree, "root (a")
	require.Contains(t, tree, "\n  child (b")
	require.Contains(t, tree, "failed: why")
	require.Contains(t, tree, "\nlost (")
	require.True(t, child.ChildOf(root))
	require.False(t, root.ChildOf(child))
}
