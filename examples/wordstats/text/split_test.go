package text

import (
	"slices"
	"testing"
)

func TestSplit(t *testing.T) {
	for name, c := range map[string]struct {
		in   string
		want []string
	}{
		"nothing":            {"", nil},
		"only punctuation":   {"... !?", nil},
		"a sentence":         {"The quick brown fox.", []string{"the", "quick", "brown", "fox"}},
		"lines":              {"one\ntwo\n", []string{"one", "two"}},
		"digits":             {"Route 66, west.", []string{"route", "66", "west"}},
		"inside a word":      {"Don't call it well-known!", []string{"don't", "call", "it", "well-known"}},
		"quotes":             {"'Yes,' she said.", []string{"yes", "she", "said"}},
		"other alphabets":    {"Größe, слово.", []string{"größe", "слово"}},
		"no end of the line": {"the lazy dog", []string{"the", "lazy", "dog"}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Split(c.in); !slices.Equal(got, c.want) {
				t.Errorf("Split(%q) = %q, want %q", c.in, got, c.want)
			}
		})
	}
}
