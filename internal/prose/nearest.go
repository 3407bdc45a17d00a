package prose

import "strings"

// maxName bounds the names that are compared: the comparison is quadratic.
const maxName = 128

// Nearest returns the name that was most likely meant: one that differs in a few
// letters, or else the longest one that is part of name or has it as a part
// ("functions.read", "read_file"). Names longer than any tool's match nothing.
func Nearest(name string, names []string) (string, bool) {
	if len(name) > maxName {
		return "", false
	}
	wanted := strings.ToLower(name)
	best, bestDistance := "", max(1, len(wanted)/3)+1
	for _, candidate := range names {
		if d := distance(wanted, strings.ToLower(candidate)); d < bestDistance {
			best, bestDistance = candidate, d
		}
	}
	if best != "" {
		return best, true
	}
	for _, candidate := range names {
		lower := strings.ToLower(candidate)
		related := strings.Contains(wanted, lower) || len(wanted) > 2 && strings.Contains(lower, wanted)
		if related && len(candidate) > len(best) {
			best = candidate
		}
	}
	return best, best != ""
}

// distance is how many single-byte edits, or swaps of neighbours, make a into b.
func distance(a, b string) int {
	before, previous := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range previous {
		previous[j] = j
	}
	for i := 1; i <= len(a); i++ {
		current := make([]int, len(b)+1)
		current[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			current[j] = min(previous[j]+1, current[j-1]+1, previous[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				current[j] = min(current[j], before[j-2]+1)
			}
		}
		before, previous = previous, current
	}
	return previous[len(b)]
}
