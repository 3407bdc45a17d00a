package logintest

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"strings"
)

// Open opens a page, as the browser of a user who accepts everything.
func Open(ctx context.Context, web http.RoundTripper, page string) (status int, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, page, http.NoBody)
	if err != nil {
		return 0, err
	}
	response, err := (&http.Client{Transport: web}).Do(request)
	if err != nil {
		return 0, err
	}
	return response.StatusCode, response.Body.Close()
}

// Browse opens every page that a line of what a login prints is, until that ends.
func Browse(ctx context.Context, output io.Reader) error {
	lines := bufio.NewScanner(output)
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "http") {
			if _, err := Open(ctx, http.DefaultTransport, lines.Text()); err != nil {
				return err
			}
		}
	}
	return lines.Err()
}
