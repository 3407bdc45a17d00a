// Package prose makes texts fit for a reader, a model or a person at a terminal: valid UTF-8,
// without characters that have an effect, within a length, and saying what was left out. JSON that
// is cut is JSON still.
package prose

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxText is the most characters of one result that a model gets to read.
const MaxText = 48_000

// BodyLimit is how many characters a renderer spends on content, which leaves the rest
// of [MaxText] to marks and failures.
const BodyLimit = MaxText - 4_000

// markRoom is more characters than the mark of [Clip] ever has.
const markRoom = 60

// Valid replaces what is not UTF-8.
func Valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// terminalSequence matches the escape sequences by which programs colour text,
// move the cursor and set titles.
var terminalSequence = regexp.MustCompile(`\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])`)

// Plain returns the output of a program as text: terminal sequences are dropped; other control
// characters, with NUL, and invalid UTF-8 are replaced. Tabs, line feeds and carriage returns stay.
func Plain(s string) string {
	if strings.ContainsRune(s, 0x1b) {
		s = terminalSequence.ReplaceAllString(s, "")
	}
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n', r == '\t', r == '\r':
			return r
		case r < 0x20, r >= 0x7f && r < 0xa0:
			return utf8.RuneError
		default:
			return r
		}
	}, s)
}

// Clip returns s with at most limit characters, which must be 100 or more: whole,
// or its head, a mark that says how much is missing, and its tail. It splits no character.
func Clip(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	total := utf8.RuneCountInString(s)
	if total <= limit {
		return s
	}
	keep := limit - markRoom
	head := (keep + 1) / 2
	return s[:Offset(s, head)] +
		fmt.Sprintf("\n[... %d characters left out ...]\n", total-keep) +
		s[Offset(s, total-(keep-head)):]
}

// Short returns s with at most limit characters, the last one "…" when s has more.
func Short(s string, limit int) string {
	if len(s) <= limit || utf8.RuneCountInString(s) <= limit {
		return s
	}
	return s[:Offset(s, limit-1)] + "…"
}

// Head returns the first limit characters of s, and says how many follow.
func Head(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	total := utf8.RuneCountInString(s)
	if total <= limit {
		return s
	}
	return s[:Offset(s, limit)] + fmt.Sprintf(" [... and %d more characters]", total-limit)
}

// Cut returns s, or the first most bytes of it and "..." if it has more. It splits no character.
func Cut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return s[:Border(s[:most])] + "..."
}

// FailureHead begins what a model reads of a call that is not ok: how it ended, and why. Readers
// that show this otherwise drop it by the same words.
func FailureHead[S, C ~string](status S, code C, message string) string {
	return fmt.Sprintf("[%s: %s]\n%s", status, code, Ended(Head(strings.TrimSpace(message), BodyLimit/2)))
}

// diffWords begin the headings of a difference of workspaces.
var diffWords = []string{"new ", "changed ", "removed "} //nolint:gochecknoglobals // a constant

// DiffHead is the heading of what differs at a path, which is "new", "changed" or "removed". The
// other lines of a difference are those of unified diffs.
func DiffHead(change, kind, path string) string {
	return change + " " + kind + " " + OneLine(path) + "\n"
}

// IsDiffHead reports whether a line of a difference is a [DiffHead].
func IsDiffHead(line string) bool {
	return slices.ContainsFunc(diffWords, func(word string) bool { return strings.HasPrefix(line, word) })
}

// Border is where the last whole character of a text ends; the beginning of another one may follow.
func Border[T ~string | ~[]byte](text T) int {
	for start := len(text) - 1; start >= 0 && start > len(text)-utf8.UTFMax; start-- {
		if utf8.RuneStart(text[start]) {
			if !utf8.FullRune([]byte(text[start:])) {
				return start
			}
			break
		}
	}
	return len(text)
}

// Start is where the first whole character of a text starts; the end of another one may be before
// it. It is 0 for what is no text.
func Start[T ~string | ~[]byte](text T) int {
	for i := range utf8.UTFMax {
		if i == len(text) || utf8.RuneStart(text[i]) {
			return i
		}
	}
	return 0
}

// Offset is where the character at index n of s starts; len(s) beyond the end.
func Offset(s string, n int) int {
	for i := range s {
		if n == 0 {
			return i
		}
		n--
	}
	return len(s)
}

// Ended returns s with a line feed at its end, unless it is empty.
func Ended(s string) string {
	if s == "" || strings.HasSuffix(s, "\n") {
		return s
	}
	return s + "\n"
}

