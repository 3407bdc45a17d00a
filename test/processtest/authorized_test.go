package processtest_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/test/processtest"
)

// TestAuthorized_PassesAnswersThatComeAtOnce: a server may begin its answer before it has the whole
// request.
func TestAuthorized_PassesAnswersThatComeAtOnce(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(file, []byte("secret\n"), 0o600))
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		control := http.NewResponseController(w)
		_, _ = control.EnableFullDuplex(), control.Flush()
		n, err := io.Copy(io.Discard, r.Body)
		_, _ = fmt.Fprintln(w, n, err, r.Header.Get("Authorization"))
	}))
	t.Cleanup(web.Close)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, processtest.Authorized(t, web.URL, file), strings.NewReader(strings.Repeat("x", 1<<20)))
	require.NoError(t, err)
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	said, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, "1048576 <nil> Bearer secret\n", string(said))
}
