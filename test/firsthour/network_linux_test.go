package firsthour

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/test/processtest"
)

// probes are an address in each set of hosts that a project may name.
var probes = map[string]string{
	"go":  "https://proxy.golang.org/golang.org/x/mod/@v/v0.42.0.info",
	"npm": "https://registry.npmjs.org/ms/2.1.3",
}

// passed are variables by which a machine says how registries are reached, for the sandbox, too.
var passed = []string{
	"HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy", "GOSUMDB", "SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS",
}

// reach are the flags by which sandboxes reach sets of hosts: directly, or by the proxy that the
// environment names, and also where these have no public addresses. It skips the test where this
// process reaches them neither way.
func reach(t *testing.T, sets []string) []string {
	t.Helper()
	if len(sets) == 0 {
		return nil
	}
	allow, private := append([]string(nil), sets...), []string(nil)
	for _, set := range sets {
		address, err := url.Parse(probes[set])
		require.NoError(t, err)
		fetch(t, address)
		host := address.Hostname()
		if proxy, err := http.ProxyFromEnvironment(&http.Request{URL: address}); err == nil && proxy != nil {
			host = proxy.Hostname()
			allow = append(allow, host+":"+proxy.Port())
		}
		addresses, err := net.DefaultResolver.LookupNetIP(t.Context(), "ip4", host)
		require.NoError(t, err)
		for _, a := range addresses {
			if a.IsLoopback() {
				processtest.Unavailable(t, host+" is a proxy of this host's own, which no sandbox reaches")
			}
			private = append(private, a.Unmap().String()+"/32")
		}
	}
	flags := []string{"--allow-net", strings.Join(allow, ","), "--allow-net-private", strings.Join(private, ",")}
	for _, name := range passed {
		if value := os.Getenv(name); value != "" {
			flags = append(flags, "--env", name+"="+value)
		}
	}
	return flags
}

// fetch skips the test unless an address can be fetched.
func fetch(t *testing.T, address *url.URL) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address.String(), nil)
	require.NoError(t, err)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		processtest.Unavailable(t, "there is no network: "+err.Error())
	}
	defer response.Body.Close()
	_, _ = io.Copy(io.Discard, response.Body)
	require.Equal(t, http.StatusOK, response.StatusCode, address)
}
