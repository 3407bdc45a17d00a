package change

import "unicode/utf8"

// shorten cuts text of a request for a message.
func shorten(text string) string {
	const limit = 80
	if len(text) <= limit {
		return text
	}
	return text[:runeBorder([]byte(text), limit)] + "..."
}

// runeBorder returns the last place at or before limit where no character is split.
func runeBorder(content []byte, limit int) int {
	for limit > 0 && limit < len(content) && !utf8.RuneStart(content[limit]) {
		limit--
	}
	return min(limit, len(content))
}
