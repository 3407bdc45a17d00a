package text

import (
	"cmp"
	"slices"
	"time"
)

// wordsPerMinute is the pace of an adult who reads silently.
const wordsPerMinute = 240

// Stats are the numbers of one text.
type Stats struct {
	Words     int
	Different int
	counts    map[string]int
}

// Count is a word and how often it occurs.
type Count struct {
	Word  string
	Count int
}

// Measure counts the words of a text.
func Measure(s string) Stats {
	words := Split(s)
	counts := make(map[string]int)
	for _, word := range words {
		counts[word]++
	}
	return Stats{Words: len(words), Different: len(counts), counts: counts}
}

// Top returns the n most frequent words; equally frequent ones are in alphabetical order.
func (s Stats) Top(n int) []Count {
	all := make([]Count, 0, len(s.counts))
	for word, count := range s.counts {
		all = append(all, Count{word, count})
	}
	slices.SortFunc(all, func(a, b Count) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Word, b.Word))
	})
	return all[:min(n, len(all))]
}

// ReadingTime is how long a person needs for the text.
func (s Stats) ReadingTime() time.Duration {
	return time.Duration(s.Words) * time.Minute / wordsPerMinute
}
