package protocol

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// Limits of [HTTPFetch].
const (
	// DefaultFetchBytes is how much of a response's body is read when the payload sets no limit.
	DefaultFetchBytes = 5 << 20
	// MaxFetchBytes is the largest limit that a payload may set, in bytes.
	MaxFetchBytes = 16 << 20
	// maxURL is the longest URL, in bytes.
	maxURL = 8 << 10
)

// HTTPFetch requests one page of the web, from the worker, under the network rules of
// sandboxes: only hosts that the worker allows, and no private addresses. Redirects are
// judged again.
type HTTPFetch struct {
	// URL begins with "http://" or "https://", and contains no user name and no password.
	URL string `json:"url"`
	// Method is "GET" or "HEAD"; "" means "GET".
	Method string `json:"method,omitempty"`
	// Headers are sent with the request. [FetchHeaders] lists the allowed names.
	Headers map[string]string `json:"headers,omitempty"`
	// MaxBytes is how much of the body is read, at most [MaxFetchBytes]; 0 means
	// [DefaultFetchBytes]. What follows is left out.
	MaxBytes int64 `json:"max_bytes,omitempty"`
	// Raw returns HTML as it is; otherwise it becomes Markdown.
	Raw bool `json:"raw,omitempty"`
}

// HTTPFetchResult answers [HTTPFetch]. A response with an error status, such as 404, is a result.
type HTTPFetchResult struct {
	// URL is the address of the response, after redirects.
	URL string `json:"url"`
	// Status is the status code of HTTP.
	Status int `json:"status"`
	// MediaType is that of the body as it was sent, such as "text/html".
	MediaType string `json:"media_type,omitempty"`
	// Title is the title of an HTML page.
	Title string `json:"title,omitempty"`
	// Content is the body: Markdown for HTML, other text in UTF-8, an image as it is. It is empty
	// for everything else, and for HEAD.
	Content Bytes `json:"content,omitempty"`
	// Image is the media type of an image that models can see, such as "image/png".
	Image string `json:"image,omitempty"`
	// Bytes is how many bytes of the body were read.
	Bytes int64 `json:"bytes"`
	// Truncated reports that the body is longer than the limit.
	Truncated bool `json:"truncated,omitempty"`
	// Redirects are the addresses before URL, the first one as requested.
	Redirects []string `json:"redirects,omitempty"`
	// Headers are those of the response that help to request again: ETag, Last-Modified,
	// Retry-After, Location, Content-Length.
	Headers map[string]string `json:"headers,omitempty"`
}

// FetchHeaders returns the names of the headers that [HTTPFetch] may send, sorted.
func FetchHeaders() []string {
	return []string{"Accept", "Accept-Language", "If-Modified-Since", "If-None-Match", "User-Agent"}
}

// Validate reports an invalid payload as [CodeInvalidArguments].
func (f HTTPFetch) Validate() *Error {
	invalid := func(format string, args ...any) *Error { return Errorf(CodeInvalidArguments, format, args...) }
	u, err := url.Parse(f.URL)
	switch {
	case len(f.URL) > maxURL:
		return invalid("url: %d bytes: must be at most %d", len(f.URL), maxURL)
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return invalid("url %q: must begin with http:// or https:// and name a host", f.URL)
	case u.User != nil:
		return invalid("url: must not contain a user name or a password")
	case !slices.Contains([]string{"", http.MethodGet, http.MethodHead}, f.Method):
		return invalid("method %q: must be GET or HEAD", f.Method)
	case f.MaxBytes < 0 || f.MaxBytes > MaxFetchBytes:
		return invalid("max_bytes %d: must be between 1 and %d", f.MaxBytes, MaxFetchBytes)
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
