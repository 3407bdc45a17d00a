// Package text splits texts into words and counts them.
package text

import (
	"strings"
	"unicode"
)

// Split returns the words of a text in lower case. A word is a run of letters and
// digits; an apostrophe or a hyphen inside a word belongs to it, as in "don't" and
// "well-known".
func Split(s string) []string {
	var words []string
	var word strings.Builder
	for _, r := range s {
		switch {
		case unicode.IsLetter(r), unicode.IsDigit(r):
			word.WriteRune(unicode.ToLower(r))
		case isJoiner(r) && word.Len() > 0:
			word.WriteRune(r)
		case word.Len() > 0:
			words = append(words, trim(word.String()))
			word.Reset()
		}
	}
	return words
}

func isJoiner(r rune) bool { return r == '\'' || r == '-' }

// trim removes joiners at the end, where they join nothing.
func trim(word string) string { return strings.TrimRightFunc(word, isJoiner) }
