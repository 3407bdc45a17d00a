package terminal

import (
	"strings"
)

// How much is shown of what, in lines.
const (
	maxInputLines  = 8
	maxResultLines = 8
	maxFoldedLines = 5
	maxDiffLines   = 60
	maxFiles       = 20
)

// lines splits a text at its line ends, CR LF too. The empty text has none.
func lines(s string) []string {
	if s == "" {
		return nil
	}
	all := strings.Split(strings.TrimSuffix(s, "\n"), "\n")
	for i := range all {
		all[i] = strings.TrimSuffix(all[i], "\r")
	}
	return all
}

// excerpt returns the head and the tail of a text, at most limit lines with the
// one that says how many are left out. Empty lines at its ends do not count.
func excerpt(s string, limit int) []string {
	all := lines(strings.Trim(s, "\r\n"))
	if len(all) <= limit {
		return all
	}
	head, tail := limit/2, limit-limit/2-1
	short := append([]string{}, all[:head]...)
	short = append(short, "… "+Plural(len(all)-head-tail, "more line")+" …")
	return append(short, all[len(all)-tail:]...)
}
