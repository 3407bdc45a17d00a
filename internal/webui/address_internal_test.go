package webui

import (
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/overview"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// TestAddresses_LeadToOnePage: whatever an id or a name is, its address is that of its own page.
func TestAddresses_LeadToOnePage(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"s", "a/b", "../fleet", "a?b=c&d", "a#b", "a%2Fb", "a b", "ä", `a"b`} {
		session, call, pool := protocol.SessionID(name), protocol.CallID(name), protocol.Pool(name)
		for path, pattern := range map[string]string{
			sessionPath(name):                     "/sessions/{session}",
			sessionPath(session, "files"):         "/sessions/{session}/files",
			sessionCallPath(session, call):        "/sessions/{session}/calls/{call}",
			sessionPath(name, "calls", name, "x"): "/sessions/{session}/calls/{call}/x",
			callPath(session, call):               "/calls/{session}/{call}",
		} {
			mux, is := http.NewServeMux(), false
			mux.HandleFunc(pattern, func(_ http.ResponseWriter, r *http.Request) {
				is = r.PathValue("session") == name && slices.Contains([]string{name, ""}, r.PathValue("call"))
			})
			mux.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
			require.True(t, is, path)
		}
		for path, want := range map[string]url.Values{
			lanePath(pool, protocol.Lane(name)):                                          {"pool": {name}, "lane": {name}},
			lanesPath(pool):                                                              {"pool": {name}},
			workerPath(pool, protocol.WorkerID(name)):                                    {"pool": {name}, "id": {name}},
			limitPath(fleet.Limit{Lane: name}):                                           {"lane": {name}},
			logPath("worker", name, "tenant", ""):                                        {"worker": {name}},
			waitPath(&report.Wait{Limit: name}):                                          {"lane": {name}},
			(&filesPage{sessionPage: &sessionPage{Session: "s"}, At: call}).OfFile(name): {"path": {name}, "at": {name}},
			again("/waits", url.Values{}, ""):                                            {"shown": {""}},
		} {
			parsed, err := url.Parse(path)
			require.NoError(t, err)
			require.Equal(t, want, parsed.Query(), path)
		}
	}
	require.Empty(t, lookPath(overview.Look{}))
	require.Equal(t, "/files?a=b", withQuery("/files", changed(url.Values{"a": {"c"}, "d": {"e"}}, "a", "b", "d", "")))
	require.Equal(t, "/files", withQuery("/files", nil))
}

// TestTemplates_PutNoAddressTogether: a template has fixed addresses, and those that functions
// make; behind these it may have a name in the query and its value.
func TestTemplates_PutNoAddressTogether(t *testing.T) {
	t.Parallel()
	names, err := fs.Glob(files, "templates/*.html")
	require.NoError(t, err)
	frames, err := fs.Glob(files, "templates/frame/*.html")
	require.NoError(t, err)
	within, query := regexp.MustCompile(`\{\{base}}/[^"?]*\{\{[^"]*`), regexp.MustCompile(`\{\{base}}[^"]*\?\{\{[^"]*`)
	for _, name := range append(names, frames...) {
		text, err := fs.ReadFile(files, name)
		require.NoError(t, err)
		for _, found := range append(within.FindAllString(string(text), -1), query.FindAllString(string(text), -1)...) {
			require.Regexp(t, `^\{\{base}}/assets/[a-z.-]*\?\{\{\.Version}}$`, found, name)
		}
	}
}
