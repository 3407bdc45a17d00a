package openai

import (
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// retryAfter is how long a server asks to wait: retry-after-ms in milliseconds, else
// Retry-After in seconds or as a date. A date is read by the server's own clock when
// it tells it, so that the clocks need not agree. It returns 0 when there is no wish.
func retryAfter(header http.Header, now time.Time) time.Duration {
	if d, ok := parseDelay(header.Get("Retry-After-Ms"), time.Millisecond); ok {
		return d
	}
	value := header.Get("Retry-After")
	if d, ok := parseDelay(value, time.Second); ok {
		return d
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	if serverNow, err := http.ParseTime(header.Get("Date")); err == nil {
		now = serverNow
	}
	return max(at.Sub(now), 0)
}

func parseDelay(value string, unit time.Duration) (time.Duration, bool) {
	number, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
	if err != nil || math.IsNaN(number) || number < 0 {
		return 0, false
	}
	// A float beyond an int64 has no defined conversion.
	return time.Duration(min(number*float64(unit), float64(math.MaxInt64/2))), true
}
