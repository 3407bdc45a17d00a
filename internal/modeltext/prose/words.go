package prose

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/runes"
	"golang.org/x/text/transform"
	"golang.org/x/text/unicode/norm"
)

// EachWord passes on the words of a text, in lower case, and where they begin: letters, their marks
// and digits. Of a script without spaces between words each character is one.
func EachWord(text string, found func(word string, at int)) {
	begun := -1
	end := func(to int) {
		if begun >= 0 {
			found(strings.ToLower(text[begun:to]), begun)
		}
		begun = -1
	}
	for i, r := range text {
		switch {
		case IsUnspaced(r):
			end(i)
			found(text[i:i+utf8.RuneLen(r)], i)
		case !unicode.IsLetter(r) && !unicode.IsDigit(r) && !unicode.IsMark(r):
			end(i)
		case begun < 0:
			begun = i
		}
	}
	end(len(text))
}

// IsUnspaced reports whether a character is of a script that has no spaces between words.
func IsUnspaced(r rune) bool {
	const prolonged = '\u30fc' // of Katakana, and of no script
	return r == prolonged || unicode.In(r, unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Thai, unicode.Lao, unicode.Khmer, unicode.Myanmar)
}

// Unmarked returns a word without accents and other marks above and below its letters.
func Unmarked(word string) string {
	for i := range len(word) {
		if word[i] >= utf8.RuneSelf {
			marks := transform.Chain(norm.NFD, runes.Remove(runes.In(unicode.Mn)), norm.NFC)
			if plain, _, err := transform.String(marks, word); err == nil {
				return plain
			}
			break
		}
	}
	return word
}

// Around returns that many bytes of a text around an offset, with "..." for what is left out. It
// splits no character.
func Around(text string, at, most int) string {
	if len(text) <= most {
		return text
	}
	from := max(at-most/4, 0)
	to := min(from+most, len(text))
	piece := strings.ToValidUTF8(text[from:to], "")
	if from > 0 {
		piece = "..." + piece
	}
	if to < len(text) {
		piece += "..."
	}
	return piece
}
