package shell

import (
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// wordOf reads a word as the shell does before it starts the program.
func wordOf(word *syntax.Word) Word {
	var b strings.Builder
	for _, part := range word.Parts {
		text, known := partOf(part)
		if !known {
			return Word{Text: source(word)}
		}
		b.WriteString(text)
	}
	return Word{Text: b.String(), Known: true}
}

// partOf reads one part of a word; known is false for what the shell expands.
func partOf(part syntax.WordPart) (text string, known bool) {
	switch part := part.(type) {
	case *syntax.Lit:
		return literal(part.Value)
	case *syntax.SglQuoted:
		return part.Value, !part.Dollar
	case *syntax.DblQuoted:
		var b strings.Builder
		for _, inner := range part.Parts {
			lit, isLit := inner.(*syntax.Lit)
			if !isLit {
				return "", false
			}
			b.WriteString(quotedLiteral(lit.Value))
		}
		return b.String(), !part.Dollar
	default:
		return "", false
	}
}

// literal takes the backslashes out of unquoted text. Globs, braces and a tilde make it unknown.
func literal(value string) (text string, known bool) {
	if strings.HasPrefix(value, "~") {
		return "", false
	}
	var b strings.Builder
	for i := 0; i < len(value); i++ {
		switch c := value[i]; c {
		case '\\':
			if i++; i < len(value) && value[i] != '\n' {
				b.WriteByte(value[i])
			}
		case '*', '?', '[':
			return "", false
		case '{':
			if strings.ContainsAny(value[i:], ",.") {
				return "", false
			}
			b.WriteByte(c)
		default:
			b.WriteByte(c)
		}
	}
	return b.String(), true
}

// quotedLiteral takes the backslashes out of text in double quotes.
func quotedLiteral(value string) string {
	var b strings.Builder
	for i := 0; i < len(value); i++ {
		if value[i] == '\\' && i+1 < len(value) {
			switch value[i+1] {
			case '$', '`', '"', '\\':
				i++
			case '\n':
				i++
				continue
			}
		}
		b.WriteByte(value[i])
	}
	return b.String()
}

// source is a node as it is written.
func source(node syntax.Node) string {
	var b strings.Builder
	if err := syntax.NewPrinter(syntax.SingleLine(true)).Print(&b, node); err != nil {
		return "?"
	}
	return b.String()
}
