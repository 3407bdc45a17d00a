package firsthour

import (
	"archive/zip"
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// serveIndex starts an index of Python packages as pip asks one, in which each package has one
// function, capitals. It returns the flags by which sandboxes reach it, by the proxy: what
// registries are for the other languages no test machine has to reach for Python.
func serveIndex(t *testing.T, packages []string) []string {
	t.Helper()
	if len(packages) == 0 {
		return nil
	}
	mux := http.NewServeMux()
	for _, name := range packages {
		file, content := wheel(t, name)
		mux.HandleFunc("/simple/"+name+"/", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			_, _ = w.Write([]byte(`<a href="/files/` + file + `">` + file + `</a>`))
		})
		mux.HandleFunc("/files/"+file, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(content) })
	}
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	address := strings.TrimPrefix(server.URL, "http://")
	return []string{
		"--allow-net", address, "--allow-net-private", loopback + "/32",
		"--env", "NO_PROXY=", "--env", "no_proxy=", "--env", "PIP_INDEX_URL=" + server.URL + "/simple", "--env", "PIP_TRUSTED_HOST=" + loopback,
	}
}

// wheel is version 1.0.0 of a package, as pip installs it.
func wheel(t *testing.T, name string) (file string, content []byte) {
	t.Helper()
	var buffer bytes.Buffer
	w := zip.NewWriter(&buffer)
	about := name + "-1.0.0.dist-info/"
	for _, entry := range [][2]string{
		{name + ".py", "def capitals(text):\n    return text.upper()\n"},
		{about + "METADATA", "Metadata-Version: 2.1\nName: " + name + "\nVersion: 1.0.0\n"},
		{about + "WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"},
		{about + "RECORD", name + ".py,,\n" + about + "METADATA,,\n" + about + "WHEEL,,\n" + about + "RECORD,,\n"},
	} {
		f, err := w.Create(entry[0])
		require.NoError(t, err)
		_, err = f.Write([]byte(entry[1]))
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	return name + "-1.0.0-py3-none-any.whl", buffer.Bytes()
}
