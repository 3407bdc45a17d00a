package protocol

// HTTPFetch requests one page of the web, from the worker, under the network rules of
// sandboxes: only hosts that the worker allows, and no private addresses. Redirects are
// judged again.
type HTTPFetch struct {
	// URL begins with "http://" or "https://", and contains no user name and no password.
	URL string `json:"url"`
	// Method is "GET" or "HEAD"; "" means "GET".
	Method string `json:"method,omitempty"`
	// Headers are sent with the request. Allowed are Accept, Accept-Language, If-Modified-Since,
	// If-None-Match and User-Agent.
	Headers map[string]string `json:"headers,omitempty"`
	// MaxBytes is how much of the body is read, at most 16 MiB; 0 means 5 MiB. What
	// follows is left out.
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
	// Content is the body: Markdown for HTML, other text in UTF-8, an image or a PDF document as it
	// is. It is empty for everything else, and for HEAD.
	Content Bytes `json:"content,omitempty"`
	// Image is the media type of an image or document that models take, such as "image/png".
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
