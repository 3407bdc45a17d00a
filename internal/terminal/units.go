package terminal

import (
	"fmt"
	"math"
	"strconv"
	"time"
)

// duration returns d for people, in two or three digits.
func duration(d time.Duration) string {
	switch {
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.1f ms", float64(max(d, 0))/float64(time.Millisecond))
	case d.Round(time.Millisecond) < time.Second:
		return fmt.Sprintf("%d ms", d.Round(time.Millisecond).Milliseconds())
	case d.Round(100*time.Millisecond) < time.Minute:
		return fmt.Sprintf("%.1f s", d.Round(100*time.Millisecond).Seconds())
	case d.Round(time.Second) < time.Hour:
		whole := int(d.Round(time.Second).Seconds())
		return fmt.Sprintf("%d min %d s", whole/60, whole%60)
	default:
		whole := int(d.Round(time.Minute).Minutes())
		return fmt.Sprintf("%d h %d min", whole/60, whole%60)
	}
}

// millis returns a number of milliseconds for people; "" for one that is none.
func millis(ms *float64) string {
	if ms == nil || math.IsNaN(*ms) || *ms < 0 || *ms > float64(math.MaxInt64/time.Millisecond) {
		return ""
	}
	return duration(time.Duration(*ms * float64(time.Millisecond)))
}

// count returns n with a comma before every third digit from the end.
func count[N int | int64](n N) string {
	digits := strconv.FormatInt(int64(n), 10)
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// Plural is "1 tool", "2 tools".
func Plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return count(n) + " " + noun + "s"
}
