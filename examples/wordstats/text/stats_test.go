package text

import (
	"slices"
	"testing"
	"time"
)

const fox = "The quick brown fox jumps over the lazy dog. The dog sleeps.\n"

func TestMeasure(t *testing.T) {
	stats := Measure(fox)
	if stats.Words != 12 || stats.Different != 9 {
		t.Errorf("%d words, %d different; want 12 and 9", stats.Words, stats.Different)
	}
	want := []Count{{"the", 3}, {"dog", 2}, {"brown", 1}}
	if got := stats.Top(3); !slices.Equal(got, want) {
		t.Errorf("Top(3) = %v, want %v", got, want)
	}
	if got := len(stats.Top(100)); got != 9 {
		t.Errorf("Top(100) has %d words, want 9", got)
	}
}

func TestReadingTime(t *testing.T) {
	if got := (Stats{Words: 480}).ReadingTime(); got != 2*time.Minute {
		t.Errorf("480 words take %s, want 2m", got)
	}
}
