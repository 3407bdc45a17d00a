package wire

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Limits of [protocol.HTTPFetch].
const (
	maxFetchBytes = 16 << 20
	maxFetchURL   = 8 << 10 // bytes
)

// FetchHeaders returns the names of the headers that [protocol.HTTPFetch] may send, sorted.
func FetchHeaders() []string {
	return []string{"Accept", "Accept-Language", "If-Modified-Since", "If-None-Match", "User-Agent"}
}

// CheckFetch reports an invalid payload as [protocol.CodeInvalidArguments].
func CheckFetch(f protocol.HTTPFetch) *protocol.Error {
	invalid := func(format string, args ...any) *protocol.Error {
		return protocol.Errorf(protocol.CodeInvalidArguments, format, args...)
	}
	u, err := url.Parse(f.URL)
	switch {
	case len(f.URL) > maxFetchURL:
		return invalid("url: %d bytes: must be at most %d", len(f.URL), maxFetchURL)
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return invalid("url %q: must begin with http:// or https:// and name a host", f.URL)
	case u.User != nil:
		return invalid("url: must not contain a user name or a password")
	case !slices.Contains([]string{"", http.MethodGet, http.MethodHead}, f.Method):
		return invalid("method %q: must be GET or HEAD", f.Method)
	case f.MaxBytes < 0 || f.MaxBytes > maxFetchBytes:
		return invalid("max_bytes %d: must be between 1 and %d", f.MaxBytes, maxFetchBytes)
	}
	for name, value := range f.Headers {
		if !slices.ContainsFunc(FetchHeaders(), func(allowed string) bool { return strings.EqualFold(allowed, name) }) {
			return invalid("headers: %q cannot be sent: must be one of %s", name, strings.Join(FetchHeaders(), ", "))
		}
		if strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
			return invalid("headers: the value of %q contains a control character", name)
		}
	}
	return nil
}
