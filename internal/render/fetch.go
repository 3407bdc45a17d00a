package render

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/internal/prose"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Fetch is the text of a response from the web.
func Fetch(v protocol.HTTPFetchResult, r rest) string {
	about := []string{strings.TrimSpace(fmt.Sprintf("%d %s", v.Status, http.StatusText(v.Status)))}
	if v.MediaType != "" {
		about = append(about, prose.Plural(v.Bytes, "byte")+" of "+v.MediaType)
	}
	if len(v.Redirects) > 0 {
		about = append(about, "redirected to "+v.URL)
	}
	if v.Title != "" {
		about = append(about, fmt.Sprintf("title %q", v.Title))
	}
	for _, name := range slices.Sorted(maps.Keys(v.Headers)) {
		about = append(about, name+": "+v.Headers[name])
	}
	if v.Truncated {
		about = append(about, "the body is longer: the rest was left out (max_bytes limits what is read, raw returns HTML as it is)")
	}
	text := prose.Plain(string(v.Content))
	switch {
	case v.Image != "":
		one, several := mediaKind(v.Image)
		about, text = append(about, one+": here it is, if you take "+several), ""
	case text == "" && v.Bytes > 0:
		about = append(about, "not text: not shown")
	}
	head := "[" + prose.Plain(strings.Join(about, "; ")) + "]"
	if text == "" {
		return head
	}
	if shown := prose.Clip(text, prose.BodyLimit); shown != text {
		text = shown + r.mark("")
	}
	return head + "\n" + text
}