// Plural is "1 line", "2 lines", "2 entries", "2 matches".
func Plural[N int | int64](n N, noun string) string {
	stem, is := strings.CutSuffix(noun, "y")
	switch {
	case n == 1:
	case is:
		noun = stem + "ies"
	case strings.HasSuffix(noun, "ch"):
		noun += "es"
	default:
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}

// Path is a path as a reader gets it, see [OneLine]. The workspace itself is ".".
func Path(path string) string {
	if path == "" {
		return "."
	}
	return OneLine(path)
}

// OneLine is a name that others chose as a reader gets it: quoted when it has characters that would
// break a line, act on a terminal, or could not be seen.
func OneLine(name string) string {
	if !utf8.ValidString(name) || strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(name)
	}
	return name
}

// Visible returns a text of any number of lines in a form that a terminal shows and does nothing
// else with. Line ends and tabs stay.
func Visible(s string) string {
	var b strings.Builder
	for _, r := range strings.ReplaceAll(s, "\r\n", "\n") {
		if r == '\n' || r == '\t' {
			b.WriteRune(r)
		} else {
			b.WriteString(VisibleRune(r))
		}
	}
	return b.String()
}

// VisibleRune returns r in a form that a terminal shows and does nothing else with.
func VisibleRune(r rune) string {
	switch {
	case r < ' ':
		return string('\u2400' + r)
	case r < 0x7f:
		return string(r)
	case r == 0x7f:
		return "\u2421"
	case r == '\u00ad', r == '\u200c', r == '\u200d': // hyphens, and joiners of scripts and of emoji
		return string(r)
	case unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp):
		return fmt.Sprintf("<U+%04X>", r)
	default:
		return string(r)
	}
}

// maxName bounds the names that are compared: the comparison is quadratic.
const maxName = 128

// Nearest returns the most similar name: one that differs in a few letters, or else the longest one
// that is part of name or contains it ("functions.read", "read_file"). Names longer than any tool's
// match nothing.
func Nearest(name string, names []string) (string, bool) {
	if len(name) > maxName {
		return "", false
	}
	wanted := strings.ToLower(name)
	best, bestDistance := "", max(1, len(wanted)/3)+1
	for _, candidate := range names {
		if d := Distance(wanted, strings.ToLower(candidate)); d < bestDistance {
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

// Distance is how many single-byte edits, or swaps of neighbours, make a into b.
func Distance(a, b string) int {
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

// Where cutting JSON begins.
const (
	maxJSONString = 12_000 // characters
	maxJSONItems  = 500    // of arrays and objects
)

// FitJSON returns JSON text of at most [BodyLimit] characters: as it is, or with long strings,
// arrays and objects cut, and marks that say how much is missing. What is cut is JSON, too; the
// keys of its objects are sorted. An object that is cut also has the note at its top, unless that
// is "".
func FitJSON(text []byte, note string) string {
	if utf8.RuneCount(text) <= BodyLimit {
		return string(text)
	}
	var value any
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	if decoder.Decode(&value) == nil {
		for characters, items := maxJSONString, maxJSONItems; characters > 0; characters, items = characters/2, (items+1)/2 {
			if shorter := encodeDecoded(withNote(cutJSON(value, characters, items), note)); utf8.RuneCount(shorter) <= BodyLimit {
				return string(shorter)
			}
		}
	}
	return string(encodeDecoded(withNote(Clip(string(text), BodyLimit/3), note))) // quoting makes it longer
}

// withNote puts a note into a value.
func withNote(value any, note string) any {
	if note == "" {
		return value
	}
	switch value := value.(type) {
	case map[string]any:
		value["[cut]"] = note
		return value
	case []any:
		return append(value, "[cut: "+note+"]")
	case string:
		return value + " [cut: " + note + "]"
	default:
		return value
	}
}

// cutJSON returns value with no string longer than so many characters, and no array or
// object with more than so many items, but for the marks.
func cutJSON(value any, characters, items int) any {
	switch value := value.(type) {
	case string:
		return Head(value, characters)
	case []any:
		cut := make([]any, 0, min(len(value), items)+1)
		for _, item := range value[:min(len(value), items)] {
			cut = append(cut, cutJSON(item, characters, items))
		}
		if len(value) > items {
			cut = append(cut, fmt.Sprintf("[... and %d more of %d items]", len(value)-items, len(value)))
		}
		return cut
	case map[string]any:
		keys := slices.Sorted(maps.Keys(value))
		cut := make(map[string]any, min(len(keys), items)+1)
		for _, key := range keys[:min(len(keys), items)] {
			cut[Head(key, characters)] = cutJSON(value[key], characters, items)
		}
		if len(keys) > items {
			cut["[...]"] = fmt.Sprintf("and %d more of %d keys", len(keys)-items, len(keys))
		}
		return cut
	default:
		return value
	}
}

// encodeDecoded is encodeJSON of what was decoded from JSON.
func encodeDecoded(value any) []byte {
	text, err := JSON(value)
	if err != nil {
		return []byte("null")
	}
	return text
}

// JSON is [json.Marshal] without the escapes that are for HTML.
func JSON(v any) ([]byte, error) {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(out.Bytes(), []byte{'\n'}), nil
}
